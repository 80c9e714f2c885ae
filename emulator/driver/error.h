// How the driver's code refuses a call: it throws a Refusal, which the entry point turns into the CUresult.
#pragma once

#include <cuda.h>

#include <string>
#include <vector>

namespace emu::driver {

struct Refusal {
  CUresult code;
};

[[noreturn]] void refuse(CUresult code);                          // errors that every program expects: out of memory, not ready
[[noreturn]] void refuse(CUresult code, const char* format, ...)  // with a reason, printed as "emucuda: ..."
    __attribute__((format(printf, 2, 3)));
void require(bool condition, CUresult otherwise = CUDA_ERROR_INVALID_VALUE);

void complain(const std::string& message);  // to stderr, and kept for emu_last_error()

}  // namespace emu::driver
