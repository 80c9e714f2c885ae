// Batch and group normalisation of channels-last tensors whose rows (pixels) are whole packs of channels, one behind the
// other: what forward.cuh and backward.cuh do with few groups, or with the channels of each image, in the same launches, of which
// this is the first and the last. It is memory-bound, and so a kernel does one thing, with as few registers as leave 1000 threads room on a
// multiprocessor, each with 128 bytes under way. The second launch starts while the first ends, and so does the third.
//
//               forward                                        backward
//    first      x -> partials [channels][parts]                x, dy -> partials [channels][parts]
//    second     normalization_finish_forward                   normalization_finish_backward
//    third      x -> y = factor x + added                      x, dy -> dx = a dy - b x + added
//
// Where a ReLU followed forward, y > 0 is where factor x + added > 0: the backward launches work that out again from the x
// that they read anyway, with the same roundings. Where z was added before the ReLU they do not know, and the first one
// masks dy by y instead and leaves it as dz, which the third one reads for dy.
//
// Blocks take chunks of rows in turn, so that all of them together go through memory from its beginning to its end; the third
// launch goes the other way, and finds in the second-level cache what the first one has read last.
#pragma once

#include "dnncore/normalization/backward.cuh"
#include "dnncore/normalization/forward.cuh"
#include "dnncore/normalization/walk.cuh"

namespace dnncore {

// The rows that a thread takes of its block's pack of channels: kAtOnce of each chunk, which are loaded together.
template <int kAtOnce>
struct Chunks {
  int32 rows;
  int32 row_step;   // in elements
  int32 dy_step;    // likewise, of dy, which may be a part of the channels of another tensor
  int32 lanes;      // threads of the block that share the channels
  int32 parts;      // blocks that do
  int32 part;
  int32 lane;
  int32 count;

  template <typename T>
  __device__ __forceinline__ Chunks(const NormalizationParams& params, const Team& team, const Task<T>& task)
      : rows(task.exists ? static_cast<int32>(params.element_packs) : 0),
        row_step(params.walk.strides[1][kWalkedX]),
        dy_step(static_cast<int32>(params.elements.strides[kDy][0])),
        lanes(team.lanes),
        parts(static_cast<int32>(params.parts)),
        part(static_cast<int32>(divide(static_cast<int64>(blockIdx.x), params.tiles).quotient)),
        lane(team.lane),
        count((rows + lanes * kAtOnce - 1) / (lanes * kAtOnce)) {}

  // The first row of all threads of the block, and how many they have together.
  __device__ __forceinline__ int32 first_row() const { return part * lanes * kAtOnce; }
  __device__ __forceinline__ int32 block_rows() const {
    if (part >= count) return 0;
    const int32 taken = (count - part + parts - 1) / parts, whole = taken * lanes * kAtOnce;
    const bool has_last = part + (taken - 1) * parts == count - 1;
    return has_last ? whole - (count * lanes * kAtOnce - rows) : whole;
  }

  // visit(row, there): so many rows, `lanes` apart.
  template <bool kFromTheEnd, typename Visit>
  __device__ __forceinline__ void for_each(const Visit& visit) const {
    for (int32 chunk = part; chunk < count; chunk += parts) {
      const int32 row = (kFromTheEnd ? count - 1 - chunk : chunk) * (lanes * kAtOnce) + lane;
      const int32 there = (rows - row + lanes - 1) >> (__ffs(lanes) - 1);  // lanes are a power of two
      if (there > 0) visit(row, min(there, kAtOnce));
    }
  }

  // Packs of those rows; `otherwise` stands for rows that are not there.
  template <typename T>
  __device__ __forceinline__ void load(uint4 (&raw)[kAtOnce], const T* from, int32 row, int32 there, const uint4& otherwise) const {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) raw[k] = k < there ? load_raw(from + offset(row, k)) : otherwise;
  }
  template <typename T>
  __device__ __forceinline__ void load_dy(uint4 (&raw)[kAtOnce], const T* dy, int32 row, int32 there) const {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) raw[k] = k < there ? load_raw(dy + (row + k * lanes) * dy_step) : uint4{};
  }

  __device__ __forceinline__ int32 offset(int32 row, int k) const { return (row + k * lanes) * row_step; }
};

// factor and added of a thread's channels, from their statistics.
template <typename P, typename T>
__device__ __forceinline__ void find_line(
    const NormalizationParams& params,
    const Task<T>& task,
    const Compute<T> (&mean)[Task<T>::kWidth],
    const Compute<T> (&inv_std)[Task<T>::kWidth],
    Compute<T> (&factor)[Task<T>::kWidth],
    Compute<T> (&added)[Task<T>::kWidth]
) {
  using C = Compute<T>;
  int64 at[kOperands];
  task.template place_group<kScale, kBias>(params, at);
  load_parameter<P>(factor, params, kScale, at, task.group_lanes, C(1));
  load_parameter<P>(added, params, kBias, at, task.group_lanes, C(0));
#pragma unroll
  for (int lane = 0; lane < Task<T>::kWidth; ++lane) {
    factor[lane] *= inv_std[lane];
    added[lane] -= mean[lane] * factor[lane];
  }
}

