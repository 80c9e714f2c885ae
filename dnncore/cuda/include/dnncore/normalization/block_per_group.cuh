// Layer, RMS and group normalisation, forward, of groups that lie in one piece, one behind the other: a block has a group in its
// threads' registers, whose loads are all under way before the first is looked at. What forward_aligned.cuh does for many layouts, with
// the few instructions that this one takes, and also where a scale is one of many in a group: of each plane (group normalisation), or of
// each element (layer normalisation).
//
//    group   [vector][vector][vector] ...          planes of a group   [ scale 0 ... ][ scale 1 ... ]
//    thread      0       1       2    ...          rows                [ as many scales as elements ]
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/common/reduce.cuh"
#include "dnncore/normalization/coefficients.cuh"
#include "dnncore/ptx/forget.cuh"

namespace dnncore {

constexpr int kGroupThreads = 512;  // most of a block; _THREADS in block_per_group.py
constexpr int kGroupVectors = 8;    // that a thread has at most; _VECTORS there

// Mirrored by _PARAMS in dnncore/cuda/normalization/block_per_group.py.
struct GroupParams {
  Blend blend;
  const void* x;
  const void* scale;  // null for 1
  const void* bias;   // null for 0
  void* y;
  void* mean;  // of each group; null for an RMS normalisation
  void* inv_std;
  double epsilon;
  SmallDivisor plane;  // vectors that have a scale in common
  int32 vectors;       // of a group
  int32 planes;        // of a group
  int32 groups;        // that have scales of their own
  int32 narrow;        // bits: scale and bias are stored as x is
};

// The sum over a block, with the same bits in every thread.
template <typename C>
__device__ __forceinline__ C sum_block(C value, C (&of_warps)[kGroupThreads / kWarpSize]) {
  value = reduce_warp<Sum>(value);
  const int warps = blockDim.x / kWarpSize;
  if (warps == 1) return value;
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = C(0);
  for (int warp = 0; warp < warps; ++warp) value += of_warps[warp];
  return value;
}

// Scale or bias of a plane, which may be stored as x is.
template <typename T>
__device__ __forceinline__ Compute<T> load_one(const void* from, bool narrow, int64 place, Compute<T> otherwise) {
  if (from == nullptr) return otherwise;
  return narrow ? widen(static_cast<const T*>(from)[place]) : static_cast<const Compute<T>*>(from)[place];
}

// kBytes is what a thread reads at once; with kEach each element has a scale of its own, otherwise each plane.
template <typename T, int kBytes, bool kEach>
__device__ void normalize_group(const GroupParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = kBytes / sizeof(T), kVectors = kGroupVectors;
  constexpr bool kForgets = std::is_same_v<T, bfloat16>;  // the others are not remembered anyway
  __shared__ C of_warps[2][kGroupThreads / kWarpSize];
  const int64 group = blockIdx.x, start = group * params.vectors;
  const auto at = [&](int k) { return static_cast<int32>(threadIdx.x + k * blockDim.x); };
  const auto has = [&](int k) { return at(k) < params.vectors; };
  const bool narrow_scale = sizeof(T) < sizeof(C) && (params.narrow & 1) != 0;
  const bool narrow_bias = sizeof(T) < sizeof(C) && (params.narrow & 2) != 0;
  const auto* from = static_cast<const Vector<T, kWidth>*>(params.x) + start;
  Loaded<T, kWidth> x[kVectors];
#pragma unroll
  for (int k = 0; k < kVectors; ++k) x[k].load_if(has(k), from[at(k)].at);
  C scales[kVectors], biases[kVectors];
  if constexpr (!kEach) {
    const int64 first = group % params.groups * params.planes;
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      scales[k] = C(1), biases[k] = C(0);
      if (!has(k)) continue;
      const int64 place = first + divide(at(k), params.plane).quotient;
      scales[k] = load_one<T>(params.scale, narrow_scale, place, C(1));
      biases[k] = load_one<T>(params.bias, narrow_bias, place, C(0));
    }
  }
  const auto sum_up = [&](int which, const auto& of) {
    C sum = C(0);
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      if (!has(k)) continue;
      if constexpr (kForgets) forget_widened(x[k].word);
      C values[kWidth];
      x[k].widen_into(values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += of(values[i]);
    }
    return sum_block(sum, of_warps[which]);
  };
  const C share = C(1) / static_cast<C>(params.vectors * kWidth);
  const C mean = params.mean == nullptr ? C(0) : sum_up(0, [](C value) { return value; }) * share;
  const C squares = sum_up(1, [&](C value) { return (value - mean) * (value - mean); });
  const C inv_std = C(1) / sqrt(squares * share + static_cast<C>(params.epsilon));
  if (threadIdx.x == 0) {
    if (params.mean != nullptr) static_cast<C*>(params.mean)[group] = mean;
    static_cast<C*>(params.inv_std)[group] = inv_std;
  }
  auto* to = static_cast<Vector<T, kWidth>*>(params.y) + start;
  const C alpha = static_cast<C>(params.blend.alpha), beta = static_cast<C>(params.blend.beta);
  constexpr int kAtOnce = kEach ? 16 / kWidth : 1;  // vectors whose scales are loaded together
#pragma unroll
  for (int first = 0; first < kVectors; first += kAtOnce) {
    C factor[kAtOnce][kWidth], added[kAtOnce][kWidth];
#pragma unroll
    for (int next = 0; next < kAtOnce; ++next) {
      const int k = first + next;
      if (!has(k)) continue;
      if constexpr (kEach) {
        load_each<T>(factor[next], params.scale, narrow_scale, at(k), C(1));
        load_each<T>(added[next], params.bias, narrow_bias, at(k), C(0));
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) factor[next][i] = scales[k], added[next][i] = biases[k];
      }
    }
#pragma unroll
    for (int next = 0; next < kAtOnce; ++next) {
      const int k = first + next;
      if (!has(k)) continue;
      if constexpr (kForgets) forget_widened(x[k].word);
      C values[kWidth];
      x[k].widen_into(values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = alpha * ((values[i] - mean) * (inv_std * factor[next][i]) + added[next][i]);
      if (params.blend.beta != 0.0) {
        const Vector<T, kWidth> old = to[at(k)];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] += beta * widen(old.at[i]);
      }
      Vector<T, kWidth> result;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) result.at[i] = narrow<T>(values[i]);
      to[at(k)] = result;
    }
  }
}

}  // namespace dnncore
