// Its gradients: sums of dy and of dy times x, then dx, and dz where a residual was added.
#pragma once

#include "dnncore/normalization/resident.cuh"

namespace dnncore {

template <typename T, int kBytes, bool kLast, int kBlocks>
__device__ void resident_backward(const ChannelParams& params) {
  using Kernel = Resident<T, kBytes, kLast, kBlocks>;
  using C = Compute<T>;
  constexpr int kWidth = Kernel::kWidth, kOwn = Kernel::kOwn, kPairs = Kernel::kPairs;
  __shared__ typename Kernel::Shared shared;
  let_next_start();
  Kernel kernel(params, shared);
  kernel.begin_to_exchange();
  wait_for_previous();
  typename Kernel::Elements x[kPairs], dy[kPairs];
  // From the first-th vector on, dy masked where a ReLU followed; once more it may be what the thread itself has left as dz.
  const auto load = [&](int first, bool once_more) {
    const bool is_masked = once_more && params.z != nullptr;
    kernel.load(x, params.x, first);
    if (is_masked) {
      kernel.load(dy, params.z, first);
    } else {
      kernel.load_dy(dy, first);
    }
    if (params.y == nullptr || is_masked) return;
    constexpr int kMasks = kPairs / 2;  // of y at once, for which there are registers
#pragma unroll
    for (int next = 0; next < kPairs; next += kMasks) {
      typename Kernel::Elements y[kMasks];
      kernel.load(y, params.y, first + next);
#pragma unroll
      for (int k = 0; k < kMasks; ++k) {
        C values[kWidth];
        y[k].widen_into(values);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          T& place = reinterpret_cast<T*>(&dy[next + k].word)[i];
          place = values[i] > C(0) ? place : T{};
        }
      }
    }
  };
  load(0, false);
  kernel.compare_anew();
  C mean[kOwn], scale = C(1), inv_std = C(1);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) mean[i] = kernel.parameter(kOfMean, kernel.first + kernel.column * kOwn + i, C(0));
  if (kernel.is_owner()) {
    scale = kernel.parameter(kOfScale, kernel.owned(), C(1));
    inv_std = kernel.parameter(kOfInvStd, kernel.owned(), C(1));
  }
  C plain[kOwn] = {}, weighted[kOwn] = {};
  const auto add_up = [&](int first) {
    if (params.z != nullptr) {
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        using Word = decltype(dy[k].word);
        if (kernel.has(first + k)) *reinterpret_cast<Word*>(kernel.at(static_cast<T*>(params.z), first + k)) = dy[k].word;
      }
    }
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      if (!kernel.has(first + k)) continue;
      C values[kWidth], weights[kWidth];
      x[k].widen_into(values);
      dy[k].widen_into(weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        plain[i % kOwn] += weights[i];
        weighted[i % kOwn] += weights[i] * (values[i] - mean[i % kOwn]);
      }
    }
  };
  add_up(0);
  const int turns = kernel.template turns<kPairs>();
  if constexpr (Kernel::kStreams) {  // what is kept in the end is what came last
    for (int turn = 1; turn < turns; ++turn) {
      load(turn * kPairs, false);
      add_up(turn * kPairs);
    }
  }
  kernel.put_together(plain, shared.of_warps[0]);
  kernel.put_together(weighted, shared.of_warps[1]);
  kernel.meet_cluster();
  __syncthreads();
  if (kernel.is_owner()) {
    Sums<C> sums{kernel.total(shared.of_warps[0]), kernel.total(shared.of_warps[1]) * inv_std};
    if constexpr (kBlocks > 1) {
      const C found[Kernel::kNumbers] = {sums.plain, sums.normalized, C(0)};
      sums = {};
      kernel.exchange(found, [&](const C(&part)[Kernel::kNumbers]) { sums = sums.merged({part[0], part[1]}); });
    }
    const C factor = inv_std * scale, share = C(1) / static_cast<C>(params.vectors * (kWidth / kOwn));
    kernel.leave(factor, sums.normalized * (share * factor) * inv_std, sums.plain * (share * factor));
    if (kernel.rank == 0) write_gradients<T>(params, kernel.owned(), read_old<T>(params, kernel.owned()), sums.normalized, sums.plain);
  }
  __syncthreads();
  C a[kOwn], b[kOwn], c[kOwn];
  kernel.read_line(0, a);
  kernel.read_line(1, b);
  kernel.read_line(2, c);
  kernel.keep_narrow(x);
  kernel.keep_narrow(dy);
  kernel.compare_anew();
  const C alpha = static_cast<C>(params.blend.alpha);
  const auto write = [&](int first) {
#pragma unroll
    for (int k = 0; k < kPairs; ++k) {
      if (!kernel.has(first + k)) continue;
      C values[kWidth], weights[kWidth];
      x[k].widen_into(values);
      dy[k].widen_into(weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const int own = i % kOwn;
        values[i] = alpha * (a[own] * weights[i] - b[own] * (values[i] - mean[own]) - c[own]);
      }
      write_vector<T>(params, values, kernel.at(static_cast<T*>(params.output), first + k));
    }
  };
  write((turns - 1) * kPairs);
  if constexpr (Kernel::kStreams) {
    for (int turn = turns - 2; turn >= 0; --turn) {
      load(turn * kPairs, true);
      write(turn * kPairs);
    }
  }
}

}  // namespace dnncore
