// Batch, layer and group normalisation, backward. With n the normalised x, w = scale, and means over the elements of a
// group,
//
//  dx = inv_std * (w dy - mean(w dy) - n mean(w dy n))      (without the second term where x is not centred)
//  dscale = sum of dy n, dbias = sum of dy                  (over all elements that share a scale)
//
// Where a ReLU followed forward, dy is masked by its y as it is loaded; the first to read it leaves the masked dy where
// the gradient of z is asked for, and a launch after that reads it there.
//
// It is memory-bound: x and dy are read for the sums, and once more for dx. In batch normalisation a group is what
// shares a scale, so that one pair of sums serves both formulas. In layer and group normalisation the gradients of the
// parameters are sums over other elements: the same kernel over another description of the tensor. Launches are as in
// forward.cuh; group normalisation may instead take the sums of each image's channels first:
//
//    x, dy -> sums [images][channels] --+--> with scales as weights, per image and group --> dx
//                                       +--> over the images, per channel --> dscale, dbias
#pragma once

#include "dnncore/normalization/totals.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore {

constexpr int kBackwardPacks = 2;

// Call visit(element, x, masked dy, lanes, offset of the output) for each of this thread's packs of the task.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_packs(const NormalizationParams& params, const Team& team, const Task<T>& task, const Visit& visit) {
  const T* y = static_cast<const T*>(params.operands[kY]);
  for (int64 first = task.begin + team.lane; first < task.end; first += static_cast<int64>(kBackwardPacks) * team.lanes) {
    Pack<T> x[kBackwardPacks], dy[kBackwardPacks];
    int64 outputs[kBackwardPacks];
    int lanes[kBackwardPacks];
#pragma unroll
    for (int k = 0; k < kBackwardPacks; ++k) {
      const int64 element = first + static_cast<int64>(k) * team.lanes;
      lanes[k] = 0;
      if (element < task.end) {
        int64 at[kOperands];
        lanes[k] = task.template place<kX, kDy, kOutput>(params, element, at);
        x[k] = load_anywhere(static_cast<const T*>(params.operands[kX]) + at[kX], params.steps[kX], lanes[k]);
        dy[k] = load_anywhere(static_cast<const T*>(params.operands[kDy]) + at[kDy], params.steps[kDy], lanes[k]);
        outputs[k] = at[kOutput];
        if (y != nullptr) {
          task.template place_parameters<kY>(params, element, at);
          mask(dy[k], load_anywhere(y + at[kY], params.steps[kY], lanes[k]));
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kBackwardPacks; ++k) {
      if (lanes[k] != 0) visit(first + static_cast<int64>(k) * team.lanes, x[k], dy[k], lanes[k], outputs[k]);
    }
  }
}

// Scale at an element, where it differs within a group.
template <typename P, typename T>
__device__ __forceinline__ void load_scale(
    const NormalizationParams& params, const Task<T>& task, int64 element, int lanes, Compute<T> (&scale)[Task<T>::kWidth]
) {
  int64 at[kOperands];
  task.template place_parameters<kScale>(params, element, at);
  load_parameter<P>(scale, params, kScale, at, lanes, Compute<T>(1));
}

template <typename P, typename T>
__device__ __forceinline__ void collect_sums(
    const NormalizationParams& params,
    const Team& team,
    const Task<T>& task,
    Compute<T> (&mean)[Task<T>::kWidth],
    Compute<T> (&inv_std)[Task<T>::kWidth],
    Sums<Compute<T>> (&sums)[Task<T>::kWidth]
) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  T* dz = static_cast<T*>(params.operands[kZ]);
  visit_packs<T>(params, team, task, [&](int64 element, const Pack<T>& x, const Pack<T>& dy, int lanes, int64) {
    if (dz != nullptr) {
      int64 at[kOperands];
      task.template place_parameters<kZ>(params, element, at);
      store_anywhere(dy, dz + at[kZ], params.steps[kZ], lanes);
    }
    if (is_on(params, kVaryingStatistics)) {
      int64 at[kOperands];
      task.template place_parameters<kMean, kInvStd>(params, element, at);
      load_parameter<C>(mean, params, kMean, at, lanes, C(0));
      load_parameter<C>(inv_std, params, kInvStd, at, lanes, C(1));
    }
    C values[kWidth];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) values[lane] = widen(dy.lanes[lane]);
    if (is_on(params, kWeighted)) {
      C scale[kWidth];
      load_scale<P>(params, task, element, lanes, scale);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] *= scale[lane];
    }
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {  // dy is 0 in lanes that do not exist
      sums[lane].plain += values[lane];
      sums[lane].normalized += values[lane] * ((widen(x.lanes[lane]) - mean[lane]) * inv_std[lane]);
    }
  });
}

