// Element-wise operations of one to three inputs: out = alpha * function(a, b, c) + beta * out.
//
// The host collapses the dimensions (collapse in params.py), so that tensors without gaps come as one dimension and take the
// contiguous kernel, 16 bytes at a time. Where the last dimension left is long (a bias over an image's planes), a block takes a
// piece of a row and works out once where that row starts; else each thread works out where its element is. An input may be the
// output itself: each element is read before it is written, by the same thread.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

constexpr int kMaxInputs = 3;

// _PARAMS in elementwise.py. The views share one shape; strides count elements.
struct ElementwiseParams {
  Blend blend;
  const void* inputs[kMaxInputs];
  void* output;
  int64 size;
  Divisor pieces;  // of a row: kRowItems elements a thread of a block
  TensorView views[kMaxInputs];
  TensorView output_view;
};

constexpr int kRowItems = 4;  // _ROW_ITEMS in elementwise.py

// Functions. Each says how many inputs it takes; those beyond are not read.
struct Copy {
  static constexpr int kInputs = 1;
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T, T) const {
    return a;
  }
};

struct ReluForward {
  static constexpr int kInputs = 1;
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T, T) const {
    return x < T(0) ? T(0) : x;  // this way round, NaN stays NaN
  }
};

struct SigmoidForward {
  static constexpr int kInputs = 1;
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T, T) const {
    return T(1) / (T(1) + exp(-x));  // exp overflows to infinity for a very negative x, which gives the right 0
  }
};

struct TanhForward {
  static constexpr int kInputs = 1;
  template <typename T>
  __device__ __forceinline__ T operator()(T x, T, T) const {
    return tanh(x);
  }
};

// Backward functions take y, dy, x. ReLU's slope is 0 at 0 and at NaN.
struct ReluBackward {
  static constexpr int kInputs = 3;
  template <typename T>
  __device__ __forceinline__ T operator()(T, T dy, T x) const {
    return x > T(0) ? dy : T(0);
  }
};

struct SigmoidBackward {
  static constexpr int kInputs = 2;
  template <typename T>
  __device__ __forceinline__ T operator()(T y, T dy, T) const {
    return dy * y * (T(1) - y);
  }
};

struct TanhBackward {
  static constexpr int kInputs = 2;
  template <typename T>
  __device__ __forceinline__ T operator()(T y, T dy, T) const {
    return dy * (T(1) - y * y);
  }
};

// Where the same element of every tensor is.
struct Offsets {
  int64 inputs[kMaxInputs];
  int64 output;
};

// Of the index-th element over dimensions 0 to ndim - 1, in row-major order.
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
      offsets.inputs[input] += split.remainder * params.views[input].strides[axis];
    }
  }
  return offsets;
}

template <typename T, typename Function>
__device__ __forceinline__ T value_at(const T* a, const T* b, const T* c) {
  const T second = Function::kInputs > 1 ? *b : T(0);
  const T third = Function::kInputs > 2 ? *c : T(0);
  return Function{}(*a, second, third);
}

// Any strides; an input's stride may be 0.
template <typename T, typename Function>
__device__ void elementwise_strided(const ElementwiseParams& params) {
  const auto* a = static_cast<const T*>(params.inputs[0]);
  const auto* b = static_cast<const T*>(params.inputs[1]);
  const auto* c = static_cast<const T*>(params.inputs[2]);
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Offsets at = offsets_of<Function>(params, params.output_view.ndim, index);
    const T value = value_at<T, Function>(a + at.inputs[0], b + at.inputs[1], c + at.inputs[2]);
    blend_into(params.blend, value, static_cast<T*>(params.output) + at.output);
  }
}

// Any strides, a long last dimension.
template <typename T, typename Function>
__device__ void elementwise_rows(const ElementwiseParams& params) {
  const int last = params.output_view.ndim - 1;
  const int64 length = params.output_view.shape[last].value;
  const int64 a_step = params.views[0].strides[last];
  const int64 b_step = params.views[1].strides[last];
  const int64 c_step = params.views[2].strides[last];
  const int64 output_step = params.output_view.strides[last];
  const int64 pieces = divide(params.size, params.output_view.shape[last]).quotient * params.pieces.value;
  for (int64 piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const QuotientRemainder split = divide(piece, params.pieces);
    const Offsets at = offsets_of<Function>(params, last, split.quotient);
    const auto* a = static_cast<const T*>(params.inputs[0]) + at.inputs[0];
    const auto* b = static_cast<const T*>(params.inputs[1]) + at.inputs[1];
    const auto* c = static_cast<const T*>(params.inputs[2]) + at.inputs[2];
    auto* output = static_cast<T*>(params.output) + at.output;
    const int64 first = split.remainder * kRowItems * blockDim.x + threadIdx.x;
    T values[kRowItems];  // all loads before the first store: the compiler may not move them past it
#pragma unroll
    for (int item = 0; item < kRowItems; ++item) {
      const int64 i = first + item * static_cast<int64>(blockDim.x);
      if (i < length) values[item] = value_at<T, Function>(a + i * a_step, b + i * b_step, c + i * c_step);
    }
#pragma unroll
    for (int item = 0; item < kRowItems; ++item) {
      const int64 i = first + item * static_cast<int64>(blockDim.x);
      if (i < length) blend_into(params.blend, values[item], output + i * output_step);
    }
  }
}

// All tensors in one piece and in the same order. Sixteen bytes at a time where every address allows it.
template <typename T, typename Function>
__device__ void elementwise_contiguous(const ElementwiseParams& params) {
  constexpr int kWidth = 16 / sizeof(T);
  struct alignas(16) Pack {
    T lanes[kWidth];
  };
  const auto* a = static_cast<const T*>(params.inputs[0]);
  const auto* b = static_cast<const T*>(params.inputs[1]);
  const auto* c = static_cast<const T*>(params.inputs[2]);
  auto* output = static_cast<T*>(params.output);
  uint64 addresses = reinterpret_cast<uint64>(a) | reinterpret_cast<uint64>(output);
  if (Function::kInputs > 1) addresses |= reinterpret_cast<uint64>(b);
  if (Function::kInputs > 2) addresses |= reinterpret_cast<uint64>(c);
  const int64 packs = addresses % sizeof(Pack) == 0 ? params.size / kWidth : 0;
  const bool reads_output = params.blend.beta != 0.0;
  for (int64 pack = grid_index(); pack < packs; pack += grid_size()) {
    const Pack first = reinterpret_cast<const Pack*>(a)[pack];
    Pack second{}, third{}, result{};
    if (Function::kInputs > 1) second = reinterpret_cast<const Pack*>(b)[pack];
    if (Function::kInputs > 2) third = reinterpret_cast<const Pack*>(c)[pack];
    if (reads_output) result = reinterpret_cast<const Pack*>(output)[pack];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      blend_into(params.blend, Function{}(first.lanes[lane], second.lanes[lane], third.lanes[lane]), &result.lanes[lane]);
    }
    reinterpret_cast<Pack*>(output)[pack] = result;
  }
  for (int64 index = packs * kWidth + grid_index(); index < params.size; index += grid_size()) {
    blend_into(params.blend, value_at<T, Function>(a + index, b + index, c + index), output + index);
  }
}

}  // namespace dnncore
