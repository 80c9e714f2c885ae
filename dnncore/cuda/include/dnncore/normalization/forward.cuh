// Batch, layer and group normalisation, forward: statistics of a group, then y = scale * (x - mean) * inv_std + bias
// with inv_std = 1 / sqrt(variance + epsilon), and after a batch normalisation max(y + z, 0) where that is asked for. It
// is memory-bound. Where there are many groups, a block computes the statistics of a tile of them and writes their
// outputs: it reads x twice, the second time mostly from a cache. Few groups are cut into parts, so that every
// multiprocessor has work, and take three launches.
//
//    many groups    x -> moments -> mean, inv_std;  x -> y                               a block per tile of groups
//
//    few groups     1.  x -> partials [groups][parts]                                    a block per tile and part
//                   2.  partials -> mean, inv_std, running statistics                    a warp per group
//                   3.  x, mean, inv_std -> y                                            a block per tile and part
#pragma once

#include "dnncore/normalization/totals.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore {

constexpr int kStatisticsPacks = 4;  // packs under way at once; their mean is taken before they meet the others
constexpr int kApplyPacks = 4;

// Merge packs into the moments, lane by lane: mean and squares of the packs by two passes over registers, then the
// merge. `there` says how many lanes of each pack exist, where not all of them do; the others are zeros.
template <bool kWhole, typename T, int kWidth>
__device__ __forceinline__ void collect(
    Moments<Compute<T>> (&moments)[kWidth], const Pack<T> (&packs)[kStatisticsPacks], const int (&there)[kStatisticsPacks]
) {
  using C = Compute<T>;
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    C sum = C(0), squares = C(0), count = C(kStatisticsPacks);
    if (!kWhole) {
      count = C(0);
#pragma unroll
      for (int k = 0; k < kStatisticsPacks; ++k) count += lane < there[k] ? C(1) : C(0);
    }
#pragma unroll
    for (int k = 0; k < kStatisticsPacks; ++k) sum += widen(packs[k].lanes[lane]);
    const C mean = kWhole ? sum * (C(1) / kStatisticsPacks) : count > C(0) ? sum / count : C(0);
#pragma unroll
    for (int k = 0; k < kStatisticsPacks; ++k) {
      const C distance = kWhole || lane < there[k] ? widen(packs[k].lanes[lane]) - mean : C(0);
      squares += distance * distance;
    }
    moments[lane] = moments[lane].merged({mean, squares, count});
  }
}

template <typename T>
__device__ __forceinline__ void collect_moments(
    const NormalizationParams& params, const Team& team, const Task<T>& task, Moments<Compute<T>> (&moments)[Task<T>::kWidth]
) {
  constexpr int kWidth = Task<T>::kWidth;
  const T* x = static_cast<const T*>(params.operands[kX]);
  for (int64 first = task.begin + team.lane; first < task.end; first += static_cast<int64>(kStatisticsPacks) * team.lanes) {
    Pack<T> packs[kStatisticsPacks] = {};
    int there[kStatisticsPacks];
    bool whole = true;
#pragma unroll
    for (int k = 0; k < kStatisticsPacks; ++k) {
      const int64 element = first + static_cast<int64>(k) * team.lanes;
      there[k] = 0;
      if (element < task.end) {
        int64 at[kOperands];
        const int lanes = task.template place<kX>(params, element, at);
        packs[k] = load_anywhere(x + at[kX], params.steps[kX], lanes);
        there[k] = team.packs_groups ? kWidth : lanes;  // lanes without a group are never written
      }
      whole = whole && there[k] == kWidth;
    }
    if (whole) {
      collect<true>(moments, packs, there);
    } else {
      collect<false>(moments, packs, there);
    }
  }
}

// What is subtracted, and what the difference is multiplied by.
template <typename C>
struct Normalizer {
  C mean;
  C inv_std;

