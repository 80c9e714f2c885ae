// Sixteen bytes to global memory by one instruction (st.global.v4; PTX ISA, 9.7.9.12). The compiler makes four of an assignment
// whose values come out of branches.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

__device__ __forceinline__ void store_four(float* to, float a, float b, float c, float d) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

}  // namespace dnncore
