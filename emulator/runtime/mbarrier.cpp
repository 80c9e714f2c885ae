// mbarrier.* instructions: PTX ISA 9.7.13.15.
//
// What an arrival releases is kept per phase, for whoever waits for that phase. Completion of a copy releases the copy's own writes
// only: the unit's tick of the phase.
#include "mbarrier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler.h"

namespace emu {
namespace {

constexpr uint32_t kBytes = 8;

std::string name_of(const Cluster& cluster, uint32_t address) {
  const std::string offset = printf_string("mbarrier 0x%x", address & ((1u << kEmuBlockWindowBits) - 1));
  return cluster.blocks.size() == 1 ? offset : offset + printf_string(" of block rank %u", address >> kEmuBlockWindowBits);
}

std::string plural(uint32_t count, const char* what) { return printf_string("%u %s%s", count, what, count == 1 ? "" : "s"); }

// "mbarrier 0x1400: phase 3 misses 1 arrival and 8192 bytes".
std::string missing(const Cluster& cluster, const Mbarrier& m, uint32_t phase) {
  std::string text = name_of(cluster, m.address) + printf_string(": phase %u ", phase);
  if (m.phase != phase) return text + "is over";
  if (m.state.pending) text += "misses " + plural(m.state.pending, "arrival");
  if (m.state.tx > 0) {
    text += (m.state.pending ? " and " : "misses ") + plural(static_cast<uint32_t>(m.state.tx), "byte");
  } else if (m.state.tx < 0) {
    text += m.state.pending ? " and has " : "has ";
    text += plural(static_cast<uint32_t>(-m.state.tx), "byte") + " more than were expected";
  }
  return text;
}

// Fails on addresses where no mbarrier can be.
char* check_place(Thread& self, uint32_t address, bool remote_allowed, uint32_t location) {
  Cluster& cluster = *self.cluster;
  const Block* block = cluster.block_of(address);
  if (!block) {
    fail(self, location, printf_string("mbarrier address 0x%x is in block rank %u, the cluster has %zu blocks", address,
                                       address >> kEmuBlockWindowBits, cluster.blocks.size()));
  }
  if (address % kBytes) fail(self, location, name_of(cluster, address) + ": an mbarrier is 8-byte aligned", kMisalignedAddress);
  if (block != self.block && !remote_allowed) {
    fail(self, location, name_of(cluster, address) + ": this instruction takes an mbarrier of its own block only");
  }
  if (!block->live) fail(self, location, name_of(cluster, address) + ": its block has exited");
  return shared_pointer(self, address);
}

// Ordinary writes to an mbarrier's bytes end its life without a word.
std::string check_bytes(const Cluster& cluster, const Mbarrier& m) {
  const uint64_t wanted = m.state.pack();
  if (memcmp(cluster.window + m.address, &wanted, kBytes) == 0) return "";
  return name_of(cluster, m.address) + ": something other than mbarrier instructions has written to its 8 bytes";
}

void store(Cluster& cluster, const Mbarrier& m) {
  const uint64_t word = m.state.pack();
  memcpy(cluster.window + m.address, &word, kBytes);
}

// Ends the phase if nothing is missing any more, and writes the state back. Says what is wrong, or nothing.
std::string settle(Cluster& cluster, Mbarrier& m) {
  if (!m.state.over()) {
    store(cluster, m);
    return "";
  }
  if (m.on_their_way) {
    return name_of(cluster, m.address) + printf_string(": phase %u ends with ", m.phase) + plural(m.on_their_way, "operation") +
           " on the way: expect_tx does not count the bytes";
  }
  if (m.slot && cluster.checked()) {
    Knowledge& knowledge = m.points[m.phase & 1].knowledge;
    knowledge.seen.raise(m.slot, m.tick());
    knowledge.flushed.raise(m.slot, m.tick());
  }
  m.state.advance();
  ++m.phase;
  m.points[m.phase & 1].knowledge.clear();
  store(cluster, m);
  wake_all(cluster, m.waiting);
  return "";
}

void fail_if(Thread& self, const Mbarrier& m, uint32_t location, const std::string& problem) {
  if (!problem.empty()) fail(self, location, name_of(*self.cluster, m.address) + ": " + problem);
}

void settle_or_fail(Thread& self, Mbarrier& m, uint32_t location) {
  if (const std::string problem = settle(*self.cluster, m); !problem.empty()) fail(self, location, problem);
}

// At a landing: the object must be as it was at the issue. Says what is wrong, or nothing.
std::string check_landing(const Cluster& cluster, const Mbarrier& m) {
  if (!cluster.blocks[m.address >> kEmuBlockWindowBits].live) {
    return name_of(cluster, m.address) + ": its block has exited while an operation that completes on it was on its way";
  }
  return check_bytes(cluster, m);
}

// What a waiter that has seen `phase` end knows.
void learn(Thread& self, const Mbarrier& m, uint32_t phase, EmuOrder order) {
  self.timeouts = 0;
  const SyncPoint& point = m.points[phase & 1];
  if (order != EMU_RELAXED) {
    acquire(self, point);
  } else if (self.cluster->checked()) {
    self.acquirable.join(point.knowledge);
  }
}

// Waits for the current phase, if `blocking`. False: it is not over.
bool wait_for_phase(Thread& self, Mbarrier& m, bool blocking, EmuOrder order, uint32_t location) {
  const uint32_t phase = m.phase;
  if (!blocking) {
    self.cluster->engine->polled(*self.cluster);
    return false;
  }
  while (m.phase == phase) {
    suspend(self, m.waiting, [&m, &cluster = *self.cluster] { return missing(cluster, m, m.phase); }, location);
    if (std::exchange(self.timed_out, false)) return false;
  }
  learn(self, m, phase, order);
  return true;
}

// A kernel may look at a phase that it has still to make possible, and do something else meanwhile. One that only tries again is back
// at the same place, and is not let go a second time.
bool can_time_out(const Thread& t) {
  constexpr uint32_t kMost = 8;  // between two successful waits
  return t.timeouts < kMost && (t.timeouts == 0 || t.timed_out_at != t.location);
}

}  // namespace

bool time_out_waits(Cluster& cluster) {
  WaitList released;
  for (auto& [address, m] : cluster.mbarriers) {
    auto& waiting = m->waiting.threads;
    const auto first = std::stable_partition(waiting.begin(), waiting.end(), [](const Thread* t) { return !can_time_out(*t); });
    released.threads.insert(released.threads.end(), first, waiting.end());
    waiting.erase(first, waiting.end());
  }
  for (Thread* t : released.threads) {
    ++t->timeouts;
    t->timed_out_at = t->location;
    t->timed_out = true;
  }
  const bool any = !released.threads.empty();
  wake_all(cluster, released);
  return any;
}

Mbarrier& find_mbarrier(Thread& self, uint32_t address, Kind kind, uint32_t location) {
  Cluster& cluster = *self.cluster;
  // 9.7.13.15.16: test_wait and try_wait, which only read, take an mbarrier of .shared::cta.
  const char* bytes = check_place(self, address, kind != Kind::kStrongRead, location);
  const auto found = cluster.mbarriers.find(address);
  if (found == cluster.mbarriers.end()) fail(self, location, name_of(cluster, address) + " was never initialised");
  Mbarrier& m = *found->second;
  if (!m.valid) fail(self, location, name_of(cluster, address) + " was invalidated");
  check_access(self, accessor(self), bytes, kBytes, kind, EMU_CLUSTER, location);
  if (const std::string problem = check_bytes(cluster, m); !problem.empty()) fail(self, location, problem);
  return m;
}

Accessor mbarrier_accessor(const Thread& issuer, Mbarrier& m, Proxy proxy) {
  if (!m.slot) {
    m.slot = issuer.cluster->add_slot([cluster = issuer.cluster, address = m.address] {
      return "a copy that completes on " + name_of(*cluster, address);
    });
  }
  return {&issuer.knowledge, m.slot, m.tick(), proxy == Proxy::kAsync};
}

void complete_on_mbarrier(Thread& issuer, Mbarrier& m, uint32_t bytes, uint32_t location, Work land) {
  Cluster& cluster = *issuer.cluster;
  ++m.on_their_way;
  cluster.engine->issue(cluster, [&issuer, &cluster, &m, bytes, location, land = std::move(land)] {
    std::string problem = check_landing(cluster, m);
    if (problem.empty()) {
      land();
      --m.on_their_way;
      problem = m.state.complete_bytes(bytes);
      problem = problem.empty() ? settle(cluster, m) : name_of(cluster, m.address) + ": " + problem;
    }
    if (!problem.empty()) fail_landing(issuer, location, problem);
  });
}

}  // namespace emu