  __device__ __forceinline__ Normalizer(const NormalizationParams& params, const Moments<C>& moments) {
    C variance = moments.squares / moments.count;
    mean = moments.mean;
    if (is_on(params, kUncentred)) {
      variance += mean * mean;
      mean = C(0);
    }
    inv_std = C(1) / sqrt(variance + static_cast<C>(params.epsilon));
  }
};

// Write a group's statistics to the operands that exist, `lane` steps behind the offsets.
template <typename P>
__device__ __forceinline__ void write_statistics(
    const NormalizationParams& params, const int64 (&offsets)[kOperands], int lane, const Moments<Compute<P>>& moments
) {
  using C = Compute<P>;
  const Normalizer<C> normalizer(params, moments);
  const auto at = [&](Operand operand) { return offsets[operand] + lane * params.steps[operand]; };
  const auto save = [&](Operand operand, C value) { static_cast<C*>(params.operands[operand])[at(operand)] = value; };
  const auto running = [&](Operand operand) { return load_value<P>(params, operand, at(operand)); };
  if (params.operands[kMean] != nullptr) save(kMean, normalizer.mean);
  save(kInvStd, normalizer.inv_std);
  if (params.operands[kFirstNew] == nullptr) return;
  const C fresh = static_cast<C>(params.momentum), kept = static_cast<C>(1.0 - params.momentum);
  store_value<P>(params, kFirstNew, at(kFirstNew), kept * running(kFirstOld) + fresh * moments.mean);
  const C unbiased = moments.squares / (moments.count - C(1));
  store_value<P>(params, kSecondNew, at(kSecondNew), kept * running(kSecondOld) + fresh * unbiased);
}

// For each of the team's groups, what is subtracted and what is multiplied by; one thread writes the statistics.
template <typename P, typename T>
__device__ __forceinline__ void write_group(
    const NormalizationParams& params,
    const Team& team,
    const Task<T>& task,
    const Moments<Compute<T>> (&moments)[Task<T>::kWidth],
    Compute<T> (&mean)[Task<T>::kWidth],
    Compute<T> (&inv_std)[Task<T>::kWidth]
) {
  int written = 0;
  int64 at[kOperands];
  if (task.exists && team.lane == 0) {
    written = team.packs_groups ? task.group_lanes : 1;
    task.template place_group<kMean, kInvStd, kFirstOld, kSecondOld, kFirstNew, kSecondNew>(params, at);
  }
#pragma unroll
  for (int lane = 0; lane < Task<T>::kWidth; ++lane) {
    const Normalizer<Compute<T>> normalizer(params, moments[lane]);
    mean[lane] = normalizer.mean;
    inv_std[lane] = normalizer.inv_std;
    if (lane < written) write_statistics<P>(params, at, lane, moments[lane]);
  }
}

// The same from statistics that are given.
template <typename P, typename T>
__device__ __forceinline__ void load_statistics(
    const NormalizationParams& params,
    const Task<T>& task,
    Compute<T> (&mean)[Task<T>::kWidth],
    Compute<T> (&inv_std)[Task<T>::kWidth]
) {
  using C = Compute<T>;
  if (!task.exists) return;
  load_group_statistics<P>(params, task, mean, inv_std);
  if (!is_on(params, kGivesVariance)) return;
#pragma unroll
  for (int lane = 0; lane < Task<T>::kWidth; ++lane) inv_std[lane] = C(1) / sqrt(inv_std[lane] + static_cast<C>(params.epsilon));
}

