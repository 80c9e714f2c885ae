// What a fused convolution does to a sum on its way into y: activation(alpha1 * sum * scale[k] + bias[k] + alpha2 * z),
// where k is the output channel and scale, bias and z are optional. The stores of the GEMM apply it to sums that are
// still on the chip; split.cuh and fused_epilogue.cuh apply it to sums that another kernel left in memory.
#pragma once

#include "dnncore/activation.cuh"
#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by EPILOGUE in dnncore/cuda/gemm/params.py.
struct Epilogue {
  double alpha1;
  double alpha2;
  Activation activation;
  const void* scale;  // null where there is none, as are the next two
  const void* bias;
  const void* z;
  int64 scale_stride;
  int64 bias_stride;
  uint32 widened;     // whether scale and bias are stored in the compute type rather than in the convolution's type
  uint32 is_present;

  // With alpha2 0, z is left unread and may hold anything, NaN included.
  __device__ bool reads_z() const { return z != nullptr && alpha2 != 0.0; }

  // Of channel k; T is the convolution's type.
  template <typename T>
  __device__ __forceinline__ Compute<T> scale_of(int64 k) const {
    return scale ? parameter<T>(scale, k * scale_stride) : Compute<T>(1);
  }
  template <typename T>
  __device__ __forceinline__ Compute<T> bias_of(int64 k) const {
    return bias ? parameter<T>(bias, k * bias_stride) : Compute<T>(0);
  }

  // Everything but the activation.
  template <typename C>
  __device__ __forceinline__ C affine(C sum, C scale_value, C bias_value, C z_value) const {
    return static_cast<C>(alpha1) * sum * scale_value + bias_value + static_cast<C>(alpha2) * z_value;
  }

private:
  template <typename T>
  __device__ __forceinline__ Compute<T> parameter(const void* values, int64 offset) const {
    return widened ? static_cast<const Compute<T>*>(values)[offset] : widen(static_cast<const T*>(values)[offset]);
  }
};

static_assert(sizeof(Epilogue) == 80);

}  // namespace dnncore
