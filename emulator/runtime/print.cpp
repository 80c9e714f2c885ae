// printf of kernels, and clocks.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "../abi/emulator.h"

namespace {

template <typename T>
T take(const char* arguments, size_t& at) {  // arguments lie at their natural alignment, as nvcc packs them for vprintf
  at = (at + sizeof(T) - 1) / sizeof(T) * sizeof(T);
  T value;
  memcpy(&value, arguments + at, sizeof value);
  at += sizeof value;
  return value;
}

}  // namespace

extern "C" int emu_vprintf(const char* format, const char* arguments) {
  std::string text;
  size_t at = 0;
  int converted = 0;
  for (const char* p = format; *p; ++p) {
    if (*p != '%' || p[1] == '%') {
      text += *p;
      p += *p == '%';
      continue;
    }
    std::string one = "%";
    for (++p; *p && !strchr("diouxXeEfFgGaAcsp", *p); ++p) one += *p;
    if (!*p) break;
    one += *p;
    char out[512];
    if (strchr("eEfFgGaA", *p)) {
      snprintf(out, sizeof out, one.c_str(), take<double>(arguments, at));
    } else if (*p == 's') {
      snprintf(out, sizeof out, one.c_str(), take<const char*>(arguments, at));
    } else if (*p == 'p' || one.find('l') != std::string::npos) {
      snprintf(out, sizeof out, one.c_str(), take<uint64_t>(arguments, at));
    } else {
      snprintf(out, sizeof out, one.c_str(), take<int>(arguments, at));
    }
    text += out;
    ++converted;
  }
  fputs(text.c_str(), stdout);
  fflush(stdout);
  return converted;
}

extern "C" uint64_t emu_globaltimer(void) {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

extern "C" uint64_t emu_clock(void) { return emu_globaltimer() * 2; }  // about the cycles of an H200
