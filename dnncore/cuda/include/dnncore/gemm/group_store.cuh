// From the accumulators of a pipeline into C, through shared memory and the epilogue of a fused convolution. The tensor
// cores leave each thread pairs of sums scattered over the tile; shared memory turns them into groups of kGroup = 8
// neighbours of C, which one thread finishes and stores at once. Shared memory has room for 64 rows of the tile at a
// time: those of one line of warps, or all of them. Neighbours are along the columns or along the rows, whichever have
// stride 1 in C.
//
//   tile of 128 x 128 sums in registers         shared memory, 64 rows at a time
//   +-----------------+-----------------+       neighbours along the columns:  [row][column], pitch kColumns + 8
//   | warp 0, 64 x 64 | warp 1          |  -->  neighbours along the rows:     [column][row], pitch 64 + 4
//   +-----------------+-----------------+         |
//   | warp 2          | warp 3          |         v    8 neighbours per thread: epilogue, blend, store
//   +-----------------+-----------------+       C
#pragma once

#include "dnncore/gemm/output.cuh"
#include "dnncore/gemm/parts.cuh"
#include "dnncore/gemm/store.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::gemm {

// As StagedStore, with as many rows of the tile in shared memory at a time as fit: those of one line of warps, or all.
template <typename T, typename Tile, int kDigits>
class GroupStore {
  using Sum = typename Tile::C;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kRows = 64;  // staged at a time
  static constexpr int kColumns = Tile::kColumns;
  static constexpr int kStep = 4;   // elements per thread at a time where they are not neighbours
  static constexpr int kDown = kRows / kGroup, kAcross = kColumns / kGroup;
  static_assert(Tile::kRows % kRows == 0 && kRows % Tile::kWarpRows == 0);
  static_assert(kRows * kColumns % (kStep * kThreads) == 0 && kRows * kAcross % kThreads == 0);
  static_assert(kThreads % kDown == 0 && kThreads % kAcross == 0);

  // The order of C: rows one after the other, or columns. The pitches spread what a warp stores over the banks.
  static constexpr int kRowPitch = kColumns + 8, kColumnPitch = kRows + 4;
  static constexpr int kByRows = kRows * kRowPitch, kByColumns = kColumns * kColumnPitch;

public:
  struct alignas(16) Staged {
    Sum at[kByRows > kByColumns ? kByRows : kByColumns];
  };

  // To be called once no thread reads the slabs or copies to them any more: `staged` is their memory. Sums are an
  // accumulator or the parts of a reduction.
  template <typename Sums>
  static __device__ void store(
      const Sums& sums, Staged& staged, const Place& place, const Phase& phase, const Params& params) {
    const bool along_rows = params.c_row_stride == 1 && params.rows > 1;
#pragma unroll 1
    for (int first_row = 0; first_row < Tile::kRows; first_row += kRows) {
      if (first_row > 0) __syncthreads();
      if (Tile::first_row() / kRows * kRows == first_row) {
        if constexpr (std::is_same_v<Sums, Parts<Tile>>) {  // a loop, whose indices are worked out in either case
          sums.for_each([&](int row, int column, Sum total) {
            staged.at[index_of(row % kRows, column, along_rows)] = total;
          });
        } else if (along_rows) {
          stage<1, kColumnPitch>(sums, staged);
        } else {
          stage<kRowPitch, 1>(sums, staged);
        }
      }
      __syncthreads();
      with_output<T, Sum>(params, [&](const auto& output) {
        store_staged(output, staged, first_row, along_rows, place, phase, params);
      });
    }
  }

private:
  template <int kRowStep, int kColumnStep>
  static __device__ void stage(const typename Tile::Accumulator& accumulator, Staged& staged) {
    accumulator.for_each([&](int row, int column, Sum sum) { staged.at[row % kRows * kRowStep + column * kColumnStep] = sum; });
  }

  static __device__ int index_of(int i, int j, bool along_rows) {
    return along_rows ? i + j * kColumnPitch : i * kRowPitch + j;
  }

  template <typename Output>
  static __device__ void store_staged(
      const Output& output, const Staged& staged, int first_row, bool along_rows, const Place& place, const Phase& phase,
      const Params& params) {
    const auto thread = static_cast<int>(threadIdx.x);
    uint64 addresses = reinterpret_cast<uint64>(params.c);
    if (Output::kFused && params.epilogue.is_present && params.epilogue.reads_z()) {
      addresses |= reinterpret_cast<uint64>(params.epilogue.z);
    }
    if (params.store != Store::kSingle && addresses % 16 == 0) {
      store_groups(output, staged, first_row, along_rows, place, phase, params);
      return;
    }
#pragma unroll 1
    for (int first = thread; first < kRows * kColumns; first += kStep * kThreads) {
      store_elements<T, kDigits, kStep>(output, place, phase, params, [&](int e) {
        const int index = first + e * kThreads;
        const int i = along_rows ? index % kRows : index / kColumns;
        const int j = along_rows ? index / kRows : index % kColumns;
        return Element<Sum>{first_row + i, j, staged.at[index_of(i, j, along_rows)]};
      });
    }
  }

