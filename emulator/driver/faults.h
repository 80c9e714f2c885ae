// Faults on demand, to test programs against what a GPU does on a bad day.
//
// A plan comes from the environment variable EMU_FAULTS, read at cuInit, or from emu_faults(plan) at any time after cuInit; a new
// plan replaces the old one, counts of launches and allocations start again, and "" ends all faults that are not final. It is a
// list of entries, separated by commas, each of the form
//
//     cuda:N [WHEN] WHAT        or        cuda:N SETTING...
//
// where N is the device. WHEN is one of
//
//     alloc=K      the device's K-th allocation from now on (cuMemAlloc, cuMemAllocPitch, cuMemAllocAsync), counted from 1
//     enqueue=K    its K-th call from now on that launches a kernel or a graph (cuLaunchKernel and its like, cuGraphLaunch), counted from 1
//     launch=K     its K-th kernel from now on, also inside a graph, counted from 1 as kernels start
//     after=2.5s   a time from now on (s, ms or us)
//
// and WHAT, with the conditions that it goes with, one of
//
//     oom          (alloc, enqueue) this call returns CUDA_ERROR_OUT_OF_MEMORY, and has done nothing
//     oom+         (alloc, enqueue) this call and all later ones do
//     sticky       (launch) the kernel does not run and its context gets a sticky CUDA_ERROR_ILLEGAL_ADDRESS
//     sticky=719   (launch) ... or another CUresult
//     hang         (launch) the kernel never ends: its stream never completes, synchronising blocks, cuStreamQuery says not ready.
//                  It ends with its context and with the plan; when the process ends, waiting calls return CUDA_ERROR_DEINITIALIZED
//     hang=3s      (launch) the kernel ends, after running, this much later
//     disappear    (launch, after, or at once) the device falls off the bus: every call on its contexts returns CUDA_ERROR_UNKNOWN,
//                  making one CUDA_ERROR_DEVICE_UNAVAILABLE, until the process ends
//
// SETTING is one or both of
//
//     speed=0.25   a kernel takes at least (time it takes here) / speed
//     launch_us=N  a kernel takes at least N microseconds longer than it does here
//
// Example: "cuda:1 alloc=12 oom, cuda:2 launch=300 sticky, cuda:3 launch=50 hang, cuda:0 speed=0.25 launch_us=20".
// A plan that is not understood is an error: cuInit returns CUDA_ERROR_INVALID_VALUE and says why on stderr; emu_faults returns it.
#pragma once

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace emu::driver {

struct Device;

// What happens to a kernel instead of, or besides, running.
struct LaunchFault {
  enum class Kind { kSticky, kHang, kDisappear } kind;
  uint64_t number;                                        // of the launch
  CUresult error = CUDA_ERROR_ILLEGAL_ADDRESS;            // kSticky
  std::optional<std::chrono::nanoseconds> duration = {};  // kHang; none: for ever
};

// A call that finds no memory.
struct MemoryFault {
  uint64_t number;
  bool from_then_on;
};

// The plan of one device.
struct DeviceFaults {
  std::vector<LaunchFault> launches;
  std::vector<MemoryFault> allocations, enqueued;
  std::optional<std::chrono::steady_clock::time_point> disappears_at;
  bool gone = false;
  double speed = 1;
  std::chrono::nanoseconds launch_cost{0};
  uint64_t first_launch = 0, first_allocation = 0, first_enqueued = 0;  // the device's counts when the plan was made

  const LaunchFault* launch_fault(uint64_t number) const;  // of the device's n-th launch, counted from 1
  bool allocation_fails(uint64_t number) const;
  bool enqueue_fails(uint64_t number) const;
};

// Counts a call that launches, and throws the Refusal that is planned for it. Under the lock.
void meet_enqueue_fault(Device& device);

// Installs a plan; throws a Refusal when it is malformed. Under the lock.
void install_faults(const std::string& plan);

}  // namespace emu::driver
