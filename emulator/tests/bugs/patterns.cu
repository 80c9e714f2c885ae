// Right kernels whose synchronisation is easy to take for wrong. None has a bug to plant: every one must run in silence.
#include <cooperative_groups.h>
#include <cuda_fp16.h>

#include "ptx.cuh"

namespace cg = cooperative_groups;

__device__ __forceinline__ uint32_t in_block(const void* p, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}

__device__ __forceinline__ void arrive_in_block(uint64_t* barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(in_block(barrier, rank)) : "memory");
}

__device__ __forceinline__ void load_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void load_multicast(void* to, const void* from, int bytes, uint64_t* barrier, uint16_t blocks) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
               ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)), "h"(blocks) : "memory");
}

__device__ __forceinline__ void store_bulk(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A ring of four tiles with one barrier a round: the copy of round r + 3 overwrites what was read in round r - 1.
extern "C" __global__ void copy_ring(const float* x, float* y, int rounds) {
  __shared__ float tile[4][64];
  auto copy = [&](int round) {
    if (round < rounds) {
      const uint32_t to = shared_address(&tile[round & 3][threadIdx.x]);
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + round * 64 + threadIdx.x) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  float sum = 0.f;
  for (int r = 0; r < 3; ++r) copy(r);
  for (int r = 0; r < rounds; ++r) {
    asm volatile("cp.async.wait_group 2;" ::: "memory");
    __syncthreads();
    copy(r + 3);
    sum += tile[r & 3][63 - threadIdx.x];
  }
  y[threadIdx.x] = sum;
}

__device__ __forceinline__ uint64_t descriptor(const void* p) {  // K-major, 128-byte swizzle, groups of 8 rows 1024 bytes apart
  return static_cast<uint64_t>((shared_address(p) & 0x3ffff) >> 4) | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

__device__ __forceinline__ void multiply(float (&d)[4], const void* a, const void* b, int keep) {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(descriptor(a)), "l"(descriptor(b)), "r"(keep));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Two groups in flight on the same accumulators; `per_warp`: whether each warp gives a tile back, or one thread for its warpgroup.
template <bool per_warp>
__device__ __forceinline__ void multiply_ring(const __half* a, const __half* b, float* y, int rounds) {
  __shared__ alignas(1024) __half as[3][64 * 64];
  __shared__ alignas(1024) __half bs[3][8 * 64];
  __shared__ alignas(8) uint64_t full[3], empty[3];
  if (threadIdx.x == 0) {
    for (int i = 0; i < 3; ++i) init_barrier(&full[i], 1), init_barrier(&empty[i], per_warp ? 4 : 1);
  }
  __syncthreads();
  if (threadIdx.x >= 128) {
    if (threadIdx.x == 128) {
      for (int r = 0; r < rounds; ++r) {
        const int s = r % 3, parity = r / 3 & 1;
        wait_for_phase(&empty[s], parity ^ 1);
        expect_bytes(&full[s], sizeof as[0] + sizeof bs[0]);
        load_bulk(as[s], a + r * 64 * 64, sizeof as[0], &full[s]);
        load_bulk(bs[s], b + r * 8 * 64, sizeof bs[0], &full[s]);
      }
    }
    return;
  }
  float d[4];
  auto give_back = [&](int r) {
    if (threadIdx.x % (per_warp ? 32 : 128) == 0) arrive(&empty[r % 3]);
  };
  for (int r = 0; r < rounds; ++r) {
    wait_for_phase(&full[r % 3], r / 3 & 1);
    multiply(d, as[r % 3], bs[r % 3], r);
    if (r == 0) continue;
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    give_back(r - 1);
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) y[threadIdx.x * 4 + i] = d[i];
}

extern "C" __global__ void __launch_bounds__(160) multiply_ring_of_warps(const __half* a, const __half* b, float* y, int rounds) {
  multiply_ring<true>(a, b, y, rounds);
}

extern "C" __global__ void __launch_bounds__(160) multiply_ring_of_groups(const __half* a, const __half* b, float* y, int rounds) {
  multiply_ring<false>(a, b, y, rounds);
}

// Two staging buffers: one is written again when all stores but the newest have read theirs.
extern "C" __global__ void staged_stores(float* y, int rounds) {
  __shared__ alignas(128) float stage[2][64];
  for (int r = 0; r < rounds; ++r) {
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
    asm volatile("bar.sync 1, 64;" ::: "memory");
    stage[r & 1][threadIdx.x] = static_cast<float>(r * 64 + threadIdx.x);
    proxy_fence();
    asm volatile("bar.sync 1, 64;" ::: "memory");
    if (threadIdx.x == 0) store_bulk(y + r * 64, stage[r & 1], 256);
  }
  if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Looks whether the next tile has come before it gives the only one back: the answer is no.
extern "C" __global__ void early_look(const float* x, float* y, int rounds) {
  __shared__ alignas(128) float tile[32];
  __shared__ alignas(8) uint64_t full, empty;
  if (threadIdx.x == 0) init_barrier(&full, 1), init_barrier(&empty, 32);
  __syncthreads();
  if (threadIdx.x == 32) {
    for (int r = 0; r < rounds; ++r) {
      wait_for_phase(&empty, (r & 1) ^ 1);
      expect_bytes(&full, 128);
      load_bulk(tile, x + r * 32, 128, &full);
    }
  } else if (threadIdx.x < 32) {
    float sum = 0.f;
    uint32_t ready = 0;
    for (int r = 0; r < rounds; ++r) {
      if (!ready) wait_for_phase(&full, r & 1);
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                   : "=r"(ready) : "r"(shared_address(&full)), "r"(r + 1 & 1) : "memory");
      sum += tile[threadIdx.x];
      if (r + 1 < rounds) arrive(&empty);
    }
    y[threadIdx.x] = sum;
  }
}

// Two blocks load half a tile each, for both; each gives its tile back to both. The barriers are made known as CUTLASS does it: a fence
// and a relaxed arrival.
extern "C" __global__ void __cluster_dims__(2, 1, 1) multicast_ring(const float* x, float* y, int rounds) {
  __shared__ alignas(128) float tile[2][64];
  __shared__ alignas(8) uint64_t full[2], empty[2];
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) init_barrier(&full[i], 1), init_barrier(&empty[i], 2);
  }
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x == 32) {
    for (int r = 0; r < rounds; ++r) {
      const int s = r & 1, parity = r >> 1 & 1;
      wait_for_phase(&empty[s], parity ^ 1);
      expect_bytes(&full[s], 256);
      load_multicast(&tile[s][rank * 32], x + r * 64 + rank * 32, 128, &full[s], 3);
    }
  } else if (threadIdx.x < 32) {
    float sum = 0.f;
    for (int r = 0; r < rounds; ++r) {
      const int s = r & 1, parity = r >> 1 & 1;
      wait_for_phase(&full[s], parity);
      sum += tile[s][threadIdx.x] + tile[s][threadIdx.x + 32];
      __syncwarp();
      if (threadIdx.x < 2) arrive_in_block(&empty[s], threadIdx.x);
    }
    y[rank * 32 + threadIdx.x] = sum;
  }
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The wait finds its phase over for some lanes, which go on to the next barrier alone.
extern "C" __global__ void __cluster_dims__(2, 1, 1) split_cluster_barrier(float* y) {
  __shared__ float mine[32];
  auto cluster = cg::this_cluster();
  mine[threadIdx.x] = static_cast<float>(cluster.block_rank() * 32 + threadIdx.x);
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  __syncthreads();
  __nanosleep(100);
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  const float other = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1)[threadIdx.x];
  __syncthreads();
  y[blockIdx.x * 32 + threadIdx.x] = other;
  cluster.sync();
}