// What a group's statistics and sums contribute to dx = a dy - b (x - mean) - c.
template <typename C>
struct Coefficients {
  C a;  // without scale, where that varies
  C b;
  C c;
};

template <typename P, typename T>
__device__ __forceinline__ void find_coefficients(
    const NormalizationParams& params,
    const Task<T>& task,
    const Compute<T> (&inv_std)[Task<T>::kWidth],
    const Sums<Compute<T>> (&sums)[Task<T>::kWidth],
    Coefficients<Compute<T>> (&by)[Task<T>::kWidth]
) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  C scale[kWidth];
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) scale[lane] = C(1);
  if (!is_on(params, kVaryingParameters) && task.exists) {
    int64 at[kOperands];
    task.template place_group<kScale>(params, at);
    load_parameter<P>(scale, params, kScale, at, task.group_lanes, C(1));
  }
  const C share = C(1) / static_cast<C>(params.length);
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    const C a = inv_std[lane] * scale[lane];
    const C factor = share * (is_on(params, kWeighted) ? inv_std[lane] : a);  // weighted sums contain scale already
    const C b = sums[lane].normalized * factor * inv_std[lane];
    by[lane] = {a, b, is_on(params, kUncentred) ? C(0) : sums[lane].plain * factor};
  }
}

template <typename P, typename T>
__device__ __forceinline__ void apply_gradient(
    const NormalizationParams& params,
    const Team& team,
    const Task<T>& task,
    const Compute<T> (&mean)[Task<T>::kWidth],
    const Compute<T> (&inv_std)[Task<T>::kWidth],
    const Sums<Compute<T>> (&sums)[Task<T>::kWidth]
) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const bool varying = is_on(params, kVaryingParameters);
  Coefficients<C> by[kWidth];
  find_coefficients<P>(params, task, inv_std, sums, by);
  visit_packs<T>(params, team, task, [&](int64 element, const Pack<T>& x, const Pack<T>& dy, int lanes, int64 output) {
    C values[kWidth];
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) values[lane] = by[lane].a;
    if (varying) {
      C scale[kWidth];
      load_scale<P>(params, task, element, lanes, scale);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) values[lane] *= scale[lane];
    }
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      values[lane] = values[lane] * widen(dy.lanes[lane]) - by[lane].b * (widen(x.lanes[lane]) - mean[lane]) - by[lane].c;
    }
    store_lanes<T>(params, values, output, lanes);
  });
}

// Write sums to the gradients of scale and bias that are asked for, `lane` steps behind the offsets.
template <typename P>
__device__ __forceinline__ void write_gradients(
    const NormalizationParams& params, const int64 (&offsets)[kOperands], int lane, const Sums<Compute<P>>& sums
) {
  using C = Compute<P>;
  const auto at = [&](Operand operand) { return offsets[operand] + lane * params.steps[operand]; };
  const auto write = [&](Operand target, Operand old, C value) {
    if (params.operands[target] == nullptr) return;
    value *= static_cast<C>(params.parameter_alpha);
    if (params.operands[old] != nullptr) value += static_cast<C>(params.parameter_beta) * load_value<P>(params, old, at(old));
    store_value<P>(params, target, at(target), value);
  };
  write(kFirstNew, kFirstOld, sums.normalized);
  write(kSecondNew, kSecondOld, sums.plain);
}

// A group's saved statistics, which are never narrow, where they do not vary within it.
template <typename T>
__device__ __forceinline__ void load_saved(
    const NormalizationParams& params,
    const Task<T>& task,
    Compute<T> (&mean)[Task<T>::kWidth],
    Compute<T> (&inv_std)[Task<T>::kWidth]
) {
  if (task.exists && !is_on(params, kVaryingStatistics)) load_group_statistics<Compute<T>>(params, task, mean, inv_std);
}

// Write the sums of the team's groups to the gradients of their parameters; one thread per team does.
template <typename P, typename T>
__device__ __forceinline__ void write_group_gradients(
    const NormalizationParams& params, const Team& team, const Task<T>& task, const Sums<Compute<T>> (&sums)[Task<T>::kWidth]
) {
  if (!task.exists || team.lane != 0) return;
  int64 at[kOperands];
  task.template place_group<kFirstOld, kSecondOld, kFirstNew, kSecondNew>(params, at);
  const int written = team.packs_groups ? task.group_lanes : 1;
#pragma unroll
  for (int lane = 0; lane < Task<T>::kWidth; ++lane) {
    if (lane < written) write_gradients<P>(params, at, lane, sums[lane]);
  }
}

