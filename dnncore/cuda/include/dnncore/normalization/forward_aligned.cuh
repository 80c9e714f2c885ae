// The forward normalisation of forward.cuh for tensors of whole packs (walk.cuh), in two kernels. One takes groups of
// any length and reads x twice. The other reads x once and keeps a group in the registers of its team, up to kKeptPacks
// packs per thread; it takes the mean first and the squared distances from it in a second pass over those registers.
#pragma once

#include "dnncore/normalization/forward.cuh"
#include "dnncore/normalization/walk.cuh"

namespace dnncore {

constexpr int kKeptPacks = 8;  // that a thread can keep of its group; _KEPT_PACKS in frame.py

// What a thread has collected: mean and squares for each lane, over equally many elements in all of them.
template <typename C, int kWidth>
struct Lanes {
  C mean[kWidth];
  C squares[kWidth];
  C count;

  // As collect() does, with packs of which all exist, or only the first `there`.
  template <typename T, bool kWhole>
  __device__ __forceinline__ void add(const uint4 (&raw)[kStatisticsPacks], int there) {
    C values[kStatisticsPacks][kWidth];
#pragma unroll
    for (int k = 0; k < kStatisticsPacks; ++k) take_apart<T>(raw[k], values[k]);
    const C fresh = kWhole ? C(kStatisticsPacks) : static_cast<C>(there);
    const C total = count + fresh, ratio = fresh / total, weight = count * ratio, share = C(1) / fresh;
    count = total;
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      C sum = values[0][lane];
#pragma unroll
      for (int k = 1; k < kStatisticsPacks; ++k) sum += kWhole || k < there ? values[k][lane] : C(0);
      const C middle = sum * share, apart = middle - mean[lane];
#pragma unroll
      for (int k = 0; k < kStatisticsPacks; ++k) {
        const C distance = kWhole || k < there ? values[k][lane] - middle : C(0);
        squares[lane] += distance * distance;
      }
      mean[lane] += apart * ratio;
      squares[lane] += apart * apart * weight;
    }
  }
};

template <typename T>
__device__ __forceinline__ void collect_aligned(
    const NormalizationParams& params, const Team& team, const Task<T>& task, Moments<Compute<T>> (&moments)[Task<T>::kWidth]
) {
  constexpr int kWidth = Task<T>::kWidth;
  const T* x = static_cast<const T*>(params.operands[kX]) + task.offsets[kX];
  Lanes<Compute<T>, kWidth> lanes = {};
  PackWalk walk(params, team, task);
  while (walk.left() > 0) {
    const int there = min(walk.left(), kStatisticsPacks);
    uint4 raw[kStatisticsPacks];
#pragma unroll
    for (int k = 0; k < kStatisticsPacks; ++k) {
      raw[k] = load_raw(x + walk.at(kWalkedX));
      walk.next(params);
    }
    if (there == kStatisticsPacks) {
      lanes.template add<T, true>(raw, there);
    } else {
      lanes.template add<T, false>(raw, there);
    }
  }
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) moments[lane] = {lanes.mean[lane], lanes.squares[lane], lanes.count};
}

// A group's inv_std, times its scale where that does not vary, and its bias; where they vary, the places at which they
// begin. Then what y is not below, and where z is, which is added before.
template <typename T, typename P>
struct Affine {
  using C = Compute<T>;
  static constexpr int kWidth = Task<T>::kWidth;
  bool varies;
  Parameter<P> scale;
  Parameter<P> bias;
  C factor[kWidth];
  C added[kWidth];
  C floor;
  const T* z;

  __device__ __forceinline__ Affine(const NormalizationParams& params, const Team& team, const Task<T>& task, const C (&inv_std)[kWidth])
      : varies(is_on(params, kVaryingParameters)),
        floor(floor_of<C>(params)),
        z(static_cast<const T*>(params.operands[kZ]) + task.offsets[kX]) {
    int64 at[kOperands];
    if (task.exists) task.template place_group<kScale, kBias>(params, at);
    if (task.exists && varies) {
      scale = Parameter<P>(params, kScale, at);
      bias = Parameter<P>(params, kBias, at);
    }
    const bool loads = task.exists && !varies;
    C scales[kWidth];
    if (loads && team.packs_groups) {
      load_parameter<P>(scales, params, kScale, at, task.group_lanes, C(1));
      load_parameter<P>(added, params, kBias, at, task.group_lanes, C(0));
    } else {
      (loads ? Parameter<P>(params, kScale, at) : Parameter<P>()).load(scales, 0, 0, C(1));
      (loads ? Parameter<P>(params, kBias, at) : Parameter<P>()).load(added, 0, 0, C(0));
    }
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) factor[lane] = inv_std[lane] * scales[lane];
  }

  // A pack of z.
  __device__ __forceinline__ uint4 load_z(const PackWalk& walk) const {
    return load_raw(z + walk.at(kWalkedX));
  }

  // Normalise a pack, add one of z with kAdds, and write it.
  template <bool kAdds>
  __device__ __forceinline__ void write(
      const NormalizationParams& params, const uint4& raw, const uint4& raw_z, const PackWalk& walk, const C (&mean)[kWidth], T* y
  ) const {
    C values[kWidth];
    take_apart<T>(raw, values);
    if (varies) {
      C scales[kWidth], biases[kWidth];
      scale.load(scales, walk.at(kWalkedParameters), params.steps[kScale], C(1));
      bias.load(biases, walk.at(kWalkedParameters), params.steps[kBias], C(0));
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] = (values[lane] - mean[lane]) * (factor[lane] * scales[lane]) + biases[lane];
    } else {
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] = (values[lane] - mean[lane]) * factor[lane] + added[lane];
    }
    if (kAdds) {
      C addends[kWidth];
      take_apart<T>(raw_z, addends);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] += addends[lane];
    }
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) values[lane] = rectify(values[lane], floor);
    store_whole<T>(params, values, y + walk.at(kWalkedX));
  }
};

