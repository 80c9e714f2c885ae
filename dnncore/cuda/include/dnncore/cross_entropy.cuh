// Cross-entropy of logits [N, K] with integer labels [N]. A warp takes a row; a label outside 0..K-1 makes loss and gradient 0.
#pragma once

#include "dnncore/common/reduce.cuh"

namespace dnncore {

// _PARAMS in cross_entropy.py. The output is loss [N] forward and dx [N, K] backward. Strides count elements.
struct CrossEntropyParams {
  Blend blend;
  const void* x;
  const int32* labels;
  void* output;
  int64 rows;
  int64 classes;
  int64 x_strides[2];
  int64 label_stride;
  int64 output_strides[2];  // the second only backward
};

// Largest logit of a row, and the sum of exponentials once it is taken off; on every lane.
template <typename T>
struct Normaliser {
  T shift;
  T total;
};

template <typename T>
__device__ __forceinline__ Normaliser<T> normaliser_of(const T* x, int64 classes, int64 stride, int lane) {
  T shift = Maximum::identity<T>();
  for (int64 k = lane; k < classes; k += kWarpSize) shift = Maximum{}(shift, x[k * stride]);
  shift = reduce_warp<Maximum>(shift);
  T total = T(0);
  for (int64 k = lane; k < classes; k += kWarpSize) total += exp(x[k * stride] - shift);
  return {shift, reduce_warp<Sum>(total)};
}

template <typename T>
__device__ void cross_entropy_forward(const CrossEntropyParams& params) {
  const int lane = threadIdx.x % kWarpSize;
  for (int64 row = grid_index() / kWarpSize; row < params.rows; row += grid_size() / kWarpSize) {
    const T* x = static_cast<const T*>(params.x) + row * params.x_strides[0];
    const int64 label = params.labels[row * params.label_stride];
    T loss = T(0);
    if (label >= 0 && label < params.classes) {  // the same on every lane
      const Normaliser<T> normaliser = normaliser_of(x, params.classes, params.x_strides[1], lane);
      loss = normaliser.shift - x[label * params.x_strides[1]] + log(normaliser.total);
    }
    if (lane == 0) blend_into(params.blend, loss, static_cast<T*>(params.output) + row * params.output_strides[0]);
  }
}

template <typename T>
__device__ void cross_entropy_backward(const CrossEntropyParams& params) {
  const int lane = threadIdx.x % kWarpSize;
  for (int64 row = grid_index() / kWarpSize; row < params.rows; row += grid_size() / kWarpSize) {
    const T* x = static_cast<const T*>(params.x) + row * params.x_strides[0];
    T* dx = static_cast<T*>(params.output) + row * params.output_strides[0];
    const int64 label = params.labels[row * params.label_stride];
    const bool counts = label >= 0 && label < params.classes;
    Normaliser<T> normaliser{};
    if (counts) normaliser = normaliser_of(x, params.classes, params.x_strides[1], lane);
    for (int64 k = lane; k < params.classes; k += kWarpSize) {
      T gradient = T(0);
      if (counts) gradient = exp(x[k * params.x_strides[1]] - normaliser.shift) / normaliser.total - (k == label ? T(1) : T(0));
      blend_into(params.blend, gradient, dx + k * params.output_strides[1]);
    }
  }
}

}  // namespace dnncore
