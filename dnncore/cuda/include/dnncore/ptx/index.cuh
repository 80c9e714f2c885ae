// Special registers, read anew at each call. The compiler reads threadIdx and blockIdx once and keeps them in registers
// that a long loop in between may need.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

__device__ __forceinline__ uint32 read_thread_index() {
  uint32 index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

__device__ __forceinline__ uint32 read_block_index() {
  uint32 index;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(index));
  return index;
}

}  // namespace dnncore
