// im2col gathers what a filter meets into the columns of a matrix; col2im is its adjoint. Any strides, up to
// kMaxSpatial dimensions. Both are bound by the columns, which are about as many times larger than x as the filter has
// taps. Forward, a thread writes 16 bytes of a row and works out once where they come from; backward, a thread gathers
// every place to which its element of x was copied, so that no element is added to by two threads. Divisions are by
// numbers that the host prepared.
//
//    x of one channel       columns: a row per tap, a column per output        (3 taps, stride 1)
//    0  1  2  3  4          tap 0    0  1  2
//                           tap 1    1  2  3
//                           tap 2    2  3  4
//
//    col2im:  dx[2] = tap 0 of output 2 + tap 1 of output 1 + tap 2 of output 0
#pragma once

#include "dnncore/common/pack.cuh"
#include "dnncore/convolution/geometry.cuh"

namespace dnncore {

// Strides of columns [N, C, *filter, *output]. Those of a true convolution's taps are negative, and `offset` is where
// the first tap is.
struct ColumnStrides {
  int64 batch;
  int64 channel;
  int64 tap[kMaxSpatial];
  int64 place[kMaxSpatial];
  int64 offset;
};

// Mirrored by _PARAMS in dnncore/cuda/im2col.py.
struct Im2ColParams {
  Blend blend;
  const void* input;
  void* output;
  int64 x_batch;
  int64 x_channel;
  int64 x_spatial[kMaxSpatial];
  ColumnStrides columns;
  Geometry geometry;
  Divisor filter[kMaxSpatial];
  Divisor places[kMaxSpatial];   // of the output
  Divisor pixels[kMaxSpatial];   // of the input
  Divisor stride[kMaxSpatial];
  // The taps that meet one element of x at some place are every tap_step-th one, and their places lie place_step apart.
  Divisor tap_step[kMaxSpatial];
  Divisor place_step[kMaxSpatial];
  Divisor channels;
  Divisor packs;                 // per row of columns
  int64 row_length;
  int64 count;                   // packs of all columns, or elements of x
  int32 first_axis;              // dimensions before it are absent
};

// Take the digits of a number whose last dimension is the fastest into digit[axis]; returns what is left of the number.
__device__ __forceinline__ int64 take_digits(
    int64 number, const Divisor (&extents)[kMaxSpatial], int first_axis, int64 (&digit)[kMaxSpatial]) {
#pragma unroll
  for (int axis = kMaxSpatial - 1; axis >= 0; --axis) {
    digit[axis] = 0;
    if (axis >= first_axis) {
      const QuotientRemainder split = divide(number, extents[axis]);
      digit[axis] = split.remainder;
      number = split.quotient;
    }
  }
  return number;
}

template <typename T>
__device__ void im2col(const Im2ColParams& params) {
  constexpr int kWidth = Pack<T>::kWidth;
  constexpr int kLast = kMaxSpatial - 1;
  const Geometry& geometry = params.geometry;
  for (int64 item = grid_index(); item < params.count; item += grid_size()) {
    const QuotientRemainder split = divide(item, params.packs);
    const int64 first = split.remainder * kWidth, lanes = params.row_length - first;
    int64 tap[kMaxSpatial], place[kMaxSpatial];
    const QuotientRemainder image = divide(take_digits(split.quotient, params.filter, params.first_axis, tap), params.channels);
    take_digits(first, params.places, params.first_axis, place);

    const T* const x = static_cast<const T*>(params.input) + image.quotient * params.x_batch + image.remainder * params.x_channel;
    T* output = static_cast<T*>(params.output) + params.columns.offset + image.quotient * params.columns.batch +
                image.remainder * params.columns.channel + first * params.columns.place[kLast];
#pragma unroll
    for (int axis = 0; axis < kMaxSpatial; ++axis) output += tap[axis] * params.columns.tap[axis];

    // Where the row of x is that the tap meets, and whether it exists.
    const T* row = x;
    bool inside = true;
    const auto find_row = [&] {
      row = x;
      inside = true;
#pragma unroll
      for (int axis = 0; axis < kLast; ++axis) {
        if (axis >= params.first_axis) {
          const int64 at =
              place[axis] * geometry.stride[axis] - geometry.padding[axis] + tap[axis] * geometry.dilation[axis];
          inside = inside && at >= 0 && at < geometry.input[axis];
          row += at * params.x_spatial[axis];
        }
      }
    };
    find_row();
    Pack<T> result{};
    if (params.blend.beta != 0.0) result = load_pack<T>(output, params.columns.place[kLast], lanes);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      if (lane < lanes) {
        const int64 at =
            place[kLast] * geometry.stride[kLast] - geometry.padding[kLast] + tap[kLast] * geometry.dilation[kLast];
        const bool there = inside && at >= 0 && at < geometry.input[kLast];
        const Compute<T> value = there ? widen(row[at * params.x_spatial[kLast]]) : Compute<T>(0);
        blend_into(params.blend, value, &result.lanes[lane]);
        if (++place[kLast] == geometry.output[kLast]) {
          place[kLast] = 0;
          bool carries = true;
#pragma unroll
          for (int axis = kLast - 1; axis >= 0; --axis) {
            place[axis] += carries;
            carries = carries && place[axis] == geometry.output[axis];
            if (carries) place[axis] = 0;
          }
          find_row();
        }
      }
    }
    store_pack(result, output, params.columns.place[kLast], lanes);
  }
}

