// Programmatic dependent launch (CUDA Programming Guide; PTX ISA 9.7.13.13): the blocks of a kernel whose call `starts_early` take
// the places that those of the kernel before it leave, one by one, instead of waiting until all have ended and what they wrote has
// arrived. A launch then costs about a microsecond less.
//
//     before    |  let_next_start()  ...............  end |
//     next           |  indices, barriers  |  wait_for_previous()  .............. |
//
// Until wait_for_previous() has returned, a thread may touch no memory of the device: neither read what the kernel before wrote nor
// write what that reads. It has ended with all it waited for itself, so that the same holds of every kernel before it. In a launch
// that did not start early, and before sm_90, both do nothing.
//
// But an operand that nothing in the same graph writes, as a served net's filters, is there before: kernels that are told so
// (`ConstantSlot` of dnncore/cuda/calls.py) load it first and wait then.
#pragma once

namespace dnncore {

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel's blocks may start once all blocks have said so, or have ended.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace dnncore
