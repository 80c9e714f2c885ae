// Pooling over up to kMaxSpatial spatial dimensions. One thread computes one element of the output. Dimensions are looped over in
// local memory: unrolled, six of them would spill. For one or two there is pooling_planar.cuh, which is several times as fast.
//
// Backward is a gather: a thread visits the windows that cover its element, so nothing is added atomically and the result does not
// depend on the order in which threads run. Of equal maxima the first in row-major order takes the gradient; a window's maximum is
// the y of the forward pass, and NaN, once in a window, is its maximum.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/pooling_mode.cuh"

namespace dnncore {

constexpr int kMaxSpatial = kMaxNdim - 2;

// _PARAMS in pooling.py. Views are [N, C, kMaxSpatial spatial dimensions]; fewer are filled up in front with extent 1.
struct PoolingParams {
  Blend blend;
  const void* x;
  const void* y;
  const void* dy;
  void* output;
  TensorView x_view;
  TensorView y_view;
  TensorView dy_view;
  TensorView output_view;
  int64 window[kMaxSpatial];
  Divisor stride[kMaxSpatial];
  int64 before[kMaxSpatial];
  int64 after[kMaxSpatial];
  int64 size;            // elements of the output
  int32 channels_last;   // whether neighbouring threads take neighbouring channels
};

// A half-open range a spatial dimension.
struct Box {
  int64 low[kMaxSpatial];
  int64 high[kMaxSpatial];
};

struct Position {
  int64 n;
  int64 c;
  int64 spatial[kMaxSpatial];
};

__device__ __forceinline__ Position position_of(const TensorView& view, bool channels_last, int64 index) {
  Position position;
  const auto take = [&index](const Divisor& extent) {
    const QuotientRemainder split = divide(index, extent);
    index = split.quotient;
    return split.remainder;
  };
  if (channels_last) position.c = take(view.shape[1]);
#pragma unroll 1
  for (int axis = kMaxSpatial - 1; axis >= 0; --axis) position.spatial[axis] = take(view.shape[2 + axis]);
  if (!channels_last) position.c = take(view.shape[1]);
  position.n = index;
  return position;
}

// Offset of the first place of an image's channel, and of a place from there.
__device__ __forceinline__ int64 plane_offset(const TensorView& view, int64 n, int64 c) {
  return n * view.strides[0] + c * view.strides[1];
}

__device__ __forceinline__ int64 spatial_offset(const TensorView& view, const int64 (&place)[kMaxSpatial]) {
  int64 offset = 0;
#pragma unroll 1
  for (int axis = 0; axis < kMaxSpatial; ++axis) offset += place[axis] * view.strides[2 + axis];
  return offset;
}

// Visit every place of a box in row-major order, until a visit returns false.
template <typename Visitor>
__device__ __forceinline__ void visit(const Box& box, const Visitor& visitor) {
  int64 place[kMaxSpatial];
  for (int axis = 0; axis < kMaxSpatial; ++axis) {
    if (box.low[axis] >= box.high[axis]) return;
    place[axis] = box.low[axis];
  }
  for (int axis = 0; axis >= 0;) {
    if (!visitor(place)) return;
    for (axis = kMaxSpatial - 1; axis >= 0 && ++place[axis] >= box.high[axis]; --axis) place[axis] = box.low[axis];
  }
}

// The part of an output's window that lies in the input.
__device__ __forceinline__ Box window_of(const PoolingParams& params, const int64 (&output)[kMaxSpatial]) {
  Box box;
#pragma unroll 1
  for (int axis = 0; axis < kMaxSpatial; ++axis) {
    const int64 start = output[axis] * params.stride[axis].value - params.before[axis];
    box.low[axis] = max(start, int64(0));
    box.high[axis] = min(start + params.window[axis], params.x_view.shape[2 + axis].value);
  }
  return box;
}

// The outputs whose windows cover an input.
__device__ __forceinline__ Box windows_over(const PoolingParams& params, const int64 (&input)[kMaxSpatial]) {
  Box box;
#pragma unroll 1
  for (int axis = 0; axis < kMaxSpatial; ++axis) {
    const int64 place = input[axis] + params.before[axis];
    const int64 beyond = place - params.window[axis];  // the last start that ends too early
    box.low[axis] = beyond < 0 ? 0 : divide(beyond, params.stride[axis]).quotient + 1;
    box.high[axis] = min(divide(place, params.stride[axis]).quotient + 1, params.y_view.shape[2 + axis].value);
  }
  return box;
}

// What an average divides by. Padding counts as far as it goes: places of a ceil-mode window behind it do not.
template <PoolingMode kMode, typename T>
__device__ __forceinline__ T divisor_of(const PoolingParams& params, const int64 (&output)[kMaxSpatial]) {
  int64 divisor = 1;
#pragma unroll 1
  for (int axis = 0; axis < kMaxSpatial; ++axis) {
    const bool included = kMode == PoolingMode::kAverageIncludePadding;
    const int64 extent = params.x_view.shape[2 + axis].value;
    const int64 start = output[axis] * params.stride[axis].value - params.before[axis];
    const int64 low = included ? start : max(start, int64(0));
    divisor *= min(start + params.window[axis], included ? extent + params.after[axis] : extent) - low;
  }
  return static_cast<T>(divisor);
}

template <typename T>
__device__ __forceinline__ bool same(T a, T b) {
  return a == b || (a != a && b != b);
}

template <typename T, PoolingMode kMode>
__device__ void pooling_forward(const PoolingParams& params) {
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Position at = position_of(params.output_view, params.channels_last, index);
    const T* x = static_cast<const T*>(params.x) + plane_offset(params.x_view, at.n, at.c);
    T result = kMode == PoolingMode::kMax ? -T(INFINITY) : T(0);
    visit(window_of(params, at.spatial), [&](const int64 (&input)[kMaxSpatial]) {
      const T value = x[spatial_offset(params.x_view, input)];
      if constexpr (kMode == PoolingMode::kMax) {
        if (value > result || value != value) result = value;
      } else {
        result += value;
      }
      return true;
    });
    if constexpr (kMode != PoolingMode::kMax) result /= divisor_of<kMode, T>(params, at.spatial);
    T* y = static_cast<T*>(params.output) + plane_offset(params.output_view, at.n, at.c);
    blend_into(params.blend, result, y + spatial_offset(params.output_view, at.spatial));
  }
}

