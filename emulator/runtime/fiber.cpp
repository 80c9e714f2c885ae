// Stacks and the switch between them (x86-64, System V calling convention).
#include "fiber.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

#if !defined(__x86_64__)
#error "emu_switch is written for x86-64: port its twenty instructions"
#endif

// Callee-saved registers and the return address are on the stack that is left; those of the other are taken up.
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch, .-emu_switch
)");

namespace emu {

void Fiber::allocate() {
  constexpr size_t kGuard = 4096;
  void* memory = mmap(nullptr, kStackBytes + kGuard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    perror("emucuda: no memory for a thread's stack");
    abort();
  }
  mprotect(memory, kGuard, PROT_NONE);
  stack = static_cast<char*>(memory) + kGuard;
}

void Fiber::prepare(void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  void** top = reinterpret_cast<void**>(stack + kStackBytes - 64);
  *--top = nullptr;  // where `entry` would return to; also keeps the stack aligned as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer = top;
}

bool Fiber::contains(const void* p) const {
  return p >= stack && p < stack + kStackBytes;
}

}  // namespace emu
