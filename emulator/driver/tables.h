// The tables that stubs.py makes from cuda.h. This header does not include cuda.h, because the generated file must not.
#pragma once

namespace emu::driver {

struct ErrorText {  // a member of CUresult
  int code;
  const char* name;
  const char* text;
};
extern const ErrorText kErrorTexts[];
extern const unsigned kNumErrorTexts;

struct EntryPoint {
  const char* name;  // as cuGetProcAddress is asked for it: without a suffix
  int version;       // of CUDA, from which on the name means this function
  void* function;
};
extern const EntryPoint kEntryPoints[];  // sorted by name, then by version
extern const unsigned kNumEntryPoints;

}  // namespace emu::driver
