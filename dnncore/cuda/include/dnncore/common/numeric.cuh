// The types that tensors are stored in, and the type that each is computed in. A kernel is a template over the storage
// type T: it widens what it reads to Compute<T>, computes, and narrows what it writes, rounding once. Compute<T> is
// double for double and int32, and float for all other types.
#pragma once

#include <cstdint>

#include "dnncore/ptx/convert.cuh"

namespace dnncore {

using int8 = std::int8_t;
using uint8 = std::uint8_t;

struct float16 {
  std::uint16_t bits;
};

struct bfloat16 {
  std::uint16_t bits;
};

template <typename T>
struct ComputeType {
  using Type = float;
};

template <>
struct ComputeType<double> {
  using Type = double;
};

template <>
struct ComputeType<std::int32_t> {
  using Type = double;  // represents every int32 exactly
};

// Double for double and int32, float for everything else.
template <typename T>
using Compute = typename ComputeType<T>::Type;

__device__ __forceinline__ double widen(double value) { return value; }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(float16 value) { return float_from_f16(value.bits); }
__device__ __forceinline__ float widen(bfloat16 value) { return float_from_bf16(value.bits); }
__device__ __forceinline__ float widen(int8 value) { return static_cast<float>(value); }
__device__ __forceinline__ float widen(uint8 value) { return static_cast<float>(value); }
__device__ __forceinline__ double widen(std::int32_t value) { return static_cast<double>(value); }

// Convert a computed value to T: to the nearest, ties to even; integers also saturate.
template <typename T>
__device__ __forceinline__ T narrow(Compute<T> value) {
  return value;
}

template <>
__device__ __forceinline__ float16 narrow<float16>(float value) {
  return {f16_from_float(value)};
}

template <>
__device__ __forceinline__ bfloat16 narrow<bfloat16>(float value) {
  return {bf16_from_float(value)};
}

template <>
__device__ __forceinline__ int8 narrow<int8>(float value) {
  return s8_from_float(value);
}

template <>
__device__ __forceinline__ uint8 narrow<uint8>(float value) {
  return u8_from_float(value);
}

template <>
__device__ __forceinline__ std::int32_t narrow<std::int32_t>(double value) {
  return __double2int_rn(value);
}

}  // namespace dnncore
