// mbarrier objects of a cluster, and operations that complete on them.
#pragma once

#include "async.h"
#include "core.h"
#include "mbarrier_state.h"

namespace emu {

struct Mbarrier {
  uint32_t address = 0;       // in the cluster's window
  bool valid = false;         // initialised, and not invalidated since
  MbarrierState state;        // a copy of what the 8 bytes must hold
  uint32_t phase = 0;         // since the initialisation
  uint32_t on_their_way = 0;  // operations issued in this phase that have not landed
  uint32_t slot = 0;          // of operations that complete on it; 0 (a thread's): there were none
  uint32_t first_tick = 1;    // of phase 0; goes on where an earlier object at this address ended
  SyncPoint points[2];        // what those who arrived knew, by phase parity
  WaitList waiting;

  uint32_t tick() const { return first_tick + phase; }  // of operations issued in this phase
};

// The object at a shared::cluster address, checked as the thread's access. Fails on what is no valid mbarrier.
Mbarrier& find_mbarrier(Thread& self, uint32_t address, Kind kind, uint32_t location);

// Who an operation that completes on the mbarrier is, for the checker.
Accessor mbarrier_accessor(const Thread& issuer, Mbarrier&, Proxy);

// Moves data with `land` at some time, and then takes `bytes` off the mbarrier's tx-count.
void complete_on_mbarrier(Thread& issuer, Mbarrier&, uint32_t bytes, uint32_t location, Work land);

}  // namespace emu
