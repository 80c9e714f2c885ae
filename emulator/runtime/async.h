// Asynchronous operations: what moves data between its issue and the wait for it.
//
// The checker sees an operation at its issue, as accesses of a unit with a slot of its own; a thread comes to know the unit's tick
// where it waits. The data moves at the landing: `lazy` puts it off until somebody waits (a missing wait shows), `eager` does it at
// once (a missing barrier before an overwrite shows), `random` mixes.
#pragma once

#include <deque>
#include <functional>
#include <unordered_map>
#include <vector>

#include "core.h"

namespace emu {

using Work = std::function<void()>;

// How a unit reaches memory. What the asynchronous proxy has written needs no fence.proxy.async before wgmma or a tensor store
// reads it.
enum class Proxy : uint8_t { kGeneric, kAsync };

// Whether reads and writes of a unit are known together, or the reads earlier (cp.async.bulk.wait_group.read).
enum class Reads : uint8_t { kWithWrites, kApart };

// First in, first out. One that was made for each thread of each block: a std::deque takes memory when it is made, this when it is used.
template <class T>
class Queue {
 public:
  bool empty() const { return first_ == items_.size(); }
  size_t size() const { return items_.size() - first_; }
  T& front() { return items_[first_]; }
  const T& operator[](size_t i) const { return items_[first_ + i]; }
  void push_back(T item) { items_.push_back(std::move(item)); }

  void pop_front() {
    if (++first_ < items_.size() && first_ < kLeft) return;
    items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(first_));
    first_ = 0;
  }

 private:
  static constexpr size_t kLeft = 64;  // so many that have gone are moved out at a time
  std::vector<T> items_;
  size_t first_ = 0;
};

// Operations of one issuer that complete in groups and in order: cp.async, bulk stores, wgmma. The unit's tick is the group's
// number, as long as nothing splits a group (checkpoint).
class AsyncGroups {
 public:
  AsyncGroups(Cluster&, const Describe& name, Proxy = Proxy::kAsync, Reads = Reads::kWithWrites);

  Accessor accessor(const Thread& issuer) const;    // of an operation of the open group
  Accessor reader(const Thread& issuer) const;      // ... for what it reads, when that is known earlier
  void issue(Work work);
  void commit();
  void wait(Thread& self, uint32_t pending);        // lands all but the newest `pending` groups; self then knows of them
  void wait_read(Thread& self, uint32_t pending);   // ... self then knows that they have read their sources
  uint32_t checkpoint();                            // the last tick of what has been issued; later operations have later ticks
  void complete_for(Thread& other, uint32_t tick);  // ... which another thread waits for too; the issuer's own wait is still to come
  void complete(uint32_t tick);                     // lands everything up to it: somebody else waits for it
  uint32_t open_group() const { return tick_; }
  uint32_t waited() const { return done_; }         // the last group that somebody has waited for
  uint32_t slot() const { return slot_; }

  // Nothing was issued whose reads and writes of shared memory nobody has waited for, landed or not.
  bool idle() const { return issued_ <= read_; }

 private:
  struct Operation {
    uint32_t tick;
    Work land;
  };

  uint32_t last_waited(uint32_t pending) const;
  void land(uint32_t tick);
  void tell(Thread&) const;

  uint32_t slot_, read_slot_;
  Proxy proxy_;
  uint32_t tick_ = 1;               // of operations issued now
  uint32_t issued_ = 0;             // of the last operation
  uint32_t read_ = 0, done_ = 0;    // up to which somebody has waited
  Queue<Operation> on_their_way_;
  Queue<uint32_t> committed_;       // last tick of each group that wait() has not passed
};

// Registers of a block that setmaxnreg moves between its warps (cluster.cpp).
struct RegisterPool {
  uint32_t free = 0;
  std::unordered_map<uint32_t, uint32_t> of_thread;  // what those that have changed it hold, by index in the block
  WaitList waiting;
};

// What a cluster's asynchronous units share: operations that complete on an mbarrier, landed when no thread of the cluster can run.
class AsyncEngine {
 public:
  void issue(Cluster&, Work land);
  bool land_one();                                  // false: nothing is on its way
  bool idle() const { return queue_.empty(); }

  // A thread has polled in vain. When all of them do that the queue of ready threads is never empty: land something now and then.
  void polled(const Cluster&);

  std::unordered_map<uint32_t, RegisterPool> registers;  // by block rank

 private:
  std::deque<Work> queue_;
  uint32_t polls_ = 0;
};

bool land_at_once();   // what `eager` and a throw of `random`'s coin say

// fail() for what shows only at a landing, which may happen outside of every thread. Comes back in that case, and the launch ends
// soon after.
void fail_landing(Thread& issuer, uint32_t location, const std::string& what);

// check_access for copies, whose rules of alignment are their own: 16 bytes, whatever their size.
void check_copy(Thread& by, const Accessor& as, const void* address, size_t bytes, Kind kind, uint32_t space, uint32_t location);

}  // namespace emu
