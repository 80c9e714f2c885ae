// Release and acquire, at synchronisation points and through memory.
//
// A release publishes what its thread knows. A relaxed write publishes what the thread knew at its last fence (fence; atomic is a release
// pattern), and what a relaxed read finds is known after the next fence (atomic; fence is an acquire pattern). Other clusters see only what
// went through a fence or an operation of gpu scope.
#include "order.h"

#include "scheduler.h"

namespace emu {
namespace {

void advance(Thread& self) {
  self.knowledge.seen.raise(self.slot, self.tick() + 1);
}

// Adds ticks of a cluster to what is known of clusters.
std::shared_ptr<const Foreign> with(const std::shared_ptr<const Foreign>& known, uint32_t cluster, const Ticks& ticks) {
  auto more = known ? std::make_shared<Foreign>(*known) : std::make_shared<Foreign>();
  auto all = std::make_shared<Ticks>();
  if (const auto& old = (*more)[cluster]) all->join(*old);
  all->join(ticks);
  (*more)[cluster] = all;
  return more;
}

bool is_release(EmuOrder order) { return order == EMU_RELEASE || order == EMU_ACQ_REL || order == EMU_SC; }
bool is_acquire(EmuOrder order) { return order == EMU_ACQUIRE || order == EMU_ACQ_REL || order == EMU_SC; }

}  // namespace

void release(Thread& self, SyncPoint& into) {
  if (!self.cluster->checked()) return;
  into.knowledge.join(self.knowledge);
  advance(self);
}

void acquire(Thread& self, const SyncPoint& from) {
  if (self.cluster->checked()) self.knowledge.join(from.knowledge);
}

}  // namespace emu

using namespace emu;

extern "C" void emu_release(EmuThread* t, const void* address, EmuScope scope, EmuOrder order) {
  Thread& self = thread_of(t);
  const Knowledge& local = is_release(order) ? self.knowledge : self.fenced;
  const bool wide = scope >= EMU_GPU;
  const Ticks& exported = is_release(order) && wide ? self.knowledge.seen : self.knowledge.exported;
  if (local.seen.empty() && (!wide || exported.empty())) return;  // nothing was ever fenced: nothing to publish
  AtomicPoint& point = worker().atomics[address];
  if (point.cluster != self.cluster->number) {
    point.cluster = self.cluster->number;
    point.local.clear();
  }
  point.local.join(local);
  if (wide && !exported.empty()) {
    point.foreign = with(point.foreign, self.cluster->number, exported);
    if (self.knowledge.foreign) {  // and what it learnt of others
      Knowledge both;
      both.foreign = point.foreign;
      Knowledge mine;
      mine.foreign = self.knowledge.foreign;
      both.join(mine);
      point.foreign = both.foreign;
    }
  }
  if (is_release(order)) advance(self);
}

extern "C" void emu_acquire(EmuThread* t, const void* address, EmuScope scope, EmuOrder order) {
  Thread& self = thread_of(t);
  const AtomicPoints& points = worker().atomics;
  auto found = points.find(address);
  if (found == points.end()) return;
  Knowledge& into = is_acquire(order) ? self.knowledge : self.acquirable;
  if (found->second.cluster == self.cluster->number) into.join(found->second.local);
  if (scope >= EMU_GPU && found->second.foreign) {
    Knowledge others;
    others.foreign = found->second.foreign;
    into.join(others);
  }
}

extern "C" void emu_fence(EmuThread* t, EmuOrder, EmuScope scope) {
  Thread& self = thread_of(t);
  self.knowledge.join(self.acquirable);
  self.acquirable.clear();
  if (scope >= EMU_GPU) self.knowledge.exported.join(self.knowledge.seen);
  self.fenced = self.knowledge;
  advance(self);
}

extern "C" void emu_fence_proxy_async(EmuThread* t, uint32_t) {
  Thread& self = thread_of(t);
  self.knowledge.flushed.join(self.knowledge.seen);
  advance(self);
}
