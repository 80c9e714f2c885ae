// What every kernel shares: views of strided tensors, blending, grid-stride loops.
#pragma once

#include <cstdint>

#include "dnncore/common/numeric.cuh"

namespace dnncore {

using int32 = std::int32_t;
using int64 = std::int64_t;
using uint32 = std::uint32_t;
using uint64 = std::uint64_t;

// Most dimensions of a tensor; MAX_NDIM in descriptors.py.
constexpr int kMaxNdim = 8;
constexpr int kMaxSpatial = kMaxNdim - 2;

// A number to divide by, known on the host; DIVISOR in params.py. With shift = ceil(log2(value)) and
// magic = ceil(2^(63 + shift) / value), (number * magic) >> (63 + shift) is the exact quotient of every number below 2^63.
struct Divisor {
  int64 value;
  uint64 magic;
  int32 shift;
};

// The same for numbers below 2^31: SMALL_DIVISOR in params.py, with 31 in place of 63.
struct SmallDivisor {
  int32 value;
  uint32 magic;
  int32 shift;
};

// Extents and strides in elements; TENSOR_VIEW in params.py. Dimensions from ndim on have extent 1 and stride 0.
struct TensorView {
  Divisor shape[kMaxNdim];
  int64 strides[kMaxNdim];
  int32 ndim;
};

// The blending factors, first in every parameter struct; BLEND in params.py.
struct Blend {
  double alpha;
  double beta;
};

// Quotient and remainder of non-negative numbers. A 64-bit division takes about four times as long as a 32-bit one, and nearly
// every tensor is small enough for the latter; the branch is uniform but at the very end of a huge tensor.
struct QuotientRemainder {
  int64 quotient;
  int64 remainder;
};

__device__ __forceinline__ QuotientRemainder divide(int64 number, int64 divisor) {
  if (((number | divisor) >> 32) == 0) {
    const uint32 quotient = static_cast<uint32>(number) / static_cast<uint32>(divisor);
    return {quotient, static_cast<int64>(static_cast<uint32>(number) - quotient * static_cast<uint32>(divisor))};
  }
  const int64 quotient = number / divisor;
  return {quotient, number - quotient * divisor};
}

// The same by multiplying: no branch, no call, and so no registers saved around it.
__device__ __forceinline__ QuotientRemainder divide(int64 number, const Divisor& divisor) {
  const int64 quotient = static_cast<int64>(__umul64hi(static_cast<uint64>(number) << 1, divisor.magic) >> divisor.shift);
  return {quotient, number - quotient * divisor.value};
}

struct SmallQuotientRemainder {
  int32 quotient;
  int32 remainder;
};

__device__ __forceinline__ SmallQuotientRemainder divide(int32 number, const SmallDivisor& divisor) {
  const int32 quotient = static_cast<int32>(__umulhi(static_cast<uint32>(number) << 1, divisor.magic) >> divisor.shift);
  return {quotient, number - quotient * divisor.value};
}

// Offset, in elements, of the index-th element in row-major order.
__device__ __forceinline__ int64 offset_of(const TensorView& view, int64 index) {
  int64 offset = 0;
#pragma unroll 1  // most views have one or two dimensions left; eight copies in every loop would only cost instruction cache
  for (int axis = view.ndim - 1; axis > 0; --axis) {
    const QuotientRemainder split = divide(index, view.shape[axis]);
    offset += split.remainder * view.strides[axis];
    index = split.quotient;
  }
  return offset + index * view.strides[0];
}

// Place of this thread in the grid and distance to its next item, for grid-stride loops over one dimension.
__device__ __forceinline__ int64 grid_index() { return static_cast<int64>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64 grid_size() { return static_cast<int64>(gridDim.x) * blockDim.x; }

// alpha * value + beta * what is there, in the compute type; with beta 0 the output is not read, so it may hold anything, NaN included.
template <typename T>
__device__ __forceinline__ T blended(const Blend& blend, Compute<T> value, const T* output) {
  using C = Compute<T>;
  const C scaled = static_cast<C>(blend.alpha) * value;
  return narrow<T>(blend.beta == 0.0 ? scaled : scaled + static_cast<C>(blend.beta) * widen(*output));
}

// Write the blended value.
template <typename T>
__device__ __forceinline__ void blend_into(const Blend& blend, Compute<T> value, T* output) {
  *output = blended(blend, value, output);
}

}  // namespace dnncore
