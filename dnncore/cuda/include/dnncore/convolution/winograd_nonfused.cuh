// The transforms of F(2x2, 3x3) and F(4x4, 3x3) to and from a workspace, where the 16 or 36 points are as many matrix
// products for the tiled GEMM. A thread takes one tile of one channel, or one filter of one channel, with all points in
// registers; neighbouring threads have neighbouring places in the workspace, which holds the compute type. The
// transforms are memory-bound. F is F2 or F4.
//
//    forward          input   -- B^T d B -->   [point][group][channel][tile]    --+
//                     filter  -- G g G^T -->   [point][group][channel][filter]  --+-- GEMM --+
//                     output  <-- A^T m A --   [point][group][filter][tile]     <------------+
//
//    backward-filter  input   -- B^T d B -->   [point][group][channel][tile]    --+
//                     dy      -- A e A^T -->   [point][group][filter][tile]     --+-- GEMM --+
//                     dw      <-- G^T u G --   [point][group][filter][channel]  <------------+
#pragma once

#include "dnncore/convolution/winograd.cuh"

namespace dnncore::winograd {

// Store to, or load from, one place in the plane of each point.
template <int kPoints, typename C>
__device__ __forceinline__ void store_points(const C (&points)[kPoints][kPoints], C* first, int64 plane) {
#pragma unroll
  for (int i = 0; i < kPoints * kPoints; ++i) first[i * plane] = points[i / kPoints][i % kPoints];
}

template <int kPoints, typename C>
__device__ __forceinline__ void load_points(const C* first, int64 plane, C (&points)[kPoints][kPoints]) {
#pragma unroll
  for (int i = 0; i < kPoints * kPoints; ++i) points[i / kPoints][i % kPoints] = first[i * plane];
}

// A square of an image, with zeros outside the image; `first` is where its corner is or would be.
template <int kSize, typename T>
__device__ __forceinline__ void load_square(
    const T* first, int64 row_stride, int64 column_stride, int32 row, int32 column, int32 rows, int32 columns,
    Compute<T> (&square)[kSize][kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int32 h = row + i, w = column + j;
      const bool inside = h >= 0 && h < rows && w >= 0 && w < columns;
      square[i][j] = inside ? widen(first[i * row_stride + j * column_stride]) : Compute<T>(0);
    }
  }
}

// B^T d B of every tile of every channel.
template <typename T, typename F>
__device__ void transform_input(const Params& params) {
  using C = Compute<T>;
  const int64 count = params.groups * params.channels.value * params.tiles.value;
  for (int64 index = grid_index(); index < count; index += grid_size()) {
    const QuotientRemainder split = divide(index, params.tiles);
    const Place place = Place::of<F::kOutputs>(static_cast<int32>(split.remainder), params);
    const int32 row = place.row - params.top, column = place.column - params.left;
    const T* const first = static_cast<const T*>(params.input) + place.image * params.input_strides[0] +
                           split.quotient * params.input_strides[1] + row * params.input_strides[2] +
                           column * params.input_strides[3];
    C square[F::kPoints][F::kPoints], points[F::kPoints][F::kPoints];
    load_square(
        first, params.input_strides[2], params.input_strides[3], row, column, params.input_rows, params.input_columns,
        square);
    transform(square, points, typename F::Input{});
    store_points(points, static_cast<C*>(params.input_points) + index, count);
  }
}

// G g G^T of every filter of every channel, the filter fastest.
template <typename T, typename F>
__device__ void transform_filter(const Params& params) {
  using C = Compute<T>;
  const int64 count = params.groups * params.channels.value * params.filters.value;
  for (int64 index = grid_index(); index < count; index += grid_size()) {
    const QuotientRemainder filter = divide(index, params.filters);
    const QuotientRemainder group = divide(filter.quotient, params.channels);
    const T* const first = static_cast<const T*>(params.filter) + params.filter_offset +
                           group.quotient * params.filter_group_stride + filter.remainder * params.filter_strides[0] +
                           group.remainder * params.filter_strides[1];
    C taps[3][3], points[F::kPoints][F::kPoints];
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      taps[i / 3][i % 3] = widen(first[i / 3 * params.filter_strides[2] + i % 3 * params.filter_strides[3]]);
    }
    transform(taps, points, typename F::Filter{});
    store_points(points, static_cast<C*>(params.filter_points) + index, count);
  }
}

