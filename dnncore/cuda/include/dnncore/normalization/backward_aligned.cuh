// The backward normalisation of backward.cuh for tensors of whole packs (walk.cuh), in two kernels. One takes groups of
// any length and reads x and dy twice. The other reads them once and keeps a group in the registers of its team, up to
// kKeptPairs packs of each per thread.
#pragma once

#include "dnncore/normalization/backward.cuh"
#include "dnncore/normalization/walk.cuh"

namespace dnncore {

constexpr int kKeptPairs = 8;  // packs of x, and of dy, that a thread can keep of its group; _KEPT_PACKS in frame.py

// Where a group is: x, dy, dx, y and dz lie alike, so that one offset serves them all, and their beginnings stay among the parameters
// of the launch, which take no registers; the others are used only where they vary within the group.
template <typename T, typename P>
struct Places {
  using C = Compute<T>;
  const NormalizationParams& params;
  int64 offset;
  Parameter<P> scale;
  const C* mean;
  const C* inv_std;

  __device__ __forceinline__ Places(const NormalizationParams& params, const Task<T>& task)
      : params(params),
        offset(task.offsets[kX]),
        mean(nullptr),
        inv_std(nullptr) {
    if (!task.exists) return;
    int64 at[kOperands];
    task.template place_group<kScale, kMean, kInvStd>(params, at);
    scale = Parameter<P>(params, kScale, at);
    mean = find_statistic<C>(params, kMean, at);
    inv_std = find_statistic<C>(params, kInvStd, at);
  }

  __device__ __forceinline__ T* place(Operand operand, const PackWalk& walk) const {
    return static_cast<T*>(params.operands[operand]) + (offset + walk.at(kWalkedX));
  }

  // dy of a pack, masked where a ReLU followed; with kKeeps it is left for the gradient of z, from a last pack perhaps several times.
  template <bool kKeeps>
  __device__ __forceinline__ uint4 load_dy(const PackWalk& walk) const {
    uint4 found = load_raw(place(kDy, walk));
    if (params.operands[kY] != nullptr) {
      const uint4 of_y = load_raw(place(kY, walk));
      mask(reinterpret_cast<Pack<T>&>(found), reinterpret_cast<const Pack<T>&>(of_y));
    }
    if (kKeeps && params.operands[kZ] != nullptr) *reinterpret_cast<uint4*>(place(kZ, walk)) = found;
    return found;
  }

  // x and dy of a thread's next packs, dy as load_dy gives it; visit(k) is called where the walk is at each of them. Of float the
  // questions that load_dy asks are asked once for all of them: a branch and a store between two loads keep these apart. Of 16 bits
  // that takes registers of which there are none to spare.
  template <bool kKeeps, typename Visit>
  __device__ __forceinline__ void load_turn(
      PackWalk& walk, uint4 (&x)[kBackwardPacks], uint4 (&dy)[kBackwardPacks], const Visit& visit
  ) const {
    if constexpr (sizeof(T) != sizeof(float)) {
#pragma unroll
      for (int k = 0; k < kBackwardPacks; ++k) {
        x[k] = load_raw(place(kX, walk));
        dy[k] = load_dy<kKeeps>(walk);
        visit(k);
        walk.next(params);
      }
    } else {
      int32 at[kBackwardPacks];
#pragma unroll
      for (int k = 0; k < kBackwardPacks; ++k) {
        at[k] = walk.at(kWalkedX);
        x[k] = load_raw(place(kX, walk));
        dy[k] = load_raw(place(kDy, walk));
        visit(k);
        walk.next(params);
      }
      if (params.operands[kY] != nullptr) {
#pragma unroll
        for (int k = 0; k < kBackwardPacks; ++k) {
          const uint4 of_y = load_raw(static_cast<const T*>(params.operands[kY]) + (offset + at[k]));
          mask(reinterpret_cast<Pack<T>&>(dy[k]), reinterpret_cast<const Pack<T>&>(of_y));
        }
      }
      if (kKeeps && params.operands[kZ] != nullptr) {
#pragma unroll
        for (int k = 0; k < kBackwardPacks; ++k) {
          *reinterpret_cast<uint4*>(static_cast<T*>(params.operands[kZ]) + (offset + at[k])) = dy[k];
        }
      }
    }
  }

  // dy of a pack, times scale where that is asked for.
  __device__ __forceinline__ void weigh(const uint4& raw, const PackWalk& walk, bool weighted, C (&values)[Task<T>::kWidth]) const {
    take_apart<T>(raw, values);
    if (!weighted) return;
    C scales[Task<T>::kWidth];
    scale.load(scales, walk.at(kWalkedParameters), params.steps[kScale], C(1));
#pragma unroll
    for (int lane = 0; lane < Task<T>::kWidth; ++lane) values[lane] *= scales[lane];
  }

