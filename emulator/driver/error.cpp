// Error handling (driver API 6.1): names and descriptions of CUresult, reasons on stderr, emu_last_error.
#include "error.h"

#include <cstdarg>
#include <cstdio>
#include <mutex>

#include "tables.h"

namespace emu::driver {
namespace {

std::mutex message_mutex;  // guards the next two
std::string& last_message() {
  static auto* message = new std::string;  // never destroyed: threads outlive main
  return *message;
}

const ErrorText* find_error(CUresult code) {
  for (unsigned i = 0; i < kNumErrorTexts; ++i) {
    if (kErrorTexts[i].code == static_cast<int>(code)) return &kErrorTexts[i];
  }
  return nullptr;
}

}  // namespace

void refuse(CUresult code) {
  throw Refusal{code};
}

void refuse(CUresult code, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  complain(text);
  throw Refusal{code};
}

void require(bool condition, CUresult otherwise) {
  if (!condition) refuse(otherwise);
}

void complain(const std::string& message) {
  std::lock_guard lock(message_mutex);
  last_message() = message;
  fprintf(stderr, "emucuda: %s\n", message.c_str());
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuGetErrorName(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = find_error(error);
  *text = found ? found->name : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* found = find_error(error);
  *text = found ? found->text : nullptr;
  return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// The last message that was printed; valid until the calling thread asks again.
extern "C" const char* emu_last_error() {
  static thread_local std::string copy;
  std::lock_guard lock(message_mutex);
  copy = last_message();
  return copy.c_str();
}