// y of a task, after z is added with kAdds. As many packs are under way in either case.
template <bool kAdds, typename T, typename P>
__device__ __forceinline__ void apply_aligned(
    const NormalizationParams& params,
    const Team& team,
    const Task<T>& task,
    const Affine<T, P>& affine,
    const Compute<T> (&mean)[Task<T>::kWidth]
) {
  constexpr int kPacks = kAdds ? kApplyPacks / 2 : kApplyPacks;
  const T* x = static_cast<const T*>(params.operands[kX]) + task.offsets[kX];
  T* y = static_cast<T*>(params.operands[kOutput]) + task.offsets[kX];
  PackWalk walk(params, team, task), ahead = walk;
  while (walk.left() > 0) {
    uint4 raw[kPacks], raw_z[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      raw[k] = load_raw(x + ahead.at(kWalkedX));
      if (kAdds) raw_z[k] = affine.load_z(ahead);
      ahead.next(params);
    }
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      if (walk.left() > 0) affine.template write<kAdds>(params, raw[k], raw_z[k], walk, mean, y);
      walk.next(params);
    }
  }
}

template <typename T, typename P>
__device__ void normalization_forward_aligned(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const Team team(params);
  for (int64 item = blockIdx.x; item < params.tiles.value * params.parts; item += gridDim.x) {
    const Task<T> task(params, team, item);
    C mean[kWidth] = {}, inv_std[kWidth] = {};
    if (is_on(params, kReduces)) {
      Moments<C> moments[kWidth];
      collect_aligned(params, team, task, moments);
      merge_team(team, moments);
      if (params.partials != nullptr) {
        store_partials(params, team, task, item, moments);
        continue;
      }
      write_group<P>(params, team, task, moments, mean, inv_std);
    } else {
      load_statistics<P>(params, task, mean, inv_std);
    }
    if (!is_on(params, kApplies)) continue;
    const Affine<T, P> affine(params, team, task, inv_std);
    if (params.operands[kZ] == nullptr) {
      apply_aligned<false>(params, team, task, affine, mean);
    } else {
      apply_aligned<true>(params, team, task, affine, mean);
    }
  }
}

// Packs are elements, each thread has at most kKeptPacks of its group, and nothing is added.
template <typename T, typename P>
__device__ void normalization_forward_kept(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const Team team(params, false);
  for (int64 item = blockIdx.x; item < params.tiles.value; item += gridDim.x) {
    const Task<T> task(params, team, item);
    const T* x = static_cast<const T*>(params.operands[kX]) + task.offsets[kX];
    T* y = static_cast<T*>(params.operands[kOutput]) + task.offsets[kX];
    PackWalk walk(params, team, task), ahead = walk;
    const int there = walk.left();
    uint4 raw[kKeptPacks];
#pragma unroll
    for (int k = 0; k < kKeptPacks; ++k) {
      if (k < there) raw[k] = load_raw(x + ahead.at(kWalkedX));
      ahead.next(params);
    }
    const auto sum_up = [&](auto of) {
      C sum[1] = {};
#pragma unroll
      for (int k = 0; k < kKeptPacks; ++k) {
        if (k < there) {
          C values[kWidth];
          take_apart<T>(raw[k], values);
#pragma unroll
          for (int lane = 0; lane < kWidth; ++lane) sum[0] += of(values[lane]);
        }
      }
      sum_team(team, sum);
      return sum[0];
    };
    const C length = static_cast<C>(params.length);
    const C centre = is_on(params, kUncentred) ? C(0) : sum_up([](C value) { return value; }) / length;
    const C squares = sum_up([&](C value) { return (value - centre) * (value - centre); });
    const Moments<C> moments{centre, squares, length};
    const Normalizer<C> normalizer(params, moments);
    if (task.exists && team.lane == 0) {
      int64 at[kOperands];
      task.template place_group<kMean, kInvStd, kFirstOld, kSecondOld, kFirstNew, kSecondNew>(params, at);
      write_statistics<P>(params, at, 0, moments);
    }
    C mean[kWidth], inv_std[kWidth];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) mean[lane] = normalizer.mean, inv_std[lane] = normalizer.inv_std;
    const Affine<T, P> affine(params, team, task, inv_std);
#pragma unroll
    for (int k = 0; k < kKeptPacks; ++k) {
      if (k < there) affine.template write<false>(params, raw[k], uint4{}, walk, mean, y);
      walk.next(params);
    }
  }
}

}  // namespace dnncore
