// Softmax, forward, of rows that lie one behind the other, in x as in y: a team of threads has a row in its registers. What softmax.cuh does for many
// layouts, with the few instructions that this one takes, and with the next rows' loads under way while this one's exponentials are computed.
//
//    x row   [pack][pack][pack] ...   ->   largest   ->   sum of exp(x - largest)   ->   y
#pragma once

#include "dnncore/common/row_team.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/softmax_rows.py.
struct SoftmaxRowParams {
  Blend blend;
  const void* x;
  void* y;
  int32 rows;
  int32 packs;  // of a row
  int32 lanes;  // threads of a team
  int32 is_fast;  // nothing is subtracted before the exponentials
};

// With kIsLog the logarithm of the softmax. A row of nothing but minus infinity, and one with a NaN, become NaN, as by softmax.cuh.
template <typename T, bool kIsLog>
__device__ void softmax_row(const SoftmaxRowParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = TeamRow<T>::kWidth, kPacks = TeamRow<T>::kPacks;
  __shared__ OfWarps<C> maxima, sums;
  TeamRow<T> row(params.rows, params.packs, params.lanes);
  row.load(params.x);
  C shift = C(0);
  if (kIsLog || !params.is_fast) {
    shift = Maximum::identity<C>();
    row.visit([&](int, const C(&values)[kWidth]) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) shift = Maximum{}(shift, values[i]);
    });
    shift = row.template reduce<Maximum>(shift, maxima);
  }
  C kept[kPacks][kWidth], total = C(0);  // the exponentials, or what they are of
  row.visit([&](int k, const C(&values)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const C shifted = values[i] - shift, exponential = exp(shifted);
      total += exponential;
      kept[k][i] = kIsLog ? shifted : exponential;
    }
  });
  total = row.template reduce<Sum>(total, sums);
  const C alpha = static_cast<C>(params.blend.alpha), beta = static_cast<C>(params.blend.beta);
  const C change = kIsLog ? log(total) : alpha / total;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    if (!row.has(k)) continue;
#pragma unroll
    for (C& value : kept[k]) value = kIsLog ? alpha * (value - change) : value * change;
    row.store(params.y, k, kept[k], beta);
  }
}

}  // namespace dnncore
