// Second half of a product whose reduction was cut into parts: add the parts' sums, always in the same order, and blend into C.
#pragma once

#include "dnncore/gemm/kernel.cuh"
#include "dnncore/gemm/params.cuh"

namespace dnncore::gemm {

inline constexpr int kSumThreads = 256;

// Params.a holds the sums [split][group][row][column]; a block takes kSumThreads columns of one row.
template <typename T>
__device__ void sum_splits(const Params& params) {
  const Phase& phase = params.phase[0];
  const uint32 column = blockIdx.x % params.column_tiles * kSumThreads + threadIdx.x;
  const uint32 row = blockIdx.x / params.column_tiles % params.rows;
  const int64 group = blockIdx.x / params.column_tiles / params.rows;
  if (column >= phase.columns) return;

  const T* __restrict__ parts =
    static_cast<const T*>(params.a) + (group * params.a_group_stride + row * params.a_row_stride + column);
  T sum = T(0);
#pragma unroll 4
  for (uint32 split = 0; split < params.splits; ++split) sum += parts[split * params.split_stride];

  int64 offset = phase.c_offset + group * params.c_group_stride + row * params.c_row_stride;
  for_each_digit<kMaxDigits>(column, phase.column, [&](const Digit& digit, int32 value) {
    offset += value * digit.other_stride;
  });
  blend_into(params.blend, sum, static_cast<T*>(params.c) + offset);
}

}  // namespace dnncore::gemm