using namespace emu;

extern "C" void emu_mbarrier_init(EmuThread* t, uint32_t address, uint32_t count, uint32_t location) {
  Thread& self = thread_of(t);
  Cluster& cluster = *self.cluster;
  const char* bytes = check_place(self, address, false, location);
  if (count == 0 || count > MbarrierState::kMaxCount) {
    fail(self, location,
         name_of(cluster, address) + printf_string(": a count of %u, which is not in 1..%u", count, MbarrierState::kMaxCount));
  }
  std::unique_ptr<Mbarrier>& m = cluster.mbarriers[address];
  if (!m) m = std::make_unique<Mbarrier>();
  if (m->valid) {  // 9.7.13.15.12: undefined behaviour
    fail(self, location, name_of(cluster, address) + " is initialised again without mbarrier.inval" +
                             (m->waiting.threads.empty() ? "" : ", and threads wait for it"));
  }
  check_access(self, accessor(self), bytes, kBytes, Kind::kWrite, EMU_SHARED, location);
  m->first_tick = m->tick() + 1;
  m->address = address;
  m->valid = true;
  m->state = MbarrierState::with_count(count);
  m->phase = 0;
  for (SyncPoint& point : m->points) point.knowledge.clear();
  store(cluster, *m);
}

extern "C" void emu_mbarrier_inval(EmuThread* t, uint32_t address, uint32_t location) {
  Thread& self = thread_of(t);
  check_place(self, address, false, location);
  Mbarrier& m = find_mbarrier(self, address, Kind::kWrite, location);
  if (!m.waiting.threads.empty()) fail_if(self, m, location, "invalidated while threads wait for it");
  if (m.on_their_way) fail_if(self, m, location, "invalidated while operations that complete on it are on their way");
  m.valid = false;
}