// Write a pack of the output, whose values alpha is part of.
template <typename T>
__device__ __forceinline__ void add_and_store(const NormalizationParams& params, Compute<T> (&values)[Pack<T>::kWidth], T* place) {
  if (params.blend.beta != 0.0) {
    Compute<T> old[Pack<T>::kWidth];
    take_apart<T>(load_raw(place), old);
#pragma unroll
    for (int lane = 0; lane < Pack<T>::kWidth; ++lane) values[lane] += static_cast<Compute<T>>(params.blend.beta) * old[lane];
  }
  Pack<T> pack;
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) pack.lanes[lane] = narrow<T>(values[lane]);
  *reinterpret_cast<Pack<T>*>(place) = pack;
}

// A block's sums are of distances from the first value that it meets of a channel. That is one of those whose squares it adds up, so
// that what cancels is at most as many times larger than what is left as the block has rows.
template <typename T>
__device__ void normalization_channels_moments(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  wait_for_previous();
  let_next_start();
  const Team team(params, true);
  const Task<T> task(params, team, blockIdx.x);
  const Chunks<8> chunks(params, team, task);
  const T* x = static_cast<const T*>(params.operands[kX]) + task.offsets[kX];
  const uint4 first = chunks.part < chunks.count ? load_raw(x + chunks.first_row() * chunks.row_step) : uint4{};
  C origin[kWidth];
  take_apart<T>(first, origin);
  Sums<C> sums[kWidth] = {};  // of distances, and of their squares
  chunks.template for_each<false>([&](int32 row, int32 there) {
    uint4 raw[8];
    chunks.load(raw, x, row, there, first);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      C values[kWidth];
      take_apart<T>(raw[k], values);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        const C distance = values[lane] - origin[lane];
        sums[lane].plain += distance;
        sums[lane].normalized += distance * distance;
      }
    }
  });
  merge_team(team, sums);
  Moments<C> moments[kWidth];
  const C count = static_cast<C>(chunks.block_rows()), share = C(1) / max(count, C(1));
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    const C apart = sums[lane].plain * share, left = sums[lane].normalized - sums[lane].plain * apart;
    moments[lane] = {origin[lane] + apart, left < C(0) ? C(0) : left, count};  // NaN stays
  }
  store_partials(params, team, task, blockIdx.x, moments);
}

// y from statistics that are there, and with kAdds from z; P as in frame.cuh.
template <typename T, typename P, bool kAdds = false>
__device__ void normalization_channels_normalize(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  wait_for_previous();
  let_next_start();
  const Team team(params, true);
  const Task<T> task(params, team, blockIdx.x);
  constexpr int kAtOnce = kAdds ? 4 : 8;
  const Chunks<kAtOnce> chunks(params, team, task);
  if (chunks.rows == 0) return;
  C factor[kWidth], added[kWidth];
  {
    C mean[kWidth], inv_std[kWidth];
    load_statistics<P>(params, task, mean, inv_std);
    find_line<P>(params, task, mean, inv_std, factor, added);
  }
  const C alpha = static_cast<C>(params.blend.alpha), floor = floor_of<C>(params);
  const T* z = static_cast<const T*>(params.operands[kZ]) + task.offsets[kX];
  const T* x = static_cast<const T*>(params.operands[kX]) + task.offsets[kX];
  T* y = static_cast<T*>(params.operands[kOutput]) + task.offsets[kX];
  chunks.template for_each<true>([&](int32 row, int32 there) {
    uint4 raw[kAtOnce], raw_z[kAtOnce];
    chunks.load(raw, x, row, there, uint4{});
    if (kAdds) chunks.load(raw_z, z, row, there, uint4{});
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (k < there) {
        C values[kWidth], addends[kWidth] = {};
        take_apart<T>(raw[k], values);
        if (kAdds) take_apart<T>(raw_z[k], addends);
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) {
          const C value = factor[lane] * values[lane] + added[lane];
          values[lane] = alpha * rectify(kAdds ? value + addends[lane] : value, floor);
        }
        add_and_store(params, values, y + chunks.offset(row, k));
      }
    }
  });
}

// What the backward launches know of a ReLU that followed forward.
enum class Mask {
  kNone,    // there was none
  kByLine,  // dy counts where factor x + added > 0
  kByY,     // dy counts where y > 0
};