// A^T m A of every tile of every filter, after the epilogue blended into the output.
template <typename T, typename F>
__device__ void transform_output(const Params& params) {
  using C = Compute<T>;
  const int64 count = params.groups * params.filters.value * params.tiles.value;
  for (int64 index = grid_index(); index < count; index += grid_size()) {
    const QuotientRemainder split = divide(index, params.tiles);
    const Place place = Place::of<F::kOutputs>(static_cast<int32>(split.remainder), params);
    T* const first = static_cast<T*>(params.output) + place.image * params.output_strides[0] +
                     split.quotient * params.output_strides[1] + place.row * params.output_strides[2] +
                     place.column * params.output_strides[3];
    C points[F::kPoints][F::kPoints], outputs[F::kOutputs][F::kOutputs];
    load_points(static_cast<const C*>(params.output_points) + index, count, points);
    transform(points, outputs, typename F::Output{});
    if (params.epilogue.is_present) {
      finish_tile<T>(
          params, split.quotient, first, params.output_rows - place.row, params.output_columns - place.column, outputs);
    }
#pragma unroll
    for (int i = 0; i < F::kOutputs; ++i) {
#pragma unroll
      for (int j = 0; j < F::kOutputs; ++j) {
        if (place.row + i < params.output_rows && place.column + j < params.output_columns) {
          blend_into(params.blend, outputs[i][j], first + (i * params.output_strides[2] + j * params.output_strides[3]));
        }
      }
    }
  }
}

// A e A^T of every tile of every filter's gradient dy.
template <typename T, typename F>
__device__ void transform_output_gradient(const Params& params) {
  using C = Compute<T>;
  const int64 count = params.groups * params.filters.value * params.tiles.value;
  for (int64 index = grid_index(); index < count; index += grid_size()) {
    const QuotientRemainder split = divide(index, params.tiles);
    const Place place = Place::of<F::kOutputs>(static_cast<int32>(split.remainder), params);
    const T* const first = static_cast<const T*>(params.output) + place.image * params.output_strides[0] +
                           split.quotient * params.output_strides[1] + place.row * params.output_strides[2] +
                           place.column * params.output_strides[3];
    C square[F::kOutputs][F::kOutputs], points[F::kPoints][F::kPoints];
    load_square(
        first, params.output_strides[2], params.output_strides[3], place.row, place.column, params.output_rows,
        params.output_columns, square);
    transform(square, points, typename F::OutputGradient{});
    store_points(points, static_cast<C*>(params.output_points) + index, count);
  }
}

// G^T u G of every filter of every channel, the channel fastest, blended into dw.
template <typename T, typename F>
__device__ void transform_filter_gradient(const Params& params) {
  using C = Compute<T>;
  const int64 count = params.groups * params.channels.value * params.filters.value;
  for (int64 index = grid_index(); index < count; index += grid_size()) {
    const QuotientRemainder channel = divide(index, params.channels);
    const QuotientRemainder group = divide(channel.quotient, params.filters);
    T* const first = static_cast<T*>(params.filter) + params.filter_offset +
                     group.quotient * params.filter_group_stride + group.remainder * params.filter_strides[0] +
                     channel.remainder * params.filter_strides[1];
    C points[F::kPoints][F::kPoints], taps[3][3];
    load_points(static_cast<const C*>(params.filter_points) + index, count, points);
    transform(points, taps, typename F::FilterGradient{});
#pragma unroll
    for (int i = 0; i < 9; ++i) {
      T* const tap = first + (i / 3 * params.filter_strides[2] + i % 3 * params.filter_strides[3]);
      blend_into(params.blend, taps[i / 3][i % 3], tap);
    }
  }
}

}  // namespace dnncore::winograd
