// Groups of asynchronous operations and the engine that lands what completes on an mbarrier: see async.h.
#include "async.h"

#include "mbarrier.h"
#include "scheduler.h"
#include "settings.h"

namespace emu {

AsyncGroups::AsyncGroups(Cluster& cluster, const Describe& name, Proxy proxy, Reads reads)
    : slot_(cluster.add_slot(name)), read_slot_(reads == Reads::kApart ? cluster.add_slot(name) : slot_), proxy_(proxy) {}

Accessor AsyncGroups::accessor(const Thread& issuer) const { return {&issuer.knowledge, slot_, tick_, proxy_ == Proxy::kAsync}; }

Accessor AsyncGroups::reader(const Thread& issuer) const { return {&issuer.knowledge, read_slot_, tick_, proxy_ == Proxy::kAsync}; }

// Those before it land first: wgmma operations on the same accumulators are in order.
void AsyncGroups::issue(Work work) {
  issued_ = tick_;
  on_their_way_.push_back({tick_, std::move(work)});
  if (land_at_once()) land(tick_);
}

void AsyncGroups::commit() { committed_.push_back(tick_++); }

uint32_t AsyncGroups::last_waited(uint32_t pending) const {
  return committed_.size() > pending ? committed_[committed_.size() - 1 - pending] : 0;
}

void AsyncGroups::land(uint32_t tick) {
  while (!on_their_way_.empty() && on_their_way_.front().tick <= tick) {
    const Work work = std::move(on_their_way_.front().land);
    on_their_way_.pop_front();
    work();
  }
}

void AsyncGroups::tell(Thread& self) const {
  if (!self.cluster->checked()) return;
  Knowledge& knowledge = self.knowledge;
  knowledge.seen.raise(slot_, done_);
  knowledge.seen.raise(read_slot_, read_);
  if (proxy_ == Proxy::kAsync) knowledge.flushed.raise(slot_, done_);
}

void AsyncGroups::wait(Thread& self, uint32_t pending) {
  complete(last_waited(pending));
  while (committed_.size() > pending) committed_.pop_front();
  tell(self);
}

// The data moves here too; only that the writes are done stays unknown.
void AsyncGroups::wait_read(Thread& self, uint32_t pending) {
  const uint32_t tick = last_waited(pending);
  land(tick);
  read_ = std::max(read_, tick);
  tell(self);
}

uint32_t AsyncGroups::checkpoint() { return issued_ == tick_ ? tick_++ : issued_; }

void AsyncGroups::complete(uint32_t tick) {
  land(tick);
  done_ = std::max(done_, tick);
  read_ = std::max(read_, tick);
}

void AsyncGroups::complete_for(Thread& other, uint32_t tick) {
  land(tick);
  if (other.cluster->checked()) other.knowledge.seen.raise(slot_, tick);
}

void AsyncEngine::issue(Cluster&, Work land) {
  if (land_at_once()) {
    land();
  } else {
    queue_.push_back(std::move(land));
  }
}

bool AsyncEngine::land_one() {
  polls_ = 0;
  if (queue_.empty()) return false;
  if (settings().landing == Landing::kRandom) std::swap(queue_.front(), queue_[worker().next_random() % queue_.size()]);
  const Work work = std::move(queue_.front());
  queue_.pop_front();
  work();
  return true;
}

void AsyncEngine::polled(const Cluster& cluster) {
  if (++polls_ > cluster.live && !queue_.empty()) land_one();
}

bool land_at_once() {
  switch (settings().landing) {
    case Landing::kLazy: return false;
    case Landing::kEager: return true;
    case Landing::kRandom: break;
  }
  return worker().next_random() >> 32 & 1;
}

void fail_landing(Thread& issuer, uint32_t location, const std::string& what) {
  if (current()) fail(issuer, location, what);
  LaunchResult& failure = worker().failure;
  if (failure.error) return;  // the first one tells
  const LaunchConfig& launch = *issuer.cluster->launch;
  failure.error = kLaunchFailed;
  const EmuDim& block = issuer.ctaid;
  const EmuDim& thread = issuer.tid;
  failure.message = printf_string("kernel %s, an asynchronous operation of block (%u,%u,%u) thread (%u,%u,%u): ",
                                  launch.kernel->name, block.x, block.y, block.z, thread.x, thread.y, thread.z) +
                    what + " at " + place(*launch.module, location);
}

void check_copy(Thread& by, const Accessor& as, const void* address, size_t bytes, Kind kind, uint32_t space, uint32_t location) {
  const bool like_a_register = bytes > 1 && bytes <= 32 && (bytes & (bytes - 1)) == 0;
  if (!like_a_register || reinterpret_cast<uintptr_t>(address) % bytes == 0) {
    check_access(by, as, address, bytes, kind, space, location);
    return;
  }
  const size_t half = bytes / 2;
  check_copy(by, as, address, half, kind, space, location);
  check_copy(by, as, static_cast<const char*>(address) + half, half, kind, space, location);
}

}  // namespace emu
