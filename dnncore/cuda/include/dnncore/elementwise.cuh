// Element-wise operations of one to three inputs: out = alpha * function(a, b, c) + beta * out.
//
// The host collapses the dimensions (collapse in params.py), so that tensors without gaps come as one dimension and take the
// contiguous kernel, 16 bytes at a time. Where the last dimension left is not short (a bias over an image's planes, or over its
// channels), a thread takes 16 bytes of a row and works out once where they are; else one element. An input may be the output
// itself: each element is read before it is written, by the same thread.
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
  Divisor row_packs;  // packs of a row; the last may have fewer lanes
  TensorView views[kMaxInputs];
  TensorView output_view;
};

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

// Sixteen bytes, the most that a thread reads or writes at once.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kWidth = 16 / sizeof(T);
  T lanes[kWidth];
};

template <typename T>
__device__ __forceinline__ bool is_whole(const T* place, int64 lanes) {
  return lanes >= Pack<T>::kWidth && reinterpret_cast<uint64>(place) % sizeof(Pack<T>) == 0;
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

// The lanes of a pack that there are, each `step` elements from the one before; at once where they are neighbours and aligned.
template <typename T>
__device__ __forceinline__ Pack<T> load_pack(const T* place, int64 step, int64 lanes) {
  Pack<T> pack{};
  if (step == 1 && is_whole(place, lanes)) return *reinterpret_cast<const Pack<T>*>(place);
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) {
    if (lane < lanes) pack.lanes[lane] = place[lane * step];
  }
  return pack;
}

template <typename T>
__device__ __forceinline__ void store_pack(const Pack<T>& pack, T* place, int64 step, int64 lanes) {
  if (step == 1 && is_whole(place, lanes)) {
    *reinterpret_cast<Pack<T>*>(place) = pack;
    return;
  }
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) {
    if (lane < lanes) place[lane * step] = pack.lanes[lane];
  }
}

// Any strides, a last dimension long enough to be cut into packs.
template <typename T, typename Function>
__device__ void elementwise_rows(const ElementwiseParams& params) {
  const int last = params.output_view.ndim - 1;
  const int64 length = params.output_view.shape[last].value;
  const int64 output_step = params.output_view.strides[last];
  const bool reads_output = params.blend.beta != 0.0;
  const int64 packs = divide(params.size, params.output_view.shape[last]).quotient * params.row_packs.value;
  for (int64 index = grid_index(); index < packs; index += grid_size()) {
    const QuotientRemainder split = divide(index, params.row_packs);
    const Offsets at = offsets_of<Function>(params, last, split.quotient);
    const int64 first = split.remainder * Pack<T>::kWidth;
    const int64 lanes = length - first;
    const auto load = [&](int input) {
      const int64 step = params.views[input].strides[last];
      return load_pack(static_cast<const T*>(params.inputs[input]) + at.inputs[input] + first * step, step, lanes);
    };
    T* output = static_cast<T*>(params.output) + at.output + first * output_step;
    const Pack<T> a = load(0);
    Pack<T> b{}, c{}, result{};
    if (Function::kInputs > 1) b = load(1);
    if (Function::kInputs > 2) c = load(2);
    if (reads_output) result = load_pack<T>(output, output_step, lanes);
#pragma unroll
    for (int lane = 0; lane < Pack<T>::kWidth; ++lane) {
      blend_into(params.blend, Function{}(a.lanes[lane], b.lanes[lane], c.lanes[lane]), &result.lanes[lane]);
    }
    store_pack(result, output, output_step, lanes);
  }
}

// All tensors in one piece and in the same order. Sixteen bytes at a time where every address allows it.
template <typename T, typename Function>
__device__ void elementwise_contiguous(const ElementwiseParams& params) {
  constexpr int kWidth = Pack<T>::kWidth;
  const auto* a = static_cast<const T*>(params.inputs[0]);
  const auto* b = static_cast<const T*>(params.inputs[1]);
  const auto* c = static_cast<const T*>(params.inputs[2]);
  auto* output = static_cast<T*>(params.output);
  uint64 addresses = reinterpret_cast<uint64>(a) | reinterpret_cast<uint64>(output);
  if (Function::kInputs > 1) addresses |= reinterpret_cast<uint64>(b);
  if (Function::kInputs > 2) addresses |= reinterpret_cast<uint64>(c);
  const int64 packs = addresses % sizeof(Pack<T>) == 0 ? params.size / kWidth : 0;
  const bool reads_output = params.blend.beta != 0.0;
  for (int64 pack = grid_index(); pack < packs; pack += grid_size()) {
    const Pack<T> first = reinterpret_cast<const Pack<T>*>(a)[pack];
    Pack<T> second{}, third{}, result{};
    if (Function::kInputs > 1) second = reinterpret_cast<const Pack<T>*>(b)[pack];
    if (Function::kInputs > 2) third = reinterpret_cast<const Pack<T>*>(c)[pack];
    if (reads_output) result = reinterpret_cast<const Pack<T>*>(output)[pack];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      blend_into(params.blend, Function{}(first.lanes[lane], second.lanes[lane], third.lanes[lane]), &result.lanes[lane]);
    }
    reinterpret_cast<Pack<T>*>(output)[pack] = result;
  }
  for (int64 index = packs * kWidth + grid_index(); index < params.size; index += grid_size()) {
    blend_into(params.blend, value_at<T, Function>(a + index, b + index, c + index), output + index);
  }
}

}  // namespace dnncore
