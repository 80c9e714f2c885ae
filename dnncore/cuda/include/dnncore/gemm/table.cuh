// The table of a precomputed product: what each reduction index adds to the operands' addresses, one entry per thread,
// written once per launch so that blocks read it instead of working it out.
#pragma once

#include "dnncore/gemm/loader.cuh"
#include "dnncore/gemm/params.cuh"

namespace dnncore::gemm {

inline constexpr int kTableThreads = 128;

// Each phase has a row of blocks.
template <int kDigits, typename Entry>
__device__ void write_table(const Params& params) {
  const Phase& phase = params.phase[blockIdx.y];
  const uint32 k = blockIdx.x * kTableThreads + threadIdx.x;
  if (k >= phase.reduction_length) return;
  static_cast<Entry*>(params.table)[phase.first_entry + k] = Entry::template at<kDigits>(k, phase);
}

}  // namespace dnncore::gemm