  // A thread's groups among the staged rows: always the same distance apart, in the tile and in shared memory.
  struct Groups {
    int row, column;    // of the first group, among the staged rows
    int rows, columns;  // from one group to the next
    int staged, step;   // the same in shared memory

    __device__ explicit Groups(bool along_rows) {
      const auto thread = static_cast<int>(threadIdx.x);
      row = along_rows ? thread % kDown * kGroup : thread / kAcross;
      column = along_rows ? thread / kDown : thread % kAcross * kGroup;
      rows = along_rows ? 0 : kThreads / kAcross;
      columns = along_rows ? kThreads / kDown : 0;
      staged = index_of(row, column, along_rows);
      step = index_of(rows, columns, along_rows);
    }
    __device__ void advance() { row += rows, column += columns, staged += step; }
  };

  // Whether a thread reads z for its next group before it finishes the current one: where no sums wait in registers for
  // their turn in shared memory.
  static constexpr bool kReadsAhead = sizeof(T) > 1 && Tile::kRows == kRows;

  template <typename Output>
  static __device__ void store_groups(
      const Output& output, const Staged& staged, int first_row, bool along_rows, const Place& place, const Phase& phase,
      const Params& params) {
    using C = typename Output::C;
    const Epilogue& epilogue = params.epilogue;
    const bool is_fused = Output::kFused && epilogue.is_present;
    const bool reads_z = is_fused && epilogue.reads_z();
    const uint32 tile_row = place.first_row + static_cast<uint32>(first_row);
    const int64 start = phase.c_offset + place.group * params.c_group_stride + place.split * params.split_stride;
    const auto exists = [&](const Groups& at) {
      return at.row < kRows && at.column < kColumns && tile_row + static_cast<uint32>(at.row) < params.rows &&
             place.first_column + static_cast<uint32>(at.column) < phase.columns;
    };
    const auto offset_of = [&](const Groups& at) {
      return start + column_offset<kDigits>(place.first_column + static_cast<uint32>(at.column), phase) +
             (tile_row + static_cast<uint32>(at.row)) * params.c_row_stride;
    };
    const auto z_of = [&](const Groups& at) {
      typename Output::StoredZ z = {};
      if (reads_z && exists(at)) z = output.z_group(params, offset_of(at));
      return z;
    };
    const auto channel_of = [&](const Groups& at) {
      return static_cast<int64>(place.group) * params.rows + tile_row + static_cast<uint32>(at.row);
    };
    Groups at(along_rows);
    typename Output::StoredZ z = kReadsAhead ? z_of(at) : typename Output::StoredZ{};
    C biases[kGroup];
    if (is_fused && along_rows && exists(at)) {  // all groups of a thread have the same channels
#pragma unroll
      for (int e = 0; e < kGroup; ++e) biases[e] = epilogue.template bias_of<T>(channel_of(at) + e);
    }
#pragma unroll 1
    for (int n = 0; n < kRows * kAcross / kThreads; ++n) {
      Groups next = at;
      next.advance();
      const auto read_z = z_of(kReadsAhead ? next : at);
      if (exists(at)) {
        const auto sums = *reinterpret_cast<const Group<Sum>*>(&staged.at[at.staged]);
        C values[kGroup];
#pragma unroll
        for (int e = 0; e < kGroup; ++e) values[e] = static_cast<C>(sums.at[e]);
        if (is_fused) {
          const int64 channel = channel_of(at);
          if (!along_rows) {
            biases[0] = epilogue.template bias_of<T>(channel);
#pragma unroll
            for (int e = 1; e < kGroup; ++e) biases[e] = biases[0];
          }
          finish(epilogue, channel, along_rows, biases, reads_z, kReadsAhead ? z : read_z, values);
        }
        output.blend(params, values, offset_of(at));
      }
      at = next, z = read_z;
    }
  }

  template <typename C, typename Z>
  static __device__ void finish(
      const Epilogue& epilogue, int64 channel, bool along_rows, const C (&biases)[kGroup], bool reads_z, const Z& z,
      C (&values)[kGroup]) {
    const auto alpha1 = static_cast<C>(epilogue.alpha1);
#pragma unroll
    for (int e = 0; e < kGroup; ++e) values[e] *= alpha1;
    if (epilogue.scale != nullptr) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) values[e] *= epilogue.template scale_of<T>(channel + (along_rows ? e : 0));
    }
#pragma unroll
    for (int e = 0; e < kGroup; ++e) values[e] += biases[e];
    if (reads_z) {
      const auto alpha2 = static_cast<C>(epilogue.alpha2);
#pragma unroll
      for (int e = 0; e < kGroup; ++e) values[e] += alpha2 * widen(z.at[e]);
    }
    with_mode(epilogue.activation, [&](auto chosen) {
#pragma unroll
      for (int e = 0; e < kGroup; ++e) values[e] = activate<chosen.kMode>(epilogue.activation, values[e]);
    });
  }
};

}  // namespace dnncore::gemm
