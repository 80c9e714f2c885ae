// The GEMM for operands of 16 and 8 bits that are read 16 bytes at a time: the pipeline of the tensor cores. A block
// computes one tile of C as in kernel.cuh, but each thread works out for itself which vectors it copies, so that shared
// memory holds operands only. Slabs go round a ring of kStages buffers, and a slab costs one barrier. It is multiplied
// in two steps, and the fragments of each step are read from shared memory while those of the step before are
// multiplied.
//
//    slab n:   read columns of step 1    begin to copy slab n + kStages - 1 from global memory
//              multiply step 0           then read rows of step 1
//              wait for slab n + 1       the one barrier
//              read columns of step 0 of slab n + 1
//              multiply step 1           then read rows of step 0 of slab n + 1
#pragma once

#include "dnncore/gemm/group_store.cuh"
#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/parts.cuh"
#include "dnncore/gemm/vector_operand.cuh"

namespace dnncore::gemm {

// Walks are the indices along which 16 bytes are contiguous; Kernel explains the other parameters.
template <
    typename Tile, Walk kWalkA, Walk kWalkB, int kStages, int kDigits, int kCoordinates, typename Index, bool kJoined>
struct Pipeline {
  using T = typename Tile::T;
  using Entry = Reduction<Index, kCoordinates>;
  using A = VectorOperand<Tile, kWalkA, Tile::kRows, Row<Index>, Entry, kDigits>;
  using B = VectorOperand<Tile, kWalkB, Tile::kColumns, Column<Index, kDigits, kCoordinates>, Entry, kDigits>;
  using Output = GroupStore<T, Tile, kDigits>;
  static constexpr int kDepth = Tile::kDepth;
  static constexpr int kSteps = kDepth / Tile::kStep;
  static_assert(kStages >= 3 && kSteps == 2);

  struct Slabs {
    alignas(128) typename A::Slab a[kStages];
    alignas(128) typename B::Slab b[kStages];
  };
  union Shared {
    Slabs slabs;
    typename Output::Staged staged;
  };

  static __device__ void run(const Params& params, Shared& shared) {
    Slabs& slabs = shared.slabs;
    const Place place = Place::of_block<Tile::kRows, Tile::kColumns>(params);
    const Phase& phase = params.phase[place.phase];
    if (place.first_column >= phase.columns) return;  // this phase has fewer columns than the largest

    typename Tile::Accumulator accumulator;
    // Two copies of the loop, so that no branch stands between the multiplications.
    if (!kJoined && params.table != nullptr) {
      multiply_add<true>(accumulator, slabs, place, phase, params);
    } else {
      multiply_add<false>(accumulator, slabs, place, phase, params);
    }
    wait_for_copies<0>();
    if constexpr (kJoined) {
      Parts<Tile> parts(params);
      if (parts.leave(accumulator)) Output::store(parts, shared.staged, place, phase, params);
    } else {
      __syncthreads();  // the slabs' memory is free now
      Output::store(accumulator, shared.staged, place, phase, params);
    }
  }

private:
  template <bool kTabulated>
  static __device__ void multiply_add(
      typename Tile::Accumulator& accumulator, Slabs& slabs, const Place& place, const Phase& phase, const Params& params) {
    const uint32 first_k = place.split * params.split_length;
    const int length = static_cast<int>(min(phase.reduction_length - first_k, params.split_length));
    const int num_slabs = (length + kDepth - 1) / kDepth;
    const auto group = static_cast<int64>(place.group);
    A a(static_cast<const T*>(params.a) + (phase.a_offset + group * params.a_group_stride), place.first_row, params, phase);
    B b(static_cast<const T*>(params.b) + (phase.b_offset + group * params.b_group_stride), place.first_column, params, phase);

    // Begin to copy a slab; past the last one it copies zeros, which stay unused.
    const auto copy = [&](int slab, int stage) {
      const uint32 k = first_k + static_cast<uint32>(slab * kDepth);
      a.template copy<kTabulated>(k, length - slab * kDepth, phase, params, slabs.a[stage]);
      b.template copy<kTabulated>(k, length - slab * kDepth, phase, params, slabs.b[stage]);
      commit_copies();
    };
    typename Tile::RowFragments rows;  // one set is enough: each is read again as soon as it has been used
    typename Tile::ColumnFragments columns[2];
    const auto load_rows = [&](int stage, int step) {
      A::template load<true>(slabs.a[stage], Tile::first_row(), step, rows);
    };
    const auto load_columns = [&](int stage, int step) {
      B::template load<false>(slabs.b[stage], Tile::first_column(), step, columns[step]);
    };
    // To be called before the next slab is read: afterwards every thread sees that slab, and none still reads the one
    // before.
    const auto wait = [] {
      wait_for_copies<kStages - 2>();
      __syncthreads();
    };

    for (int slab = 0; slab < kStages - 1; ++slab) copy(slab, slab);
    wait();
    load_rows(0, 0);
    load_columns(0, 0);
    int stage = 0;
#pragma unroll 1
    for (int slab = 0; slab < num_slabs; ++slab) {
      load_columns(stage, 1);
      copy(slab + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
      accumulator.multiply_add(rows, columns[0]);
      load_rows(stage, 1);
      stage = stage + 1 == kStages ? 0 : stage + 1;
      wait();
      load_columns(stage, 0);
      accumulator.multiply_add(rows, columns[1]);
      load_rows(stage, 0);
    }
  }
};

}  // namespace dnncore::gemm
