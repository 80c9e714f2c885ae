// Second half of a product whose reduction was cut into parts (split-K) that the launch itself does not join
// (parts.cuh): add the sums of the parts, always in the same order, and blend the result into C, through the epilogue
// of a fused convolution if there is one. Splitting gives every multiprocessor work where C has few tiles and long
// sums; it costs writing and reading the parts, which bounds this kernel.
//
//    reduction      |  part 0  |  part 1  |  part 2  |       a block of kernel.cuh or pipeline.cuh per tile and part
//    workspace      [split][group][row][column]              sums in the compute type, or int32
//    C              part 0  +  part 1  +  part 2             this kernel: a thread per element of C
#pragma once

#include "dnncore/gemm/output.cuh"
#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/store.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::gemm {

inline constexpr int kSumThreads = 256;

// The type in which the sums of a part are stored, and the one in which they are added up.
template <typename T>
struct PartSums {
  using Part = Compute<T>;
  using Total = Compute<T>;
};

// Exact: an int32 holds the sum of each part, but may be too small for several of them together.
template <>
struct PartSums<int8> {
  using Part = int32;
  using Total = int64;
};

template <typename T, typename Output, typename Total>
__device__ __forceinline__ void finish(const Output& output, const Params& params, Total sum, int64 k, int64 offset) {
  using C = typename Output::C;
  C value = static_cast<C>(sum);
  if constexpr (Output::kFused) {
    const Epilogue& epilogue = params.epilogue;
    if (epilogue.is_present) {
      const C z = epilogue.reads_z() ? output.z(params, offset) : C(0);
      value = epilogue.affine(value, epilogue.template scale_of<T>(k), epilogue.template bias_of<T>(k), z);
      value = activate(epilogue.activation, value);
    }
  }
  output.blend(params, value, offset);
}

// Params.a holds the parts' sums, [split][group][row][column]; a block takes kSumThreads columns of one row.
template <typename T, bool kExtended>
__device__ void sum_splits(const Params& params) {
  const Phase& phase = params.phase[0];
  wait_for_previous();
  const uint32 column = blockIdx.x % params.column_tiles * kSumThreads + threadIdx.x;
  const uint32 row = blockIdx.x / params.column_tiles % params.rows;
  const int64 group = blockIdx.x / params.column_tiles / params.rows;
  if (column >= phase.columns) return;

  using Part = typename PartSums<T>::Part;
  const Part* __restrict__ parts =
    static_cast<const Part*>(params.a) + (group * params.a_group_stride + row * params.a_row_stride + column);
  typename PartSums<T>::Total sum = 0;
#pragma unroll 4
  for (uint32 split = 0; split < params.splits; ++split) sum += parts[split * params.split_stride];

  int64 offset = phase.c_offset + group * params.c_group_stride + row * params.c_row_stride;
  offset += column_offset<kMaxDigits>(column, phase);
  const int64 k = group * params.rows + row;
  if constexpr (std::is_same_v<T, int8>) {
    with_output_of_int8(params, [&](const auto& output) { finish<T>(output, params, sum, k, offset); });
  } else {
    finish<T>(KnownOutput<T, kExtended>(params), params, sum, k, offset);
  }
}

}  // namespace dnncore::gemm
