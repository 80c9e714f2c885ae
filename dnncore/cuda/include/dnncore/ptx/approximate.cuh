// The special function unit's own results, within a few units of float32's last place (PTX ISA, 9.7.3.13 and 9.7.3.21): one
// instruction, where CUDA's functions correct them in many. Denormal arguments and results are 0.
#pragma once

namespace dnncore {

__device__ __forceinline__ float reciprocal_approx(float a) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}

// 2 to the power of a.
__device__ __forceinline__ float power_of_two_approx(float a) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}

}  // namespace dnncore
