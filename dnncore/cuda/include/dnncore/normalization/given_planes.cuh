// Batch normalisation with given statistics of planes that lie one behind the other: y = factor x + added, with a pair for each channel.
// It goes element by element, whatever the planes; a thread has several vectors, and loads the parameters of each beside it.
#pragma once

#include "dnncore/common/loaded.cuh"

namespace dnncore {

constexpr int kPlaneThreads = 128;  // _THREADS in given_planes.py
constexpr int kPlaneVectors = 4;    // of a thread; _VECTORS there

enum PlaneParameter : int { kPlaneScale, kPlaneBias, kPlaneMean, kPlaneVariance, kPlaneParameters };

// Mirrored by _PARAMS in dnncore/cuda/normalization/given_planes.py.
struct PlaneParams {
  Blend blend;
  const void* x;
  void* y;
  const void* parameters[kPlaneParameters];
  double epsilon;
  int64 vectors;
  SmallDivisor plane;     // vectors of a plane
  SmallDivisor channels;
  int32 narrow;  // a bit for each parameter: whether it is stored as x is
};

template <typename T, int kBytes>
__device__ void normalize_planes(const PlaneParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = kBytes / sizeof(T);
  const int32 first = static_cast<int32>(blockIdx.x * (kPlaneThreads * kPlaneVectors) + threadIdx.x);
  const auto at = [&](int k) { return first + k * kPlaneThreads; };
  Loaded<T, kWidth> x[kPlaneVectors];
  C found[kPlaneVectors][kPlaneParameters];
#pragma unroll
  for (int k = 0; k < kPlaneVectors; ++k) {
    x[k].load_if(at(k) < params.vectors, static_cast<const T*>(params.x) + static_cast<int64>(at(k)) * kWidth);
  }
#pragma unroll
  for (int k = 0; k < kPlaneVectors; ++k) {
    if (at(k) >= params.vectors) continue;
    const int32 channel = divide(divide(at(k), params.plane).quotient, params.channels).remainder;
#pragma unroll
    for (int one = 0; one < kPlaneParameters; ++one) {
      const bool is_narrow = sizeof(T) < sizeof(C) && (params.narrow >> one & 1) != 0;
      const void* from = params.parameters[one];
      found[k][one] = is_narrow ? widen(static_cast<const T*>(from)[channel]) : static_cast<const C*>(from)[channel];
    }
  }
  const C alpha = static_cast<C>(params.blend.alpha), beta = static_cast<C>(params.blend.beta), epsilon = static_cast<C>(params.epsilon);
#pragma unroll
  for (int k = 0; k < kPlaneVectors; ++k) {
    if (at(k) >= params.vectors) continue;
    const C factor = found[k][kPlaneScale] / sqrt(found[k][kPlaneVariance] + epsilon);
    C values[kWidth];
    x[k].widen_into(values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = alpha * ((values[i] - found[k][kPlaneMean]) * factor + found[k][kPlaneBias]);
    auto* to = reinterpret_cast<Vector<T, kWidth>*>(static_cast<T*>(params.y) + static_cast<int64>(at(k)) * kWidth);
    if (params.blend.beta != 0.0) {
      const Vector<T, kWidth> old = *to;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] += beta * widen(old.at[i]);
    }
    Vector<T, kWidth> result;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result.at[i] = narrow<T>(values[i]);
    *to = result;
  }
}

}  // namespace dnncore
