// A fused convolution from its definition, for any types, strides and number of spatial dimensions, in double precision
// and rounded once. A thread computes an element of y. It is slow, and compiled once for all types: what has no
// workspace and no tiled kernel comes here.
//
//    y = activation(alpha1 * (x correlated with w) * scale[k] + bias[k] + alpha2 * z)
//
// x may be pixels of 8 bits, which stand for what a table has for them, rounded to w's type; or floats, which are rounded to it.
#pragma once

#include "dnncore/common/element.cuh"
#include "dnncore/common/tensor.cuh"
#include "dnncore/convolution/geometry.cuh"
#include "dnncore/gemm/epilogue.cuh"

namespace dnncore::fused_direct {

struct Strides {
  int64 outer;
  int64 inner;
  int64 spatial[kMaxSpatial];
};

// Mirrored by _PARAMS in dnncore/cuda/convolution/fused_direct.py.
struct Params {
  Blend blend;
  Epilogue epilogue;
  const void* x;
  const void* w;
  void* y;
  const float* table;  // [c][256]; null where x is no pixels
  Strides x_strides;  // n, c
  Strides w_strides;  // k, c; of a true convolution the spatial ones are negative
  Strides y_strides;  // n, k
  Strides z_strides;
  Geometry geometry;
  int64 channels;  // per group
  int64 filters;   // per group
  int64 num_filters;
  int64 w_offset;  // elements from w's address to its tap 0
  int64 count;     // elements of y
  ElementType type;  // of what is multiplied, and of x
  ElementType x_type;
  ElementType output_type;
  ElementType parameter_type;
};

__device__ __forceinline__ double rounded(float value, ElementType type) {
  if (type == ElementType::kFloat16) return widen(narrow<float16>(value));
  return type == ElementType::kBfloat16 ? widen(narrow<bfloat16>(value)) : value;
}

__device__ __forceinline__ double image_of(const Params& params, int64 channel, int64 offset) {
  if (params.table != nullptr) {
    return rounded(params.table[channel * 256 + static_cast<const uint8*>(params.x)[offset]], params.type);
  }
  const double value = element_of(params.x, offset, params.x_type);
  return params.x_type == params.type ? value : rounded(static_cast<float>(value), params.type);
}

// A thread computes one element of y at a time.
__device__ void fused_direct(const Params& params) {
  const Geometry& geometry = params.geometry;
  const Epilogue& epilogue = params.epilogue;
  const auto of_place = [](const Strides& strides, int64 outer, int64 inner, const Place<kMaxSpatial>& place) {
    return outer * strides.outer + inner * strides.inner + offset_of(place, strides.spatial);
  };
  for (int64 index = grid_index(); index < params.count; index += grid_size()) {
    Place<kMaxSpatial> output, tap, input;
    const QuotientRemainder image = divide(take_place(index, geometry.output, output), params.num_filters);
    const int64 n = image.quotient, k = image.remainder;
    const int64 first_channel = divide(k, params.filters).quotient * params.channels;
    double sum = 0;
    for_each_place<kMaxSpatial>(geometry.filter, tap, [&](const Place<kMaxSpatial>& at) {
      // A weight meets the padding's zero too, so one that is not finite shows at the border.
      const bool inside = input_of(output, at, geometry, input);
      for (int64 c = 0; c < params.channels; ++c) {
        const int64 pixel = of_place(params.x_strides, n, first_channel + c, input);
        const double weight = element_of(params.w, params.w_offset + of_place(params.w_strides, k, c, at), params.type);
        sum += (inside ? image_of(params, first_channel + c, pixel) : 0.0) * weight;
      }
    });
    double scale = 1, bias = 0, z = 0;
    if (epilogue.scale) scale = element_of(epilogue.scale, k * epilogue.scale_stride, params.parameter_type);
    if (epilogue.bias) bias = element_of(epilogue.bias, k * epilogue.bias_stride, params.parameter_type);
    if (epilogue.reads_z()) z = element_of(epilogue.z, of_place(params.z_strides, n, k, output), params.output_type);
    const double value = activate(epilogue.activation, epilogue.affine(sum, scale, bias, z));
    blend_element(params.blend, value, params.y, of_place(params.y_strides, n, k, output), params.output_type);
  }
}

}  // namespace dnncore::fused_direct
