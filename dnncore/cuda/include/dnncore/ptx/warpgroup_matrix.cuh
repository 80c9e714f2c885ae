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

// Rows of an operand in shared memory are 128 bytes, one after the other, swizzled as tensor copies leave them. They may be 64
// bytes, or 16, where the operand is K-major.
inline constexpr int kMatrixRowBytes = 128;

// What such a row of 64 elements is: the products' summands of one row of A or column of B (K-major), or one summand of
// 64 rows or columns (MN-major), which the units transpose on the way, as fast.
enum class Major { kK, kMN };

// An operand that begins at an address (9.7.15.5.1.2.2): address / 16 in bits 0 to 13, `next` / 16 in bits 16 to 29,
// `pitch` / 16 in bits 32 to 45, the swizzle in bits 62 and 63 (1: 128 bytes, 2: 64). It may begin at any row of memory.
//
// `pitch` is the distance from eight rows of memory to the next eight. Where the operand is MN-major, `next` is the distance from
// 64 rows of A or columns of B to the next 64, which may overlap; else it is ignored. But rows of 16 bytes, which are K-major and
// not swizzled, are half of the summands of a product: there `next` is the distance to the other half.
template <int kRowBytes = kMatrixRowBytes>
__device__ __forceinline__ uint64 matrix_descriptor(uint32 address, uint32 next = 16, uint32 pitch = 8 * kRowBytes) {
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 16);
  constexpr uint64 kSwizzle = kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 0;
  return uint64{(address & 0x3ffff) >> 4} | uint64{next >> 4} << 16 | uint64{pitch >> 4} << 32 | kSwizzle << 62;
}

// What is added to a descriptor for the summands of the next product: 32 bytes along the rows, or sixteen rows.
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

// The bits of tf32: to the nearest, ties to even, as copies of the engine round (9.7.9.21).
__device__ __forceinline__ uint32 tf32_from_float(float value) {
  uint32 bits;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

// What products of a type add up in.
template <typename T>
using MatrixSum = std::conditional_t<std::is_same_v<T, int8>, int32, float>;

// Behind the wait for the products of sums: the compiler, to which the products end where they begin, may convert or copy sums no
// earlier than here.
template <typename Sum, int kSums>
__device__ __forceinline__ void settle_sums(Sum (&sums)[kSums]) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if constexpr (std::is_same_v<Sum, float>) {
      asm volatile("" : "+f"(sums[i]));
    } else {
      asm volatile("" : "+r"(sums[i]));
    }
  }
}

// `in` says what registers of sums hold: "+f", or "+r" where they are int32.
#define DNNCORE_SUMS_8(in, i)                                                                                           \
  in(sums[i]), in(sums[i + 1]), in(sums[i + 2]), in(sums[i + 3]), in(sums[i + 4]), in(sums[i + 5]), in(sums[i + 6]),    \
      in(sums[i + 7])
#define DNNCORE_SUMS_4(in, i) in(sums[i]), in(sums[i + 1]), in(sums[i + 2]), in(sums[i + 3])
#define DNNCORE_NAMES_8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define DNNCORE_NAMES_12 DNNCORE_NAMES_8 ",%8,%9,%10,%11"
#define DNNCORE_NAMES_20 DNNCORE_NAMES_12 ",%12,%13,%14,%15,%16,%17,%18,%19"
#define DNNCORE_SUMS_32(in, i)                                                                                          \
  DNNCORE_SUMS_8(in, i), DNNCORE_SUMS_8(in, i + 8), DNNCORE_SUMS_8(in, i + 16), DNNCORE_SUMS_8(in, i + 24)
#define DNNCORE_SUMS_48(in, i) DNNCORE_SUMS_32(in, i), DNNCORE_SUMS_8(in, i + 32), DNNCORE_SUMS_8(in, i + 40)
#define DNNCORE_NAMES_32                                                                                                \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,"  \
  "%31"
#define DNNCORE_NAMES_48                                                                                                \
  DNNCORE_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define DNNCORE_NAMES_52                                                                                                \
  DNNCORE_NAMES_48 ",%48,%49,%50,%51"
#define DNNCORE_NAMES_56                                                                                                \
  DNNCORE_NAMES_48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define DNNCORE_NAMES_64                                                                                                \
  DNNCORE_NAMES_56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define DNNCORE_NAMES_96                                                                                                \
  DNNCORE_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,"  \
  "%88,%89,%90,%91,%92,%93,%94,%95"
