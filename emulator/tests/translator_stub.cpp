// Just enough of libcuda.so.1 to call a kernel as one thread: for tests of the translator alone.
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "abi/emulator.h"

namespace {

jmp_buf failed;
char message[1024];
char window[1 << 16];
unsigned num_accesses, num_yields, last_kind, last_location;

}  // namespace

extern "C" {

void emu_fail(EmuThread*, uint32_t location, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  last_location = location;
  longjmp(failed, 1);
}

void emu_access(EmuThread*, const void*, uint32_t, uint32_t kind, uint32_t location) {
  ++num_accesses;
  last_kind = kind;
  last_location = location;
}

void emu_yield(EmuThread*) { ++num_yields; }
void emu_acquire(EmuThread*, const void*, EmuScope, EmuOrder) {}
void emu_release(EmuThread*, const void*, EmuScope, EmuOrder) {}
uint64_t emu_clock() { return 7; }

unsigned stub_accesses() { return num_accesses; }
unsigned stub_yields() { return num_yields; }
unsigned stub_last_kind() { return last_kind; }
unsigned stub_last_location() { return last_location; }

const EmuKernel* stub_kernel(const EmuModule* module, const char* name) {
  for (uint32_t i = 0; i < module->num_kernels; ++i) {
    if (strcmp(module->kernels[i].name, name) == 0) return &module->kernels[i];
  }
  return nullptr;
}

// Runs a kernel as thread (3, 0, 0) of a block of 32. Null, or why it failed.
const char* stub_run(const EmuModule* module, const char* name, const char* params, char* const* globals) {
  const EmuKernel* kernel = stub_kernel(module, name);
  if (!kernel) return "no such kernel";
  num_accesses = num_yields = 0;
  EmuThread thread{};
  thread.tid = {3, 0, 0};
  thread.ntid = {32, 1, 1};
  thread.nctaid = thread.nclusterid = thread.cluster_nctaid = {1, 1, 1};
  thread.cluster_nctarank = 1;
  thread.lane = thread.linear = 3;
  thread.shared = window;
  thread.dynamic_shared = kernel->shared_end;
  thread.globals = globals;
  if (setjmp(failed)) return message;
  kernel->run(&thread, params);
  return nullptr;
}
}
