// The way back of load_transposed_matrices in matrix.cuh, from registers to shared memory (stmatrix, sm_90; PTX ISA,
// 9.7.14.5.16), both ways for two matrices in place of four, and the pairs of 16 bits that the registers hold.
#pragma once

#include <type_traits>

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Store four matrices of 8 x 8 elements of 16 bits, transposed: lanes 8 i to 8 i + 7 give the addresses of matrix i's
// rows, and of each matrix lane l gives element l / 4 of rows 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void store_transposed_matrices(void* shared, const uint32 (&fragments)[4]) {
  const auto address = static_cast<uint32>(__cvta_generic_to_shared(shared));
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(fragments[0]),
               "r"(fragments[1]), "r"(fragments[2]), "r"(fragments[3])
               : "memory");
}

// The first two of four, of lanes 0 to 15; and back.
__device__ __forceinline__ void store_transposed_pair(void* shared, const uint32 (&fragments)[2]) {
  const auto address = static_cast<uint32>(__cvta_generic_to_shared(shared));
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(fragments[0]), "r"(fragments[1])
               : "memory");
}

__device__ __forceinline__ void load_transposed_pair(uint32 (&fragments)[2], const void* shared) {
  const auto address = static_cast<uint32>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(fragments[0]), "=r"(fragments[1])
               : "r"(address)
               : "memory");
}

// Two values as T, the first in the lower half; rounded to the nearest, ties to even.
template <typename T>
__device__ __forceinline__ uint32 narrow_pair(float first, float second) {
  static_assert(std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>);
  uint32 pair;
  if constexpr (std::is_same_v<T, float16>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

// Four values as int8, the first in the lowest byte; rounded to the nearest, ties to even, saturated, 0 for NaN.
__device__ __forceinline__ uint32 narrow_four(float first, float second, float third, float fourth) {
  int32 whole[4];
  const float values[4] = {first, second, third, fourth};
#pragma unroll
  for (int i = 0; i < 4; ++i) asm("cvt.rni.s32.f32 %0, %1;" : "=r"(whole[i]) : "f"(values[i]));
  uint32 upper, all;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;" : "=r"(upper) : "r"(whole[3]), "r"(whole[2]));
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(all) : "r"(whole[1]), "r"(whole[0]), "r"(upper));
  return all;
}

// Four int8 as floats, the lowest byte first: each with 128 added is the mantissa of a float from 2^23 on. Conversions by the
// instruction of that name are a quarter as many in a clock.
__device__ __forceinline__ void widen_four(uint32 elements, float (&values)[4]) {
  const uint32 above_zero = elements ^ 0x80808080U;
#pragma unroll
  for (uint32 i = 0; i < 4; ++i) {
    values[i] = __uint_as_float(__byte_perm(above_zero, 0x4b000000U, 0x7440U | i)) - (8388608.0F + 128.0F);
  }
}

// The lower half of a pair, and the upper one.
template <typename T>
__device__ __forceinline__ float first_of(uint32 pair) {
  return widen(T{static_cast<std::uint16_t>(pair & 0xffff)});
}
template <typename T>
__device__ __forceinline__ float second_of(uint32 pair) {
  return widen(T{static_cast<std::uint16_t>(pair >> 16)});
}

}  // namespace dnncore