#define DNNCORE_NAMES_112                                                                                               \
  DNNCORE_NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"
#define DNNCORE_NAMES_120                                                                                               \
  DNNCORE_NAMES_112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define DNNCORE_NAMES_128                                                                                               \
  DNNCORE_NAMES_112 ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// `columns` and `types` are as the instruction spells them; a, b, `adds` and `signs` (which of a and b are negated, and, of 16
// bits, transposed) are the operands behind the sums.
#define DNNCORE_MULTIPLY(columns, types, names, a, b, adds, signs, ...)                                                 \
  asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " adds ", 0; wgmma.mma_async.sync.aligned.m64n" columns types      \
               " {" names "}, " a ", " b ", adds" signs "; }"                                                           \
               : __VA_ARGS__                                                                                            \
               : "l"(of_a), "l"(of_b), "r"(static_cast<uint32>(add)), "n"(kA == Major::kMN), "n"(kB == Major::kMN))
#define DNNCORE_MULTIPLY_8(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                    \
      "16", "k16.f32." type "." type, DNNCORE_NAMES_8, "%8", "%9", "%10", ", 1, 1, %11, %12", DNNCORE_SUMS_8("+f", 0))
#define DNNCORE_MULTIPLY_12(type)                                                                                      \
  DNNCORE_MULTIPLY(                                                                                                    \
      "24", "k16.f32." type "." type, DNNCORE_NAMES_12, "%12", "%13", "%14", ", 1, 1, %15, %16",                       \
      DNNCORE_SUMS_8("+f", 0), DNNCORE_SUMS_4("+f", 8))
#define DNNCORE_MULTIPLY_20(type)                                                                                      \
  DNNCORE_MULTIPLY(                                                                                                    \
      "40", "k16.f32." type "." type, DNNCORE_NAMES_20, "%20", "%21", "%22", ", 1, 1, %23, %24",                       \
      DNNCORE_SUMS_8("+f", 0), DNNCORE_SUMS_8("+f", 8), DNNCORE_SUMS_4("+f", 16))
#define DNNCORE_MULTIPLY_32(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "64", "k16.f32." type "." type, DNNCORE_NAMES_32, "%32", "%33", "%34", ", 1, 1, %35, %36", DNNCORE_SUMS_32("+f", 0))
#define DNNCORE_MULTIPLY_48(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "96", "k16.f32." type "." type, DNNCORE_NAMES_48, "%48", "%49", "%50", ", 1, 1, %51, %52", DNNCORE_SUMS_48("+f", 0))
#define DNNCORE_MULTIPLY_52(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "104", "k16.f32." type "." type, DNNCORE_NAMES_52, "%52", "%53", "%54", ", 1, 1, %55, %56",                       \
      DNNCORE_SUMS_48("+f", 0), DNNCORE_SUMS_4("+f", 48))
#define DNNCORE_MULTIPLY_56(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "112", "k16.f32." type "." type, DNNCORE_NAMES_56, "%56", "%57", "%58", ", 1, 1, %59, %60",                       \
      DNNCORE_SUMS_48("+f", 0), DNNCORE_SUMS_8("+f", 48))
#define DNNCORE_MULTIPLY_64(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "128", "k16.f32." type "." type, DNNCORE_NAMES_64, "%64", "%65", "%66", ", 1, 1, %67, %68",                       \
      DNNCORE_SUMS_32("+f", 0), DNNCORE_SUMS_32("+f", 32))
#define DNNCORE_MULTIPLY_96(type)                                                                                       \
  DNNCORE_MULTIPLY(                                                                                                     \
      "192", "k16.f32." type "." type, DNNCORE_NAMES_96, "%96", "%97", "%98", ", 1, 1, %99, %100",                      \
      DNNCORE_SUMS_48("+f", 0), DNNCORE_SUMS_48("+f", 48))
#define DNNCORE_MULTIPLY_112(type)                                                                                      \
  DNNCORE_MULTIPLY(                                                                                                     \
      "224", "k16.f32." type "." type, DNNCORE_NAMES_112, "%112", "%113", "%114", ", 1, 1, %115, %116",                 \
      DNNCORE_SUMS_48("+f", 0), DNNCORE_SUMS_32("+f", 48), DNNCORE_SUMS_32("+f", 80))
