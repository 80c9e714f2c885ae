// Failing with words: which kernel, block and thread, what, and where in the source.
#include <cstdarg>
#include <cstdio>

#include "scheduler.h"

namespace emu {

std::string printf_string(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(vsnprintf(nullptr, 0, format, arguments)), '\0');
  vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(arguments);
  va_end(again);
  return text;
}

std::string rank_of(const Block& block) {
  return block.cluster->blocks.size() > 1 ? printf_string(" of block rank %u", block.rank) : "";
}

std::string place(const EmuModule& module, uint32_t location) {
  std::string chain;
  for (int depth = 0; location && location < module.num_locations && depth < 6; ++depth) {
    const EmuLocation& at = module.locations[location];
    const std::string file = at.file;
    chain += (depth ? " < " : "") + file.substr(file.rfind('/') + 1) + ":" + std::to_string(at.line);
    location = at.caller;
  }
  return chain.empty() ? "?" : chain;
}

void fail(Thread& by, uint32_t location, std::string what, int error) {
  const LaunchConfig& launch = *by.cluster->launch;
  std::string message = printf_string("kernel %s, block (%u,%u,%u) thread (%u,%u,%u): ", launch.kernel->name, by.ctaid.x, by.ctaid.y,
                                      by.ctaid.z, by.tid.x, by.tid.y, by.tid.z) +
                        what;
  if (location) message += " at " + place(*launch.module, location);
  worker().abandon(error, std::move(message));
}

}  // namespace emu

extern "C" void emu_fail(EmuThread* t, uint32_t location, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  emu::fail(emu::thread_of(t), location, text);
}
