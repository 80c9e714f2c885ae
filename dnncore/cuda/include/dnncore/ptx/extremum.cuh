// The larger and the smaller of two numbers: one instruction, where a comparison and a choice are two. `larger` and `smaller` are NaN
// where one of the two is; `larger_number` is the other one then, and NaN only where both are (PTX ISA, 9.7.3.12 max of f32 and
// 9.7.4.8 max of halves). Of two packed halves the instruction takes the larger ones of both at once. Which of 0 and -0 is larger is
// told apart: 0 is.
#pragma once

#include <cstdint>

namespace dnncore {

__device__ __forceinline__ float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ float smaller(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ std::uint32_t larger_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ __forceinline__ std::uint32_t larger_number_f16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("max.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ __forceinline__ std::uint32_t larger_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

__device__ __forceinline__ std::uint32_t larger_number_bf16x2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}

}  // namespace dnncore
