// Sums over some dimensions of a tensor, in two levels and without atomics, so that the same input gives the same bits.
//
// Each output's elements are cut into `splits` parts. The first level sums parts into a workspace, laid out [splits, outputs]; the
// second is the same kernel over the workspace with one part. With one part to begin with there is only one level.
#pragma once

#include "dnncore/common/reduce.cuh"

namespace dnncore {

// _PARAMS in summation.py.
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

// Sum of every step-th element from `begin` on. Over two dimensions (a single one comes with an outer one of extent 1) the place is
// carried along instead of divided for, and kSums loads are under way at once: none waits for an addition.
template <typename T>
__device__ __forceinline__ Compute<T> sum_of(const T* x, const TensorView& view, int64 begin, int64 end, int64 step) {
  constexpr int kSums = 8;
  Compute<T> sums[kSums] = {};
  int64 i = begin;
  if (view.ndim == 2) {
    const int64 columns = view.shape[1].value;
    const QuotientRemainder stride = divide(step, view.shape[1]);
    const int64 advance = stride.quotient * view.strides[0] + stride.remainder * view.strides[1];
    const int64 carry = view.strides[0] - columns * view.strides[1];
    int64 column = divide(begin, view.shape[1]).remainder;
    x += offset_of(view, begin);
    const auto next = [&] {
      const Compute<T> value = widen(*x);
      x += advance;
      column += stride.remainder;
      if (column >= columns) {
        column -= columns;
        x += carry;
      }
      return value;
    };
    for (; i + (kSums - 1) * step < end; i += kSums * step) {
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += next();
    }
    for (; i < end; i += step) sums[0] += next();
  }
  for (; i < end; i += step) sums[0] += widen(x[offset_of(view, i)]);
#pragma unroll
  for (int half = kSums / 2; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

// A block sums a part: for few outputs of many elements. What x holds, or the output, may be parts in the compute type.
template <typename T, typename Output>
__device__ void sum_block_per_output(const SumParams& params) {
  for (int64 item = blockIdx.x; item < params.outputs.value * params.splits; item += gridDim.x) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * params.part;
    const int64 end = min(begin + params.part, params.length);
    const Compute<T> total = reduce_block<Sum>(sum_of(x, params.summed_view, begin + threadIdx.x, end, blockDim.x));
    if (threadIdx.x == 0) {
      blend_into(params.blend, total, static_cast<Output*>(params.output) + offset_of(params.output_view, item));
    }
  }
}

// A thread sums a part: where outputs have few elements, or where neighbouring outputs' elements are neighbours in memory.
template <typename T, typename Output>
__device__ void sum_thread_per_output(const SumParams& params) {
  for (int64 item = grid_index(); item < params.outputs.value * params.splits; item += grid_size()) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * params.part;
    const int64 end = min(begin + params.part, params.length);
    const Compute<T> total = sum_of(x, params.summed_view, begin, end, 1);
    blend_into(params.blend, total, static_cast<Output*>(params.output) + offset_of(params.output_view, item));
  }
}

}  // namespace dnncore
