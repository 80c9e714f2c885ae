// Softmax over rows: a row is what is normalised together, and a launch has rows * length elements.
//
// The host describes a row's start (over `row_view`) and its elements (over `element_view`) for each tensor. A block takes a row
// where rows are long; a thread takes one where they are short, or where neighbouring rows are neighbours in memory.
#pragma once

#include "dnncore/common/reduce.cuh"

namespace dnncore {

// _PARAMS in softmax.py. Forward reads x; backward reads y and dy; both write `output`.
struct SoftmaxParams {
  Blend blend;
  const void* inputs[2];
  void* output;
  int64 rows;
  int64 length;
  TensorView row_views[3];  // inputs, then the output
  TensorView element_views[3];
};

enum class SoftmaxKind { kFast, kAccurate, kLog };

// Who works on a row together: how its elements are shared out, and how partial results become one.
struct BlockPerRow {
  static __device__ __forceinline__ int64 first_row() { return blockIdx.x; }
  static __device__ __forceinline__ int64 row_step() { return gridDim.x; }
  static __device__ __forceinline__ int64 first() { return threadIdx.x; }
  static __device__ __forceinline__ int64 step() { return blockDim.x; }
  template <typename Operation, typename T>
  static __device__ __forceinline__ T reduce(T value) {
    return reduce_block<Operation>(value);
  }
};

struct ThreadPerRow {
  static __device__ __forceinline__ int64 first_row() { return grid_index(); }
  static __device__ __forceinline__ int64 row_step() { return grid_size(); }
  static __device__ __forceinline__ int64 first() { return 0; }
  static __device__ __forceinline__ int64 step() { return 1; }
  template <typename Operation, typename T>
  static __device__ __forceinline__ T reduce(T value) {
    return value;
  }
};

template <typename T, SoftmaxKind kKind, typename Team>
__device__ void softmax_forward(const SoftmaxParams& params) {
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const T* x = static_cast<const T*>(params.inputs[0]) + offset_of(params.row_views[0], row);
    T* y = static_cast<T*>(params.output) + offset_of(params.row_views[2], row);
    const auto x_at = [&](int64 i) { return x[offset_of(params.element_views[0], i)]; };

    T shift = T(0);
    if constexpr (kKind != SoftmaxKind::kFast) {
      shift = Maximum::identity<T>();
      for (int64 i = Team::first(); i < params.length; i += Team::step()) shift = Maximum{}(shift, x_at(i));
      shift = Team::template reduce<Maximum>(shift);
    }
    T total = T(0);
    for (int64 i = Team::first(); i < params.length; i += Team::step()) total += exp(x_at(i) - shift);
    total = Team::template reduce<Sum>(total);

    const T factor = kKind == SoftmaxKind::kLog ? log(total) : T(1) / total;
    for (int64 i = Team::first(); i < params.length; i += Team::step()) {
      const T shifted = x_at(i) - shift;
      const T value = kKind == SoftmaxKind::kLog ? shifted - factor : exp(shifted) * factor;
      blend_into(params.blend, value, y + offset_of(params.element_views[2], i));
    }
  }
}

// dx = y * (dy - sum(y * dy)), and for the logarithm dx = dy - exp(y) * sum(dy).
template <typename T, bool kLog, typename Team>
__device__ void softmax_backward(const SoftmaxParams& params) {
  for (int64 row = Team::first_row(); row < params.rows; row += Team::row_step()) {
    const T* y = static_cast<const T*>(params.inputs[0]) + offset_of(params.row_views[0], row);
    const T* dy = static_cast<const T*>(params.inputs[1]) + offset_of(params.row_views[1], row);
    T* dx = static_cast<T*>(params.output) + offset_of(params.row_views[2], row);
    const auto y_at = [&](int64 i) { return y[offset_of(params.element_views[0], i)]; };
    const auto dy_at = [&](int64 i) { return dy[offset_of(params.element_views[1], i)]; };

    T total = T(0);
    for (int64 i = Team::first(); i < params.length; i += Team::step()) total += kLog ? dy_at(i) : y_at(i) * dy_at(i);
    total = Team::template reduce<Sum>(total);
    for (int64 i = Team::first(); i < params.length; i += Team::step()) {
      const T value = kLog ? dy_at(i) - exp(y_at(i)) * total : y_at(i) * (dy_at(i) - total);
      blend_into(params.blend, value, dx + offset_of(params.element_views[2], i));
    }
  }
}

}  // namespace dnncore
