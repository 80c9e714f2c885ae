// Seeded misuse of barriers and warp collectives. With bug == 0 every kernel is right.
#include "ptx.cuh"

extern "C" __global__ void divergent_barrier(float* y, int bug) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 1.f;
  if (bug && threadIdx.x < 16) {
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x];
  } else {
    __syncthreads();
    y[threadIdx.x] = tile[63 - threadIdx.x] + 1.f;
  }
}

extern "C" __global__ void barrier_after_return(float* y, int n, int bug) {
  if (bug && static_cast<int>(threadIdx.x) >= n) return;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < n) y[threadIdx.x] = 1.f;
}

extern "C" __global__ void wrong_thread_count(float* y, int bug) {
  if (threadIdx.x < 64) {
    if (bug) {
      asm volatile("bar.sync 1, 96;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
    }
  }
  y[threadIdx.x] = 1.f;
}

extern "C" __global__ void shuffle_in_divergent_code(float* y, int bug) {
  float v = static_cast<float>(threadIdx.x);
  if (!bug || threadIdx.x < 16) v = __shfl_xor_sync(0xffffffffu, v, 1);
  y[threadIdx.x] = v;
}

extern "C" __global__ void mask_without_the_caller(float* y, int bug) {
  float v = static_cast<float>(threadIdx.x);
  if (bug || threadIdx.x < 16) v = __shfl_xor_sync(0x0000ffffu, v, 1);
  y[threadIdx.x] = v;
}

extern "C" __global__ void mbarrier_never_initialised(float* y, int bug) {
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0 && !bug) init_barrier(&barrier, blockDim.x);
  __syncthreads();
  arrive(&barrier);
  wait_for_phase(&barrier, 0);
  y[threadIdx.x] = 1.f;
}

extern "C" __global__ void mbarrier_with_too_many_arrivals(float* y, int bug) {
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0) init_barrier(&barrier, bug ? 31 : 32);
  __syncthreads();
  // Expecting a byte keeps the phase open until all have arrived.
  if (threadIdx.x == 0) asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(shared_address(&barrier)) : "memory");
  __syncthreads();
  arrive(&barrier);
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(shared_address(&barrier)) : "memory");
  wait_for_phase(&barrier, 0);
  y[threadIdx.x] = 1.f;
}

extern "C" __global__ void mbarrier_with_too_few_arrivals(float* y, int bug) {
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0) init_barrier(&barrier, blockDim.x);
  __syncthreads();
  if (!bug || threadIdx.x) arrive(&barrier);
  wait_for_phase(&barrier, 0);
  y[threadIdx.x] = 1.f;
}

extern "C" __global__ void mbarrier_overwritten(float* y, int bug) {
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0) {
    init_barrier(&barrier, blockDim.x);
    if (bug) barrier = 0;
  }
  __syncthreads();
  arrive(&barrier);
  wait_for_phase(&barrier, 0);
  y[threadIdx.x] = 1.f;
}
