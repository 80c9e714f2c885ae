// Convolution from its definition: any strides, any number of spatial dimensions, 64-bit indices, sums in double precision.
//
// Slow where channels are many, right everywhere: it computes what no other algorithm supports, and it is the reference on the
// device for shapes that take a CPU too long. Forward, an output is the sum over its taps of x * w where x is 0 in the padding, so a
// filter that is not finite shows at the border as well, as in PyTorch; backward, only what was really read has a gradient.
#pragma once

#include "dnncore/common/reduce.cuh"
#include "dnncore/common/tensor.cuh"

namespace dnncore::direct {

constexpr int kMaxSpatial = kMaxNdim - 2;

// dnncore/cuda/convolution/direct.py mirrors it. Spatial dimensions that are not there have extent 1, stride 1 and no padding.
struct Params {
  Blend blend;
  void* x;  // the direction says which of the three is written
  void* w;
  void* y;
  int64 x_strides[kMaxNdim];  // n, c, spatial
  int64 w_strides[kMaxNdim];  // k, c, spatial; of a true convolution the spatial ones are negative
  int64 y_strides[kMaxNdim];  // n, k, spatial
  int64 input[kMaxSpatial];
  int64 filter[kMaxSpatial];
  int64 output[kMaxSpatial];
  int64 padding[kMaxSpatial];
  int64 stride[kMaxSpatial];
  int64 dilation[kMaxSpatial];
  int64 batch;
  int64 channels;  // of a group
  int64 filters;   // of a group
  int64 groups;
  int64 w_offset;  // elements from w's address to its tap 0
  int64 count;     // elements of the output
};

template <int kSpatial>
struct Place {
  int64 at[kSpatial];
};

// visit(place) for every place below the extents, the last dimension fastest.
template <int kSpatial, int kAxis = 0, typename Visit>
__device__ __forceinline__ void for_each_place(const int64 (&extents)[kMaxSpatial], Place<kSpatial>& place, Visit visit) {
  if constexpr (kAxis == kSpatial) {
    visit(place);
  } else {
    for (place.at[kAxis] = 0; place.at[kAxis] < extents[kAxis]; ++place.at[kAxis]) {
      for_each_place<kSpatial, kAxis + 1>(extents, place, visit);
    }
  }
}

// Digits of a number whose fastest dimension is the last of `extents`; what is left of the number comes back.
template <int kSpatial>
__device__ __forceinline__ int64 take_place(int64 number, const int64 (&extents)[kMaxSpatial], Place<kSpatial>& place) {
#pragma unroll
  for (int i = kSpatial - 1; i >= 0; --i) {
    const QuotientRemainder split = divide(number, extents[i]);
    place.at[i] = split.remainder;
    number = split.quotient;
  }
  return number;
}

template <int kSpatial>
__device__ __forceinline__ int64 offset_of(const Place<kSpatial>& place, const int64 (&strides)[kMaxNdim]) {
  int64 offset = 0;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) offset += place.at[i] * strides[2 + i];
  return offset;
}

// Where in x an output's tap looks; false in the padding.
template <int kSpatial>
__device__ __forceinline__ bool input_of(
    const Place<kSpatial>& output, const Place<kSpatial>& tap, const Params& params, Place<kSpatial>& input) {
  bool inside = true;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) {
    input.at[i] = output.at[i] * params.stride[i] - params.padding[i] + tap.at[i] * params.dilation[i];
    inside = inside && input.at[i] >= 0 && input.at[i] < params.input[i];
  }
  return inside;
}

// Which output looks with this tap at a place in x; false when none does.
template <int kSpatial>
__device__ __forceinline__ bool output_of(
    const Place<kSpatial>& input, const Place<kSpatial>& tap, const Params& params, Place<kSpatial>& output) {
  bool inside = true;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) {
    const int64 distance = input.at[i] + params.padding[i] - tap.at[i] * params.dilation[i];
    const QuotientRemainder split = divide(distance < 0 ? 0 : distance, params.stride[i]);
    output.at[i] = split.quotient;
    inside = inside && distance >= 0 && split.remainder == 0 && split.quotient < params.output[i];
  }
  return inside;
}

// Sum over `count` channels of a * b, each a stride apart; without an `a` it is a row of zeros.
template <typename T>
__device__ __forceinline__ double dot(const T* a, int64 a_stride, const T* b, int64 b_stride, int64 count) {
  double sum = 0;
  for (int64 i = 0; i < count; ++i) {
    sum += static_cast<double>(a ? a[i * a_stride] : T(0)) * static_cast<double>(b[i * b_stride]);
  }
  return sum;
}

