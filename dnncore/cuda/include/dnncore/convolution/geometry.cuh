// How a filter moves over an input: which places of input, filter and output meet. Along each axis
// input = output * stride - padding + tap * dilation. Kernels are templates over kSpatial, the number of spatial
// dimensions that they count with; the arrays have room for all that a tensor may have, and absent dimensions come
// first, with extent 1, stride 1 and no padding.
//
//    input      (-2)(-1) 0   1   2   3   4   5   6          stride 2, padding 2, dilation 2, 3 taps
//    output 0    r0      r1      r2
//    output 1            r0      r1      r2
//    output 2                    r0      r1      r2
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by GEOMETRY in dnncore/cuda/geometry.py.
struct Geometry {
  int64 input[kMaxSpatial];
  int64 filter[kMaxSpatial];
  int64 output[kMaxSpatial];
  int64 padding[kMaxSpatial];  // in front of the input
  int64 stride[kMaxSpatial];
  int64 dilation[kMaxSpatial];
};

// Position of the i-th of kSpatial dimensions in an array that has room for all.
template <int kSpatial>
__device__ __forceinline__ constexpr int axis_of(int i) {
  return kMaxSpatial - kSpatial + i;
}

template <int kSpatial>
struct Place {
  int64 at[kSpatial];
};

// Call visit(place) for every place below the extents, the last dimension fastest.
template <int kSpatial, int kAxis = 0, typename Visit>
__device__ __forceinline__ void for_each_place(const int64 (&extents)[kMaxSpatial], Place<kSpatial>& place, Visit visit) {
  if constexpr (kAxis == kSpatial) {
    visit(place);
  } else {
    for (place.at[kAxis] = 0; place.at[kAxis] < extents[axis_of<kSpatial>(kAxis)]; ++place.at[kAxis]) {
      for_each_place<kSpatial, kAxis + 1>(extents, place, visit);
    }
  }
}

// Take the digits of a number, of which the last of `extents` is the fastest; returns what is left of the number.
template <int kSpatial>
__device__ __forceinline__ int64 take_place(int64 number, const int64 (&extents)[kMaxSpatial], Place<kSpatial>& place) {
#pragma unroll
  for (int i = kSpatial - 1; i >= 0; --i) {
    const QuotientRemainder split = divide(number, extents[axis_of<kSpatial>(i)]);
    place.at[i] = split.remainder;
    number = split.quotient;
  }
  return number;
}

template <int kSpatial>
__device__ __forceinline__ int64 offset_of(const Place<kSpatial>& place, const int64 (&strides)[kMaxSpatial]) {
  int64 offset = 0;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) offset += place.at[i] * strides[axis_of<kSpatial>(i)];
  return offset;
}

// The place of the input at which an output's tap looks; false in the padding.
template <int kSpatial>
__device__ __forceinline__ bool input_of(
    const Place<kSpatial>& output, const Place<kSpatial>& tap, const Geometry& geometry, Place<kSpatial>& input) {
  bool inside = true;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) {
    const int axis = axis_of<kSpatial>(i);
    input.at[i] = output.at[i] * geometry.stride[axis] - geometry.padding[axis] + tap.at[i] * geometry.dilation[axis];
    inside = inside && input.at[i] >= 0 && input.at[i] < geometry.input[axis];
  }
  return inside;
}

// The output that looks with this tap at a place of the input; false where there is none.
template <int kSpatial>
__device__ __forceinline__ bool output_of(
    const Place<kSpatial>& input, const Place<kSpatial>& tap, const Geometry& geometry, Place<kSpatial>& output) {
  bool inside = true;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) {
    const int axis = axis_of<kSpatial>(i);
    const int64 distance = input.at[i] + geometry.padding[axis] - tap.at[i] * geometry.dilation[axis];
    const QuotientRemainder split = divide(distance < 0 ? 0 : distance, geometry.stride[axis]);
    output.at[i] = split.quotient;
    inside = inside && distance >= 0 && split.remainder == 0 && split.quotient < geometry.output[axis];
  }
  return inside;
}

}  // namespace dnncore
