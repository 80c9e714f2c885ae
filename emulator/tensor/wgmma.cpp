// wgmma.mma_async, wgmma.fence, wgmma.commit_group and wgmma.wait_group (PTX ISA 9.7.15).
//
// Each warp of a warpgroup does its own 16 rows: the four need not be at the instruction together. They are one operation all the same:
// who waits for it knows that the other three have read their operands too, and one thread may give a tile back. Shared memory is read, for the
// checker, by the warp's asynchronous unit at the issue, and known to have been read after the wait; the arithmetic is done at the
// landing, on the accumulators where they are then.
#include "../runtime/async.h"
#include "collective.h"
#include "instruction.h"
#include "warp_tile.h"

namespace emu {
namespace {

constexpr uint32_t kWarpsOfGroup = 4;

struct WgmmaLane {
  Thread* thread;
  uint32_t* const* d;
  const uint32_t* a;
  uint64_t a_descriptor, b_descriptor;
  bool scale_d;
};

AsyncGroups& groups_of(Thread& self) {
  auto& groups = self.block->warps[self.warp].wgmma;
  if (!groups) {
    const Describe name = [&self] { return printf_string("wgmma of warp %u", self.warp) + rank_of(*self.block); };
    groups = std::make_unique<AsyncGroups>(*self.cluster, name, Proxy::kAsync);
  }
  return *groups;
}

void check_warpgroup(Thread& self, const char* what, uint32_t location) {
  const uint32_t first = self.warp / kWarpsOfGroup * kWarpsOfGroup;
  const uint32_t threads = self.block->num_threads;
  if (threads >= (first + kWarpsOfGroup) * 32) return;
  fail(self, location,
       printf_string("%s: warps %u to %u are no warpgroup: the block has %u threads", what, first, first + 3, threads));
}

void check_uniform(Thread& self, const Lanes<WgmmaLane>& lanes, const EmuWgmma& shape, uint32_t location) {
  const WgmmaLane& first = *lanes[0];
  for (size_t i = 1; i < lanes.size(); ++i) {
    const WgmmaLane& lane = *lanes[i];
    const bool same_a = first.a ? lane.a != nullptr : lane.a_descriptor == first.a_descriptor;
    if (!same_a || lane.b_descriptor != first.b_descriptor || lane.scale_d != first.scale_d) {
      fail(self, location, name_of(shape) + printf_string(": lanes 0 and %zu differ in a matrix descriptor or in scale-d", i));
    }
  }
}

// The unit reads after what any lane of the warp did: all of them execute the instruction.
void check_reads(Thread& self, const Lanes<WgmmaLane>& lanes, const AsyncGroups& groups, const WgmmaPart& part, uint32_t location) {
  if (!self.cluster->checked()) return;
  Knowledge before;
  for (const WgmmaLane* lane : lanes) before.join(lane->thread->knowledge);
  Accessor unit = groups.accessor(self);
  unit.after = &before;
  for (uint32_t address : part.units_read()) {
    check_access(self, unit, shared_pointer(self, self.block->window() + address), kUnitBytes, Kind::kRead, EMU_SHARED, location);
  }
}

void issue(Thread& self, const EmuWgmma& shape, const Lanes<WgmmaLane>& lanes, uint32_t location) {
  const WgmmaLane& first = *lanes[0];
  if (const char* problem = problem_with(shape, first.a != nullptr)) fail(self, location, name_of(shape) + ": " + problem);
  check_uniform(self, lanes, shape, location);
  auto part = std::make_shared<WgmmaPart>(shape, static_cast<int>(self.warp % kWarpsOfGroup), first.scale_d, first.a_descriptor,
                                          first.b_descriptor, shared_pointer(self, self.block->window()));
  for (size_t i = 0; i < lanes.size(); ++i) {
    part->set_accumulators(static_cast<int>(i), lanes[i]->d);
    if (first.a) part->take_a(static_cast<int>(i), lanes[i]->a);
  }
  if (const char* problem = part->problem()) fail(self, location, name_of(shape) + ": " + problem);
  AsyncGroups& groups = groups_of(self);
  check_reads(self, lanes, groups, *part, location);
  groups.issue([part] { part->run(); });
}

// The other warps of the warpgroup have issued and done what this one has waited for.
void await_warpgroup(Thread& self, uint32_t group, uint32_t location) {
  if (!group) return;
  const uint32_t first = self.warp / kWarpsOfGroup * kWarpsOfGroup;
  for (uint32_t i = first; i < first + kWarpsOfGroup; ++i) {
    Warp& warp = self.block->warps[i];
    if (i == self.warp) continue;
    while (!warp.wgmma || warp.wgmma->open_group() <= group) {
      suspend(self, warp.committing, [i] { return printf_string("warp %u to issue its part of a wgmma operation", i); }, location);
    }
    warp.wgmma->complete_for(self, group);
  }
}

}  // namespace

}  // namespace emu

using namespace emu;

extern "C" {

void emu_wgmma(EmuThread* t, const EmuWgmma* shape, uint32_t* const* d, const uint32_t* a, uint64_t a_descriptor,
               uint64_t b_descriptor, bool scale_d, uint32_t location) {
  constexpr const char* what = "wgmma.mma_async";
  Thread& self = thread_of(t);
  check_warpgroup(self, what, location);
  WgmmaLane mine{&self, d, a, a_descriptor, b_descriptor, scale_d};
  meet_in_full(self, what, location, mine, [&](const Lanes<WgmmaLane>& lanes) { issue(self, *shape, lanes, location); });
}

// Orders registers and the accumulators of the warpgroup's operations, which here are in order anyway.
void emu_wgmma_fence(EmuThread* t, uint32_t location) {
  constexpr const char* what = "wgmma.fence";
  Thread& self = thread_of(t);
  check_warpgroup(self, what, location);
  meet_in_full(self, what, location, self, [](const Lanes<Thread>&) {});
}

void emu_wgmma_commit(EmuThread* t, uint32_t location) {
  constexpr const char* what = "wgmma.commit_group";
  Thread& self = thread_of(t);
  check_warpgroup(self, what, location);
  meet_in_full(self, what, location, self, [&](const Lanes<Thread>&) {
    groups_of(self).commit();
    wake_all(*self.cluster, self.block->warps[self.warp].committing);
  });
}

void emu_wgmma_wait(EmuThread* t, uint32_t pending, uint32_t location) {
  constexpr const char* what = "wgmma.wait_group";
  Thread& self = thread_of(t);
  check_warpgroup(self, what, location);
  meet_in_full(self, what, location, self, [&](const Lanes<Thread>& lanes) {
    for (Thread* lane : lanes) groups_of(self).wait(*lane, pending);  // the first lands them, each learns of them
  });
  await_warpgroup(self, groups_of(self).waited(), location);
}

}
