// The tiled GEMM that convolutions and the matrix product share: dense SIMT arithmetic over operands that are gathered by address.
//
// A block computes one tile of C for one phase, group and part of the reduction. Slabs of A and B go round a ring of kStages buffers
// in shared memory: while one is multiplied the next are on their way, and a step costs one barrier. The table of reduction indices
// is filled in by all threads at once, a chunk of one entry a thread, and holds two chunks.
#pragma once

#include "dnncore/gemm/loader.cuh"
#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::gemm {

// Where a block works.
struct Place {
  uint32 first_row;
  uint32 first_column;
  uint32 split;
  uint32 group;
  uint32 phase;

  // Row tiles are fastest: blocks that run at the same time then share columns of B, the larger operand, in the L2 cache.
  template <int kRows, int kColumns>
  static __device__ Place of_block(const Params& params) {
    uint32 rest = blockIdx.x;
    const auto next = [&rest](uint32 extent) {
      const uint32 value = rest % extent;
      rest /= extent;
      return value;
    };
    Place place;
    place.first_row = next(params.row_tiles) * kRows;
    place.first_column = next(params.column_tiles) * kColumns;
    place.split = next(params.splits);
    place.group = next(params.groups);
    place.phase = rest;
    return place;
  }
};

// Index is the type of offsets into the operands: 32 bits only where the launcher proved that they suffice.
template <typename Tile, Walk kWalkA, Walk kWalkB, int kStages, int kDigits, int kCoordinates, typename Index>
struct Kernel {
  using T = typename Tile::T;
  using Entry = Reduction<Index, kCoordinates>;
  static constexpr int kDepth = Tile::kDepth;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kSlabsPerChunk = kThreads / kDepth;
  static_assert(kStages >= 2);

  struct Shared {
    alignas(16) T a[kStages][kDepth][Tile::kRowPitch];
    alignas(16) T b[kStages][kDepth][Tile::kColumnPitch];
    Entry table[2 * kThreads];
  };

  static __device__ void run(const Params& params, Shared& shared) {
    const Place place = Place::of_block<Tile::kRows, Tile::kColumns>(params);
    const Phase& phase = params.phase[place.phase];
    if (place.first_column >= phase.columns) return;  // this phase has fewer columns than the largest

    const uint32 first_k = place.split * params.split_length;
    const int length = static_cast<int>(min(phase.reduction_length - first_k, params.split_length));
    const int slabs = (length + kDepth - 1) / kDepth;
    const auto group = static_cast<int64>(place.group);
    const T* const a = static_cast<const T*>(params.a) + (phase.a_offset + group * params.a_group_stride);
    const T* const b = static_cast<const T*>(params.b) + (phase.b_offset + group * params.b_group_stride);
    Loader<T, kWalkA, Tile::kRows, kDepth, Tile::kRowPitch, kThreads, Row<Index>> load_a(
        a, place.first_row, params, phase);
    Loader<T, kWalkB, Tile::kColumns, kDepth, Tile::kColumnPitch, kThreads, Column<Index, kDigits, kCoordinates>> load_b(
        b, place.first_column, params, phase);

    const auto tabulate = [&](int chunk) {
      const auto k = static_cast<uint32>(chunk * kThreads) + threadIdx.x;
      shared.table[k % (2 * kThreads)] = Entry::template at<kDigits>(first_k + k, phase);
    };
    // Begin to copy a part of a slab; past the last slab that is zeros, which nobody reads.
    const auto copy = [&](int slab, int stage, int part) {
      const Entry* const table = &shared.table[slab * kDepth % (2 * kThreads)];
      load_a.copy(part, table, length - slab * kDepth, params, shared.a[stage]);
      load_b.copy(part, table, length - slab * kDepth, params, shared.b[stage]);
    };
    // To be called between the same two barriers as a slab's copy: the chunk that is overwritten was last needed before the first of
    // them, the new one will be needed after the second.
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
      commit_copies();
    }
    int stage = 0;
    for (int slab = 0; slab < slabs; ++slab) {
      wait_for_copies<kStages - 2>();
      // After this barrier all can read this slab, and nobody reads any more what is overwritten below.
      __syncthreads();
      const int next = slab + kStages - 1;
      const int next_stage = stage == 0 ? kStages - 1 : stage - 1;
      tabulate_ahead(next);
      accumulator.multiply_add(shared.a[stage], shared.b[stage], [&](int part) { copy(next, next_stage, part); });
      commit_copies();
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
    write(accumulator, place, phase, params);
  }

  static __device__ void write(
      const typename Tile::Accumulator& accumulator, const Place& place, const Phase& phase, const Params& params) {
    T* const c = static_cast<T*>(params.c) +
                 (phase.c_offset + place.group * params.c_group_stride + place.split * params.split_stride);
    const bool aligned = reinterpret_cast<uint64>(c) % sizeof(Vector<T>) == 0;
    if (aligned && params.store == Store::kColumns) {
      write_vectors<1, Tile::kVector>(accumulator, c, place, phase, params);
    } else if (aligned && params.store == Store::kRows) {
      write_vectors<Tile::kVector, 1>(accumulator, c, place, phase, params);
    } else {
      write_vectors<1, 1>(accumulator, c, place, phase, params);
    }
  }

  // Store kHeight x kWidth elements at a time, one of the two being 1.
  template <int kHeight, int kWidth>
  static __device__ void write_vectors(
      const typename Tile::Accumulator& accumulator, T* c, const Place& place, const Phase& phase, const Params& params) {
    constexpr int kSize = kHeight * kWidth;
#pragma unroll
    for (int j = 0; j < Tile::kColumnsPerThread; j += kWidth) {
      const uint32 column = place.first_column + static_cast<uint32>(Tile::column(j));
      if (column >= phase.columns) continue;
      int64 offset = 0;
      for_each_digit<kDigits>(
          column, phase.column, [&](const Digit& digit, int32 value) { offset += value * digit.other_stride; });
#pragma unroll
      for (int i = 0; i < Tile::kRowsPerThread; i += kHeight) {
        const uint32 row = place.first_row + static_cast<uint32>(Tile::row(i));
        if (row >= params.rows) continue;
        T* const first = c + offset + row * params.c_row_stride;
        struct alignas(kSize * sizeof(T)) Group {
          T at[kSize];
        } group;
#pragma unroll
        for (int e = 0; e < kSize; ++e) {
          group.at[e] = blended(params.blend, accumulator.at[i + e % kHeight][j + e % kWidth], first + e);
        }
        *reinterpret_cast<Group*>(first) = group;
      }
    }
  }
};

}  // namespace dnncore::gemm
