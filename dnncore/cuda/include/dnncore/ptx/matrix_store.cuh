// The way back of load_transposed_matrices in matrix.cuh, from registers to shared memory (stmatrix, sm_90; PTX ISA,
// 9.7.14.5.16), and the pairs of 16 bits that its registers hold.
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
