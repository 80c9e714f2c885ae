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

// What such a row of 64 elements is: the products' summands of one row of A or column of B (K-major), or one summand of
// 64 rows or columns (MN-major), which the units transpose on the way, as fast.
enum class Major { kK, kMN };

// An operand that begins at an address (9.7.15.5.1.2.2): address / 16 in bits 0 to 13, `next` / 16 in bits 16 to 29,
// `pitch` / 16 in bits 32 to 45, 128-byte swizzle in bits 62 and 63. It may begin at any row of memory.
//
// `pitch` is the distance from eight rows of memory to the next eight. Where the operand is MN-major, `next` is the distance from
// 64 rows of A or columns of B to the next 64, which may overlap; else it is ignored.
__device__ __forceinline__ uint64 matrix_descriptor(
    uint32 address, uint32 next = 16, uint32 pitch = 8 * kMatrixRowBytes) {
  return uint64{(address & 0x3ffff) >> 4} | uint64{next >> 4} << 16 | uint64{pitch >> 4} << 32 | uint64{1} << 62;
}

// What is added to a descriptor for the next sixteen summands: 32 bytes along the rows, or sixteen rows.
template <Major kMajor>
inline constexpr int kMatrixStep = (kMajor == Major::kK ? 32 : 16 * kMatrixRowBytes) / 16;

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
#define DNNCORE_SUMS_32(i) DNNCORE_SUMS_8(i), DNNCORE_SUMS_8(i + 8), DNNCORE_SUMS_8(i + 16), DNNCORE_SUMS_8(i + 24)
#define DNNCORE_SUMS_48(i) DNNCORE_SUMS_32(i), DNNCORE_SUMS_8(i + 32), DNNCORE_SUMS_8(i + 40)
#define DNNCORE_NAMES_32                                                                                                \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"  \
  "%31"
#define DNNCORE_NAMES_48                                                                                                \
  DNNCORE_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define DNNCORE_NAMES_64                                                                                                \
  DNNCORE_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DNNCORE_NAMES_96                                                                                                \
  DNNCORE_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,"  \
  "%88,%89,%90,%91,%92,%93,%94,%95"
#define DNNCORE_NAMES_112                                                                                               \
  DNNCORE_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
// `columns` and `type` are as the instruction spells them; a, b, `adds` and `transposed` (of a and b) are the operands
// behind the sums.
#define DNNCORE_MULTIPLY(columns, type, names, a, b, adds, transposed, ...)                                             \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" columns            \
               "k16.f32." type "." type " {" names "}, " a ", " b ", adds, 1, 1, " transposed "; }"                     \
               : __VA_ARGS__                                                                                            \
               : "l"(of_a), "l"(of_b), "r"(static_cast<uint32>(add)), "n"(kA == Major::kMN), "n"(kB == Major::kMN))
#define DNNCORE_MULTIPLY_32(type)                                                                                       \
  DNNCORE_MULTIPLY("64", type, DNNCORE_NAMES_32, "%32", "%33", "%34", "%35, %36", DNNCORE_SUMS_32(0))
#define DNNCORE_MULTIPLY_48(type)                                                                                       \
  DNNCORE_MULTIPLY("96", type, DNNCORE_NAMES_48, "%48", "%49", "%50", "%51, %52", DNNCORE_SUMS_48(0))
#define DNNCORE_MULTIPLY_64(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "128", type, DNNCORE_NAMES_64, "%64", "%65", "%66", "%67, %68", DNNCORE_SUMS_32(0), DNNCORE_SUMS_32(32))
#define DNNCORE_MULTIPLY_96(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "192", type, DNNCORE_NAMES_96, "%96", "%97", "%98", "%99, %100", DNNCORE_SUMS_48(0), DNNCORE_SUMS_48(48))
#define DNNCORE_MULTIPLY_112(type)                                                                                      \
  DNNCORE_MULTIPLY(                                                                                                     \
      "224", type, DNNCORE_NAMES_112, "%112", "%113", "%114", "%115, %116", DNNCORE_SUMS_48(0), DNNCORE_SUMS_32(48),    \
      DNNCORE_SUMS_32(80))

// Begin sums = a * b, or sums += a * b where `add` is true: 64 rows of a, kSums * 2 columns of b, 16 summands of each. Setting
// sums to 0 by hand instead of `add` would make the compiler run the products one by one.
template <typename T, Major kA = Major::kK, Major kB = Major::kK, int kSums>
__device__ __forceinline__ void multiply_matrices(float (&sums)[kSums], uint64 of_a, uint64 of_b, bool add) {
  static_assert(kSums == 32 || kSums == 48 || kSums == 64 || kSums == 96 || kSums == 112);
  constexpr bool kIsHalf = std::is_same_v<T, float16>;
  static_assert(kIsHalf || std::is_same_v<T, bfloat16>);
  if constexpr (kSums == 32 && kIsHalf) {
    DNNCORE_MULTIPLY_32("f16");
  } else if constexpr (kSums == 32) {
    DNNCORE_MULTIPLY_32("bf16");
  } else if constexpr (kSums == 48 && kIsHalf) {
    DNNCORE_MULTIPLY_48("f16");
  } else if constexpr (kSums == 48) {
    DNNCORE_MULTIPLY_48("bf16");
  } else if constexpr (kSums == 64 && kIsHalf) {
    DNNCORE_MULTIPLY_64("f16");
  } else if constexpr (kSums == 64) {
    DNNCORE_MULTIPLY_64("bf16");
  } else if constexpr (kSums == 96 && kIsHalf) {
    DNNCORE_MULTIPLY_96("f16");
  } else if constexpr (kSums == 96) {
    DNNCORE_MULTIPLY_96("bf16");
  } else if constexpr (kIsHalf) {
    DNNCORE_MULTIPLY_112("f16");
  } else {
    DNNCORE_MULTIPLY_112("bf16");
  }
}

#undef DNNCORE_SUMS_8
#undef DNNCORE_SUMS_32
#undef DNNCORE_SUMS_48
#undef DNNCORE_NAMES_32
#undef DNNCORE_NAMES_48
#undef DNNCORE_NAMES_64
#undef DNNCORE_NAMES_96
#undef DNNCORE_NAMES_112
#undef DNNCORE_MULTIPLY
#undef DNNCORE_MULTIPLY_32
#undef DNNCORE_MULTIPLY_48
#undef DNNCORE_MULTIPLY_64
#undef DNNCORE_MULTIPLY_96
#undef DNNCORE_MULTIPLY_112

}  // namespace dnncore
