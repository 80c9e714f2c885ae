// The tiled GEMM that convolutions and the matrix product share: dense SIMT arithmetic over operands that are gathered by address.
//
// A block computes one tile of C for one phase, group and part of the reduction. Slabs of A and B are double-buffered in shared
// memory: while one is multiplied the next is on its way into registers, so a step costs one barrier. The table of reduction
// indices runs one slab further ahead.
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
template <typename Tile, Walk kWalkA, Walk kWalkB, int kDigits, int kCoordinates, typename Index>
struct Kernel {
  using T = typename Tile::T;
  using Entry = Reduction<Index, kCoordinates>;
  static constexpr int kDepth = Tile::kDepth;
  static constexpr int kThreads = Tile::kThreads;

  struct Shared {
    alignas(16) T a[2][kDepth][Tile::kRowPitch];
    alignas(16) T b[2][kDepth][Tile::kColumnPitch];
    Entry table[2][kDepth];
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

    const auto tabulate = [&](int slab) {
      if (threadIdx.x < kDepth) {
        shared.table[slab % 2][threadIdx.x] = Entry::template at<kDigits>(first_k + slab * kDepth + threadIdx.x, phase);
      }
    };
    const auto fetch = [&](int slab) {
      load_a.fetch(shared.table[slab % 2], length - slab * kDepth, params);
      load_b.fetch(shared.table[slab % 2], length - slab * kDepth, params);
    };
    const auto store = [&](int slab) {
      load_a.store(shared.a[slab % 2]);
      load_b.store(shared.b[slab % 2]);
    };

    typename Tile::Accumulator accumulator;
    tabulate(0);
    tabulate(1);
    __syncthreads();
    fetch(0);
    store(0);
    __syncthreads();
    for (int slab = 0; slab < slabs; ++slab) {
      // The barrier that ended the step before lies between the last reads of what is overwritten here and its writes.
      const bool more = slab + 1 < slabs;
      if (more) fetch(slab + 1);
      tabulate(slab + 2);
      accumulator.multiply_add(shared.a[slab % 2], shared.b[slab % 2]);
      if (more) store(slab + 1);
      __syncthreads();
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
    for (int j = 0; j < Tile::kPerThread; j += kWidth) {
      const uint32 column = place.first_column + static_cast<uint32>(Tile::column(j));
      if (column >= phase.columns) continue;
      int64 offset = 0;
      for_each_digit<kDigits>(
          column, phase.column, [&](const Digit& digit, int32 value) { offset += value * digit.other_stride; });
#pragma unroll
      for (int i = 0; i < Tile::kPerThread; i += kHeight) {
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
