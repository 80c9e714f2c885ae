// What the compiler may not remember. Elements of 16 bits that a thread keeps for several passes it would keep as it has widened them,
// in twice as many registers: after this it has to widen them anew.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

__device__ __forceinline__ void forget_widened(uint2& word) { asm("" : "+r"(word.x), "+r"(word.y)); }
__device__ __forceinline__ void forget_widened(uint4& word) { asm("" : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)); }

}  // namespace dnncore