template <typename P, typename T>
__device__ __forceinline__ void apply(
    const NormalizationParams& params,
    const Team& team,
    const Task<T>& task,
    const Compute<T> (&mean)[Task<T>::kWidth],
    const Compute<T> (&inv_std)[Task<T>::kWidth]
) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const bool varying = is_on(params, kVaryingParameters);
  const C floor = floor_of<C>(params);
  C factor[kWidth], bias[kWidth] = {};
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) factor[lane] = inv_std[lane];
  int64 at[kOperands];
  const auto load = [&](C (&factors)[kWidth], int lanes) {
    C scale[kWidth];
    load_parameter<P>(scale, params, kScale, at, lanes, C(1));
    load_parameter<P>(bias, params, kBias, at, lanes, C(0));
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) factors[lane] *= scale[lane];
  };
  if (!varying && task.exists) {
    task.template place_group<kScale, kBias>(params, at);
    load(factor, task.group_lanes);
  }
  for (int64 first = task.begin + team.lane; first < task.end; first += static_cast<int64>(kApplyPacks) * team.lanes) {
    Pack<T> packs[kApplyPacks];
    int64 outputs[kApplyPacks];
    int lanes[kApplyPacks];
#pragma unroll
    for (int k = 0; k < kApplyPacks; ++k) {
      const int64 element = first + static_cast<int64>(k) * team.lanes;
      lanes[k] = 0;
      if (element < task.end) {
        lanes[k] = task.template place<kX, kOutput>(params, element, at);
        packs[k] = load_anywhere(static_cast<const T*>(params.operands[kX]) + at[kX], params.steps[kX], lanes[k]);
        outputs[k] = at[kOutput];
      }
    }
#pragma unroll 1  // four copies would be a third of the kernel, and a short launch waits for its instructions
    for (int64 element = first; lanes[0] != 0; element += team.lanes) {
      C values[kWidth];
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] = factor[lane];
      if (varying) {
        task.template place_parameters<kScale, kBias>(params, element, at);
        load(values, lanes[0]);
      }
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] = (widen(packs[0].lanes[lane]) - mean[lane]) * values[lane] + bias[lane];
      if (params.operands[kZ] != nullptr) {
        task.template place_parameters<kZ>(params, element, at);
        const Pack<T> z = load_anywhere(static_cast<const T*>(params.operands[kZ]) + at[kZ], params.steps[kZ], lanes[0]);
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) values[lane] += widen(z.lanes[lane]);
      }
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] = rectify(values[lane], floor);
      store_lanes<T>(params, values, outputs[0], lanes[0]);
#pragma unroll
      for (int k = 1; k < kApplyPacks; ++k) packs[k - 1] = packs[k], outputs[k - 1] = outputs[k], lanes[k - 1] = lanes[k];
      lanes[kApplyPacks - 1] = 0;
    }
  }
}

template <typename T, typename P>
__device__ void normalization_forward(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const Team team(params);
  for (int64 item = blockIdx.x; item < params.tiles.value * params.parts; item += gridDim.x) {
    const Task<T> task(params, team, item);
    C mean[kWidth] = {}, inv_std[kWidth] = {};
    if (is_on(params, kReduces)) {
      Moments<C> moments[kWidth] = {};
      collect_moments(params, team, task, moments);
      merge_team(team, moments);
      if (params.partials != nullptr) {
        store_partials(params, team, task, item, moments);
        continue;
      }
      write_group<P>(params, team, task, moments, mean, inv_std);
    } else {
      load_statistics<P>(params, task, mean, inv_std);
    }
    if (is_on(params, kApplies)) apply<P>(params, team, task, mean, inv_std);
  }
}

// The second of three launches: a warp merges the parts of a group.
template <typename T, typename P>
__device__ void normalization_finish_forward(const NormalizationParams& params) {
  wait_for_previous();
  let_next_start();
  for (int64 group = grid_index() / kWarpSize; group < params.group_packs; group += grid_size() / kWarpSize) {
    const auto moments = merge_moments<Compute<T>>(params, group);
    if (threadIdx.x % kWarpSize != 0) continue;
    int64 offsets[kOperands] = {};
    add_offsets<kMean, kInvStd, kFirstOld, kSecondOld, kFirstNew, kSecondNew>(params.groups, group, offsets);
    write_statistics<P>(params, offsets, 0, moments);
  }
}

}  // namespace dnncore
