// Element-wise operations on up to three inputs: out = alpha * function(a, b, c) + beta * out. They are memory-bound.
// The host collapses the dimensions (collapse in dnncore/cuda/params.py), so that tensors without gaps come as one
// dimension and take the contiguous kernel. Where the last dimension that is left is not short (a bias over an image's planes, or over
// its channels), a thread takes 16 bytes of the output too, and works out where the inputs' are; otherwise it takes one element. An
// input may be the output itself: each element is read before it is written, by the same thread.
//
//    contiguous    [16 bytes][16 bytes][16 bytes][16 bytes] ...     no divisions
//    rows          [16 bytes][16 bytes][16 b..]                     divisions for each pack; the last may be incomplete
//                  [16 bytes][16 bytes][16 b..]
//    rows of an    [16 bytes][16 bytes][16 by|tes][16 bytes][16     ... or go on in the next row, where the output's do
//    output that is whole                    row
//    strided       .    .    .    .    .                            divisions for each element
//
// Every thread has all that it takes under way before it computes, and takes it once: blocks go through memory in their order.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/common/pack.cuh"
#include "dnncore/common/tensor.cuh"
#include "dnncore/elementwise_functions.cuh"

namespace dnncore {

constexpr int kMaxInputs = 3;

// Mirrored by _PARAMS in dnncore/cuda/elementwise.py. The views share one shape; strides count elements.
struct ElementwiseParams {
  Blend blend;
  const void* inputs[kMaxInputs];
  void* output;
  int64 size;
  int32 packs;  // of the output in rows
  Divisor row;  // elements from one row's first pack to the next one's: the last dimension, up to whole packs unless the output is whole
  Settings settings;
  TensorView views[kMaxInputs];
  TensorView output_view;
};

// Lanes of 16 bytes of the output, and what belongs to them of a condition, a byte each.
template <typename T>
constexpr int kWidth = Pack<T>::kWidth;

// What a thread takes of whole tensors; _PACKS_AT_ONCE in dnncore/cuda/elementwise.py.
constexpr int kPacksAtOnce = 2;

// What a thread has of every tensor for a pack of the output.
template <typename Function>
struct Taken {
  using T = typename Function::Stored;
  Vector<typename Function::First, kWidth<T>> first;
  Vector<T, kWidth<T>> second, third, output;
};

// Where the same element of every tensor is.
struct Offsets {
  int64 inputs[kMaxInputs];
  int64 output;
};

// Those of the index-th element over dimensions 0 to ndim - 1, in row-major order. Index is int32 where the launcher proved that it is enough.
template <typename Function, typename Index>
__device__ __forceinline__ Offsets offsets_of(const ElementwiseParams& params, int ndim, Index index) {
  Offsets offsets{};
  const auto add = [&](int axis, int64 steps) {
    offsets.output += steps * params.output_view.strides[axis];
#pragma unroll
    for (int input = 0; input < Function::kInputs; ++input) {
      if (Function::reads(input)) offsets.inputs[input] += steps * params.views[input].strides[axis];
    }
  };
#pragma unroll 1
  for (int axis = ndim - 1; axis > 0; --axis) {
    const auto split = divide(index, params.output_view.shape[axis]);
    index = split.quotient;
    add(axis, split.remainder);
  }
  if (ndim > 0) add(0, index);
  return offsets;
}

template <typename T, int kLanes>
__device__ __forceinline__ bool is_vector(const T* place, int64 step, int64 lanes) {
  return lanes >= kLanes && step == 1 && reinterpret_cast<uint64>(place) % sizeof(Vector<T, kLanes>) == 0;
}

// So many elements, each `step` behind the one before, and zeros behind them: by one instruction where they are neighbours and aligned.
template <typename T, int kLanes>
__device__ __forceinline__ void load_lanes(Vector<T, kLanes>& to, const T* place, int64 step, int64 lanes) {
  if (is_vector<T, kLanes>(place, step, lanes)) {
    to = *reinterpret_cast<const Vector<T, kLanes>*>(place);
  } else {
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) to.at[lane] = lane < lanes ? place[lane * step] : T{};
  }
}

template <typename T, int kLanes>
__device__ __forceinline__ void store_lanes(const Vector<T, kLanes>& from, T* place, int64 step, int64 lanes) {
  if (is_vector<T, kLanes>(place, step, lanes)) {
    *reinterpret_cast<Vector<T, kLanes>*>(place) = from;
  } else {
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      if (lane < lanes) place[lane * step] = from.at[lane];
    }
  }
}

// The output's new lanes in place of its old ones.
template <typename Function>
__device__ __forceinline__ void evaluate(const Blend& blend, const Function& function, Taken<Function>& taken) {
  using T = typename Function::Stored;
  using C = Compute<T>;
  C values[kWidth<T>];
#pragma unroll
  for (int i = 0; i < kWidth<T>; ++i) {
    const C first = static_cast<C>(widen(taken.first.at[i]));
    values[i] = static_cast<C>(blend.alpha) * function(first, widen(taken.second.at[i]), widen(taken.third.at[i]));
  }
  if (blend.beta != 0.0) {
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) values[i] += static_cast<C>(blend.beta) * widen(taken.output.at[i]);
  }
#pragma unroll
  for (int i = 0; i < kWidth<T>; ++i) taken.output.at[i] = narrow<T>(values[i]);
}

