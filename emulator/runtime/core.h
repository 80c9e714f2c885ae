// Threads, blocks, clusters and launches, and how a thread waits: what every file of the runtime builds on.
//
// A CUDA thread is a fiber. The threads of a cluster run on one host thread, one at a time, and change only where one waits (a barrier, a
// collective, an mbarrier) or polls; clusters of a grid run one after the other. Launches on one device exclude each other.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../abi/emulator.h"
#include "clock.h"
#include "fiber.h"

namespace emu {

struct Block;
struct Cluster;
struct Thread;
class AsyncGroups;  // async.h

// Threads that wait for one thing.
struct WaitList {
  std::vector<Thread*> threads;
};

// Where sync objects keep what those who passed them knew.
struct SyncPoint {
  Knowledge knowledge;
};

enum class State : uint8_t { kReady, kWaiting, kDone };

// Says what a thread waits for, or what a unit is called, should anybody ask: only reports do.
using Describe = std::function<std::string()>;

struct Thread : EmuThread {
  Block* block = nullptr;
  Cluster* cluster = nullptr;
  Fiber fiber;
  uint32_t slot = 0;             // of its accesses; its index in the cluster
  State state = State::kReady;
  Describe waits_for;            // for deadlock reports
  uint32_t location = 0;         // where it waits
  Knowledge knowledge;
  Knowledge fenced;              // its knowledge at its last fence; what a relaxed atomic then publishes within the cluster
  Knowledge acquirable;          // what relaxed atomics have read; known after the next fence
  bool in_cluster_barrier = false;  // between barrier.cluster.arrive and wait
  uint32_t cluster_phase = 0;       // ... that it has arrived in
  uint32_t timeouts = 0, timed_out_at = 0;  // of mbarrier.try_wait, since one was successful; the place of the last
  bool timed_out = false;                   // it goes on for that reason
  uint32_t active = 0;              // lanes that were at activemask together
  const void* active_at = nullptr;  // the call in the module's code: lanes of two branches are not together
  std::unique_ptr<AsyncGroups> cp_async;   // groups of cp.async, made at the first use
  std::unique_ptr<AsyncGroups> bulk;       // groups of bulk stores

  uint32_t tick() const { return knowledge.seen[slot]; }
};

// A warp collective on its way: lanes of `mask` meet, the last one computes.
struct Meeting;

struct NamedBarrier {
  uint32_t arrived = 0, expected = 0, phase = 0;
  bool whole_block = false;         // no thread count was given
  uint32_t popc = 0;
  bool all = true, any = false;
  uint32_t result[2] = {0, 0};
  uint32_t location = 0;            // of the phase's first thread
  SyncPoint point;
  WaitList waiting;
};

struct Warp {
  std::vector<std::unique_ptr<Meeting>> meetings;
  std::unique_ptr<Meeting> spare;   // the last one that ended: there are many, one after the other
  std::unique_ptr<AsyncGroups> wgmma;
  WaitList committing;              // threads of its warpgroup that wait for a wgmma group of this warp
  uint32_t live = 0;                // lanes that have not returned
  uint32_t returned = 0;            // lanes that have, as a mask
  WaitList converging;              // lanes at activemask: see warp.cpp
  uint32_t aligned_location = 0;    // of the aligned barrier that its lanes are gathering at
  uint32_t aligned_lanes = 0;
};

struct Block {
  Cluster* cluster = nullptr;
  uint32_t rank = 0;                // in the cluster
  uint64_t number = 0;              // linear index in the grid
  uint32_t first = 0, num_threads = 0, live = 0;
  NamedBarrier barriers[16];
  std::vector<Warp> warps;
  uint32_t registers = 0;           // setmaxnreg's pool: see cluster.cpp

