// What bulk copies and tensor copies have in common: the groups of a thread's stores, and where a copy may go.
#pragma once

#include <vector>

#include "async.h"
#include "mbarrier.h"

namespace emu {

// Groups of the thread's bulk stores and reductions into global memory (cp.async.bulk.commit_group, wait_group).
AsyncGroups& bulk_stores_of(Thread& self);

// One place that a copy into shared memory goes to, and the mbarrier that hears of it.
struct Delivery {
  uint32_t shared;
  Mbarrier* mbarrier;
};

// Where a load goes: to `shared`, or with multicast to the same offset in every block of the mask; the mbarrier likewise.
std::vector<Delivery> deliveries(Thread& self, const char* instruction, uint32_t shared, uint32_t mbarrier, uint16_t multicast,
                                 uint32_t location);

// A source or destination in shared memory must lie in a block that exists and has not exited, aligned to `alignment`.
void check_shared_place(Thread& self, const char* instruction, uint32_t address, uint32_t alignment, uint32_t location);

}  // namespace emu
