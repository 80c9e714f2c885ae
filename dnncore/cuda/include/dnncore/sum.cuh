// Sums over some dimensions of a tensor, in two levels and without atomics, so that the same input gives the same bits.
// Each output's elements are cut into `splits` parts, so that a few long sums still fill the GPU. The first level sums
// the parts into a workspace; the second is the same kernel over the workspace, with one part. With one part to begin
// with, there is one level only.
//
//    elements of an output    |   part 0   |   part 1   |   part 2   |     first level: a block, or a thread, per part
//    workspace                [splits][outputs], in the compute type
//    output                   part 0 + part 1 + part 2                     second level
#pragma once

#include "dnncore/common/pack.cuh"
#include "dnncore/common/reduce.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/summation.py.
struct SumParams {
  Blend blend;
  const void* x;
  void* output;
  Divisor outputs;
  int64 length;             // elements that are summed into one output
  int64 splits;
  int64 part;               // elements per part; the last may have fewer
  TensorView kept_view;     // x: where an output's elements start
  TensorView summed_view;   // x: from there to each of them
  TensorView output_view;   // over [splits * outputs]
};

// Sum of every step-th element from `begin` on. Over two dimensions (a single one comes with an outer one of extent 1)
// the place is carried along instead of divided for, and kSums loads are under way at once, none of which waits for an
// addition.
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
      const T value = *x;
      x += advance;
      column += stride.remainder;
      if (column >= columns) {
        column -= columns;
        x += carry;
      }
      return value;
    };
    for (; i + (kSums - 1) * step < end; i += kSums * step) {
      T values[kSums];
#pragma unroll
      for (int k = 0; k < kSums; ++k) values[k] = next();
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += widen(values[k]);
    }
    for (; i < end; i += step) sums[0] += widen(next());
  }
  for (; i < end; i += step) sums[0] += widen(x[offset_of(view, i)]);
#pragma unroll
  for (int half = kSums / 2; half > 0; half /= 2) {
#pragma unroll
    for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
  }
  return sums[0];
}

// Whether every 16 bytes of a row, in a view of two dimensions, lie in one piece and are aligned.
template <typename T>
__device__ __forceinline__ bool has_packs(const T* x, const TensorView& view) {
  constexpr int kWidth = Pack<T>::kWidth;
  return view.ndim == 2 && view.strides[1] == 1 && (view.shape[1].value | view.strides[0]) % kWidth == 0 &&
         reinterpret_cast<uint64>(x) % sizeof(Pack<T>) == 0;
}

// Sum of every step-th pack from `begin` on: the same walk as in sum_of, 16 bytes at a time.
template <typename T>
__device__ __forceinline__ Compute<T> sum_of_packs(const T* x, const TensorView& view, int64 begin, int64 end, int64 step) {
  constexpr int kPacks = 4, kWidth = Pack<T>::kWidth;
  const int64 columns = view.shape[1].value / kWidth;
  const QuotientRemainder stride = divide(step, columns), first = divide(begin, columns);
  const int64 advance = stride.quotient * view.strides[0] + stride.remainder * kWidth;
  const int64 carry = view.strides[0] - columns * kWidth;
  int64 column = first.remainder, i = begin;
  x += first.quotient * view.strides[0] + column * kWidth;
  const auto next = [&] {
    const Pack<T> pack = *reinterpret_cast<const Pack<T>*>(x);
    x += advance;
    column += stride.remainder;
    if (column >= columns) {
      column -= columns;
      x += carry;
    }
    return pack;
  };
  Compute<T> sums[kWidth] = {};
  const auto add = [&](const Pack<T>& pack) {
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) sums[lane] += widen(pack.lanes[lane]);
  };
  for (; i + (kPacks - 1) * step < end; i += kPacks * step) {
    Pack<T> packs[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) packs[k] = next();
#pragma unroll
    for (int k = 0; k < kPacks; ++k) add(packs[k]);
  }
  for (; i < end; i += step) add(next());
#pragma unroll
  for (int half = kWidth / 2; half > 0; half /= 2) {
#pragma unroll
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// A block sums a part: for few outputs of many elements. x, or the output, may hold parts in the compute type.
template <typename T, typename Output>
__device__ void sum_block_per_output(const SumParams& params) {
  for (int64 item = blockIdx.x; item < params.outputs.value * params.splits; item += gridDim.x) {
    const QuotientRemainder split = divide(item, params.outputs);
    const T* x = static_cast<const T*>(params.x) + offset_of(params.kept_view, split.remainder);
    const int64 begin = split.quotient * params.part;
    const int64 end = min(begin + params.part, params.length);
    // A part then begins with the pack in which it would begin; rows are whole packs, and so the last part ends with
    // one.
    constexpr int kWidth = Pack<T>::kWidth;
    const Compute<T> sum = has_packs(x, params.summed_view)
                               ? sum_of_packs(x, params.summed_view, begin / kWidth + threadIdx.x, end / kWidth, blockDim.x)
                               : sum_of(x, params.summed_view, begin + threadIdx.x, end, blockDim.x);
    const Compute<T> total = reduce_block<Sum>(sum);
    if (threadIdx.x == 0) {
      blend_into(params.blend, total, static_cast<Output*>(params.output) + offset_of(params.output_view, item));
    }
  }
}

// A thread sums a part: where outputs have few elements, or where neighbouring outputs' elements are neighbours in
// memory.
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
