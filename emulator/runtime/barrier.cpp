// Barriers of a block (PTX ISA 9.7.13.1 bar, barrier) and of a cluster (9.7.13.4 barrier.cluster).
#include <bit>

#include "scheduler.h"
#include "warp.h"

using namespace emu;

namespace {

// An .aligned instruction is executed by all lanes of a warp at once. Where it does not block, the lanes have to meet for that.
void arrive_together(Thread& self, const char* what, uint32_t location) {
  meet(self, whole_warp(self), what, location, nullptr, [](void* const*) {});
}

// Where it blocks, it is enough that no two lanes wait at different instructions, and that no lane has returned.
void check_alignment(Thread& self, uint32_t location) {
  Warp& warp = self.block->warps[self.warp];
  if (warp.live != static_cast<uint32_t>(std::popcount(whole_warp(self)))) {
    fail(self, location, "divergent barrier: other threads of the warp have returned");
  }
  if (warp.aligned_lanes && warp.aligned_location != location) {
    fail(self, location, printf_string("divergent barrier: lanes %08x of the warp are at the barrier at %s", warp.aligned_lanes,
                                       place(*self.cluster->launch->module, warp.aligned_location).c_str()));
  }
  warp.aligned_location = location;
  warp.aligned_lanes |= 1u << self.lane;
  if (warp.aligned_lanes == whole_warp(self)) warp.aligned_lanes = 0;
}

NamedBarrier& arrive(Thread& self, uint32_t id, uint32_t count, uint32_t location, bool whole_block_together) {
  if (id >= 16) fail(self, location, printf_string("barrier %u: a block has 16 of them, 0 to 15", id));
  if (count % 32) fail(self, location, printf_string("barrier %u: thread count %u is not a multiple of the warp size", id, count));
  NamedBarrier& barrier = self.block->barriers[id];
  const uint32_t expected = count ? count : self.block->live;
  if (expected > (self.block->num_threads + 31) / 32 * 32) {
    fail(self, location, printf_string("barrier %u: waits for %u threads, the block has %u", id, expected, self.block->num_threads));
  }
  if (barrier.arrived == 0) {
    barrier.expected = expected;
    barrier.whole_block = !count;
    barrier.location = location;
    barrier.point.knowledge.clear();
    barrier.popc = 0;
    barrier.all = true;
    barrier.any = false;
  } else if (barrier.expected != expected) {
    fail(self, location, printf_string("barrier %u: thread count %u here, %u at %s in the same phase", id, expected, barrier.expected,
                                       place(*self.cluster->launch->module, barrier.location).c_str()));
  } else if (whole_block_together && barrier.location != location) {
    fail(self, location, printf_string("divergent barrier: other threads of the block wait at %s",
                                       place(*self.cluster->launch->module, barrier.location).c_str()));
  }
  if (++barrier.arrived > barrier.expected) {
    fail(self, location, printf_string("barrier %u: more than the %u threads it waits for have arrived", id, barrier.expected));
  }
  release(self, barrier.point);
  return barrier;
}

// The last to arrive lets the others go, with what all of them knew: a new phase begins.
bool complete(Thread& self, NamedBarrier& barrier) {
  if (barrier.arrived != barrier.expected) return false;
  for (Thread* t : barrier.waiting.threads) acquire(*t, barrier.point);
  wake_all(*self.cluster, barrier.waiting);
  ++barrier.phase;
  barrier.arrived = 0;
  return true;
}

void wait(Thread& self, NamedBarrier& barrier, uint32_t id, uint32_t location) {
  if (complete(self, barrier)) {
    acquire(self, barrier.point);
  } else {
    suspend(self, barrier.waiting, [id] { return printf_string("barrier %u", id); }, location);
  }
}

}  // namespace