// Load the sums that another launch has merged.
template <typename T>
__device__ __forceinline__ void load_totals(
    const NormalizationParams& params, const Team& team, const Task<T>& task, Sums<Compute<T>> (&sums)[Task<T>::kWidth]
) {
  if (!task.exists) return;
  const int64 group = task.group(params);
#pragma unroll
  for (int lane = 0; lane < Task<T>::kWidth; ++lane) {
    const int64 place = team.packs_groups ? min(lane, task.group_lanes - 1) : 0;
    sums[lane] = static_cast<const Sums<Compute<T>>*>(params.totals)[divide(group + place, int64(params.sharing.value)).quotient];
  }
}

template <typename T, typename P>
__device__ void normalization_backward(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  const Team team(params);
  for (int64 item = blockIdx.x; item < params.tiles.value * params.parts; item += gridDim.x) {
    const Task<T> task(params, team, item);
    C mean[kWidth] = {}, inv_std[kWidth] = {};
    load_saved(params, task, mean, inv_std);
    Sums<C> sums[kWidth] = {};
    if (is_on(params, kReduces)) {
      collect_sums<P>(params, team, task, mean, inv_std, sums);
      merge_team(team, sums);
      if (params.partials != nullptr) {
        store_partials(params, team, task, item, sums);
        continue;
      }
      write_group_gradients<P>(params, team, task, sums);
    } else {
      load_totals(params, team, task, sums);
    }
    if (is_on(params, kApplies)) apply_gradient<P>(params, team, task, mean, inv_std, sums);
  }
}

// The second of three launches: a warp merges the parts of a group, for the gradients of its parameters and for the
// third launch.
template <typename T, typename P>
__device__ void normalization_finish_backward(const NormalizationParams& params) {
  using C = Compute<T>;
  wait_for_previous();
  let_next_start();
  for (int64 group = grid_index() / kWarpSize; group < params.group_packs; group += grid_size() / kWarpSize) {
    const Sums<C> sums = merge_partials<Sums<C>>(params, group);
    if (threadIdx.x % kWarpSize != 0) continue;
    if (params.totals != nullptr) static_cast<Sums<C>*>(params.totals)[group] = sums;
    int64 offsets[kOperands] = {};
    add_offsets<kFirstOld, kSecondOld, kFirstNew, kSecondNew>(params.groups, group, offsets);
    write_gradients<P>(params, offsets, 0, sums);
  }
}

// Group normalisation, between the sums of each image's channels and the third launch: a warp merges what one group of
// one image has, with its channels' scales as weights, or what all images have of one channel, for the gradients of its
// parameters.
template <typename T, typename P>
__device__ void normalization_channels_backward(const NormalizationParams& params) {
  using C = Compute<T>;
  const int64 channels = params.group_packs, images = params.parts;
  const int64 groups = channels / params.sharing.value;
  const Sums<C>* found = static_cast<const Sums<C>*>(params.partials);  // [images, channels]
  const int lane = threadIdx.x % kWarpSize;
  for (int64 item = grid_index() / kWarpSize; item < images * groups + channels; item += grid_size() / kWarpSize) {
    Sums<C> sums{};
    if (item < images * groups) {
      const QuotientRemainder split = divide(item, groups);
      const int64 first = split.remainder * params.sharing.value;
      int64 at[kOperands] = {};
      add_offsets<kScale>(params.groups, first, at);
      const int64 step = params.groups.strides[kScale][params.groups.ndim - 1];  // a group's channels are in one dimension
      const Sums<C>* channel = found + split.quotient * channels + first;
      const auto weigh = [&](const auto* scale) {
        for (int i = lane; i < params.sharing.value; i += kWarpSize) {
          const C weight = scale == nullptr ? C(1) : widen(scale[at[kScale] + i * step]);
          sums = sums.merged({weight * channel[i].plain, weight * channel[i].normalized});
        }
      };
      if (is_narrow<P>(params, kScale)) {
        weigh(static_cast<const P*>(params.operands[kScale]));
      } else {
        weigh(static_cast<const C*>(params.operands[kScale]));
      }
      sums = merge_warp(sums);
      if (lane == 0) static_cast<Sums<C>*>(params.totals)[item] = sums;
    } else {
      const int64 channel = item - images * groups;
      for (int64 image = lane; image < images; image += kWarpSize) sums = sums.merged(found[image * channels + channel]);
      sums = merge_warp(sums);
      if (lane != 0) continue;
      int64 at[kOperands] = {};
      add_offsets<kFirstOld, kSecondOld, kFirstNew, kSecondNew>(params.groups, channel, at);
      write_gradients<P>(params, at, 0, sums);
    }
  }
}

}  // namespace dnncore
