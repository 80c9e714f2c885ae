// Batch normalisation in training in one launch, by what resident.cuh has of a channel: its mean, its squared distances from that, and y.
#pragma once

#include "dnncore/normalization/resident.cuh"

namespace dnncore {

template <typename T, int kBytes, bool kLast, int kBlocks>
__device__ void resident_forward(const ChannelParams& params) {
  using Kernel = Resident<T, kBytes, kLast, kBlocks>;
  using C = Compute<T>;
  constexpr int kWidth = Kernel::kWidth, kOwn = Kernel::kOwn, kVectors = Kernel::kVectors;
  __shared__ typename Kernel::Shared shared;
  let_next_start();
  Kernel kernel(params, shared);
  kernel.begin_to_exchange();
  wait_for_previous();
  typename Kernel::Elements x[kVectors], z[kVectors];
  kernel.load(x, params.x);
  if (params.z != nullptr) kernel.load(z, params.z);
  C scale = C(1), bias = C(0);
  if (kernel.is_owner()) {
    scale = kernel.parameter(kOfScale, kernel.owned(), C(1));
    bias = kernel.parameter(kOfBias, kernel.owned(), C(0));
  }
  const C kept = static_cast<C>(kernel.template kept<kVectors>());
  C sums[kOwn] = {};
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {  // zeros where there is nothing
    C values[kWidth];
    x[k].widen_into(values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i % kOwn] += values[i];
  }
  kernel.put_together(sums, shared.of_warps[0]);
  __syncthreads();
  if (kernel.is_owner()) shared.lines[0][threadIdx.x] = kernel.total(shared.of_warps[0]) / max(kept, C(1));
  __syncthreads();
  C centre[kOwn];
  kernel.read_line(0, centre);
  kernel.keep_narrow(x);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) sums[i] = C(0);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    if (!kernel.has(k)) continue;
    C values[kWidth];
    x[k].widen_into(values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i % kOwn] += (values[i] - centre[i % kOwn]) * (values[i] - centre[i % kOwn]);
  }
  if constexpr (Kernel::kStreams) {  // of what is not kept, distances from the mean of what is
    C distances[kOwn] = {};
    for (int turn = 1; turn < kernel.template turns<kVectors>(); ++turn) {
      typename Kernel::Elements passing[kVectors];
      kernel.load(passing, params.x, turn * kVectors);
#pragma unroll
      for (int k = 0; k < kVectors; ++k) {
        if (!kernel.has(turn * kVectors + k)) continue;
        C values[kWidth];
        passing[k].widen_into(values);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          const C distance = values[i] - centre[0];
          distances[0] += distance;
          sums[0] += distance * distance;
        }
      }
    }
    kernel.put_together(distances, shared.of_warps[0]);
  }
  kernel.put_together(sums, shared.of_warps[1]);
  kernel.meet_cluster();
  __syncthreads();
  if (kernel.is_owner()) {
    Moments<C> moments{shared.lines[0][threadIdx.x], kernel.total(shared.of_warps[1]), static_cast<C>(kernel.elements())};
    if constexpr (Kernel::kStreams) {
      const C plain = kernel.total(shared.of_warps[0]), apart = plain / max(moments.count, C(1)), left = moments.squares - plain * apart;
      moments.mean += apart;
      moments.squares = left < C(0) ? C(0) : left;  // NaN stays
    }
    if constexpr (kBlocks > 1) {
      const C found[Kernel::kNumbers] = {moments.mean, moments.squares, moments.count};
      moments = {};
      kernel.exchange(found, [&](const C(&part)[Kernel::kNumbers]) { moments = moments.merged({part[0], part[1], part[2]}); });
    }
    const C inv_std = C(1) / sqrt(moments.squares / moments.count + static_cast<C>(params.epsilon)), factor = inv_std * scale;
    // Of 16 bits y is a line of x with the roundings of channels.cuh, by which a gradient finds out where y > 0.
    const bool is_line = sizeof(T) == 2;
    kernel.leave(is_line ? C(0) : moments.mean, factor, is_line ? bias - moments.mean * factor : bias);
    if (kernel.rank == 0) {
      const int64 channel = kernel.owned();
      write_parameter<T>(params, kOfMean, channel, moments.mean);
      write_parameter<T>(params, kOfInvStd, channel, inv_std);
      write_running<T>(params, channel, read_old<T>(params, channel), moments.mean, moments.squares, moments.count);
    }
  }
  __syncthreads();
  C factor[kOwn], added[kOwn];
  kernel.read_line(0, centre);
  kernel.read_line(1, factor);
  kernel.read_line(2, added);
  kernel.keep_narrow(x);
  kernel.compare_anew();
  const C alpha = static_cast<C>(params.blend.alpha), floor = params.rectifies ? C(0) : -C(INFINITY);
  const auto write = [&](int k, const typename Kernel::Elements& of_x, const typename Kernel::Elements& of_z) {
    if (!kernel.has(k)) return;
    C values[kWidth], addends[kWidth];
    of_x.widen_into(values);
    of_z.widen_into(addends);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      C value = factor[i % kOwn] * (values[i] - centre[i % kOwn]) + added[i % kOwn];
      if (params.z != nullptr) value += addends[i];
      values[i] = alpha * (value < floor ? floor : value);  // NaN stays NaN
    }
    write_vector<T>(params, values, kernel.at(static_cast<T*>(params.output), k));
  };
#pragma unroll
  for (int k = 0; k < kVectors; ++k) write(k, x[k], z[k]);
  if constexpr (Kernel::kStreams) {
    for (int turn = kernel.template turns<kVectors>() - 1; turn > 0; --turn) {
      kernel.load(x, params.x, turn * kVectors);
      if (params.z != nullptr) kernel.load(z, params.z, turn * kVectors);
#pragma unroll
      for (int k = 0; k < kVectors; ++k) write(turn * kVectors + k, x[k], z[k]);
    }
  }
}

}  // namespace dnncore
