// Blocks of a cluster (sm_90), which run at the same time and write each other's shared memory (PTX ISA, 9.7.9.12, 9.7.9.23 and
// 9.7.13.3). A block may do so once the other has begun, and its barriers are there: once all threads have arrived at the cluster's
// barrier.
#pragma once

#include "dnncore/ptx/mbarrier.cuh"

namespace dnncore {

// Of this block in its cluster.
__device__ __forceinline__ uint32 block_rank() {
  uint32 rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// Say that this thread has come so far, once in a launch. All threads of a warp call these together.
__device__ __forceinline__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Wait until all threads of the cluster have.
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Begin to store 16 bytes where another block has the same variable; they arrive at that block's barrier.
__device__ __forceinline__ void store_in_block(uint32 rank, uint4& shared, const uint4& value, Mbarrier& barrier) {
  asm volatile(
      "{ .reg .b32 there, its_barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 its_barrier, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, %6}, [its_barrier]; }" ::"r"(
          shared_address(&shared)),
      "r"(shared_address(&barrier)), "r"(rank), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
      : "memory");
}

}  // namespace dnncore
