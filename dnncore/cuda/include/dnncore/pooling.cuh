// Pooling over up to kMaxSpatial spatial dimensions, with one thread per element of the output. Dimensions are looped
// over in local memory: unrolled, six of them would spill. For one or two there is pooling_planar.cuh, which is several
// times as fast. Backward is a gather: a thread visits the windows that cover its element, so nothing is added
// atomically and the result is independent of the order in which threads run. Of equal maxima the first in row-major
// order takes the gradient.
//
//    place of x       -1   0   1   2   3   4   5          window 3, stride 2, 1 place of padding in front
//    window of y[0]   [---------]
//    window of y[1]           [---------]                backward, dx[1] gathers from y[0] and y[1]
//    window of y[2]                   [---------]
#pragma once

#include "dnncore/pooling_mode.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/pooling/spatial.py. Views are [N, C, kMaxSpatial spatial dimensions]; absent
// dimensions come first, with extent 1.
struct PoolingParams {
  Blend blend;
  const void* x;
  const void* y;  // not read
  const void* dy;
  void* output;
  int32* indices;
  TensorView x_view;
  TensorView dy_view;
  TensorView output_view;
  TensorView indices_view;
  int64 x_extent[kMaxSpatial];
  int64 y_extent[kMaxSpatial];
  int64 window[kMaxSpatial];
  Divisor stride[kMaxSpatial];
  int64 before[kMaxSpatial];
  // An average divides by the number of its window's places from counted_low to before counted_high. Padding counts as
  // far as it goes, or not at all; places behind it, which a ceil-mode window may reach, do not count.
  int64 counted_low[kMaxSpatial];
  int64 counted_high[kMaxSpatial];
  int64 size;           // elements of the output
  int32 mode;           // a PoolingMode: a switch costs nothing beside the loops over dimensions
  int32 channels_last;  // whether neighbouring threads take neighbouring channels
  int32 propagates_nan;
};

// A half-open range for each spatial dimension.
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

// Offset of the first place of an image's channel, and of a place counted from there.
__device__ __forceinline__ int64 plane_offset(const TensorView& view, int64 n, int64 c) {
  return n * view.strides[0] + c * view.strides[1];
}

__device__ __forceinline__ int64 spatial_offset(const TensorView& view, const int64 (&place)[kMaxSpatial]) {
  int64 offset = 0;
#pragma unroll 1
  for (int axis = 0; axis < kMaxSpatial; ++axis) offset += place[axis] * view.strides[2 + axis];
  return offset;
}

// Number of a place in its plane of x, in row-major order.
__device__ __forceinline__ int64 place_number(const PoolingParams& params, const int64 (&place)[kMaxSpatial]) {
  int64 number = 0;
#pragma unroll 1
  for (int axis = 0; axis < kMaxSpatial; ++axis) number = number * params.x_extent[axis] + place[axis];
  return number;
}

// Visit every place of a box in row-major order until a visit returns false.
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
    box.high[axis] = min(start + params.window[axis], params.x_extent[axis]);
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
    box.high[axis] = min(divide(place, params.stride[axis]).quotient + 1, params.y_extent[axis]);
  }
  return box;
}

template <typename C>
__device__ __forceinline__ C divisor_of(const PoolingParams& params, const int64 (&output)[kMaxSpatial]) {
  int64 divisor = 1;
#pragma unroll 1
  for (int axis = 0; axis < kMaxSpatial; ++axis) {
    const int64 start = output[axis] * params.stride[axis].value - params.before[axis];
    divisor *= min(start + params.window[axis], params.counted_high[axis]) - max(start, params.counted_low[axis]);
  }
  return static_cast<C>(divisor);
}

template <typename T>
__device__ void pooling_spatial_forward(const PoolingParams& params) {
  using C = Compute<T>;
  const auto mode = static_cast<PoolingMode>(params.mode);
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Position at = position_of(params.output_view, params.channels_last, index);
    const T* x = static_cast<const T*>(params.x) + plane_offset(params.x_view, at.n, at.c);
    C result = mode == PoolingMode::kAverage ? C(0) : -C(INFINITY);
    int64 winner = -1;
    visit(window_of(params, at.spatial), [&](const int64 (&input)[kMaxSpatial]) {
      const C value = widen(x[spatial_offset(params.x_view, input)]);
      if (mode == PoolingMode::kAverage) {
        result += value;
      } else {
        const bool larger = exceeds(value, result, params.propagates_nan);
        if (larger) result = value;
        // The first place wins even where all values are minus infinity.
        if (mode == PoolingMode::kIndices && (larger || winner < 0)) winner = place_number(params, input);
      }
      return true;
    });
    if (mode == PoolingMode::kAverage) result /= divisor_of<C>(params, at.spatial);
    if (mode == PoolingMode::kIndices) {
      int32* indices = params.indices + plane_offset(params.indices_view, at.n, at.c);
      indices[spatial_offset(params.indices_view, at.spatial)] = static_cast<int32>(winner);
    }
    T* y = static_cast<T*>(params.output) + plane_offset(params.output_view, at.n, at.c);
    blend_into(params.blend, result, y + spatial_offset(params.output_view, at.spatial));
  }
}

// Whether an input is the first maximum of an output's window: no earlier place reaches its value, no later one exceeds
// it.
template <typename T>
__device__ __forceinline__ bool wins(
    const PoolingParams& params, const T* x, const int64 (&own)[kMaxSpatial], const int64 (&output)[kMaxSpatial]) {
  using C = Compute<T>;
  const auto value_at = [&](const int64 (&place)[kMaxSpatial]) {
    const C value = widen(x[spatial_offset(params.x_view, place)]);
    return params.propagates_nan ? value : fmax(value, -C(INFINITY));  // turns NaN into minus infinity
  };
  const C value = value_at(own);
  const int64 number = place_number(params, own);
  bool won = true;
  visit(window_of(params, output), [&](const int64 (&input)[kMaxSpatial]) {
    const int64 other = place_number(params, input);
    if (other < number) {
      won = exceeds(value, value_at(input), true);
    } else if (other > number) {
      won = !exceeds(value_at(input), value, true);
    }
    return won;
  });
  return won;
}

template <typename T>
__device__ void pooling_spatial_backward(const PoolingParams& params) {
  using C = Compute<T>;
  const auto mode = static_cast<PoolingMode>(params.mode);
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Position at = position_of(params.output_view, params.channels_last, index);
    const T* dy = static_cast<const T*>(params.dy) + plane_offset(params.dy_view, at.n, at.c);
    C result = C(0);
    visit(windows_over(params, at.spatial), [&](const int64 (&output)[kMaxSpatial]) {
      C divisor = C(1);
      bool takes = true;
      if (mode == PoolingMode::kMax) {
        takes = wins(params, static_cast<const T*>(params.x) + plane_offset(params.x_view, at.n, at.c), at.spatial, output);
      } else if (mode == PoolingMode::kIndices) {
        const int32* indices = params.indices + plane_offset(params.indices_view, at.n, at.c);
        takes = indices[spatial_offset(params.indices_view, output)] == place_number(params, at.spatial);
      } else {
        divisor = divisor_of<C>(params, output);
      }
      if (takes) result += widen(dy[spatial_offset(params.dy_view, output)]) / divisor;
      return true;
    });
    T* dx = static_cast<T*>(params.output) + plane_offset(params.output_view, at.n, at.c);
    blend_into(params.blend, result, dx + spatial_offset(params.output_view, at.spatial));
  }
}

}  // namespace dnncore