// One thread an element of y.
template <typename T, int kSpatial>
__device__ __forceinline__ void forward_at(const Params& params, int64 index) {
  Place<kSpatial> output, tap, input;
  const QuotientRemainder image = divide(take_place(index, params.output, output), params.groups * params.filters);
  const int64 k = image.remainder, c = divide(k, params.filters).quotient * params.channels;
  const T* const x = static_cast<const T*>(params.x) + image.quotient * params.x_strides[0] + c * params.x_strides[1];
  const T* const w = static_cast<const T*>(params.w) + params.w_offset + k * params.w_strides[0];

  double sum = 0;
  for_each_place<kSpatial>(params.filter, tap, [&](const Place<kSpatial>& at) {
    const T* const pixel = input_of(output, at, params, input) ? x + offset_of(input, params.x_strides) : nullptr;
    sum += dot(pixel, params.x_strides[1], w + offset_of(at, params.w_strides), params.w_strides[1], params.channels);
  });
  T* const y = static_cast<T*>(params.y) + image.quotient * params.y_strides[0] + k * params.y_strides[1] +
               offset_of(output, params.y_strides);
  blend_into(params.blend, static_cast<T>(sum), y);
}

// One thread an element of dx.
template <typename T, int kSpatial>
__device__ __forceinline__ void backward_data_at(const Params& params, int64 index) {
  Place<kSpatial> input, tap, output;
  const QuotientRemainder image = divide(take_place(index, params.input, input), params.groups * params.channels);
  const QuotientRemainder group = divide(image.remainder, params.channels);
  const int64 k = group.quotient * params.filters;
  const T* const dy = static_cast<const T*>(params.y) + image.quotient * params.y_strides[0] + k * params.y_strides[1];
  const T* const w =
      static_cast<const T*>(params.w) + params.w_offset + k * params.w_strides[0] + group.remainder * params.w_strides[1];

  double sum = 0;
  for_each_place<kSpatial>(params.filter, tap, [&](const Place<kSpatial>& at) {
    if (output_of(input, at, params, output)) {
      sum += dot(
          dy + offset_of(output, params.y_strides), params.y_strides[1], w + offset_of(at, params.w_strides),
          params.w_strides[0], params.filters);
    }
  });
  T* const dx = static_cast<T*>(params.x) + image.quotient * params.x_strides[0] +
                image.remainder * params.x_strides[1] + offset_of(input, params.x_strides);
  blend_into(params.blend, static_cast<T>(sum), dx);
}

// One block an element of dw, because each is a long sum: its threads take outputs in turn and add up in a fixed order.
template <typename T, int kSpatial>
__device__ __forceinline__ void backward_filter_at(const Params& params, int64 index) {
  Place<kSpatial> tap, output, input;
  const QuotientRemainder weight = divide(take_place(index, params.filter, tap), params.channels);
  const int64 k = weight.quotient, c = weight.remainder;
  const int64 first_channel = divide(k, params.filters).quotient * params.channels;
  const T* const x = static_cast<const T*>(params.x) + (first_channel + c) * params.x_strides[1];
  const T* const dy = static_cast<const T*>(params.y) + k * params.y_strides[1];
  int64 outputs = params.batch;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) outputs *= params.output[i];

  double sum = 0;
  for (int64 i = threadIdx.x; i < outputs; i += blockDim.x) {
    const int64 n = take_place(i, params.output, output);
    const T pixel = input_of(output, tap, params, input)
                        ? x[n * params.x_strides[0] + offset_of(input, params.x_strides)]
                        : T(0);
    const T gradient = dy[n * params.y_strides[0] + offset_of(output, params.y_strides)];
    sum += static_cast<double>(pixel) * static_cast<double>(gradient);
  }
  sum = reduce_block<Sum>(sum);
  if (threadIdx.x == 0) {
    T* const dw = static_cast<T*>(params.w) + params.w_offset + k * params.w_strides[0] +
                  c * params.w_strides[1] + offset_of(tap, params.w_strides);
    blend_into(params.blend, static_cast<T>(sum), dw);
  }
}

template <typename T, int kSpatial>
__device__ void forward(const Params& params) {
  for (int64 i = grid_index(); i < params.count; i += grid_size()) forward_at<T, kSpatial>(params, i);
}

template <typename T, int kSpatial>
__device__ void backward_data(const Params& params) {
  for (int64 i = grid_index(); i < params.count; i += grid_size()) backward_data_at<T, kSpatial>(params, i);
}

template <typename T, int kSpatial>
__device__ void backward_filter(const Params& params) {
  for (int64 i = blockIdx.x; i < params.count; i += gridDim.x) backward_filter_at<T, kSpatial>(params, i);
}

}  // namespace dnncore::direct