// A warp that has nothing to wait for arrives and returns.
extern "C" __global__ void __cluster_dims__(2, 1, 1) arrive_and_return(float* y) {
  __shared__ float mine[32];
  auto cluster = cg::this_cluster();
  if (threadIdx.x >= 32) {
    mine[threadIdx.x - 32] = static_cast<float>(cluster.block_rank());
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    return;
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  y[blockIdx.x * 32 + threadIdx.x] = cluster.map_shared_rank(mine, cluster.block_rank() ^ 1)[threadIdx.x];
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Every thread fences its own part, one takes the ticket for all.
extern "C" __global__ void split_sum(float* partial, unsigned* ticket, float* y) {
  __shared__ float of_warp[2];
  __shared__ bool last;
  partial[blockIdx.x * 64 + threadIdx.x] = 1.f;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  float sum = 0.f;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += partial[i * 64 + threadIdx.x];
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) *y = of_warp[0] + of_warp[1];
}

// __syncwarp of half a warp, in two branches, and after other lanes have returned.
extern "C" __global__ void parts_of_a_warp(float* y) {
  __shared__ float tile[32];
  const int lane = threadIdx.x;
  tile[lane] = static_cast<float>(lane);
  if (lane < 16) {
    __syncwarp(0x0000ffffu);
    y[lane] = tile[15 - lane];
    __syncwarp();
  } else {
    __syncwarp(0xffff0000u);
    y[lane] = tile[47 - lane];
    asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
    if (lane >= 24) return;
  }
  tile[lane] = 1.f;
  __syncwarp();
  y[lane] += tile[lane ^ 1];
}

// Warps that have nothing to do return; the others' barriers do not wait for them.
extern "C" __global__ void warps_that_return(float* y) {
  __shared__ int count;
  if (threadIdx.x >= 64) return;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 1);
  __syncthreads();
  y[threadIdx.x] = static_cast<float>(count);
  __syncthreads();
  if (threadIdx.x == 0) count = 5;
}