extern "C" {

void emu_bar_sync(EmuThread* t, uint32_t id, uint32_t count, bool aligned, uint32_t location) {
  Thread& self = thread_of(t);
  if (aligned) check_alignment(self, location);
  wait(self, arrive(self, id, count, location, aligned && id == 0 && count == 0), id, location);
}

void emu_bar_arrive(EmuThread* t, uint32_t id, uint32_t count, bool aligned, uint32_t location) {
  Thread& self = thread_of(t);
  if (!count) fail(self, location, "bar.arrive needs a thread count");
  if (aligned) arrive_together(self, "bar.arrive", location);
  complete(self, arrive(self, id, count, location, false));
}

uint32_t emu_bar_red(EmuThread* t, uint32_t id, uint32_t count, EmuReduce op, bool predicate, bool aligned, uint32_t location) {
  Thread& self = thread_of(t);
  if (aligned) check_alignment(self, location);
  NamedBarrier& barrier = arrive(self, id, count, location, aligned && id == 0 && count == 0);
  barrier.popc += predicate;
  barrier.all = barrier.all && predicate;
  barrier.any = barrier.any || predicate;
  uint32_t& result = barrier.result[barrier.phase & 1];
  result = op == EMU_AND ? barrier.all : op == EMU_OR ? barrier.any : barrier.popc;
  wait(self, barrier, id, location);
  return result;
}

void emu_cluster_arrive(EmuThread* t, EmuOrder order, bool aligned, uint32_t location) {
  Thread& self = thread_of(t);
  Cluster& cluster = *self.cluster;
  if (aligned) arrive_together(self, "barrier.cluster.arrive", location);
  if (self.in_cluster_barrier) fail(self, location, "barrier.cluster.arrive a second time, with no wait between");
  self.in_cluster_barrier = true;
  auto& barrier = cluster.barrier;
  SyncPoint& point = barrier.points[barrier.phase & 1];
  if (order != EMU_RELAXED) {
    release(self, point);
  } else if (cluster.checked()) {
    point.knowledge.join(self.fenced);  // fence.mbarrier_init, then a relaxed arrival
  }
  ++barrier.arrived;
  leave_cluster_barrier(self);
}

void emu_cluster_wait(EmuThread* t, bool aligned, uint32_t location) {
  Thread& self = thread_of(t);
  auto& barrier = self.cluster->barrier;
  if (aligned) arrive_together(self, "barrier.cluster.wait", location);  // it does not block when the phase is over
  if (!self.in_cluster_barrier) fail(self, location, "barrier.cluster.wait with no arrive before it");
  self.in_cluster_barrier = false;
  const uint32_t phase = self.cluster_phase;
  while (barrier.phase == phase) suspend(self, barrier.waiting, [] { return "barrier.cluster"; }, location);
  acquire(self, barrier.points[phase & 1]);
}

}

// A thread has returned. Barriers of the whole block no longer wait for it: whole warps may do that (an H200 lets the others go on).
void emu::leave_barriers(Thread& self) {
  Warp& warp = self.block->warps[self.warp];
  if (warp.aligned_lanes) {
    fail(self, warp.aligned_location, printf_string("divergent barrier: this thread returns while lanes %08x of its warp wait",
                                                    warp.aligned_lanes));
  }
  for (NamedBarrier& barrier : self.block->barriers) {
    if (!barrier.arrived || !barrier.whole_block) continue;
    --barrier.expected;
    complete(self, barrier);
  }
}

// A thread has arrived, or has returned and is no longer waited for: the phase may be over.
void emu::leave_cluster_barrier(Thread& self) {
  Cluster& cluster = *self.cluster;
  auto& barrier = cluster.barrier;
  if (self.state != State::kDone) {
    self.cluster_phase = barrier.phase;
  } else if (self.in_cluster_barrier && self.cluster_phase == barrier.phase) {
    --barrier.arrived;  // it has arrived and does not wait: it must not stand for another thread
  }
  if (barrier.arrived == 0 || barrier.arrived < cluster.live) return;
  ++barrier.phase;
  barrier.arrived = 0;
  barrier.points[barrier.phase & 1].knowledge.clear();
  wake_all(cluster, barrier.waiting);
}
