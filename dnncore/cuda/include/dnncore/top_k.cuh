// The largest elements of each row in order: the largest first, of equals that with the lowest index, NaN before all
// numbers. A block has a row. Each thread knows the best of its own elements that has not been taken; in every round
// the block agrees on the best of those, and the thread that had it looks for its next. So a row is read about once, and
// a round costs an exchange between threads, which for the few elements that are usually wanted is less than a sort.
//
//    row               0 1 2 3 | 4 5 6 7 | 8 ...       thread t has elements t, t + threads, ...
//    round             best of each thread -> best of each warp -> best of the block
//    next round        only the thread that had it has another best
#pragma once

#include "dnncore/common/reduce.cuh"
#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/top_k.py.
struct TopKParams {
  Blend blend;
  const void* x;
  void* values;
  int32* indices;
  int64 rows;
  int64 length;        // elements of a row
  int64 count;         // of those that are wanted
  int64 x_step;        // from one element of a row to the next
  int64 values_step;
  int64 indices_step;
  TensorView x_view;   // where rows start
  TensorView values_view;
  TensorView indices_view;
};

// An element and its index, which is -1 where there is none.
template <typename C>
struct Ranked {
  C value;
  int32 index;
};

// Whether a comes before b. No two elements have one index, so the order is strict whatever the values are.
template <typename C>
__device__ __forceinline__ bool precedes(Ranked<C> a, Ranked<C> b) {
  if (a.index < 0 || b.index < 0) return b.index < 0 && a.index >= 0;
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (a_is_nan || a.value == b.value) return a.index < b.index;
  return a.value > b.value;
}

template <typename C>
__device__ __forceinline__ Ranked<C> first_of(Ranked<C> a, Ranked<C> b) {
  return precedes(b, a) ? b : a;
}

// The first of this thread's elements, `threads` apart, behind `last`; of all of them where that is none.
template <typename T>
__device__ __forceinline__ Ranked<Compute<T>> next_of_mine(
    const TopKParams& params, const T* x, Ranked<Compute<T>> last, int thread, int threads) {
  Ranked<Compute<T>> best = {Compute<T>(0), -1};
  for (int64 i = thread; i < params.length; i += threads) {
    const Ranked<Compute<T>> mine = {widen(x[i * params.x_step]), static_cast<int32>(i)};
    if (last.index < 0 || precedes(last, mine)) best = first_of(best, mine);
  }
  return best;
}

template <typename C>
__device__ __forceinline__ Ranked<C> first_of_warp(Ranked<C> mine) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const Ranked<C> other = {
        __shfl_xor_sync(0xffffffffu, mine.value, distance), __shfl_xor_sync(0xffffffffu, mine.index, distance)};
    mine = first_of(mine, other);
  }
  return mine;
}

template <typename T>
__device__ void top_k(const TopKParams& params) {
  using C = Compute<T>;
  __shared__ Ranked<C> warps[kMaxWarps];
  const int lane = threadIdx.x % kWarpSize, num_warps = blockDim.x / kWarpSize;
  for (int64 row = blockIdx.x; row < params.rows; row += gridDim.x) {
    const T* const x = static_cast<const T*>(params.x) + offset_of(params.x_view, row);
    T* const values = static_cast<T*>(params.values) + offset_of(params.values_view, row);
    int32* const indices = params.indices + offset_of(params.indices_view, row);
    Ranked<C> mine = next_of_mine(params, x, Ranked<C>{C(0), -1}, threadIdx.x, blockDim.x);
    for (int64 place = 0; place < params.count; ++place) {
      const Ranked<C> of_warp = first_of_warp(mine);
      __syncthreads();  // every warp has read what the round before left
      if (lane == 0) warps[threadIdx.x / kWarpSize] = of_warp;
      __syncthreads();
      const Ranked<C> best = first_of_warp(lane < num_warps ? warps[lane] : Ranked<C>{C(0), -1});
      if (threadIdx.x == 0) {
        blend_into(params.blend, best.value, values + place * params.values_step);
        indices[place * params.indices_step] = best.index;
      }
      if (mine.index == best.index) mine = next_of_mine(params, x, best, threadIdx.x, blockDim.x);
    }
  }
}

}  // namespace dnncore
