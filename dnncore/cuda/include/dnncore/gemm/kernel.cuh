// The tiled GEMM that convolutions and the matrix product share: C[row, column] = sum over k of
// A[row, k] * B[k, column], dense arithmetic over operands that are gathered by address (params.cuh). A block computes
// one tile of C for one phase, group and part of the reduction, with its sums in registers. Slabs of A and B go round a
// ring of kStages buffers in shared memory: while one is multiplied, the next are on their way, and a slab costs one
// barrier. Larger tiles read less per multiplication but need more registers and shared memory, so that fewer blocks
// run at once.
//
//                          kColumns
//                     +----------------+
//                     |     slab b     |  kDepth        ring of slabs in shared memory:
//                     +----------------+                [ multiplied ][ arriving ][ arriving ]
//            kDepth
//           +------+  +----------------+                table of reduction indices in shared memory:
//           |      |  |                |                [ chunk in use ][ next chunk ], kThreads entries each,
//    kRows  |slab a|  |   tile of C    |                one written by each thread
//           |      |  |                |
//           +------+  +----------------+                k advances by kDepth per slab
#pragma once

#include "dnncore/gemm/clamped_store.cuh"
#include "dnncore/gemm/loader.cuh"
#include "dnncore/gemm/matrix_tile.cuh"
#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/parts.cuh"
#include "dnncore/gemm/store.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::gemm {

// Index is the type of offsets into the operands: 32 bits only where the launcher proved that they suffice. Extended
// kernels support epilogues, tables in the workspace, and operands of 16 and 8 bits. Joined ones add up the parts of a
// reduction (parts.cuh), for which there are no tables. Clamped ones support the simplest epilogues (clamped_store.cuh).
template <
    typename Tile, Walk kWalkA, Walk kWalkB, int kStages, int kDigits, int kCoordinates, typename Index,
    bool kExtended, bool kJoined, bool kClamped = false>
struct Kernel {
  using T = typename Tile::T;
  using Entry = Reduction<Index, kCoordinates>;
  static constexpr int kDepth = Tile::kDepth;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kSlabsPerChunk = kThreads / kDepth;
  static constexpr int kSlabsATotal = 4096 / kDepth;  // after 4096 products, sums are carried over into totals
  static_assert(kStages >= 2);
  static_assert(kExtended || std::is_same_v<T, typename Tile::C>);

  struct Slabs {
    alignas(16) typename Tile::SlabA a[kStages];
    alignas(16) typename Tile::SlabB b[kStages];
    Entry table[2 * kThreads];
  };
  struct Shared : Tile::Totals {
    union {
      Slabs slabs;
      std::conditional_t<kExtended, typename StagedStore<T, Tile, kDigits>::Staged, T> staged;
    };
  };

  static __device__ void run(const Params& params, Shared& shared) {
    Slabs& slabs = shared.slabs;
    const Place place = Place::of_block<Tile::kRows, Tile::kColumns>(params);
    const Phase& phase = params.phase[place.phase];
    if (place.first_column >= phase.columns) return;  // this phase has fewer columns than the largest

    const uint32 first_k = place.split * params.split_length;
    const int length = static_cast<int>(min(phase.reduction_length - first_k, params.split_length));
    const int num_slabs = (length + kDepth - 1) / kDepth;
    const auto group = static_cast<int64>(place.group);
    const T* const a = static_cast<const T*>(params.a) + (phase.a_offset + group * params.a_group_stride);
    const T* const b = static_cast<const T*>(params.b) + (phase.b_offset + group * params.b_group_stride);
    Loader<Tile, typename Tile::SlabA, kWalkA, Tile::kRows, Row<Index>> load_a(a, place.first_row, params, phase);
    Loader<Tile, typename Tile::SlabB, kWalkB, Tile::kColumns, Column<Index, kDigits, kCoordinates>> load_b(
        b, place.first_column, params, phase);

    const auto tabulate = [&](int chunk) {
      const auto k = static_cast<uint32>(chunk * kThreads) + threadIdx.x;
      const bool tabulated = kExtended && !kJoined && params.table != nullptr;
      slabs.table[k % (2 * kThreads)] =
        tabulated ? Entry::tabulated(first_k + k, phase, params) : Entry::template at<kDigits>(first_k + k, phase);
    };
    // Begin to copy a part of a slab; past the last slab it copies zeros, which stay unused.
    const auto copy = [&](int slab, int stage, int part) {
      const Entry* const table = &slabs.table[slab * kDepth % (2 * kThreads)];
      load_a.copy(part, table, length - slab * kDepth, params, slabs.a[stage]);
      load_b.copy(part, table, length - slab * kDepth, params, slabs.b[stage]);
    };
    const auto arrive = [&](int stage) {
      load_a.arrive(slabs.a[stage]);
      load_b.arrive(slabs.b[stage]);
    };
    // To be called between the same two barriers as a slab's copy: the chunk that it overwrites was last needed before
    // the first barrier, and the new one is first needed after the second.
    const auto tabulate_ahead = [&](int slab) {
      if (slab % kSlabsPerChunk == 0) tabulate(slab / kSlabsPerChunk + 1);
    };

    typename Tile::Accumulator accumulator;
    tabulate(0);
    for (int slab = 0; slab < kStages - 1; ++slab) {
      __syncthreads();
      tabulate_ahead(slab);
#pragma unroll
      for (int part = 0; part < kDepth; ++part) copy(slab, slab, part);
      arrive(slab);
      commit_copies();
    }
    int stage = 0;
    for (int slab = 0; slab < num_slabs; ++slab) {
      wait_for_copies<kStages - 2>();
      // After this barrier every thread can read this slab, and none still reads what is overwritten below.
      __syncthreads();
      const int next = slab + kStages - 1;
      const int next_stage = stage == 0 ? kStages - 1 : stage - 1;
      tabulate_ahead(next);
      accumulator.multiply_add(slabs.a[stage], slabs.b[stage], [&](int part) { copy(next, next_stage, part); });
      arrive(next_stage);
      commit_copies();
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if constexpr (Tile::kHasTotals) {
        if (slab % kSlabsATotal == kSlabsATotal - 1) accumulator.carry_over(shared, slab < kSlabsATotal);
      }
    }
    if constexpr (Tile::kHasTotals) {
      if (num_slabs >= kSlabsATotal) accumulator.add(shared);
    }
    if constexpr (kJoined) {
      Parts<Tile> parts(params);
      if (parts.leave(accumulator)) store(parts, shared, place, phase, params);
    } else {
      store(accumulator, shared, place, phase, params);
    }
  }

  template <typename Sums>  // an accumulator, or the parts of the reduction
  static __device__ void store(
      const Sums& sums, Shared& shared, const Place& place, const Phase& phase, const Params& params) {
    if constexpr (kExtended) {
      wait_for_copies<0>();
      __syncthreads();  // the slabs' memory is free now
      StagedStore<T, Tile, kDigits>::store(sums, shared.staged, place, phase, params);
    } else if constexpr (kClamped) {
      ClampedStore<T, Tile, kDigits>::store(sums, place, phase, params);
    } else {
      PlainStore<T, Tile, kDigits>::store(sums, place, phase, params);
    }
  }
};

}  // namespace dnncore::gemm
