// Happens-before: vector clocks over the threads and asynchronous units of one cluster.
//
// Every accessor of memory in a cluster has a slot: its threads first, then asynchronous units (a thread's cp.async, a warp's wgmma, an
// mbarrier's bulk copies) as they appear. An access is named by (slot, tick); it happens before whatever knows that tick of that slot.
// What other clusters of the grid did is known through releases and acquires of gpu or system scope alone (Foreign).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace emu {

// Ticks by slot; a slot that is not there is at 0.
class Ticks {
 public:
  uint32_t operator[](uint32_t slot) const { return slot < ticks_.size() ? ticks_[slot] : 0; }

  void raise(uint32_t slot, uint32_t tick) {
    if (slot >= ticks_.size()) ticks_.resize(slot + 1);
    ticks_[slot] = std::max(ticks_[slot], tick);
  }

  void join(const Ticks& other) {
    if (other.ticks_.size() > ticks_.size()) ticks_.resize(other.ticks_.size());
    const uint32_t* from = other.ticks_.data();
    uint32_t* to = ticks_.data();
    for (size_t i = 0, n = other.ticks_.size(); i < n; ++i) to[i] = from[i] > to[i] ? from[i] : to[i];
  }

  bool empty() const { return ticks_.empty(); }
  const uint32_t* data() const { return ticks_.data(); }
  size_t size() const { return ticks_.size(); }
  void clear() { ticks_.clear(); }  // its memory is for the next ticks

 private:
  std::vector<uint32_t> ticks_;
};

// What is known of other clusters of the grid, by the cluster's number.
using Foreign = std::map<uint32_t, std::shared_ptr<const Ticks>>;

// What a thread, or a synchronisation point, knows to have happened.
struct Knowledge {
  Ticks seen;                              // accesses that happened before
  Ticks flushed;                           // ... that a fence.proxy.async made visible to the asynchronous proxy
  Ticks exported;                          // ... that a fence of gpu scope made visible to other clusters
  std::shared_ptr<const Foreign> foreign;  // null: nothing
  bool dependencies_met = false;           // a griddepcontrol.wait is among what happened before

  void join(const Knowledge& other);
  void clear();
};

}  // namespace emu
