// Sums over some dimensions of a tensor, in two levels and without atomics, so that the same input gives the same bits.
//
// Each output's elements are cut into `splits` parts. The first level sums parts into a workspace, laid out [splits, outputs]; the
// second is the same kernel over the workspace with one part. With one part to begin with there is only one level.
#pragma once

#include "dnncore/common/reduce.cuh"

namespace dnncore {

// _PARAMS in tensor.py.
struct SumParams {
  Blend blend;
  const void* x;
  void* output;
  Divisor outputs;
  int64 length;             // elements that are summed into one output
  int64 splits;
  int64 part;               // elements of a part; the last may have fewer
  TensorView kept_view;     // x: where an output's elements start
  TensorView summed_view;   // x: where they are from there
  TensorView output_view;   // over [splits * outputs]
};

// Sum of every step-th element from `begin` on. Along one dimension, four sums at a time: no load waits for an addition.
template <typename T>
__device__ __forceinline__ T sum_of(const T* x, const TensorView& view, int64 begin, int64 end, int64 step) {
  constexpr int kSums = 4;
  T sums[kSums] = {};
  int64 i = begin;
  if (view.ndim == 1) {
    const int64 stride = view.strides[0];
    for (; i + (kSums - 1) * step < end; i += kSums * step) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += x[(i + k * step) * stride];
    }
  }
  for (; i < end; i += step) sums[0] += x[offset_of(view, i)];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// A block sums a part: for few outputs of many elements.
template <typename T>
__device__ void sum_block_per_output(const SumParams& params) {
  for (int64 item = blockIdx.x; item < params.outputs.value * params.splits; item += gridDim.x) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * params.part;
    const int64 end = min(begin + params.part, params.length);
    const T total = reduce_block<Sum>(sum_of(x, params.summed_view, begin + threadIdx.x, end, blockDim.x));
    if (threadIdx.x == 0) {
      blend_into(params.blend, total, static_cast<T*>(params.output) + offset_of(params.output_view, item));
    }
  }
}

// A thread sums a part: where outputs have few elements, or where neighbouring outputs' elements are neighbours in memory.
template <typename T>
__device__ void sum_thread_per_output(const SumParams& params) {
  for (int64 item = grid_index(); item < params.outputs.value * params.splits; item += grid_size()) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * params.part;
    const int64 end = min(begin + params.part, params.length);
    const T total = sum_of(x, params.summed_view, begin, end, 1);
    blend_into(params.blend, total, static_cast<T*>(params.output) + offset_of(params.output_view, item));
  }
}

}  // namespace dnncore
