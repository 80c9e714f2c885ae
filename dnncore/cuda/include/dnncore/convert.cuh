// c = alpha * a + beta * c between two element types that only the launch knows, with any strides and broadcasting: one
// element per thread at a time, by way of double precision, in a kernel that is compiled once for all types.
#pragma once

#include "dnncore/common/element.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/convert.py. The views share one shape.
struct ConvertParams {
  Blend blend;
  const void* a;
  void* c;
  int64 size;
  TensorView a_view;
  TensorView c_view;
  ElementType a_type;
  ElementType c_type;
};

__device__ void convert(const ConvertParams& params) {
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const double value = element_of(params.a, offset_of(params.a_view, index), params.a_type);
    blend_element(params.blend, value, params.c, offset_of(params.c_view, index), params.c_type);
  }
}

}  // namespace dnncore
