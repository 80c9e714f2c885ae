// The blending factors in the compute type, converted once for all that a thread writes: a conversion from double is slow.
#pragma once

#include "dnncore/common/loaded.cuh"

namespace dnncore {

template <typename C>
struct Factors {
  C alpha;
  C beta;
  bool reads;

  __device__ __forceinline__ explicit Factors(const Blend& blend)
      : alpha(static_cast<C>(blend.alpha)), beta(static_cast<C>(blend.beta)), reads(blend.beta != 0.0) {}

  template <typename T, int kVector>
  __device__ __forceinline__ void blend_into(const C (&values)[kVector], T* target) const {
    using Stored = Vector<T, kVector>;
    Stored vector;
    if (reads) {
      const Stored old = *reinterpret_cast<const Stored*>(target);
#pragma unroll
      for (int i = 0; i < kVector; ++i) vector.at[i] = narrow<T>(alpha * values[i] + beta * widen(old.at[i]));
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) vector.at[i] = narrow<T>(alpha * values[i]);
    }
    *reinterpret_cast<Stored*>(target) = vector;
  }
};

}  // namespace dnncore
