// Checking a launch against the device's limits, and running it, with the faults that are planned for it.
#include <thread>

#include "launch.h"
#include "module.h"
#include "runtime/core.h"
#include "stream.h"

namespace emu::driver {

EmuDim LaunchShape::cluster_for(const Function& function) const {
  if (cluster.x) return cluster;
  const uint32_t* required = function.required_cluster;
  return required[0] ? EmuDim{required[0], required[1], required[2]} : EmuDim{1, 1, 1};
}

void validate_block(const EmuKernel& kernel, const EmuDim& block) {
  require(block.x && block.y && block.z);
  if (block.x > kMaxThreads || block.y > kMaxThreads || block.z > kMaxBlockZ || volume(block) > kMaxThreads) {
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: blocks of %u x %u x %u threads", kernel.name, block.x, block.y, block.z);
  }
  if (kernel.max_threads && volume(block) > kernel.max_threads) {
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: blocks of %u threads, it was compiled for %u", kernel.name, volume(block),
           kernel.max_threads);
  }
  const uint32_t* required = kernel.required_threads;
  if (required[0] && (block.x != required[0] || block.y != required[1] || block.z != required[2])) {
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: blocks of %u x %u x %u threads, it was compiled for %u x %u x %u", kernel.name, block.x,
           block.y, block.z, required[0], required[1], required[2]);
  }
}

namespace {

void validate_shared(const Function& function, uint32_t dynamic) {
  const EmuKernel& kernel = *function.kernel;
  if (dynamic > function.max_dynamic_shared) {
    refuse(CUDA_ERROR_INVALID_VALUE,
           "%s: %u bytes of dynamic shared memory, allowed are %u (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)", kernel.name,
           dynamic, function.max_dynamic_shared);
  }
  if (const uint32_t all = dynamic + static_shared_bytes(kernel); all > kSharedPerBlockOptIn) {
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: %u bytes of shared memory, a block has %u", kernel.name, all, kSharedPerBlockOptIn);
  }
}

void validate_cluster(const Function& function, const LaunchShape& shape) {
  const EmuKernel& kernel = *function.kernel;
  const EmuDim cluster = shape.cluster_for(function);
  const uint32_t* required = function.required_cluster;
  if (shape.cluster.x && required[0] && (cluster.x != required[0] || cluster.y != required[1] || cluster.z != required[2])) {
    refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: clusters of %u x %u x %u blocks, it needs %u x %u x %u", kernel.name, cluster.x,
           cluster.y, cluster.z, required[0], required[1], required[2]);
  }
  const uint64_t size = static_cast<uint64_t>(cluster.x) * cluster.y * cluster.z;
  const uint32_t limit = kernel.max_cluster ? kernel.max_cluster : function.non_portable_cluster ? kMaxCluster : kPortableCluster;
  if (size == 0 || size > limit) {
    refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: clusters of %u x %u x %u blocks, the limit is %u", kernel.name, cluster.x,
           cluster.y, cluster.z, limit);
  }
  if (shape.grid.x % cluster.x || shape.grid.y % cluster.y || shape.grid.z % cluster.z) {
    refuse(CUDA_ERROR_INVALID_CLUSTER_SIZE, "%s: a grid of %u x %u x %u blocks is not made of clusters of %u x %u x %u",
           kernel.name, shape.grid.x, shape.grid.y, shape.grid.z, cluster.x, cluster.y, cluster.z);
  }
}

