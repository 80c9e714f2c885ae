// c = alpha * a + beta * c between two element types, computed in double precision: any strides, broadcasting.
//
// The type of `a` is chosen at run time, once a kernel, or there would be a kernel for every pair of types.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// _TYPES in convert.py.
enum class ElementType : int32 { kFloat16, kBfloat16, kFloat32, kFloat64, kInt8, kInt32 };

// _PARAMS in convert.py. The views share one shape.
struct ConvertParams {
  Blend blend;
  const void* a;
  void* c;
  int64 size;
  TensorView a_view;
  TensorView c_view;
  ElementType a_type;
};

template <typename From, typename To>
__device__ __forceinline__ void convert_from(const ConvertParams& params) {
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const double value = widen(static_cast<const From*>(params.a)[offset_of(params.a_view, index)]);
    To* const c = static_cast<To*>(params.c) + offset_of(params.c_view, index);
    const double scaled = params.blend.alpha * value;
    const double blended = params.blend.beta == 0.0 ? scaled : scaled + params.blend.beta * static_cast<double>(widen(*c));
    *c = narrow<To>(static_cast<Compute<To>>(blended));
  }
}

template <typename To>
__device__ void convert(const ConvertParams& params) {
  switch (params.a_type) {
    case ElementType::kFloat16: return convert_from<float16, To>(params);
    case ElementType::kBfloat16: return convert_from<bfloat16, To>(params);
    case ElementType::kFloat32: return convert_from<float, To>(params);
    case ElementType::kFloat64: return convert_from<double, To>(params);
    case ElementType::kInt8: return convert_from<int8, To>(params);
    case ElementType::kInt32: return convert_from<int32, To>(params);
  }
}

}  // namespace dnncore
