// Conversions between float and the 16-bit floating-point types, held as bits (PTX ISA, 9.7.9.21 cvt). Written in PTX
// because the toolkit's own header takes longer to read than most kernels take to compile.
#pragma once

#include <cstdint>

namespace dnncore {

__device__ __forceinline__ float float_from_f16(std::uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

__device__ __forceinline__ std::uint16_t f16_from_float(float value) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// A bfloat16 is the upper half of a float.
__device__ __forceinline__ float float_from_bf16(std::uint16_t bits) {
  return __uint_as_float(static_cast<std::uint32_t>(bits) << 16);
}

__device__ __forceinline__ std::uint16_t bf16_from_float(float value) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// To the nearest, ties to even, saturated; NaN becomes 0.
__device__ __forceinline__ std::int8_t s8_from_float(float value) {
  std::int32_t result;
  asm("cvt.rni.sat.s8.f32 %0, %1;" : "=r"(result) : "f"(value));
  return static_cast<std::int8_t>(result);
}

__device__ __forceinline__ std::uint8_t u8_from_float(float value) {
  std::uint32_t result;
  asm("cvt.rni.sat.u8.f32 %0, %1;" : "=r"(result) : "f"(value));
  return static_cast<std::uint8_t>(result);
}

}  // namespace dnncore
