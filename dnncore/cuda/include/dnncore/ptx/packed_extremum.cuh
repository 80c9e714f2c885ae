// The larger ones of two packed halves each, by one instruction (PTX ISA, 9.7.4.8 max). `larger` is NaN where one of the two is;
// `larger_number` is the other one then, and NaN only where both are. Of 0 and -0 the larger one is 0.
#pragma once

#include <cstdint>

namespace dnncore {

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