#define DNNCORE_MULTIPLY_120(type)                                                                                      \
  DNNCORE_MULTIPLY(                                                                                                     \
      "240", "k16.f32." type "." type, DNNCORE_NAMES_120, "%120", "%121", "%122", ", 1, 1, %123, %124",                 \
      DNNCORE_SUMS_48("+f", 0), DNNCORE_SUMS_32("+f", 48), DNNCORE_SUMS_32("+f", 80), DNNCORE_SUMS_8("+f", 112))
#define DNNCORE_MULTIPLY_128(type)                                                                                      \
  DNNCORE_MULTIPLY(                                                                                                     \
      "256", "k16.f32." type "." type, DNNCORE_NAMES_128, "%128", "%129", "%130", ", 1, 1, %131, %132",                 \
      DNNCORE_SUMS_48("+f", 0), DNNCORE_SUMS_48("+f", 48), DNNCORE_SUMS_32("+f", 96))

// Begin sums = a * b, or sums += a * b where `add` is true: 64 rows of a, kSums * 2 columns of b, 32 bytes of summands of each.
// Setting sums to 0 by hand instead of `add` would make the compiler run the products one by one. Those of int8 are exact
// while int32 holds them. Those of float are of tf32: the units take no notice of the lowest 13 bits, so that an operand that
// was not rounded before (as copies of the engine can) is cut off.
template <typename T, Major kA = Major::kK, Major kB = Major::kK, int kSums>
__device__ __forceinline__ void multiply_matrices(MatrixSum<T> (&sums)[kSums], uint64 of_a, uint64 of_b, bool add) {
  constexpr bool kIsHalf = std::is_same_v<T, float16>, kIsInteger = std::is_same_v<T, int8>;
  constexpr bool kIsFloat = std::is_same_v<T, float>;
  static_assert(
      kSums == 32 || kSums == 48 || kSums == 56 || kSums == 96 || (kIsInteger && kSums == 112) ||
      (sizeof(T) == 2 &&
       (kSums == 8 || kSums == 12 || kSums == 20 || kSums == 52 || kSums == 64 || kSums == 112 || kSums == 120 || kSums == 128)));
  static_assert(
      kIsHalf || std::is_same_v<T, bfloat16> || ((kIsInteger || kIsFloat) && kA == Major::kK && kB == Major::kK));
  if constexpr (kIsInteger && kSums == 32) {
    DNNCORE_MULTIPLY("64", "k32.s32.s8.s8", DNNCORE_NAMES_32, "%32", "%33", "%34", "", DNNCORE_SUMS_32("+r", 0));
  } else if constexpr (kIsInteger && kSums == 48) {
    DNNCORE_MULTIPLY("96", "k32.s32.s8.s8", DNNCORE_NAMES_48, "%48", "%49", "%50", "", DNNCORE_SUMS_48("+r", 0));
  } else if constexpr (kIsInteger && kSums == 56) {
    DNNCORE_MULTIPLY(
        "112", "k32.s32.s8.s8", DNNCORE_NAMES_56, "%56", "%57", "%58", "", DNNCORE_SUMS_48("+r", 0),
        DNNCORE_SUMS_8("+r", 48));
  } else if constexpr (kIsInteger && kSums == 112) {
    DNNCORE_MULTIPLY(
        "224", "k32.s32.s8.s8", DNNCORE_NAMES_112, "%112", "%113", "%114", "", DNNCORE_SUMS_48("+r", 0),
        DNNCORE_SUMS_32("+r", 48), DNNCORE_SUMS_32("+r", 80));
  } else if constexpr (kIsInteger) {
    DNNCORE_MULTIPLY(
        "192", "k32.s32.s8.s8", DNNCORE_NAMES_96, "%96", "%97", "%98", "", DNNCORE_SUMS_48("+r", 0),
        DNNCORE_SUMS_48("+r", 48));
  } else if constexpr (kIsFloat && kSums == 32) {
    DNNCORE_MULTIPLY("64", "k8.f32.tf32.tf32", DNNCORE_NAMES_32, "%32", "%33", "%34", ", 1, 1", DNNCORE_SUMS_32("+f", 0));
  } else if constexpr (kIsFloat && kSums == 48) {
    DNNCORE_MULTIPLY("96", "k8.f32.tf32.tf32", DNNCORE_NAMES_48, "%48", "%49", "%50", ", 1, 1", DNNCORE_SUMS_48("+f", 0));
  } else if constexpr (kIsFloat && kSums == 56) {
    DNNCORE_MULTIPLY(
        "112", "k8.f32.tf32.tf32", DNNCORE_NAMES_56, "%56", "%57", "%58", ", 1, 1", DNNCORE_SUMS_48("+f", 0),
        DNNCORE_SUMS_8("+f", 48));
  } else if constexpr (kIsFloat) {
    DNNCORE_MULTIPLY(
        "192", "k8.f32.tf32.tf32", DNNCORE_NAMES_96, "%96", "%97", "%98", ", 1, 1", DNNCORE_SUMS_48("+f", 0),
        DNNCORE_SUMS_48("+f", 48));
  } else if constexpr (kSums == 8 && kIsHalf) {
    DNNCORE_MULTIPLY_8("f16");
  } else if constexpr (kSums == 8) {
    DNNCORE_MULTIPLY_8("bf16");
  } else if constexpr (kSums == 12 && kIsHalf) {
    DNNCORE_MULTIPLY_12("f16");
  } else if constexpr (kSums == 12) {
    DNNCORE_MULTIPLY_12("bf16");
  } else if constexpr (kSums == 20 && kIsHalf) {
    DNNCORE_MULTIPLY_20("f16");
  } else if constexpr (kSums == 20) {
    DNNCORE_MULTIPLY_20("bf16");
  } else if constexpr (kSums == 32 && kIsHalf) {
    DNNCORE_MULTIPLY_32("f16");
  } else if constexpr (kSums == 32) {
    DNNCORE_MULTIPLY_32("bf16");
  } else if constexpr (kSums == 48 && kIsHalf) {
    DNNCORE_MULTIPLY_48("f16");
  } else if constexpr (kSums == 48) {
    DNNCORE_MULTIPLY_48("bf16");
  } else if constexpr (kSums == 52 && kIsHalf) {
    DNNCORE_MULTIPLY_52("f16");
  } else if constexpr (kSums == 52) {
    DNNCORE_MULTIPLY_52("bf16");
  } else if constexpr (kSums == 56 && kIsHalf) {
    DNNCORE_MULTIPLY_56("f16");
  } else if constexpr (kSums == 56) {
    DNNCORE_MULTIPLY_56("bf16");
  } else if constexpr (kSums == 64 && kIsHalf) {
    DNNCORE_MULTIPLY_64("f16");
  } else if constexpr (kSums == 64) {
    DNNCORE_MULTIPLY_64("bf16");
  } else if constexpr (kSums == 96 && kIsHalf) {
    DNNCORE_MULTIPLY_96("f16");
  } else if constexpr (kSums == 96) {
    DNNCORE_MULTIPLY_96("bf16");
  } else if constexpr (kSums == 112 && kIsHalf) {
    DNNCORE_MULTIPLY_112("f16");
  } else if constexpr (kSums == 112) {
    DNNCORE_MULTIPLY_112("bf16");
  } else if constexpr (kSums == 120 && kIsHalf) {
    DNNCORE_MULTIPLY_120("f16");
  } else if constexpr (kSums == 120) {
    DNNCORE_MULTIPLY_120("bf16");
  } else if constexpr (kIsHalf) {
    DNNCORE_MULTIPLY_128("f16");
  } else {
    DNNCORE_MULTIPLY_128("bf16");
  }
}