  // dx of a pack.
  __device__ __forceinline__ void write(
      const uint4& from_x,
      const uint4& from_dy,
      const PackWalk& walk,
      const C (&mean)[Task<T>::kWidth],
      const Coefficients<C> (&by)[Task<T>::kWidth]
  ) const {
    C values[Task<T>::kWidth], middle[Task<T>::kWidth];
    weigh(from_dy, walk, is_on(params, kVaryingParameters), values);
    take_apart<T>(from_x, middle);
#pragma unroll
    for (int lane = 0; lane < Task<T>::kWidth; ++lane) {
      values[lane] = by[lane].a * values[lane] - by[lane].b * (middle[lane] - mean[lane]) - by[lane].c;
    }
    store_whole<T>(params, values, place(kOutput, walk));
  }
};

// Sums of dy, weighted where that is asked for, and of the same times the normalised x.
template <typename T, typename P>
__device__ __forceinline__ void collect_sums_aligned(
    const NormalizationParams& params,
    const Team& team,
    const Task<T>& task,
    const Places<T, P>& places,
    Compute<T> (&mean)[Task<T>::kWidth],
    Compute<T> (&inv_std)[Task<T>::kWidth],
    Sums<Compute<T>> (&sums)[Task<T>::kWidth]
) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const bool weighted = is_on(params, kWeighted), varying = is_on(params, kVaryingStatistics);
  // Statistics of which a pack has one value are loaded with the pack; the others are loaded where they are used.
  const bool single = varying && params.steps[kMean] == 0 && params.steps[kInvStd] == 0;
  PackWalk walk(params, team, task), ahead = walk;
  while (walk.left() > 0) {
    uint4 x[kBackwardPacks], dy[kBackwardPacks];
    C middles[kBackwardPacks], inverses[kBackwardPacks];
    places.template load_turn<true>(ahead, x, dy, [&](int k) {
      middles[k] = single && places.mean != nullptr ? __ldg(places.mean + ahead.at(kWalkedStatistics)) : C(0);
      inverses[k] = single ? __ldg(places.inv_std + ahead.at(kWalkedStatistics)) : C(1);
    });
#pragma unroll
    for (int k = 0; k < kBackwardPacks; ++k) {
      if (walk.left() > 0) {
        if (single) {
#pragma unroll
          for (int lane = 0; lane < kWidth; ++lane) mean[lane] = middles[k], inv_std[lane] = inverses[k];
        } else if (varying) {
          load_varying(mean, places.mean, walk.at(kWalkedStatistics), params.steps[kMean], C(0));
          load_varying(inv_std, places.inv_std, walk.at(kWalkedStatistics), params.steps[kInvStd], C(1));
        }
        C values[kWidth], from[kWidth];
        places.weigh(dy[k], walk, weighted, values);
        take_apart<T>(x[k], from);
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) {
          sums[lane].plain += values[lane];
          sums[lane].normalized += values[lane] * ((from[lane] - mean[lane]) * inv_std[lane]);
        }
      }
      walk.next(params);
    }
  }
}

template <typename T, typename P>
__device__ void normalization_backward_aligned(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const Team team(params);
  for (int64 item = blockIdx.x; item < params.tiles.value * params.parts; item += gridDim.x) {
    const Task<T> task(params, team, item);
    const Places<T, P> places(params, task);
    C mean[kWidth] = {}, inv_std[kWidth] = {};
    load_saved(params, task, mean, inv_std);
    Sums<C> sums[kWidth] = {};
    if (is_on(params, kReduces)) {
      collect_sums_aligned(params, team, task, places, mean, inv_std, sums);
      merge_team(team, sums);
      if (params.partials != nullptr) {
        store_partials(params, team, task, item, sums);
        continue;
      }
      write_group_gradients<P>(params, team, task, sums);
    } else {
      load_totals(params, team, task, sums);
    }
    if (!is_on(params, kApplies)) continue;
    Coefficients<C> by[kWidth];
    find_coefficients<P>(params, task, inv_std, sums, by);
    PackWalk walk(params, team, task), ahead = walk;
    while (walk.left() > 0) {
      uint4 x[kBackwardPacks], dy[kBackwardPacks];
      places.template load_turn<false>(ahead, x, dy, [](int) {});
#pragma unroll
      for (int k = 0; k < kBackwardPacks; ++k) {
        if (walk.left() > 0) places.write(x[k], dy[k], walk, mean, by);
        walk.next(params);
      }
    }
  }
}

// Packs are elements, and each thread has at most kKeptPairs of its group.
template <typename T, typename P>
__device__ void normalization_backward_kept(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const Team team(params, false);
  for (int64 item = blockIdx.x; item < params.tiles.value; item += gridDim.x) {
    const Task<T> task(params, team, item);
    const Places<T, P> places(params, task);
    PackWalk walk(params, team, task), ahead = walk;
    const int there = walk.left();
    uint4 x[kKeptPairs], dy[kKeptPairs];
#pragma unroll
    for (int k = 0; k < kKeptPairs; ++k) {
      if (k < there) {
        x[k] = load_raw(places.place(kX, ahead));
        dy[k] = places.template load_dy<true>(ahead);
      }
      ahead.next(params);
    }
    C mean[kWidth] = {}, inv_std[kWidth] = {};
    load_saved(params, task, mean, inv_std);
#pragma unroll
    for (int lane = 1; lane < kWidth; ++lane) mean[lane] = mean[0], inv_std[lane] = inv_std[0];
    C found[2] = {};
    ahead = walk;
#pragma unroll
    for (int k = 0; k < kKeptPairs; ++k) {
      if (k < there) {
        C values[kWidth], from[kWidth];
        places.weigh(dy[k], ahead, is_on(params, kWeighted), values);
        take_apart<T>(x[k], from);
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) {
          found[0] += values[lane];
          found[1] += values[lane] * ((from[lane] - mean[0]) * inv_std[0]);
        }
      }
      ahead.next(params);
    }
    sum_team(team, found);
    Sums<C> sums[kWidth];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) sums[lane] = {found[0], found[1]};
    write_group_gradients<P>(params, team, task, sums);
    Coefficients<C> by[kWidth];
    find_coefficients<P>(params, task, inv_std, sums, by);
#pragma unroll
    for (int lane = 1; lane < kWidth; ++lane) by[lane] = by[0];  // they belong to one group
#pragma unroll
    for (int k = 0; k < kKeptPairs; ++k) {
      if (k < there) places.write(x[k], dy[k], walk, mean, by);
      walk.next(params);
    }
  }
}

}  // namespace dnncore
