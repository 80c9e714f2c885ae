// What is collected over a group, and how threads merge what each of them has. The order of merging depends on the
// launch alone, and every thread ends up with the same bits.
//
//    packs are elements    lanes of a pack -> threads of a team, by shuffles -> warps of a team, by shared memory
//    packs are groups      threads `columns` apart, by shuffles -> warps, by shared memory; lanes stay apart
//    groups in parts       partials [groups][parts] in the workspace -> a warp per group, in another launch
#pragma once

#include "dnncore/common/reduce.cuh"
#include "dnncore/normalization/frame.cuh"

namespace dnncore {

// Mean, sum of squared distances from it, and number of elements. Sums of squares would lose everything to cancellation
// where the mean is large beside the standard deviation. Source: T. Chan, G. Golub, R. LeVeque, "Algorithms for
// computing the sample variance", The American Statistician 37 (1983), equation 2.1.
template <typename C>
struct Moments {
  C mean;
  C squares;
  C count;

  __device__ __forceinline__ Moments merged(const Moments& other) const {
    const C total = count + other.count;
    const C ratio = total > C(0) ? other.count / total : C(0);
    const C distance = other.mean - mean;
    return {mean + distance * ratio, squares + other.squares + distance * distance * (count * ratio), total};
  }
  __device__ __forceinline__ Moments shuffled(int distance) const {
    return {
        __shfl_xor_sync(0xffffffffu, mean, distance),
        __shfl_xor_sync(0xffffffffu, squares, distance),
        __shfl_xor_sync(0xffffffffu, count, distance)
    };
  }
};

// Sums of dy and of dy times the normalised x.
template <typename C>
struct Sums {
  C plain;
  C normalized;

  __device__ __forceinline__ Sums merged(const Sums& other) const { return {plain + other.plain, normalized + other.normalized}; }
  __device__ __forceinline__ Sums shuffled(int distance) const {
    return {__shfl_xor_sync(0xffffffffu, plain, distance), __shfl_xor_sync(0xffffffffu, normalized, distance)};
  }
};

// Merge this lane's value with that of the lane `distance` away. The lower lane's comes first in both lanes.
template <typename V>
__device__ __forceinline__ V merge_lanes(const V& value, int distance) {
  const V other = value.shuffled(distance);
  return (threadIdx.x & distance) == 0 ? value.merged(other) : other.merged(value);
}

template <typename V>
__device__ __forceinline__ V merge_warp(V value) {
  for (int distance = 1; distance < kWarpSize; distance *= 2) value = merge_lanes(value, distance);
  return value;
}

// Every thread of a team gets the total of its group in every lane or, where packs are groups, that of each of its
// groups in the group's own lane. All threads of the block take part.
template <typename V, int kWidth>
__device__ __forceinline__ void merge_team(const Team& team, V (&values)[kWidth]) {
  constexpr int kWarps = kNormalizationThreads / kWarpSize;
  __shared__ V shared[kWarps][kWarpSize][kWidth];
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (team.packs_groups) {
    for (int distance = team.columns; distance < kWarpSize; distance *= 2) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = merge_lanes(values[i], distance);
    }
    __syncthreads();  // readers of a previous merge are done
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if (lane < team.columns) shared[warp][lane][i] = values[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      values[i] = shared[0][team.column][i];
      for (int other = 1; other < kWarps; ++other) values[i] = values[i].merged(shared[other][team.column][i]);
    }
    return;
  }
#pragma unroll
  for (int half = kWidth / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) values[i] = values[i].merged(values[i + half]);
  }
  for (int distance = 1; distance < min(team.lanes, kWarpSize); distance *= 2) values[0] = merge_lanes(values[0], distance);
  if (team.lanes > kWarpSize) {
    __syncthreads();
    if (lane == 0) shared[warp][0][0] = values[0];
    __syncthreads();
    const int first = team.column * (team.lanes / kWarpSize);
    values[0] = shared[first][0][0];
    for (int other = 1; other < team.lanes / kWarpSize; ++other) values[0] = values[0].merged(shared[first + other][0][0]);
  }
#pragma unroll
  for (int i = 1; i < kWidth; ++i) values[i] = values[0];
}

// Leave what a block found in its part for the finishing kernel; one thread per team writes.
template <typename V, typename T>
__device__ __forceinline__ void store_partials(
    const NormalizationParams& params, const Team& team, const Task<T>& task, int64 item, const V (&values)[Task<T>::kWidth]
) {
  if (!task.exists || team.lane != 0) return;
  const int64 part = divide(item, params.tiles).quotient;
  const int lanes = team.packs_groups ? task.group_lanes : 1;
  const int64 group = task.group(params);
#pragma unroll
  for (int i = 0; i < Task<T>::kWidth; ++i) {
    if (i < lanes) static_cast<V*>(params.partials)[(group + i) * params.parts + part] = values[i];
  }
}

// Parts that a lane loads before it merges them: loaded one after another, a thousand parts would be all latency.
constexpr int kPartsAtOnce = 8;

// The total of the parts of a group, on every lane of a warp.
template <typename V>
__device__ __forceinline__ V merge_partials(const NormalizationParams& params, int64 group) {
  const V* partials = static_cast<const V*>(params.partials) + group * params.parts;
  V value{};
  for (int64 first = threadIdx.x % kWarpSize; first < params.parts; first += kPartsAtOnce * kWarpSize) {
    V found[kPartsAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      if (first + k * kWarpSize < params.parts) found[k] = partials[first + k * kWarpSize];
    }
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) value = value.merged(found[k]);
  }
  return merge_warp(value);
}

// The same of moments, whose parts are merged by sums of distances from the mean of the first one: a chain of `merged` would divide
// for each of them. Parts without elements may only be behind others.
template <typename C>
__device__ __forceinline__ Moments<C> merge_moments(const NormalizationParams& params, int64 group) {
  const Moments<C>* partials = static_cast<const Moments<C>*>(params.partials) + group * params.parts;
  const C origin = partials[0].mean;
  C sum = C(0), squares = C(0), count = C(0);
  for (int64 first = threadIdx.x % kWarpSize; first < params.parts; first += kPartsAtOnce * kWarpSize) {
    Moments<C> found[kPartsAtOnce] = {};
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      if (first + k * kWarpSize < params.parts) found[k] = partials[first + k * kWarpSize];
    }
#pragma unroll
    for (int k = 0; k < kPartsAtOnce; ++k) {
      const C distance = found[k].count > C(0) ? found[k].mean - origin : C(0);
      sum += found[k].count * distance;
      squares += found[k].squares + found[k].count * (distance * distance);
      count += found[k].count;
    }
  }
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    squares += __shfl_xor_sync(0xffffffffu, squares, distance);
    count += __shfl_xor_sync(0xffffffffu, count, distance);
  }
  const C apart = sum / max(count, C(1)), left = squares - sum * apart;
  return {origin + apart, left < C(0) ? C(0) : left, count};
}

}  // namespace dnncore
