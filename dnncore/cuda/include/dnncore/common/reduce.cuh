// Reductions over a warp and over a block. The order of the operations depends on the number of threads alone, so the
// same input always gives the same bits. A warp exchanges values through registers; the warps of a block leave one
// partial each in shared memory, and every warp then reduces the partials once more, so that all threads have the
// result.
//
//   lanes of a warp     0   1   2  ...  31     lane l takes in lane l ^ 16, then l ^ 8, l ^ 4, l ^ 2 and l ^ 1
//                       one partial per warp
//   shared memory      [w0][w1][w2] ... [w31]
//   every warp          0   1   2  ...  31     lane l takes partial l, then the same exchange again
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

// The maximum of the values that are not NaN. Softmax uses it: there a NaN reaches the result through the sum.
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

// Every lane of the warp gets the result. All 32 lanes must take part.
template <typename Operation, typename T>
__device__ __forceinline__ T reduce_warp(T value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = Operation{}(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Every thread of the block gets the result. All threads must take part, and their number is a multiple of 32.
template <typename Operation, typename T>
__device__ __forceinline__ T reduce_block(T value) {
  __shared__ T partials[kMaxWarps];
  const int warps = blockDim.x / kWarpSize;
  const int lane = threadIdx.x % kWarpSize;
  value = reduce_warp<Operation>(value);
  __syncthreads();  // readers of a previous reduction are done with partials
  if (lane == 0) partials[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  return reduce_warp<Operation>(lane < warps ? partials[lane] : Operation::template identity<T>());
}

}  // namespace dnncore
