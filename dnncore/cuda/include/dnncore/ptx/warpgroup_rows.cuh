// Products of four warps whose A is in registers (wgmma; PTX ISA, 9.7.15.5.2): B stays in shared memory, and the sums are where
// warpgroup_matrix.cuh says.
#pragma once

#include "dnncore/ptx/warpgroup_matrix.cuh"

namespace dnncore {

#define DNNCORE_SUMS_8(i)                                                                                              \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]),          \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])

#define DNNCORE_MULTIPLY_ROWS(type)                                                                                    \
  asm volatile(                                                                                                        \
      "{ .reg .pred adds; setp.ne.b32 adds, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "     \
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"    \
      "%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, adds, 1, 1, 0; }"                                         \
      : DNNCORE_SUMS_8(0), DNNCORE_SUMS_8(8), DNNCORE_SUMS_8(16), DNNCORE_SUMS_8(24), DNNCORE_SUMS_8(32),              \
        DNNCORE_SUMS_8(40), DNNCORE_SUMS_8(48), DNNCORE_SUMS_8(56)                                                     \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b), "r"(static_cast<uint32>(add)))

enum class Sign { kMinus = -1, kPlus = 1 };

// Begin sums = a * b, or sums += a * b where `add` is true, or the same of -a: 64 rows of eight elements of tf32 times 64 columns of
// b, K-major. Lane 4 g + t of warp w holds of a elements t and t + 4 of rows 16 w + g (a[0], a[2]) and 16 w + g + 8 (a[1], a[3]), and
// may not write them before the product has ended. The units take no notice of the lowest 13 bits.
template <Sign kSign = Sign::kPlus>
__device__ __forceinline__ void multiply_rows_tf32(float (&sums)[32], const uint32 (&a)[4], uint64 of_b, bool add) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %37, 0; wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, adds, %38, 1; }"
      : DNNCORE_SUMS_8(0), DNNCORE_SUMS_8(8), DNNCORE_SUMS_8(16), DNNCORE_SUMS_8(24)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(of_b), "r"(static_cast<uint32>(add)), "n"(static_cast<int>(kSign)));
}

// The same of sixteen elements of 16 bits, times 128 columns of b, K-major. Lane 4 g + t of warp w holds pairs of a: elements 2 t and
// 2 t + 1 of rows 16 w + g (a[0]) and 16 w + g + 8 (a[1]), and elements 2 t + 8 and 2 t + 9 of these (a[2], a[3]). So eight columns of
// sums, and the next eight, are one row of a once they are narrowed.
template <typename T>
__device__ __forceinline__ void multiply_rows(float (&sums)[64], const uint32 (&a)[4], uint64 of_b, bool add) {
  static_assert(std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>);
  if constexpr (std::is_same_v<T, float16>) {
    DNNCORE_MULTIPLY_ROWS("f16");
  } else {
    DNNCORE_MULTIPLY_ROWS("bf16");
  }
}

#undef DNNCORE_MULTIPLY_ROWS
#undef DNNCORE_SUMS_8

}  // namespace dnncore
