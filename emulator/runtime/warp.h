// Warp collectives: lanes meet, the last one to come does the work for all, then every lane goes on.
#pragma once

#include <functional>

#include "core.h"

namespace emu {

// Lanes that have come so far.
struct Meeting {
  uint32_t mask, arrived;
  const char* what;
  uint32_t location;
  bool orders_memory;
  void* lanes[32];
  SyncPoint point;
  WaitList waiting;
};

// The lanes of `mask` meet at the instruction `what`. Each brings a pointer to data of its own (on its stack: the lane sleeps until the
// work is done); the last one runs `work` with all of them by lane (null outside the mask), reads inputs from them and writes results
// into them. Fails when the mask lacks the calling lane, and when lanes of one mask are at different instructions. A lane that never
// comes shows as a deadlock with its place.
// With `orders_memory`, which is bar.warp.sync, what each lane did before happens before what each does after; the lanes may come from
// several branches, `work` is nothing, and lanes that have returned are not waited for (CUDA: "all non-exited threads").
void meet(Thread& self, uint32_t mask, const char* what, uint32_t location, void* mine, const std::function<void(void* const* lanes)>& work,
          bool orders_memory = false);

// A thread has returned.
void leave_meetings(Thread&);

// Lanes at activemask go on, each with the mask of those at the same one.
void end_convergence(Warp&);

inline constexpr uint32_t kFullWarp = 0xffffffffu;

// The mask of .sync.aligned instructions without a mask operand: all lanes of the warp that exist in the block.
uint32_t whole_warp(const Thread&);

}  // namespace emu