template <typename T, PoolingMode kMode>
__device__ void pooling_backward(const PoolingParams& params) {
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Position at = position_of(params.output_view, params.channels_last, index);
    const T* x = static_cast<const T*>(params.x) + plane_offset(params.x_view, at.n, at.c);
    const T* y = static_cast<const T*>(params.y) + plane_offset(params.y_view, at.n, at.c);
    const T* dy = static_cast<const T*>(params.dy) + plane_offset(params.dy_view, at.n, at.c);
    T result = T(0);
    visit(windows_over(params, at.spatial), [&](const int64 (&output)[kMaxSpatial]) {
      const T share = dy[spatial_offset(params.dy_view, output)];
      if constexpr (kMode == PoolingMode::kMax) {
        const T maximum = y[spatial_offset(params.y_view, output)];
        const int64 own = spatial_offset(params.x_view, at.spatial);
        if (!same(x[own], maximum)) return true;
        // The first place of the window that holds the maximum: is it this one?
        bool first = false;
        visit(window_of(params, output), [&](const int64 (&input)[kMaxSpatial]) {
          if (!same(x[spatial_offset(params.x_view, input)], maximum)) return true;
          first = true;
#pragma unroll 1
          for (int axis = 0; axis < kMaxSpatial; ++axis) first = first && input[axis] == at.spatial[axis];
          return false;
        });
        if (first) result += share;
      } else {
        result += share / divisor_of<kMode, T>(params, output);
      }
      return true;
    });
    T* dx = static_cast<T*>(params.output) + plane_offset(params.output_view, at.n, at.c);
    blend_into(params.blend, result, dx + spatial_offset(params.output_view, at.spatial));
  }
}

}  // namespace dnncore