// Blocks hand a number on, each waiting for the one before it.
extern "C" __global__ void chain_of_blocks(float* value, volatile unsigned* flag, float* y) {
  if (threadIdx.x == 0) {
    while (blockIdx.x && flag[blockIdx.x - 1] == 0) {}
    __threadfence();
    const float before = blockIdx.x ? value[blockIdx.x - 1] : 0.f;
    value[blockIdx.x] = before + 1.f;
    __threadfence();
    flag[blockIdx.x] = 1;
    if (blockIdx.x == gridDim.x - 1) *y = before + 1.f;
  }
}

// Additions gathered by the lanes of each branch, while another warp polls for the sum.
extern "C" __global__ void gathered_additions(float* y) {
  __shared__ int sums[2];
  __shared__ volatile int done;
  if (threadIdx.x < 2) sums[threadIdx.x] = 0;
  if (threadIdx.x == 2) done = 0;
  __syncthreads();
  if (threadIdx.x >= 32) {
    if (threadIdx.x > 32) return;
    while (!done) {}
    __threadfence_block();
    y[0] = static_cast<float>(sums[0]), y[1] = static_cast<float>(sums[1]);
    return;
  }
  if (threadIdx.x % 3 == 0) {
    const auto group = cg::coalesced_threads();
    if (group.thread_rank() == 0) atomicAdd(&sums[0], static_cast<int>(group.size()));
    group.sync();
  } else {
    const auto group = cg::coalesced_threads();
    if (group.thread_rank() == 0) atomicAdd(&sums[1], static_cast<int>(group.size()));
    group.sync();
  }
  __syncwarp();
  __threadfence_block();
  if (threadIdx.x == 0) done = 1;
}

// One link of a chain of dependent launches: shared memory is set up before the wait, which one thread does for its block.
extern "C" __global__ void link(const float* x, float* y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.f;
  asm volatile("griddepcontrol.launch_dependents;");
  if (threadIdx.x == 0) asm volatile("griddepcontrol.wait;" ::: "memory");
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x] + tile[31 - threadIdx.x];
}
