// Copies from global to shared memory that run on while the thread goes on: no registers are held and no thread waits for one.
// PTX ISA, 9.7.9.25.3. (cuda_pipeline.h offers the same, but takes two instructions where zeros may be needed.)
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Begin to copy one element; where `inside` is false the destination becomes 0 and the source is not read. No "memory" clobber: the
// destination may be read only after a wait, which has one, and so the compiler can move other reads past this.
template <typename T>
__device__ __forceinline__ void copy_async(T* shared, const T* global, bool inside) {
  const auto destination = static_cast<uint32>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(destination), "l"(global), "n"(sizeof(T)),
               "r"(inside ? static_cast<uint32>(sizeof(T)) : 0U));
}

// The same of 16 bytes, which both addresses must be multiples of; past the L1 cache, which keeps its room for what is read again.
template <typename Vector>
__device__ __forceinline__ void copy_vector_async(Vector* shared, const void* global, bool inside) {
  static_assert(sizeof(Vector) == 16);
  const auto destination = static_cast<uint32>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(global), "r"(inside ? 16U : 0U));
}

// Close a group of this thread's copies; it may be empty.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until of this thread's groups only the last kPending may be on their way. Other threads see the copies after a barrier.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace dnncore
