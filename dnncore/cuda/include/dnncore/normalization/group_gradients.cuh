// The gradients of a group normalisation of planes that lie one behind the other: dx, dscale and dbias in one pass over x and dy, where
// the kernels of backward.cuh read both twice. With n = (x - mean) inv_std and g = scale dy,
//
//    dx = inv_std (g - mean(g) - n mean(g n)),    dscale = sum of dy n,    dbias = sum of dy    over images and planes
//
// A block has a group of an image in its threads' registers, so many warps each of its planes:
//
//    plane 0   [vector][vector] ...   warps 0 1    sums of dy and dy n  --+--> times scale, of all planes --> dx
//    plane 1   [vector][vector] ...   warps 2 3                         --+--> parts [images][2][channels]
//
// A second launch (column_gradients of row_gradients.cuh) adds up the images. The order of all sums depends on the launch alone.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/common/reduce.cuh"
#include "dnncore/ptx/forget.cuh"

namespace dnncore {

constexpr int kGradientThreads = 512;  // most of a block; _THREADS in group_gradients.py
constexpr int kGradientPairs = 8;      // vectors of x, and of dy, that a thread has at most; _PAIRS there

// Mirrored by _PARAMS in dnncore/cuda/normalization/group_gradients.py.
struct GroupGradientParams {
  Blend blend;
  const void* x;
  const void* dy;
  const void* scale;  // null for 1
  const void* mean;   // of each image and group
  const void* inv_std;
  void* dx;
  void* parts;    // [images, 2, channels]: of dscale, then of dbias; null where neither is asked for
  int32 vectors;  // of a plane
  int32 planes;   // of a group
  int32 groups;   // of an image
  int32 warps;    // of a plane
  int32 is_narrow;  // whether scale is stored as x is
};

// kBytes is what a thread reads at once.
template <typename T, int kBytes>
__device__ void group_gradients(const GroupGradientParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = kBytes / sizeof(T), kPairs = kGradientPairs, kNumbers = 3;
  __shared__ C of_warps[kGradientThreads / kWarpSize][kNumbers];  // sums of dy and dy n, and the scale of the warp's plane
  const int warp = threadIdx.x / kWarpSize, plane = warp / params.warps;
  const int lanes = params.warps * kWarpSize, lane = static_cast<int>(threadIdx.x) - plane * lanes;
  const int32 group = static_cast<int32>(blockIdx.x), image = group / params.groups;
  const int32 channel = (group - image * params.groups) * params.planes + plane;
  const int64 start = (static_cast<int64>(group) * params.planes + plane) * params.vectors;
  const auto at = [&](int k) { return lane + k * lanes; };
  const auto has = [&](int k) { return at(k) < params.vectors; };
  using Elements = Loaded<T, kWidth>;
  Elements x[kPairs], dy[kPairs];
#pragma unroll
  for (int k = 0; k < kPairs; ++k) x[k].load_if(has(k), static_cast<const T*>(params.x) + (start + at(k)) * kWidth);
#pragma unroll
  for (int k = 0; k < kPairs; ++k) dy[k].load_if(has(k), static_cast<const T*>(params.dy) + (start + at(k)) * kWidth);
  const C mean = static_cast<const C*>(params.mean)[group], inv_std = static_cast<const C*>(params.inv_std)[group];
  C scale = C(1);
  if (params.scale != nullptr) {
    const bool is_narrow = sizeof(T) < sizeof(C) && params.is_narrow != 0;
    scale = is_narrow ? widen(static_cast<const T*>(params.scale)[channel]) : static_cast<const C*>(params.scale)[channel];
  }
  C plain = C(0), weighted = C(0);
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    if (!has(k)) continue;
    C values[kWidth], weights[kWidth];
    x[k].widen_into(values);
    dy[k].widen_into(weights);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      plain += weights[i];
      weighted += weights[i] * (values[i] - mean);
    }
  }
  plain = reduce_warp<Sum>(plain);
  weighted = reduce_warp<Sum>(weighted) * inv_std;
  if (threadIdx.x % kWarpSize == 0) of_warps[warp][0] = plain, of_warps[warp][1] = weighted, of_warps[warp][2] = scale;
  __syncthreads();
  C level = C(0), tilt = C(0);
  plain = weighted = C(0);
  for (int other = 0; other < params.planes * params.warps; ++other) {
    level += of_warps[other][2] * of_warps[other][0];
    tilt += of_warps[other][2] * of_warps[other][1];
    const bool is_own = other / params.warps == plane;
    plain += is_own ? of_warps[other][0] : C(0);
    weighted += is_own ? of_warps[other][1] : C(0);
  }
  if (params.parts != nullptr && lane == 0) {
    const int64 channels = static_cast<int64>(params.groups) * params.planes;
    auto* part = static_cast<C*>(params.parts) + image * 2 * channels + channel;
    part[0] = weighted;
    part[channels] = plain;
  }
  const C share = C(1) / static_cast<C>(static_cast<int64>(params.vectors) * params.planes * kWidth);
  const C alpha = static_cast<C>(params.blend.alpha), beta = static_cast<C>(params.blend.beta);
  const C a = inv_std * scale, b = tilt * share * inv_std * inv_std, c = level * share * inv_std;
  auto* to = static_cast<Vector<T, kWidth>*>(params.dx) + start;
#pragma unroll
  for (int k = 0; k < kPairs; ++k) {
    if (!has(k)) continue;
    if constexpr (sizeof(T) == 2) forget_widened(x[k].word), forget_widened(dy[k].word);
    C values[kWidth], weights[kWidth];
    x[k].widen_into(values);
    dy[k].widen_into(weights);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = alpha * (a * weights[i] - b * (values[i] - mean) - c);
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

}  // namespace dnncore
