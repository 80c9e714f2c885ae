// Devices, contexts and the one lock over all bookkeeping.
//
// Every entry point runs its body under the lock (entry()); the work of streams, copies and kernels, runs without it on the
// streams' threads. Whoever waits for work does so on `progress`, which is notified whenever some operation ends.
#pragma once

#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "error.h"
#include "faults.h"
#include "handles.h"

namespace emu::driver {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

struct Context;
struct Event;
struct ExecutableGraph;
struct Function;
struct Graph;
struct GraphNode;
struct Library;
struct Module;
struct Operation;
struct Pool;
struct Stream;

struct Device {
  int index = 0;
  uint64_t used_bytes = 0, peak_bytes = 0;
  uint64_t allocations = 0, enqueued = 0, launches = 0;  // ever made: what faults are counted by
  std::shared_ptr<Context> primary;
  int primary_users = 0;
  unsigned primary_flags = 0;
  std::shared_ptr<Pool> default_pool, pool;
  DeviceFaults faults;

  bool gone();  // fell off the bus; see faults.h
};

// What a destroyed stream still has to do, up to its last operation.
struct LastOfStream {
  std::shared_ptr<Operation> operation;
  bool blocking;
};

struct Context {
  CUcontext handle = nullptr;
  Device* device = nullptr;
  unsigned long long id = 0;
  unsigned flags = 0;
  unsigned api_version = CUDA_VERSION;
  bool primary = false, alive = true;
  int users = 1;                                                      // cuCtxAttach
  CUresult error = CUDA_SUCCESS;                                      // sticky: every later call returns it
  std::shared_ptr<Stream> null_stream;                                // CU_STREAM_LEGACY
  std::map<std::thread::id, std::shared_ptr<Stream>> thread_streams;  // CU_STREAM_PER_THREAD
  std::vector<LastOfStream> leaving;                                  // of streams that were destroyed with work to do
  std::set<int> peers;                                                // devices whose memory its kernels may touch
  std::map<CUlimit, size_t> limits;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;

  void check();  // throws what every call on it returns from now on, if anything
  void fail(CUresult code, const std::string& message);
};

struct State {
  std::mutex mutex;
  std::condition_variable progress;
  bool initialised = false;
  int hanging = 0;           // operations that an injected fault holds up
  uint64_t fault_plans = 0;  // ever installed
  uint64_t next_id = 1;
  std::vector<std::unique_ptr<Device>> devices;
  Handles<CUcontext, Context> contexts;
  Handles<CUstream, Stream> streams;
  Handles<CUevent, Event> events;
  Handles<CUmodule, Module> modules;
  Handles<CUlibrary, Library> libraries;
  Handles<CUfunction, Function> functions;
  Handles<CUgraph, Graph> graphs;
  Handles<CUgraphNode, GraphNode> nodes;
  Handles<CUgraphExec, ExecutableGraph> executables;
  Handles<CUmemoryPool, Pool> pools;

  Device& device(CUdevice index);  // throws CUDA_ERROR_INVALID_DEVICE
};

State& state();  // never destroyed: threads of streams may outlive main

// ---- the calling thread (context.cpp) -----------------------------------------------------------------------------------------

std::shared_ptr<Context> current_context();  // alive, in whatever state; throws when there is none
std::shared_ptr<Context> working_context();  // ... and without a sticky error
void destroy_context(Lock& lock, const std::shared_ptr<Context>& context);

// ---- waiting (state.cpp) ------------------------------------------------------------------------------------------------------

bool process_is_ending();
void check_callable(bool needs_initialisation);  // throws: not initialised, forked, inside a host function
// True: the wait is hopeless, because a fault holds up a stream and the process wants to end.
bool wait_for_progress(Lock& lock);

// Waits until `done()`.
template <class Done>
void wait_until(Lock& lock, Done done) {
  while (!done()) {
    if (wait_for_progress(lock)) refuse(CUDA_ERROR_DEINITIALIZED);
  }
}

// Set while a host function of a stream runs: it must not call the driver.
extern thread_local bool in_host_function;

// ---- entry points -------------------------------------------------------------------------------------------------------------

// Runs the body of an entry point, `body()` or `body(lock)`, under the lock; the result is what it refused with.
template <class Body>
CUresult entry(Body body, bool needs_initialisation = true) noexcept {
  try {
    check_callable(needs_initialisation);
    Lock lock(state().mutex);
    if constexpr (std::is_invocable_v<Body, Lock&>) {
      body(lock);
    } else {
      body();
    }
    return CUDA_SUCCESS;
  } catch (const Refusal& refusal) {
    return refusal.code;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

// Writes a result that the caller may not want.
template <class Value, class Target>
void put(Target* target, Value value) {
  if (target) *target = static_cast<Target>(value);
}

}  // namespace emu::driver