// Sums of dy, and of dy times the normalised x; P is that of scale and bias where they are read, kByLine.
template <typename T, typename P = Compute<T>, Mask kMask = Mask::kNone>
__device__ void normalization_channels_sums(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  wait_for_previous();
  let_next_start();
  const Team team(params, true);
  const Task<T> task(params, team, blockIdx.x);
  const Chunks<4> chunks(params, team, task);
  const T* x = static_cast<const T*>(params.operands[kX]) + task.offsets[kX];
  const T* dy = static_cast<const T*>(params.operands[kDy]) + task.offsets[kX];
  const T* y = static_cast<const T*>(params.operands[kY]) + task.offsets[kX];
  T* dz = static_cast<T*>(params.operands[kZ]) + task.offsets[kX];
  C mean[kWidth] = {}, inv_std[kWidth] = {}, factor[kWidth], added[kWidth];
  load_saved(params, task, mean, inv_std);
  if (kMask == Mask::kByLine && task.exists) find_line<P>(params, task, mean, inv_std, factor, added);
  Sums<C> sums[kWidth] = {};
  chunks.template for_each<false>([&](int32 row, int32 there) {
    uint4 of_x[4], of_dy[4];
    chunks.load(of_x, x, row, there, uint4{});
    chunks.load_dy(of_dy, dy, row, there);
    if constexpr (kMask == Mask::kByY) {
      uint4 of_y[4];
      chunks.load(of_y, y, row, there, uint4{});
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        mask(reinterpret_cast<Pack<T>&>(of_dy[k]), reinterpret_cast<const Pack<T>&>(of_y[k]));
        if (k < there) *reinterpret_cast<uint4*>(dz + chunks.offset(row, k)) = of_dy[k];
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      C values[kWidth], weights[kWidth];
      take_apart<T>(of_x[k], values);
      take_apart<T>(of_dy[k], weights);
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        if (kMask == Mask::kByLine && !(factor[lane] * values[lane] + added[lane] > C(0))) weights[lane] = C(0);
        sums[lane].plain += weights[lane];
        sums[lane].normalized += weights[lane] * (values[lane] - mean[lane]);
      }
    }
  });
  load_saved(params, task, mean, inv_std);  // once more: to keep it would take eight registers
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) sums[lane].normalized *= inv_std[lane];
  merge_team(team, sums);
  store_partials(params, team, task, blockIdx.x, sums);
}

// dx from sums that are there; kMask is kNone or kByLine.
template <typename T, typename P, Mask kMask = Mask::kNone>
__device__ void normalization_channels_gradient(const NormalizationParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = Task<T>::kWidth;
  wait_for_previous();
  let_next_start();
  const Team team(params, true);
  const Task<T> task(params, team, blockIdx.x);
  const Chunks<4> chunks(params, team, task);
  if (chunks.rows == 0) return;
  C a[kWidth], b[kWidth], added[kWidth], factor[kWidth], threshold[kWidth];
  {
    C mean[kWidth], inv_std[kWidth];
    load_saved(params, task, mean, inv_std);
    if (kMask == Mask::kByLine) find_line<P>(params, task, mean, inv_std, factor, threshold);
    Sums<C> sums[kWidth];
    load_totals(params, team, task, sums);
    Coefficients<C> by[kWidth];
    find_coefficients<P>(params, task, inv_std, sums, by);
    const C alpha = static_cast<C>(params.blend.alpha);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) {
      a[lane] = alpha * by[lane].a;
      b[lane] = alpha * by[lane].b;
      added[lane] = b[lane] * mean[lane] - alpha * by[lane].c;
    }
  }
  const T* x = static_cast<const T*>(params.operands[kX]) + task.offsets[kX];
  const T* dy = static_cast<const T*>(params.operands[kDy]) + task.offsets[kX];
  T* dx = static_cast<T*>(params.operands[kOutput]) + task.offsets[kX];
  chunks.template for_each<true>([&](int32 row, int32 there) {
    uint4 of_x[4], of_dy[4];
    chunks.load(of_x, x, row, there, uint4{});
    chunks.load_dy(of_dy, dy, row, there);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < there) {
        C values[kWidth], weights[kWidth];
        take_apart<T>(of_x[k], values);
        take_apart<T>(of_dy[k], weights);
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) {
          if (kMask == Mask::kByLine && !(factor[lane] * values[lane] + threshold[lane] > C(0))) weights[lane] = C(0);
          values[lane] = a[lane] * weights[lane] - b[lane] * values[lane] + added[lane];
        }
        add_and_store(params, values, dx + chunks.offset(row, k));
      }
    }
  });
}

}  // namespace dnncore
