// The matrix units of sm_90 as four warps together use them (wgmma; PTX ISA, 9.7.15): 64 rows of A times up to 256
// columns of B, both of which stay in shared memory, while the sums are in the warps' registers. The products run beside
// the threads, which wait for groups of them.
//
// Thread t of the warpgroup holds, of every eight columns 8 j to 8 j + 7, in rows r = 16 (t / 32) + t % 32 / 4 and r + 8:
//
//   sums[4 j], sums[4 j + 1]       row r,      columns 8 j + 2 (t % 4) and the next
//   sums[4 j + 2], sums[4 j + 3]   row r + 8,  the same columns
#pragma once

#include <type_traits>

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Rows of an operand in shared memory are 128 bytes, one after the other, swizzled as tensor copies leave them.
inline constexpr int kMatrixRowBytes = 128;

// An operand that begins at an address (9.7.15.5.1.2.2): address / 16 in bits 0 to 13, the distance from eight rows to the
// next eight / 16 in bits 32 to 45, 128-byte swizzle in bits 62 and 63. Sixteen elements of 16 bits further along its rows
// are kMatrixStep more.
__device__ __forceinline__ uint64 matrix_descriptor(uint32 address) {
  return uint64{(address & 0x3ffff) >> 4} | uint64{1} << 16 | uint64{8 * kMatrixRowBytes / 16} << 32 | uint64{1} << 62;
}
inline constexpr int kMatrixStep = 32 / 16;

// Before the first product that adds to registers which threads have touched.
__device__ __forceinline__ void fence_sums() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Close the current group of products.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Wait until at most the last kPending groups are still running.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

#define DNNCORE_SUMS_8(i)                                                                                               \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]),         \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define DNNCORE_SUMS_48(i)                                                                                              \
  DNNCORE_SUMS_8(i), DNNCORE_SUMS_8(i + 8), DNNCORE_SUMS_8(i + 16), DNNCORE_SUMS_8(i + 24), DNNCORE_SUMS_8(i + 32),     \
      DNNCORE_SUMS_8(i + 40)
#define DNNCORE_NAMES_48                                                                                                \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"  \
  "%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define DNNCORE_NAMES_96                                                                                                \
  DNNCORE_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,"  \
  "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
// `columns` and `type` are as the instruction spells them; `a`, `b` and `adds` are the operands behind the sums.
#define DNNCORE_MULTIPLY(columns, type, names, a, b, adds, ...)                                                         \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" columns            \
               "k16.f32." type "." type " {" names "}, " a ", " b ", adds, 1, 1, 0, 0; }"                               \
               : __VA_ARGS__                                                                                            \
               : "l"(of_a), "l"(of_b), "r"(static_cast<uint32>(add)))

// Begin sums = a * b, or sums += a * b where `add` is true: 64 rows of a, kSums * 2 of b, 16 elements of each. Setting sums
// to 0 by hand instead of `add` would make the compiler run the products one by one.
template <typename T, int kSums>
__device__ __forceinline__ void multiply_matrices(float (&sums)[kSums], uint64 of_a, uint64 of_b, bool add) {
  static_assert(kSums == 48 || kSums == 96);
  constexpr bool kIsHalf = std::is_same_v<T, float16>;
  static_assert(kIsHalf || std::is_same_v<T, bfloat16>);
  if constexpr (kSums == 48 && kIsHalf) {
    DNNCORE_MULTIPLY("96", "f16", DNNCORE_NAMES_48, "%48", "%49", "%50", DNNCORE_SUMS_48(0));
  } else if constexpr (kSums == 48) {
    DNNCORE_MULTIPLY("96", "bf16", DNNCORE_NAMES_48, "%48", "%49", "%50", DNNCORE_SUMS_48(0));
  } else if constexpr (kIsHalf) {
    DNNCORE_MULTIPLY("192", "f16", DNNCORE_NAMES_96, "%96", "%97", "%98", DNNCORE_SUMS_48(0), DNNCORE_SUMS_48(48));
  } else {
    DNNCORE_MULTIPLY("192", "bf16", DNNCORE_NAMES_96, "%96", "%97", "%98", DNNCORE_SUMS_48(0), DNNCORE_SUMS_48(48));
  }
}

#undef DNNCORE_SUMS_8
#undef DNNCORE_SUMS_48
#undef DNNCORE_NAMES_48
#undef DNNCORE_NAMES_96
#undef DNNCORE_MULTIPLY

}  // namespace dnncore
