// Elements of a type that only the launch knows, for kernels that run too rarely to be compiled once per type.
// element_of reads an element of any type as a double, which represents every value of all of them; blend_element
// blends in the element's compute type and stores. Each access switches on the type, and all threads take the same
// branch.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by ELEMENT_TYPES in dnncore/cuda/params.py.
enum class ElementType : int32 { kFloat16, kBfloat16, kFloat32, kFloat64, kInt8, kUint8, kInt32 };

template <typename T>
__device__ __forceinline__ double element_of(const void* tensor, int64 offset) {
  return widen(static_cast<const T*>(tensor)[offset]);
}

// The element as a double, which represents it exactly whatever its type.
__device__ __forceinline__ double element_of(const void* tensor, int64 offset, ElementType type) {
  switch (type) {
    case ElementType::kFloat16: return element_of<float16>(tensor, offset);
    case ElementType::kBfloat16: return element_of<bfloat16>(tensor, offset);
    case ElementType::kFloat32: return element_of<float>(tensor, offset);
    case ElementType::kFloat64: return element_of<double>(tensor, offset);
    case ElementType::kInt8: return element_of<int8>(tensor, offset);
    case ElementType::kUint8: return element_of<uint8>(tensor, offset);
    default: return element_of<int32>(tensor, offset);
  }
}

template <typename T>
__device__ __forceinline__ void blend_element(const Blend& blend, double value, void* tensor, int64 offset) {
  blend_into(blend, static_cast<Compute<T>>(value), static_cast<T*>(tensor) + offset);
}

__device__ __forceinline__ void blend_element(
    const Blend& blend, double value, void* tensor, int64 offset, ElementType type) {
  switch (type) {
    case ElementType::kFloat16: return blend_element<float16>(blend, value, tensor, offset);
    case ElementType::kBfloat16: return blend_element<bfloat16>(blend, value, tensor, offset);
    case ElementType::kFloat32: return blend_element<float>(blend, value, tensor, offset);
    case ElementType::kFloat64: return blend_element<double>(blend, value, tensor, offset);
    case ElementType::kInt8: return blend_element<int8>(blend, value, tensor, offset);
    case ElementType::kUint8: return blend_element<uint8>(blend, value, tensor, offset);
    default: return blend_element<int32>(blend, value, tensor, offset);
  }
}

}  // namespace dnncore
