// Second half of a product whose reduction was cut into parts: add the parts' sums, always in the same order, and blend into C.
#pragma once

#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/store.cuh"

namespace dnncore::gemm {

inline constexpr int kSumThreads = 256;

// Params.a holds the sums [split][group][row][column] in the compute type; a block takes kSumThreads columns of one row.
template <typename T, bool kExtended>
__device__ void sum_splits(const Params& params) {
  const Phase& phase = params.phase[0];
  const uint32 column = blockIdx.x % params.column_tiles * kSumThreads + threadIdx.x;
  const uint32 row = blockIdx.x / params.column_tiles % params.rows;
  const int64 group = blockIdx.x / params.column_tiles / params.rows;
  if (column >= phase.columns) return;

  using C = Compute<T>;
  const C* __restrict__ parts =
    static_cast<const C*>(params.a) + (group * params.a_group_stride + row * params.a_row_stride + column);
  C sum = C(0);
#pragma unroll 4
  for (uint32 split = 0; split < params.splits; ++split) sum += parts[split * params.split_stride];

  int64 offset = phase.c_offset + group * params.c_group_stride + row * params.c_row_stride;
  offset += column_offset<kMaxDigits>(column, phase);
  if constexpr (kExtended) {
    const Epilogue& epilogue = params.epilogue;
    if (epilogue.is_present) {
      const int64 k = group * params.rows + row;
      const C z = epilogue.reads_z() ? widen(static_cast<const T*>(epilogue.z)[offset]) : C(0);
      const C value = epilogue.affine(sum, epilogue.template scale_of<T>(k), epilogue.template bias_of<T>(k), z);
      sum = activate(epilogue.activation, value);
    }
  }
  blend_into(params.blend, sum, static_cast<T*>(params.c) + offset);
}

}  // namespace dnncore::gemm
