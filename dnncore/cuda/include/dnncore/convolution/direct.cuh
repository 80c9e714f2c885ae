// Convolution from its definition, in all three directions: any strides, any number of spatial dimensions, 64-bit
// indices, sums in double precision and, for int8, exact. A thread computes an element of y or dx, a block one of dw.
// Nothing is reused, so it is slow where channels are many; but it computes what no other algorithm supports, and it is
// the reference on the device for shapes that take a CPU too long. Up to two spatial dimensions there is a kernel for
// each element type; for more, which are rare, there is one that asks the launch for the type.
//
//    y [n, k, p]  =  sum over c, r  x [n, c, p * stride - padding + r * dilation] * w[k, c, r]
//    dx[n, c, h]  =  sum over k, r  dy[n, k, (h + padding - r * dilation) / stride] * w[k, c, r]    where / is exact
//    dw[k, c, r]  =  sum over n, p  x [n, c, p * stride - padding + r * dilation] * dy[n, k, p]
//
// Forward, x is 0 in the padding, so a filter that is not finite shows at the border, as in PyTorch; backward, only
// what was really read has a gradient.
#pragma once

#include "dnncore/common/element.cuh"
#include "dnncore/common/reduce.cuh"
#include "dnncore/convolution/geometry.cuh"

namespace dnncore::direct {

// Strides of a tensor: of its first two dimensions, then of the spatial ones.
struct Strides {
  int64 outer;
  int64 inner;
  int64 spatial[kMaxSpatial];
};

// Mirrored by _PARAMS in dnncore/cuda/convolution/direct.py.
struct Params {
  Blend blend;
  void* x;  // the direction says which of the three is written
  void* w;
  void* y;
  Strides x_strides;  // n, c
  Strides w_strides;  // k, c; of a true convolution the spatial ones are negative
  Strides y_strides;  // n, k
  Geometry geometry;
  int64 batch;
  int64 channels;  // per group
  int64 filters;   // per group
  int64 groups;
  int64 w_offset;  // elements from w's address to its tap 0
  int64 count;     // elements of the output
  ElementType type;
  ElementType output_type;
};

// Elements of a type that the compiler knows. Products of int8 are added up exactly.
template <typename T>
struct Typed {
  using Sum = double;
  const T* base;
  __device__ __forceinline__ Typed(const void* tensor, int64 offset, const Params&)
      : base(static_cast<const T*>(tensor) + offset) {}
  __device__ __forceinline__ Sum operator[](int64 offset) const { return widen(base[offset]); }
};

template <>
struct Typed<int8> {
  using Sum = int64;
  const int8* base;
  __device__ __forceinline__ Typed(const void* tensor, int64 offset, const Params&)
      : base(static_cast<const int8*>(tensor) + offset) {}
  __device__ __forceinline__ int32 operator[](int64 offset) const { return base[offset]; }
};

// Elements of a type that the launch tells. A double holds the sum of 2^38 products of int8 exactly.
struct Untyped {
  using Sum = double;
  const void* tensor;
  int64 first;
  ElementType type;
  __device__ __forceinline__ Untyped(const void* tensor, int64 offset, const Params& params)
      : tensor(tensor), first(offset), type(params.type) {}
  __device__ __forceinline__ Sum operator[](int64 offset) const { return element_of(tensor, first + offset, type); }
};

template <typename T>
__device__ __forceinline__ void write(Typed<T>, const Params& params, double sum, void* output, int64 offset) {
  blend_element<T>(params.blend, sum, output, offset);
}

__device__ __forceinline__ void write(Typed<int8>, const Params& params, int64 sum, void* output, int64 offset) {
  blend_element(params.blend, static_cast<double>(sum), output, offset, params.output_type);
}

__device__ __forceinline__ void write(Untyped, const Params& params, double sum, void* output, int64 offset) {
  blend_element(params.blend, sum, output, offset, params.output_type);
}

// Sum of a * b over `count` channels, which lie a stride apart in each. Where a is not `inside`, it is a row of zeros.
template <typename Elements>
__device__ __forceinline__ typename Elements::Sum dot(
    const Elements& a, int64 a_offset, int64 a_stride, bool inside, const Elements& b, int64 b_offset, int64 b_stride,
    int64 count) {
  typename Elements::Sum sum = 0;
  for (int64 i = 0; i < count; ++i) {
    const typename Elements::Sum first = inside ? a[a_offset + i * a_stride] : 0;
    sum += first * b[b_offset + i * b_stride];
  }
  return sum;
}

// For int8: in 32 bits as long as they hold every sum, which takes a fraction of the instructions of 64-bit sums.
__device__ __forceinline__ int64 dot(
    const Typed<int8>& a, int64 a_offset, int64 a_stride, bool inside, const Typed<int8>& b, int64 b_offset, int64 b_stride,
    int64 count) {
  constexpr int64 kLongest = 1 << 16;
  int64 sum = 0;
  if (!inside) return sum;
  for (int64 start = 0; start < count; start += kLongest) {
    const int64 end = count - start < kLongest ? count : start + kLongest;
    int32 part = 0;
    for (int64 i = start; i < end; ++i) part += a[a_offset + i * a_stride] * b[b_offset + i * b_stride];
    sum += part;
  }
  return sum;
}

// A thread computes one element of y.
template <typename Elements, int kSpatial>
__device__ __forceinline__ void forward_at(const Params& params, int64 index) {
  const Geometry& geometry = params.geometry;
  Place<kSpatial> output, tap, input;
  const QuotientRemainder image = divide(take_place(index, geometry.output, output), params.groups * params.filters);
  const int64 k = image.remainder, c = divide(k, params.filters).quotient * params.channels;
  const Elements x(params.x, image.quotient * params.x_strides.outer + c * params.x_strides.inner, params);
  const Elements w(params.w, params.w_offset + k * params.w_strides.outer, params);

  typename Elements::Sum sum = 0;
  for_each_place<kSpatial>(geometry.filter, tap, [&](const Place<kSpatial>& at) {
    const bool inside = input_of(output, at, geometry, input);
    sum += dot(
        x, offset_of(input, params.x_strides.spatial), params.x_strides.inner, inside, w,
        offset_of(at, params.w_strides.spatial), params.w_strides.inner, params.channels);
  });
  const int64 offset = image.quotient * params.y_strides.outer + k * params.y_strides.inner;
  write(x, params, sum, params.y, offset + offset_of(output, params.y_strides.spatial));
}

// A thread computes one element of dx.
template <typename Elements, int kSpatial>
__device__ __forceinline__ void backward_data_at(const Params& params, int64 index) {
  const Geometry& geometry = params.geometry;
  Place<kSpatial> input, tap, output;
  const QuotientRemainder image = divide(take_place(index, geometry.input, input), params.groups * params.channels);
  const QuotientRemainder group = divide(image.remainder, params.channels);
  const int64 k = group.quotient * params.filters;
  const Elements dy(params.y, image.quotient * params.y_strides.outer + k * params.y_strides.inner, params);
  const Elements w(
      params.w, params.w_offset + k * params.w_strides.outer + group.remainder * params.w_strides.inner, params);

  typename Elements::Sum sum = 0;
  for_each_place<kSpatial>(geometry.filter, tap, [&](const Place<kSpatial>& at) {
    if (output_of(input, at, geometry, output)) {
      sum += dot(
          dy, offset_of(output, params.y_strides.spatial), params.y_strides.inner, true, w,
          offset_of(at, params.w_strides.spatial), params.w_strides.outer, params.filters);
    }
  });
  const int64 offset = image.quotient * params.x_strides.outer + image.remainder * params.x_strides.inner;
  write(dy, params, sum, params.x, offset + offset_of(input, params.x_strides.spatial));
}

// A block computes one element of dw, because each is a long sum: its threads take outputs in turn and are added up in
// a fixed order.
template <typename Elements, int kSpatial>
__device__ __forceinline__ void backward_filter_at(const Params& params, int64 index, int64 outputs) {
  const Geometry& geometry = params.geometry;
  Place<kSpatial> tap, output, input;
  const QuotientRemainder weight = divide(take_place(index, geometry.filter, tap), params.channels);
  const int64 k = weight.quotient, c = weight.remainder;
  const int64 first_channel = divide(k, params.filters).quotient * params.channels;
  const Elements x(params.x, (first_channel + c) * params.x_strides.inner, params);
  const Elements dy(params.y, k * params.y_strides.inner, params);

  double sum = 0;
  for (int64 i = threadIdx.x; i < outputs; i += blockDim.x) {
    const int64 n = take_place(i, geometry.output, output);
    const bool inside = input_of(output, tap, geometry, input);
    const int64 from = n * params.x_strides.outer + offset_of(input, params.x_strides.spatial);
    const double pixel = inside ? x[from] : 0.0;
    sum += pixel * dy[n * params.y_strides.outer + offset_of(output, params.y_strides.spatial)];
  }
  sum = reduce_block<Sum>(sum);
  if (threadIdx.x == 0) {
    const int64 offset = params.w_offset + k * params.w_strides.outer + c * params.w_strides.inner;
    write(x, params, sum, params.w, offset + offset_of(tap, params.w_strides.spatial));
  }
}

template <typename Elements, int kSpatial>
__device__ void forward(const Params& params) {
  for (int64 i = grid_index(); i < params.count; i += grid_size()) forward_at<Elements, kSpatial>(params, i);
}

template <typename Elements, int kSpatial>
__device__ void backward_data(const Params& params) {
  for (int64 i = grid_index(); i < params.count; i += grid_size()) backward_data_at<Elements, kSpatial>(params, i);
}

template <typename Elements, int kSpatial>
__device__ void backward_filter(const Params& params) {
  int64 outputs = params.batch;
#pragma unroll
  for (int i = 0; i < kSpatial; ++i) outputs *= params.geometry.output[axis_of<kSpatial>(i)];
  for (int64 i = blockIdx.x; i < params.count; i += gridDim.x) {
    backward_filter_at<Elements, kSpatial>(params, i, outputs);
  }
}

}  // namespace dnncore::direct
