// Element-wise operations on up to three inputs: out = alpha * function(a, b, c) + beta * out. They are memory-bound.
// The host collapses the dimensions (collapse in dnncore/cuda/params.py), so that tensors without gaps come as one dimension. An input may
// be the output itself: each element is read before it is written, by the same thread.
//
//    contiguous    [16 bytes][16 bytes][16 bytes][16 bytes] ...     no divisions
//    broadcast     [16 bytes][16 bytes][16 by|tes][16 bytes][16     of an output in one piece, wherever an input's rows end: divisions
//                                         row                       for each pack
//    rows          [16 bytes][16 bytes][16 b..]                     of any output; a row's last pack may be incomplete
//                  [16 bytes][16 bytes][16 b..]
//    strided       .    .    .    .    .                            divisions for each element
//
// Of an output in one piece every thread has all that it takes under way before it computes, and takes it once: blocks go through memory
// in their order.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/common/pack.cuh"
#include "dnncore/common/tensor.cuh"
#include "dnncore/elementwise_functions.cuh"

namespace dnncore {

constexpr int kMaxInputs = 3;

// How an input lies behind the output, in three dimensions, in elements; mirrored by _STEPS in dnncore/cuda/elementwise.py.
struct Steps {
  int32 outer, row, element;
  int32 is_whole;  // it lies as the output does
};

// The output's rows, for inputs of which something is broadcast; mirrored by _ROWS there. All numbers of elements have 32 bits.
struct Rows {
  SmallDivisor length;  // elements in each
  SmallDivisor inner;   // rows for each step of the outer dimension
  Steps inputs[kMaxInputs];
};

// Mirrored by _PARAMS there. The views share one shape; strides count elements.
struct ElementwiseParams {
  Blend blend;
  const void* inputs[kMaxInputs];
  void* output;
  int64 size;
  Divisor row_packs;  // in a row of any output
  Settings settings;
  Rows rows;
  TensorView views[kMaxInputs];
  TensorView output_view;
};

// Lanes of 16 bytes of the output, and what belongs to them of a condition, a byte each.
template <typename T>
constexpr int kWidth = Pack<T>::kWidth;

// What a thread takes of an output in one piece; `_packs_at_once` in dnncore/cuda/elementwise.py. Two packs of bytes, widened, would take
// too many registers.
template <typename T>
constexpr int kPacksAtOnce = sizeof(T) == 1 ? 1 : 2;

// Alpha and beta in the compute type.
template <typename C>
struct Factors {
  C alpha, beta;
  bool reads_output;
  explicit __device__ Factors(const Blend& blend)
      : alpha(static_cast<C>(blend.alpha)), beta(static_cast<C>(blend.beta)), reads_output(blend.beta != 0.0) {}
};

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

// Those of the index-th element over dimensions 0 to ndim - 1, in row-major order.
template <typename Function>
__device__ __forceinline__ Offsets offsets_of(const ElementwiseParams& params, int ndim, int64 index) {
  Offsets offsets{};
#pragma unroll 1
  for (int axis = ndim - 1; axis >= 0; --axis) {
    const QuotientRemainder split = divide(index, params.output_view.shape[axis]);
    index = split.quotient;
    offsets.output += split.remainder * params.output_view.strides[axis];
#pragma unroll
    for (int input = 0; input < Function::kInputs; ++input) {
      if (Function::reads(input)) offsets.inputs[input] += split.remainder * params.views[input].strides[axis];
    }
  }
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
template <typename Function, typename C>
__device__ __forceinline__ void evaluate(const Factors<C>& factors, const Function& function, Taken<Function>& taken) {
  using T = typename Function::Stored;
  C values[kWidth<T>] = {};
  with_function(function, [&](const auto& chosen) {
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) {
      const C first = static_cast<C>(widen(taken.first.at[i]));
      values[i] = factors.alpha * chosen(first, widen(taken.second.at[i]), widen(taken.third.at[i]));
    }
  });
  if (factors.reads_output) {
#pragma unroll
    for (int i = 0; i < kWidth<T>; ++i) values[i] += factors.beta * widen(taken.output.at[i]);
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
  const Compute<T> second = input(1, T{}), third = input(2, T{});
  Compute<T> value{};
  with_function(function, [&](const auto& chosen) { value = chosen(first, second, third); });
  blend_into(params.blend, value, static_cast<T*>(params.output) + at.output);
}

// Any strides; an input's stride may be 0.
template <typename Function>
__device__ void elementwise_strided(const ElementwiseParams& params) {
  const Function function(params.settings);
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    evaluate_at(params, function, offsets_of<Function>(params, params.output_view.ndim, index));
  }
}

// Any strides, a last dimension long enough to be cut into packs.
template <typename Function>
__device__ void elementwise_rows(const ElementwiseParams& params) {
  using T = typename Function::Stored;
  const int last = params.output_view.ndim - 1;
  const int64 length = params.output_view.shape[last].value;
  const int64 output_step = params.output_view.strides[last];
  const int64 packs = divide(params.size, params.output_view.shape[last]).quotient * params.row_packs.value;
  const Factors<Compute<T>> factors(params.blend);
  const Function function(params.settings);
  for (int64 index = grid_index(); index < packs; index += grid_size()) {
    const QuotientRemainder split = divide(index, params.row_packs);
    const Offsets at = offsets_of<Function>(params, last, split.quotient);
    const int64 first = split.remainder * kWidth<T>;
    const int64 lanes = length - first;
    const auto load = [&]<typename E>(Vector<E, kWidth<T>>& to, int input) {
      const int64 step = params.views[input].strides[last];
      load_lanes(to, static_cast<const E*>(params.inputs[input]) + at.inputs[input] + first * step, step, lanes);
    };
    Taken<Function> taken;
    if (Function::reads(0)) load(taken.first, 0);
    if (Function::reads(1)) load(taken.second, 1);
    if (Function::reads(2)) load(taken.third, 2);
    T* const output = static_cast<T*>(params.output) + at.output + first * output_step;
    if (factors.reads_output) load_lanes(taken.output, output, output_step, lanes);
    evaluate(factors, function, taken);
    store_lanes(taken.output, output, output_step, lanes);
  }
}

// The place of an element of the output in its rows, and the row behind.
struct ElementPlace {
  int32 outer, row, element;
  int32 next_outer, next_row;

