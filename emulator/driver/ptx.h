// PTX as an image: what it is for, and what becomes of it.
#pragma once

#include <cuda.h>

#include <string>

#include "state.h"

namespace emu::driver {

struct Target {
  int major = 0, minor = 0;  // 0: none was named
  char suffix = 0;           // 'a': of this architecture alone; 'f': of its family
};

Target parse_target(const std::string& name);  // "sm_90a"

bool is_ptx(const void* data);
void check_ptx_target(const char* text);  // throws unless devices are what it is for, or newer

// The shared object that the translator makes of PTX; without the lock meanwhile. Throws, with what that printed in `log`.
std::string translated(Lock& lock, const char* text, std::string* log);

// CU_JIT_ERROR_LOG_BUFFER and its size: `text` is in it in the end. Other options steer a compiler that is not there.
class JitLog {
 public:
  JitLog() = default;
  JitLog(unsigned count, const CUjit_option* options, void** values);
  JitLog(const JitLog&) = delete;
  JitLog& operator=(const JitLog&) = delete;
  ~JitLog();

  std::string text;

 private:
  char* buffer_ = nullptr;
  void** size_ = nullptr;
};

}  // namespace emu::driver
