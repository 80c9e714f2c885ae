// Reductions over a warp and over a block, in an order that depends on nothing but the number of threads.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

constexpr int kWarpSize = 32;
constexpr int kMaxWarps = 32;

struct Sum {
  template <typename T>
  static __device__ __forceinline__ T identity() {
    return T(0);
  }
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};

// A maximum that ignores NaN: for softmax, where NaN comes back through the sum.
struct Maximum {
  template <typename T>
  static __device__ __forceinline__ T identity() {
    return -T(INFINITY);
  }
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return fmax(a, b);
  }
};

// Every lane of the warp gets the result; all 32 take part.
template <typename Operation, typename T>
__device__ __forceinline__ T reduce_warp(T value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = Operation{}(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Every thread of the block gets the result; all take part, and their number is a multiple of 32.
template <typename Operation, typename T>
__device__ __forceinline__ T reduce_block(T value) {
  __shared__ T partials[kMaxWarps];
  const int warps = blockDim.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  value = reduce_warp<Operation>(value);
  __syncthreads();  // a previous reduction's readers are done with partials
  if (lane == 0) partials[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  return reduce_warp<Operation>(lane < warps ? partials[lane] : Operation::template identity<T>());
}

}  // namespace dnncore