extern "C" uint64_t emu_mbarrier_arrive(EmuThread* t, uint32_t address, uint32_t count, uint32_t expect_bytes, bool drop,
                                        EmuOrder order, EmuScope, uint32_t location) {
  Thread& self = thread_of(t);
  Mbarrier& m = find_mbarrier(self, address, Kind::kAtomic, location);
  fail_if(self, m, location, m.state.expect_bytes(expect_bytes));
  const uint64_t before = m.state.pack();
  SyncPoint& point = m.points[m.phase & 1];
  if (order != EMU_RELAXED) {
    release(self, point);
  } else if (self.cluster->checked()) {
    point.knowledge.join(self.fenced);
  }
  fail_if(self, m, location, drop ? m.state.drop(count) : m.state.arrive(count));
  settle_or_fail(self, m, location);
  return before;
}

extern "C" void emu_mbarrier_expect(EmuThread* t, uint32_t address, uint32_t bytes, uint32_t location) {
  Thread& self = thread_of(t);
  Mbarrier& m = find_mbarrier(self, address, Kind::kAtomic, location);
  fail_if(self, m, location, m.state.expect_bytes(bytes));
  settle_or_fail(self, m, location);
}

extern "C" void emu_mbarrier_complete(EmuThread* t, uint32_t address, uint32_t bytes, uint32_t location) {
  Thread& self = thread_of(t);
  Mbarrier& m = find_mbarrier(self, address, Kind::kAtomic, location);
  fail_if(self, m, location, m.state.complete_bytes(bytes));
  settle_or_fail(self, m, location);
}

extern "C" bool emu_mbarrier_test(EmuThread* t, uint32_t address, uint64_t state, bool blocking, EmuOrder order,
                                  uint32_t location) {
  Thread& self = thread_of(t);
  Mbarrier& m = find_mbarrier(self, address, Kind::kStrongRead, location);
  const uint32_t age = (m.state.phase - MbarrierState::unpack(state).phase) % MbarrierState::kPhases;
  if (age > 1) {  // 9.7.13.15.16: only the current phase and the one before it can be asked for
    fail_if(self, m, location, printf_string("a wait with the state of a phase that ended %u phases ago", age - 1));
  }
  if (age == 0) return wait_for_phase(self, m, blocking, order, location);
  learn(self, m, m.phase - 1, order);
  return true;
}

extern "C" bool emu_mbarrier_test_parity(EmuThread* t, uint32_t address, uint32_t parity, bool blocking, EmuOrder order,
                                         uint32_t location) {
  Thread& self = thread_of(t);
  Mbarrier& m = find_mbarrier(self, address, Kind::kStrongRead, location);
  if (parity > 1) fail_if(self, m, location, printf_string("phase parity %u, which is neither 0 nor 1", parity));
  if ((m.phase & 1) == parity) return wait_for_phase(self, m, blocking, order, location);
  if (m.phase) learn(self, m, m.phase - 1, order);  // before the first phase nothing has happened
  return true;
}

extern "C" uint32_t emu_mbarrier_pending(uint64_t state) { return MbarrierState::unpack(state).pending; }

extern "C" void emu_cp_async_mbarrier_arrive(EmuThread* t, uint32_t address, bool noinc, uint32_t location) {
  Thread& self = thread_of(t);
  Mbarrier& m = find_mbarrier(self, address, Kind::kAtomic, location);
  if (!noinc) {
    fail_if(self, m, location, m.state.announce_arrival());
    store(*self.cluster, m);
  }
  AsyncGroups* copies = self.cp_async.get();
  const uint32_t tick = copies ? copies->checkpoint() : 0;
  const uint32_t phase = m.phase;
  self.cluster->engine->issue(*self.cluster, [&self, &m, copies, tick, phase, location] {
    Cluster& cluster = *self.cluster;
    if (copies) copies->complete(tick);
    std::string problem = check_landing(cluster, m);
    if (problem.empty() && m.phase != phase) {
      problem = missing(cluster, m, phase) + " before a cp.async.mbarrier.arrive that was meant for it";
    }
    if (problem.empty()) {
      if (copies && cluster.checked()) m.points[phase & 1].knowledge.seen.raise(copies->slot(), tick);
      problem = m.state.arrive(1);
      problem = problem.empty() ? settle(cluster, m) : name_of(cluster, m.address) + ": " + problem;
    }
    if (!problem.empty()) fail_landing(self, location, problem);
  });
}