#undef DNNCORE_SUMS_4
#undef DNNCORE_SUMS_8
#undef DNNCORE_SUMS_32
#undef DNNCORE_SUMS_48
#undef DNNCORE_NAMES_8
#undef DNNCORE_NAMES_12
#undef DNNCORE_NAMES_20
#undef DNNCORE_NAMES_32
#undef DNNCORE_NAMES_48
#undef DNNCORE_NAMES_52
#undef DNNCORE_NAMES_56
#undef DNNCORE_NAMES_64
#undef DNNCORE_NAMES_96
#undef DNNCORE_NAMES_112
#undef DNNCORE_NAMES_120
#undef DNNCORE_NAMES_128
#undef DNNCORE_MULTIPLY
#undef DNNCORE_MULTIPLY_8
#undef DNNCORE_MULTIPLY_12
#undef DNNCORE_MULTIPLY_20
#undef DNNCORE_MULTIPLY_32
#undef DNNCORE_MULTIPLY_48
#undef DNNCORE_MULTIPLY_52
#undef DNNCORE_MULTIPLY_56
#undef DNNCORE_MULTIPLY_64
#undef DNNCORE_MULTIPLY_96
#undef DNNCORE_MULTIPLY_112
#undef DNNCORE_MULTIPLY_120
#undef DNNCORE_MULTIPLY_128

}  // namespace dnncore