  uint32_t window() const { return rank << kEmuBlockWindowBits; }
};

// One mbarrier object, by its address in the cluster's window. Lives in mbarrier.cpp.
struct Mbarrier;

class AsyncEngine;  // async.h

struct LaunchConfig {
  const EmuModule* module = nullptr;
  const EmuKernel* kernel = nullptr;
  char* const* globals = nullptr;
  EmuDim grid{1, 1, 1}, block{1, 1, 1}, cluster{1, 1, 1};
  uint32_t dynamic_shared = 0;
  const char* params = nullptr;
  int device = 0;
  uint64_t grid_id = 0;
  bool programmatic = false;        // may start before the stream's previous grid has ended: reads of its writes need griddepcontrol.wait
  uint32_t previous_first = 0, previous_end = 0;  // cluster numbers of the stream's previous grid, for that check
  uint64_t reachable_devices = ~0ull;  // bit d: may touch memory of device d: its own, and those with peer access enabled
};

struct LaunchResult {
  int error = 0;                    // CUresult: 700 for memory, 716 for alignment, 719 for the rest; 0: none
  std::string message;
  uint32_t first_cluster = 0, end_cluster = 0;
};

// Runs a grid to its end. Thread-safe; grids of one device are run one after the other.
LaunchResult run_grid(const LaunchConfig&);

struct Cluster {
  const LaunchConfig* launch = nullptr;
  uint32_t number = 0;              // unique among all clusters of the process's launches; names accesses in the shadow
  uint32_t first_number = 0;        // of the launch's first cluster
  std::vector<Block> blocks;
  std::vector<Thread*> threads;     // by slot; owned by the worker and used again for the next cluster
  uint32_t live = 0;
  uint32_t num_slots = 0;
  std::vector<Describe> unit_names;      // of the slots behind the threads: "cp.async of thread 3", ...
  char* window = nullptr;           // generic address of shared::cluster address 0
  std::unordered_map<uint32_t, std::unique_ptr<Mbarrier>> mbarriers;
  std::unique_ptr<AsyncEngine> engine;
  SyncPoint start;
  struct {
    uint32_t arrived = 0, phase = 0;
    SyncPoint points[2];
    WaitList waiting;
  } barrier;

  // Gives an asynchronous unit a slot of its own.
  uint32_t add_slot(Describe name);
  Block* block_of(uint32_t address);            // by a shared::cluster address; null: no such block
  bool checked() const { return launch->module->checked; }
};

// Who accesses memory, for the checker: what happened before it and under which name it is remembered.
struct Accessor {
  const Knowledge* after;
  uint32_t slot, tick;
  bool async_proxy = false;         // wgmma, bulk copies, tensors: do not see generic writes without a proxy fence
};

// ---- waiting (scheduler.cpp) -----------------------------------------------------------------------------------------------------
void suspend(Thread& self, WaitList& list, Describe waits_for, uint32_t location);  // until wake_all(list)
void wake_all(Cluster&, WaitList&);
void yield(Thread& self);

// ---- order (order.cpp) ----------------------------------------------------------------------------------------------------------
void release(Thread& self, SyncPoint& into);       // what self did and knows is known to whoever acquires
void acquire(Thread& self, const SyncPoint& from);

// ---- checks (checker.cpp); all return at once in unchecked modules ------------------------------------------------------------------
enum class Kind : uint8_t {
  kRead,
  kWrite,
  kAtomic,   // read and write at once, no race with other atomics and strong accesses
  kStrongRead,
  kStrongWrite,
  kWriting,  // a write on its way: races like a write, defines nothing until it lands (then define_bytes)
};
// Bounds, lifetime, alignment (n of 1 to 16 and a power of two), initialisation and races of an access in generic addresses.
// `space` is one of EmuAccess's spaces. Does not return when something is wrong.
void check_access(Thread& by, const Accessor& as, const void* address, size_t bytes, Kind kind, uint32_t space, uint32_t location);
void define_bytes(const void* address, size_t bytes);     // now initialised
Accessor accessor(const Thread&);                         // a thread's own accesses

// ---- failing (report.cpp) ---------------------------------------------------------------------------------------------------------
inline constexpr int kIllegalAddress = 700, kMisalignedAddress = 716, kAssert = 710, kLaunchFailed = 719;  // CUresult
[[noreturn]] void fail(Thread& by, uint32_t location, std::string what, int error = kLaunchFailed);  // ends the launch with a report
std::string place(const EmuModule&, uint32_t location);                   // "conv.cuh:12 < gemm.cuh:40"
std::string printf_string(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string rank_of(const Block&);                                        // " of block rank 1"; nothing where a cluster is one block

inline Thread& thread_of(EmuThread* t) { return *static_cast<Thread*>(t); }

// Generic address of a shared::cluster address.
inline char* shared_pointer(const Thread& t, uint32_t address) { return t.shared + address; }

}  // namespace emu
