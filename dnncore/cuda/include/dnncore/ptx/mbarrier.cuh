// Barriers in shared memory for which threads do not stand still (mbarrier; PTX ISA, 9.7.13.15). A phase of a barrier
// ends when as many threads have arrived as it was made for and all bytes that were announced have landed; then the
// next one begins. Who waits says which phase it waits for by its parity, 0 for the first: of the phase before, a wait
// returns at once, so that nobody may fall two phases behind.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

using Mbarrier = uint64;

__device__ __forceinline__ uint32 shared_address(const void* shared) {
  return static_cast<uint32>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void make_barrier(Mbarrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}

// Let the copy engine see the barriers that this thread has made. Other threads see them after a __syncthreads().
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void arrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}

// Arrive and announce bytes that copies will bring.
__device__ __forceinline__ void arrive_expecting(Mbarrier& barrier, uint32 nbytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(nbytes) : "memory");
}

__device__ __forceinline__ bool has_ended(Mbarrier& barrier, uint32 parity) {
  uint32 ended;
  asm volatile(
      "{ .reg .pred ended; mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2; selp.u32 %0, 1, 0, ended; }"
      : "=r"(ended)
      : "r"(shared_address(&barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

__device__ __forceinline__ void wait(Mbarrier& barrier, uint32 parity) {
  while (!has_ended(barrier, parity)) {  // try_wait sleeps for a while by itself
  }
}

}  // namespace dnncore
