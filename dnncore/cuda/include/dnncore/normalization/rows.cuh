// Layer and RMS normalisation, forward, of rows that lie one behind the other: a team of threads has a row in its registers, and goes through it three
// times, for the mean, for the squares of the distances from it, and for y. What block_per_group.cuh does with a block for a group; a team of one warp
// waits for no barrier, and several rows share a block.
//
//    x row    [pack][pack][pack] ...   ->   mean, inv_std   ->   y = (x - mean) (inv_std scale) + bias
//    scale    [ as many as elements ] , read once the sums are there: all rows have the same, which stay in the L1 cache
#pragma once

#include "dnncore/common/row_team.cuh"
#include "dnncore/normalization/coefficients.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/normalization/rows.py.
struct RowParams {
  Blend blend;
  const void* x;
  const void* scale;  // null for 1
  const void* bias;   // null for 0
  void* y;
  void* mean;  // of each row; null for an RMS normalisation
  void* inv_std;
  double epsilon;
  double share;  // 1 / elements of a row
  int32 rows;
  int32 packs;   // of a row
  int32 lanes;   // threads of a team
  int32 narrow;  // bits: scale and bias are stored as x is
};

template <typename T>
__device__ void normalize_row(const RowParams& params) {
  using C = Compute<T>;
  constexpr int kWidth = TeamRow<T>::kWidth;
  __shared__ OfWarps<C> sums, squares;
  TeamRow<T> row(params.rows, params.packs, params.lanes);
  row.load(params.x);
  const bool is_centred = params.mean != nullptr;
  const C share = static_cast<C>(params.share);
  C mean = C(0);
  if (is_centred) {
    C sum = C(0);
    row.visit([&](int, const C(&values)[kWidth]) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum += values[i];
    });
    mean = row.template reduce<Sum>(sum, sums) * share;
  }
  C of_squares = C(0);
  row.visit([&](int, const C(&values)[kWidth]) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) of_squares += (values[i] - mean) * (values[i] - mean);
  });
  const C variance = row.template reduce<Sum>(of_squares, squares) * share;
  const C inv_std = C(1) / sqrt(variance + static_cast<C>(params.epsilon));
  if (row.is_first()) {
    if (is_centred) static_cast<C*>(params.mean)[row.row()] = mean;
    static_cast<C*>(params.inv_std)[row.row()] = inv_std;
  }
  const C alpha = static_cast<C>(params.blend.alpha), beta = static_cast<C>(params.blend.beta);
  const bool narrow_scale = sizeof(T) < sizeof(C) && (params.narrow & 1) != 0;
  const bool narrow_bias = sizeof(T) < sizeof(C) && (params.narrow & 2) != 0;
  row.visit([&](int k, C(&values)[kWidth]) {
    C factor[kWidth], added[kWidth];
    load_each<T>(factor, params.scale, narrow_scale, row.at(k), C(1));
    load_each<T>(added, params.bias, narrow_bias, row.at(k), C(0));
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = alpha * ((values[i] - mean) * (inv_std * factor[i]) + added[i]);
    row.store(params.y, k, values, beta);
  });
}

}  // namespace dnncore