// Clusters run one after the other, so that a barrier of the whole grid would wait for ever.
void validate_cooperative(const Function& function, const LaunchShape& shape) {
  const uint64_t blocks = static_cast<uint64_t>(shape.grid.x) * shape.grid.y * shape.grid.z;
  const uint64_t resident =
      static_cast<uint64_t>(blocks_per_multiprocessor(function, volume(shape.block), shape.dynamic_shared)) * kMultiprocessors;
  if (blocks > resident) refuse(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
  if (blocks > volume(shape.cluster_for(function))) {
    refuse(CUDA_ERROR_NOT_SUPPORTED, "%s: cooperative launches of more than one cluster are not emulated", function.kernel->name);
  }
}

uint64_t reachable_devices(const Context& context) {
  uint64_t devices = 1ull << context.device->index;
  for (int peer : context.peers) devices |= 1ull << peer;
  return devices;
}

// Holds the stream up. True: the kernel runs after all.
bool hang(Lock& lock, const Context& context, const LaunchFault& fault) {
  const auto until = fault.duration ? Clock::now() + *fault.duration : Clock::time_point::max();
  const uint64_t plan = state().fault_plans;
  ++state().hanging;
  state().progress.notify_all();  // who waits for it must look whether the process ends
  while (context.alive && !context.device->gone() && state().fault_plans == plan && Clock::now() < until) {
    state().progress.wait_for(lock, std::chrono::milliseconds(20));
  }
  --state().hanging;
  return context.alive && !context.device->gone();
}

// What is planned for the device's next launch. False: the kernel does not run.
bool meet_faults(Lock& lock, const std::shared_ptr<Context>& context) {
  Device& device = *context->device;
  const LaunchFault* planned = device.faults.launch_fault(++device.launches);
  if (!planned) return true;
  const LaunchFault fault = *planned;
  switch (fault.kind) {
    case LaunchFault::Kind::kSticky:
      lock.unlock();
      throw WorkFailure{context, fault.error,
                        "a planned fault (EMU_FAULTS): launch " + std::to_string(fault.number) +
                            " of cuda:" + std::to_string(device.index) + " broke its context"};
    case LaunchFault::Kind::kHang: return hang(lock, *context, fault);
    case LaunchFault::Kind::kDisappear:
      device.faults.gone = true;
      state().progress.notify_all();
      complain("a planned fault (EMU_FAULTS): cuda:" + std::to_string(device.index) + " disappears");
      return false;
  }
  return true;
}

}  // namespace

void validate(const Function& function, const LaunchShape& shape) {
  const EmuKernel& kernel = *function.kernel;
  const EmuDim& grid = shape.grid;
  require(grid.x && grid.y && grid.z);
  if (grid.x > kMaxGridX || grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) {
    refuse(CUDA_ERROR_INVALID_VALUE, "%s: a grid of %u x %u x %u blocks", kernel.name, grid.x, grid.y, grid.z);
  }
  validate_block(kernel, shape.block);
  validate_shared(function, shape.dynamic_shared);
  validate_cluster(function, shape);
  if (shape.cooperative) validate_cooperative(function, shape);
}

void KernelWork::run(Site& site) const {
  const std::shared_ptr<Context>& context = module->context;
  LaunchConfig config;
  std::chrono::nanoseconds cost;
  double speed;
  {
    Lock lock(state().mutex);
    if (context->error || !context->alive || context->device->gone()) return;
    if (!meet_faults(lock, context)) return;
    if (!module->loaded) {
      lock.unlock();
      throw WorkFailure{context, CUDA_ERROR_ILLEGAL_ADDRESS, std::string(function->kernel->name) + ": its module was unloaded"};
    }
    config.reachable_devices = reachable_devices(*context);
    config.grid_id = state().next_id++;
    cost = context->device->faults.launch_cost;
    speed = context->device->faults.speed;
  }
  config.module = module->image->module;
  config.kernel = function->kernel;
  config.globals = module->globals.data();
  config.grid = shape.grid;
  config.block = shape.block;
  config.cluster = shape.cluster_for(*function);
  config.dynamic_shared = shape.dynamic_shared;
  config.params = params.data();
  config.device = context->device->index;
  config.programmatic = (shape.programmatic || site.early) && site.previous.end > site.previous.first;
  config.previous_first = site.previous.first;
  config.previous_end = site.previous.end;
  const auto started = Clock::now();
  const LaunchResult result = run_grid(config);
  const auto took = Clock::now() - started;
  const auto wanted = speed < 1 ? std::chrono::duration_cast<Clock::duration>(took / speed) : took;
  std::this_thread::sleep_until(started + wanted + cost);
  if (result.error) throw WorkFailure{context, static_cast<CUresult>(result.error), result.message};
  site.made = {result.first_cluster, result.end_cluster};
}

}  // namespace emu::driver
