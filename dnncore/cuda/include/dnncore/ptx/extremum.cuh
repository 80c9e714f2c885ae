// The larger and the smaller of two numbers, NaN where one of them is (PTX ISA, 9.7.3.12): one instruction, where a comparison
// and a choice are two. Of float64 there is none.
#pragma once

namespace dnncore {

__device__ __forceinline__ float larger(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

__device__ __forceinline__ double larger(double a, double b) { return a != a || a >= b ? a : b; }

__device__ __forceinline__ float smaller(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

}  // namespace dnncore