  __device__ __forceinline__ ElementPlace(const Rows& rows, int32 index) {
    const SmallQuotientRemainder in_row = divide(index, rows.length), in_outer = divide(in_row.quotient, rows.inner);
    outer = in_outer.quotient;
    row = in_outer.remainder;
    element = in_row.remainder;
    const bool turns = row + 1 == rows.inner.value;
    next_outer = turns ? outer + 1 : outer;
    next_row = turns ? 0 : row + 1;
  }
  __device__ __forceinline__ int32 offset(const Steps& steps) const {
    return outer * steps.outer + row * steps.row + element * steps.element;
  }
};

// An input's lanes for a pack of the output that begins at a place, and may end in the next row.
template <typename E, int kLanes>
__device__ __forceinline__ void load_broadcast(
    Vector<E, kLanes>& to, const E* input, const Steps& steps, const ElementPlace& place, int32 left) {
  const E* const here = input + place.offset(steps);
  // As if it began in the next row, so many elements before it.
  const E* const there = input + (place.next_outer * steps.outer + place.next_row * steps.row - left * steps.element);
  if (steps.element == 0) {
    const E value = *here;
    E next = value;
    if (left < kLanes) next = *there;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) to.at[lane] = lane < left ? value : next;
  } else if (is_vector<E, kLanes>(here, steps.element, left)) {
    to = *reinterpret_cast<const Vector<E, kLanes>*>(here);
  } else {
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) to.at[lane] = (lane < left ? here : there)[lane * steps.element];
  }
}

// The output is in one piece: packs where every address allows it, and one element at a time what is left. The inputs lie as it does; or
// something of them is broadcast, and the launcher proved that 32 bits hold every number.
template <typename Function, bool kIsBroadcast>
__device__ __forceinline__ void elementwise_whole(const ElementwiseParams& params) {
  using T = typename Function::Stored;
  using First = typename Function::First;
  using Of = Vector<T, kWidth<T>>;
  using OfFirst = Vector<First, kWidth<T>>;
  const auto is_whole = [&](int input) { return !kIsBroadcast || params.rows.inputs[input].is_whole; };
  const auto is_aligned = [&](const void* tensor, uint64 nbytes) { return reinterpret_cast<uint64>(tensor) % nbytes == 0; };
  bool takes_packs = is_aligned(params.output, sizeof(Of));
#pragma unroll
  for (int input = 0; input < Function::kInputs; ++input) {
    if (!Function::reads(input) || !is_whole(input)) continue;
    takes_packs = takes_packs && is_aligned(params.inputs[input], input == 0 ? sizeof(OfFirst) : sizeof(Of));
  }
  const int64 packs = takes_packs ? params.size / kWidth<T> : 0;
  const Function function(params.settings);
  // First, since fewer registers are in use here than behind the packs.
#pragma unroll 1
  for (int64 index = packs * kWidth<T> + grid_index(); index < params.size; index += grid_size()) {
    Offsets at{{index, index, index}, index};
    if constexpr (kIsBroadcast) {
      const ElementPlace place(params.rows, static_cast<int32>(index));
#pragma unroll
      for (int input = 0; input < Function::kInputs; ++input) {
        if (!is_whole(input)) at.inputs[input] = place.offset(params.rows.inputs[input]);
      }
    }
    evaluate_at(params, function, at);
  }
  const int64 begin = static_cast<int64>(blockIdx.x) * (blockDim.x * kPacksAtOnce<T>) + threadIdx.x;
  const Factors<Compute<T>> factors(params.blend);
  Taken<Function> taken[kPacksAtOnce<T>];
#pragma unroll
  for (int k = 0; k < kPacksAtOnce<T>; ++k) {
    const int64 pack = begin + k * blockDim.x;
    if (pack >= packs) break;
    const auto load = [&]<typename E>(Vector<E, kWidth<T>>& to, int input) {
      const E* const from = static_cast<const E*>(params.inputs[input]);
      if (is_whole(input)) {
        to = reinterpret_cast<const Vector<E, kWidth<T>>*>(from)[pack];
      } else if constexpr (kIsBroadcast) {
        const ElementPlace place(params.rows, static_cast<int32>(pack) * kWidth<T>);
        load_broadcast(to, from, params.rows.inputs[input], place, params.rows.length.value - place.element);
      }
    };
    if (Function::reads(0)) load(taken[k].first, 0);
    if (Function::reads(1)) load(taken[k].second, 1);
    if (Function::reads(2)) load(taken[k].third, 2);
    if (factors.reads_output) taken[k].output = static_cast<const Of*>(params.output)[pack];
  }
#pragma unroll
  for (int k = 0; k < kPacksAtOnce<T>; ++k) {
    const int64 pack = begin + k * blockDim.x;
    if (pack >= packs) break;
    evaluate(factors, function, taken[k]);
    static_cast<Of*>(params.output)[pack] = taken[k].output;
  }
}

template <typename Function>
__device__ void elementwise_contiguous(const ElementwiseParams& params) {
  elementwise_whole<Function, false>(params);
}

template <typename Function>
__device__ void elementwise_broadcast(const ElementwiseParams& params) {
  elementwise_whole<Function, true>(params);
}

}  // namespace dnncore
