// Stacks and the switch between them: the whole of what makes a CUDA thread a fiber.
#pragma once

#include <cstddef>

namespace emu {

struct Fiber {
  void* stack_pointer = nullptr;
  char* stack = nullptr;

  void allocate();                    // once; a guard page lies below
  void prepare(void (*entry)());      // the next switch to it starts `entry`, which must not return
  bool contains(const void* p) const;
};

inline constexpr size_t kStackBytes = 256 << 10;

// Saves where the caller is into *from and goes on where `to` was saved.
extern "C" void emu_switch(void** from, void* to);

}  // namespace emu
