// Products of four warps whose A is in registers (wgmma; PTX ISA, 9.7.15.5.2): B stays in shared memory, and the sums are where
// warpgroup_matrix.cuh says.
#pragma once

#include "dnncore/ptx/warpgroup_matrix.cuh"

namespace dnncore {

#define DNNCORE_SUMS_8(i)                                                                                              \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]),          \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])

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

#undef DNNCORE_SUMS_8

}  // namespace dnncore
