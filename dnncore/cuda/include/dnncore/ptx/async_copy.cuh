// Copies from global to shared memory that run while the thread goes on (cp.async; PTX ISA, 9.7.9.25.3): the data
// occupy no registers on their way, and a thread waits for whole groups of copies when it needs them. cuda_pipeline.h
// offers the same but takes two instructions where zeros may be needed.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Begin to copy one element; where `inside` is false, the destination becomes 0 and the source is not read. There is no
// "memory" clobber: the destination may be read only after a wait, which has one, and so the compiler can move other
// reads across the copy.
template <typename T>
__device__ __forceinline__ void copy_async(T* shared, const T* global, bool inside) {
  const auto destination = static_cast<uint32>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(global), "n"(sizeof(T)),
               "r"(inside ? static_cast<uint32>(sizeof(T)) : 0U));
}

// The same for 16 bytes, of which both addresses must be multiples. The copy bypasses the L1 cache, which keeps its
// room for what is read again.
template <typename Vector>
__device__ __forceinline__ void copy_vector_async(Vector* shared, const void* global, bool inside) {
  static_assert(sizeof(Vector) == 16);
  const auto destination = static_cast<uint32>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(global), "r"(inside ? 16U : 0U));
}

// Close the current group of this thread's copies; the group may be empty.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most the last kPending of this thread's groups are still on their way. Other threads see the copies
// after a barrier.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace dnncore