// One element of each tensor.
template <typename Function>
__device__ __forceinline__ void evaluate_at(const ElementwiseParams& params, const Function& function, const Offsets& at) {
  using T = typename Function::Stored;
  const auto input = [&]<typename E>(int i, E nothing) {
    return widen(Function::reads(i) ? static_cast<const E*>(params.inputs[i])[at.inputs[i]] : nothing);
  };
  const auto first = static_cast<Compute<T>>(input(0, typename Function::First{}));
  blend_into(params.blend, function(first, input(1, T{}), input(2, T{})), static_cast<T*>(params.output) + at.output);
}

// Any strides; an input's stride may be 0.
template <typename Function>
__device__ void elementwise_strided(const ElementwiseParams& params) {
  const Function function(params.settings);
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    evaluate_at(params, function, offsets_of<Function>(params, params.output_view.ndim, index));
  }
}

// The last dimension is long enough for a pack to lie in one row, or in two where the output is whole. The launcher proved that 32 bits hold
// the number of every element.
template <typename Function>
__device__ void elementwise_rows(const ElementwiseParams& params) {
  using T = typename Function::Stored;
  const int64 pack = grid_index();
  if (pack >= params.packs) return;
  const int32 begin = static_cast<int32>(pack) * kWidth<T>;
  const int last = params.output_view.ndim - 1;
  const int32 length = static_cast<int32>(params.output_view.shape[last].value);
  const SmallQuotientRemainder row = divide(begin, params.row);
  const int32 left = length - row.remainder;
  const int32 lanes = params.row.value == length ? static_cast<int32>(params.size) - begin : left;
  const bool goes_on = left < kWidth<T> && left < lanes;
  const Offsets at = offsets_of<Function>(params, last, row.quotient);
  Offsets next{};
  if (goes_on) next = offsets_of<Function>(params, last, row.quotient + 1);
  const auto load = [&]<typename E>(Vector<E, kWidth<T>>& to, int input) {
    const int64 step = params.views[input].strides[last];
    const E* const here = static_cast<const E*>(params.inputs[input]) + at.inputs[input] + row.remainder * step;
    const E* const there = static_cast<const E*>(params.inputs[input]) + next.inputs[input] - left * step;
    if (goes_on && there != here) {
#pragma unroll
      for (int lane = 0; lane < kWidth<T>; ++lane) {
        to.at[lane] = lane < lanes ? (lane < left ? here : there)[lane * step] : E{};
      }
    } else if (step == 0) {
      const E value = *here;
#pragma unroll
      for (E& lane : to.at) lane = value;
    } else {
      load_lanes(to, here, step, lanes);
    }
  };
  const Function function(params.settings);
  Taken<Function> taken;
  if (Function::reads(0)) load(taken.first, 0);
  if (Function::reads(1)) load(taken.second, 1);
  if (Function::reads(2)) load(taken.third, 2);
  const int64 step = params.output_view.strides[last];
  T* const output = static_cast<T*>(params.output) + at.output + row.remainder * step;
  if (params.blend.beta != 0.0) load_lanes(taken.output, output, step, lanes);
  evaluate(params.blend, function, taken);
  store_lanes(taken.output, output, step, lanes);
}

// All tensors are in one piece and in the same order: packs where every address allows it, and one element at a time what is left.
template <typename Function>
__device__ void elementwise_contiguous(const ElementwiseParams& params) {
  using T = typename Function::Stored;
  using First = typename Function::First;
  using Of = Vector<T, kWidth<T>>;
  using OfFirst = Vector<First, kWidth<T>>;
  const auto is_aligned = [&](const void* tensor, uint64 nbytes) { return reinterpret_cast<uint64>(tensor) % nbytes == 0; };
  bool takes_packs = is_aligned(params.output, sizeof(Of));
  if (Function::reads(0)) takes_packs = takes_packs && is_aligned(params.inputs[0], sizeof(OfFirst));
  if (Function::reads(1)) takes_packs = takes_packs && is_aligned(params.inputs[1], sizeof(Of));
  if (Function::reads(2)) takes_packs = takes_packs && is_aligned(params.inputs[2], sizeof(Of));
  const int64 packs = takes_packs ? params.size / kWidth<T> : 0;
  const int64 begin = static_cast<int64>(blockIdx.x) * (blockDim.x * kPacksAtOnce) + threadIdx.x;
  const Function function(params.settings);
  Taken<Function> taken[kPacksAtOnce];
#pragma unroll
  for (int k = 0; k < kPacksAtOnce; ++k) {
    const int64 pack = begin + k * blockDim.x;
    if (pack >= packs) break;
    if (Function::reads(0)) taken[k].first = static_cast<const OfFirst*>(params.inputs[0])[pack];
    if (Function::reads(1)) taken[k].second = static_cast<const Of*>(params.inputs[1])[pack];
    if (Function::reads(2)) taken[k].third = static_cast<const Of*>(params.inputs[2])[pack];
    if (params.blend.beta != 0.0) taken[k].output = static_cast<const Of*>(params.output)[pack];
  }
#pragma unroll
  for (int k = 0; k < kPacksAtOnce; ++k) {
    const int64 pack = begin + k * blockDim.x;
    if (pack >= packs) break;
    evaluate(params.blend, function, taken[k]);
    static_cast<Of*>(params.output)[pack] = taken[k].output;
  }
  for (int64 index = packs * kWidth<T> + grid_index(); index < params.size; index += grid_size()) {
    evaluate_at(params, function, Offsets{{index, index, index}, index});
  }
}

}  // namespace dnncore