// The taps that meet an element of x along one axis: how many there are, and the first one and its place.
struct Meeting {
  int64 count;
  int64 tap;
  int64 place;
};

__device__ __forceinline__ Meeting meeting_of(const Im2ColParams& params, int axis, int64 at) {
  const Geometry& geometry = params.geometry;
  const int64 period = min(params.tap_step[axis].value, geometry.filter[axis]);
  for (int64 tap = 0; tap < period; ++tap) {
    const int64 distance = at + geometry.padding[axis] - tap * geometry.dilation[axis];
    if (distance < 0) break;
    const QuotientRemainder place = divide(distance, params.stride[axis]);
    if (place.remainder != 0) continue;
    const Divisor& step = params.place_step[axis];
    const int64 beyond = place.quotient - (geometry.output[axis] - 1);
    const int64 skipped = beyond > 0 ? divide(beyond + step.value - 1, step).quotient : 0;
    const int64 last = min(
        divide(geometry.filter[axis] - 1 - tap, params.tap_step[axis]).quotient, divide(place.quotient, step).quotient);
    return {last - skipped + 1, tap + skipped * params.tap_step[axis].value, place.quotient - skipped * step.value};
  }
  return {0, 0, 0};
}

template <typename T>
__device__ void col2im(const Im2ColParams& params) {
  for (int64 index = grid_index(); index < params.count; index += grid_size()) {
    int64 at[kMaxSpatial], counts[kMaxSpatial], steps[kMaxSpatial];
    const QuotientRemainder image = divide(take_digits(index, params.pixels, params.first_axis, at), params.channels);
    const T* columns = static_cast<const T*>(params.input) + params.columns.offset + image.quotient * params.columns.batch +
                       image.remainder * params.columns.channel;
    int64 offset = image.quotient * params.x_batch + image.remainder * params.x_channel;
#pragma unroll
    for (int axis = 0; axis < kMaxSpatial; ++axis) {
      counts[axis] = 1;
      steps[axis] = 0;
      if (axis >= params.first_axis) {
        const Meeting first = meeting_of(params, axis, at[axis]);
        counts[axis] = first.count;
        steps[axis] = params.tap_step[axis].value * params.columns.tap[axis] -
                      params.place_step[axis].value * params.columns.place[axis];
        columns += first.tap * params.columns.tap[axis] + first.place * params.columns.place[axis];
        offset += at[axis] * params.x_spatial[axis];
      }
    }
    Compute<T> sum = 0;
    Place<kMaxSpatial> which;
    for_each_place<kMaxSpatial>(
        counts, which, [&](const Place<kMaxSpatial>& nth) { sum += widen(columns[offset_of(nth, steps)]); });
    blend_into(params.blend, sum, static_cast<T*>(params.output) + offset);
  }
}

}  // namespace dnncore
