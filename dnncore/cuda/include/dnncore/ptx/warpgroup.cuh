// Four warps of a block that go a way of their own: a barrier for them (PTX ISA, 9.7.13.1), and registers that they leave to
// others or take (9.7.19.5, sm_90). All threads of the four warps call these together.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

inline constexpr int kWarpgroup = 128;  // threads

// Which of the block's it is in. Uniform, which the compiler knows of what comes out of a shuffle.
__device__ __forceinline__ int warpgroup_index() { return __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0); }

// Of the sixteen barriers of a block, 0 is that of __syncthreads().
__device__ __forceinline__ void synchronize_warpgroup(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWarpgroup) : "memory");
}

// The same for several warpgroups, wherever in the program they are.
template <int kThreads>
__device__ __forceinline__ void synchronize(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// Registers per thread from here on, a multiple of 8: fewer than the kernel was compiled for, or more once others have left them.
template <int kRegisters>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace dnncore
