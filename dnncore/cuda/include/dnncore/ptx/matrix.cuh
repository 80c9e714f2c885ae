// Instructions of the tensor cores, and of the loads that feed them (PTX ISA, 9.7.14.5). A fragment is a warp's share
// of a matrix: each of the 32 lanes holds some elements, two of 16 bits or four of 8 bits per register. For c += a * b
// with 16 x 8 sums, the elements of c are distributed like this:
//
//   column       0 1        2 3        4 5        6 7
//   row 0      lane 0     lane 1     lane 2     lane 3      c[0], c[1] of each lane
//   row 1      lane 4     lane 5     lane 6     lane 7
//    ...
//   row 7      lane 28    lane 29    lane 30    lane 31
//   row 8      lane 0     lane 1     lane 2     lane 3      c[2], c[3] of each lane
//    ...
#pragma once

#include <cstdint>

#include "dnncore/common/numeric.cuh"

namespace dnncore {

// Load four matrices of 8 rows of 16 bytes each: lanes 8 i to 8 i + 7 give the addresses of matrix i's rows. Of each
// matrix lane l receives 4 bytes of row l / 4, beginning at byte 4 (l % 4).
__device__ __forceinline__ void load_matrices(std::uint32_t (&fragments)[4], const void* shared) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(address)
               : "memory");
}

// Load four matrices of 8 x 8 elements of 16 bits, transposed: of each matrix lane l receives element l / 4 of rows
// 2 (l % 4) and 2 (l % 4) + 1.
__device__ __forceinline__ void load_transposed_matrices(std::uint32_t (&fragments)[4], const void* shared) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(address)
               : "memory");
}

// c += a * b, where a has 16 rows of 32 bytes and b has 8 columns of 32 bytes; T is the element type of both. Lane l
// holds columns 2 (l % 4) and 2 (l % 4) + 1 of c, in rows l / 4 and l / 4 + 8. Sums of int8 are exact while int32 holds
// them, and wrap around beyond.
template <typename T, typename C>
__device__ __forceinline__ void multiply_add_matrices(
    C (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b_upper, std::uint32_t b_lower);

template <>
__device__ __forceinline__ void multiply_add_matrices<float16, float>(
    float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b_upper, std::uint32_t b_lower) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_upper), "r"(b_lower));
}

template <>
__device__ __forceinline__ void multiply_add_matrices<bfloat16, float>(
    float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b_upper, std::uint32_t b_lower) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_upper), "r"(b_lower));
}

template <>
__device__ __forceinline__ void multiply_add_matrices<int8, std::int32_t>(
    std::int32_t (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b_upper, std::uint32_t b_lower) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_upper), "r"(b_lower));
}

// c += a * b, where a has 16 rows of eight elements of tf32, whose registers are floats with 13 bits that are not looked at. Lane l
// holds of a elements l % 4 and l % 4 + 4 of rows l / 4 (a[0], a[2]) and l / 4 + 8 (a[1], a[3]), and of b those of column l / 4.
__device__ __forceinline__ void multiply_add_tf32(
    float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b_upper, std::uint32_t b_lower) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_upper), "r"(b_lower));
}

}  // namespace dnncore
