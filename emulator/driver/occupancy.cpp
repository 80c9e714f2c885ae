// Occupancy by threads, blocks and shared memory; registers are not emulated (driver API, "Occupancy").
#include <algorithm>

#include "launch.h"
#include "module.h"

namespace emu::driver {

uint32_t blocks_per_multiprocessor(const Function& function, uint32_t threads, size_t dynamic_shared) {
  const uint32_t limit = static_cast<uint32_t>(function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
  const size_t shared = static_shared_bytes(*function.kernel) + dynamic_shared;
  if (threads > limit || shared > kSharedPerBlockOptIn) return 0;
  const uint32_t by_threads = kThreadsPerMultiprocessor / ((threads + kWarp - 1) / kWarp * kWarp);
  const uint32_t by_shared = static_cast<uint32_t>(kSharedPerMultiprocessor / (shared + kSharedReserved));
  return std::min({by_threads, by_shared, kBlocksPerMultiprocessor});
}

namespace {

void max_active_blocks(int* blocks, CUfunction function, int threads, size_t dynamic_shared) {
  require(blocks && threads > 0);
  *blocks = static_cast<int>(blocks_per_multiprocessor(*function_of(function), static_cast<uint32_t>(threads), dynamic_shared));
}

// The block size with the most threads on a multiprocessor, the largest of those.
CUresult potential_block_size(int* grid, int* block, CUfunction handle, CUoccupancyB2DSize shared_of, size_t shared, int limit) {
  return entry([&] {
    require(grid && block);
    const auto function = function_of(handle);
    int best = 0;
    const int most = function_attribute(*function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    for (int threads = limit > 0 ? std::min(limit, most) : most; threads > 0; threads -= threads % 32 ? threads % 32 : 32) {
      const size_t dynamic = shared_of ? shared_of(threads) : shared;
      const int blocks = static_cast<int>(blocks_per_multiprocessor(*function, static_cast<uint32_t>(threads), dynamic));
      if (blocks * threads <= best) continue;
      best = blocks * threads;
      *block = threads;
      *grid = blocks * static_cast<int>(kMultiprocessors);
    }
    if (best == 0) refuse(CUDA_ERROR_INVALID_VALUE, "no block of %s fits", function->kernel->name);
  });
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads, size_t dynamic_shared) {
  return entry([&] { max_active_blocks(blocks, function, threads, dynamic_shared); });
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function, int threads, size_t dynamic_shared,
                                                              unsigned) {
  return entry([&] { max_active_blocks(blocks, function, threads, dynamic_shared); });
}

CUresult cuOccupancyMaxPotentialBlockSize(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, size_t shared,
                                          int limit) {
  return potential_block_size(grid, block, function, shared_of, shared, limit);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of,
                                                   size_t shared, int limit, unsigned) {
  return potential_block_size(grid, block, function, shared_of, shared, limit);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks, int threads) {
  return entry([&] {
    require(bytes && blocks > 0 && threads > 0);
    const auto function = function_of(handle);
    require(blocks_per_multiprocessor(*function, static_cast<uint32_t>(threads), 0) >= static_cast<uint32_t>(blocks));
    // An H200 does not take the reserved kilobyte off: with as much dynamic shared memory as it says, fewer blocks fit.
    const size_t each = kSharedPerMultiprocessor / static_cast<size_t>(blocks) / kSharedGranularity * kSharedGranularity;
    *bytes = std::min<size_t>(each, kSharedPerBlockOptIn) - static_shared_bytes(*function->kernel);
  });
}

CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle, const CUlaunchConfig* config) {
  return entry([&] {
    require(size && config);
    const auto function = function_of(handle);
    require(blocks_per_multiprocessor(*function, config->blockDimX * config->blockDimY * config->blockDimZ,
                                      config->sharedMemBytes) > 0);
    *size = static_cast<int>(function->non_portable_cluster ? kMaxCluster : kPortableCluster);
  });
}

// A cluster's blocks lie on the multiprocessors of one GPC; GPCs are not emulated: all multiprocessors count as one.
CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction handle, const CUlaunchConfig* config) {
  return entry([&] {
    require(clusters && config);
    const auto function = function_of(handle);
    const LaunchShape shape = launch_shape(*config);
    validate(*function, shape);
    const uint32_t blocks = blocks_per_multiprocessor(*function, volume(shape.block), shape.dynamic_shared) * kMultiprocessors;
    *clusters = static_cast<int>(blocks / volume(shape.cluster_for(*function)));
  });
}
