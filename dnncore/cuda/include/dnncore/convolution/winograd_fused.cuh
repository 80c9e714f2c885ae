// F(2x2, 3x3) in one kernel: both operands are transformed on the way into shared memory, the results on the way out,
// and nothing goes through a workspace. A block computes kFilters filters at kTiles tiles and goes through the channels
// in slabs. Each of its 8 warps owns two of the 16 points and multiplies their matrices, kFilters x kTiles over a
// slab's channels, in registers. While a slab is multiplied, the inputs of the next one are on their way to registers;
// they are transformed into the other half of shared memory before the one barrier per slab. Every block transforms its
// own operands.
//
//    filter, 3 x 3   -- G g G^T -->   filters [16 points][kSlab][kFilters]  --+
//                                                                             +-->  warp w: points 2 w and 2 w + 1,
//    input, 4 x 4    -- B^T d B -->   tiles   [16 points][kSlab][kTiles]    --+     kFilters x kTiles sums each
//                                                                                        |
//    output, 2 x 2   <-- A^T m A --   sums    [16 points][kRoundFilters][kTiles]   <-----+   some filters at a time
#pragma once

#include "dnncore/convolution/winograd_output.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::winograd {

template <typename T>
struct Fused {
  using C = Compute<T>;
  using Vector = gemm::Vector<C>;
  static constexpr int kVector = Vector::kSize;
  static constexpr int kThreads = 256;
  static constexpr int kPoints = F2::kPoints * F2::kPoints;
  static constexpr int kPointsPerWarp = kPoints / (kThreads / 32);
  static constexpr int kSlab = 4;  // channels
  // A warp is 8 threads along the filters by 4 along the tiles. Each has two vectors in either direction, a whole warp
  // apart.
  static constexpr int kRows = 8;
  static constexpr int kColumns = 4;
  static constexpr int kPerThread = 2 * kVector;
  static constexpr int kFilters = kRows * kPerThread;
  static constexpr int kTiles = kColumns * kPerThread;
  static constexpr int kPerRound = 2;  // filters per thread that are transformed back at a time
  static constexpr int kRoundFilters = kRows * kPerRound;
  static_assert(kThreads % kTiles == 0 && kFilters * kSlab <= kThreads && 2 * kTiles * kSlab <= kThreads);

  struct Slab {
    C filters[kPoints][kSlab][kFilters];
    C tiles[kPoints][kSlab][kTiles];
  };
  union Shared {
    alignas(16) Slab slabs[2];
    alignas(16) C sums[kPoints][kRoundFilters][kTiles + kVector];  // one vector of padding: rows in different banks
  };

  // The order of the filters differs from channel to channel, so that a warp, which writes 4 channels at a time, hits
  // every bank once.
  static __device__ __forceinline__ int place_of_filter(int filter, int channel) {
    return filter ^ (channel * 2 * kVector);
  }

  // A thread's share of a slab's filters: one filter of one channel.
  struct FilterShare {
    const T* next;
    int filter;
    int channel;
    int64 channels_left;  // where it is 0 or less, zeros are read
    C taps[3][3];

    __device__ FilterShare(const Params& params, int group, int first_filter)
        : filter(static_cast<int>(threadIdx.x) / kSlab), channel(static_cast<int>(threadIdx.x) % kSlab) {
      const int64 k = first_filter + filter;
      channels_left = mine() && k < params.filters.value ? params.channels.value - channel : 0;
      next = static_cast<const T*>(params.filter) + params.filter_offset + group * params.filter_group_stride +
             k * params.filter_strides[0] + channel * params.filter_strides[1];
    }

    __device__ bool mine() const { return filter < kFilters; }

    // The usual strides are constants, which cost no arithmetic: per thread the loop has 512 multiply-adds, and 9 + 12
    // reads.
    __device__ __forceinline__ void read(const Params& params) {
      if (params.tap_step == 1) {
        read(3, 1);
      } else if (params.tap_step == -1) {
        read(-3, -1);
      } else {
        read(params.filter_strides[2], params.filter_strides[3]);
      }
      next += kSlab * params.filter_strides[1];
      channels_left -= kSlab;
    }

    __device__ __forceinline__ void read(int64 row_stride, int64 column_stride) {
#pragma unroll
      for (int i = 0; i < 9; ++i) {
        taps[i / 3][i % 3] = channels_left > 0 ? widen(next[i / 3 * row_stride + i % 3 * column_stride]) : C(0);
      }
    }

    __device__ __forceinline__ void store(Slab& slab) const {
      if (!mine()) return;
      C points[F2::kPoints][F2::kPoints];
      transform(taps, points, F2::Filter{});
#pragma unroll
      for (int i = 0; i < kPoints; ++i) {
        slab.filters[i][channel][place_of_filter(filter, channel)] = points[i / F2::kPoints][i % F2::kPoints];
      }
    }
  };

  // A thread's share of a slab's inputs: half the points of one tile of one channel. Rows 0 and 1 of B^T d need the
  // input's rows 0 to 2, rows 2 and 3 its rows 1 to 3.
  struct TileShare {
    const T* next;
    int tile;
    int half;
    int channel;
    uint32 inside;  // which of the 3 x 4 inputs are not padding
    int64 channels_left;
    C pixels[3][4];

    __device__ TileShare(const Params& params, int group, int64 first_tile) {
      // Where a slab has fewer halves of tiles than there are threads, the last threads take them; the first ones have
      // filters.
      const int share = static_cast<int>(threadIdx.x) - (kThreads - 2 * kTiles * kSlab);
      tile = share % kTiles;
      half = share / kTiles % 2;
      channel = share / kTiles / 2;
      inside = 0;
      channels_left = 0;
      next = nullptr;
      if (share < 0) {
        channel = kSlab;
      } else if (first_tile + tile < params.tiles.value) {
        const Place place = Place::of<F2::kOutputs>(static_cast<int32>(first_tile + tile), params);
        const int32 row = place.row - params.top + half, column = place.column - params.left;
#pragma unroll
        for (int i = 0; i < 12; ++i) {
          const int32 h = row + i / 4, w = column + i % 4;
          if (h >= 0 && h < params.input_rows && w >= 0 && w < params.input_columns) inside |= 1u << i;
        }
        channels_left = params.channels.value - channel;
        next = static_cast<const T*>(params.input) + place.image * params.input_strides[0] +
               (group * params.channels.value + channel) * params.input_strides[1] + row * params.input_strides[2] +
               column * params.input_strides[3];
      }
    }

    __device__ bool mine() const { return channel < kSlab; }

    __device__ __forceinline__ void read(const Params& params) {
      if (params.dense_rows != 0) {
        read(params.input_strides[2], 1);
      } else {
        read(params.input_strides[2], params.input_strides[3]);
      }
      next += kSlab * params.input_strides[1];
      channels_left -= kSlab;
    }

    __device__ __forceinline__ void read(int64 row_stride, int64 column_stride) {
      const uint32 wanted = channels_left > 0 ? inside : 0;
#pragma unroll
      for (int i = 0; i < 12; ++i) {
        pixels[i / 4][i % 4] = wanted & (1u << i) ? widen(next[i / 4 * row_stride + i % 4 * column_stride]) : C(0);
      }
    }

    __device__ __forceinline__ void store(Slab& slab) const {
      if (!mine()) return;
      // Rows 0 and 1, or 3 and 2: the outer one is the same combination of what was read.
      C outer[4], inner[4], outer_points[4], inner_points[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        outer[j] = pixels[0][j] - pixels[2][j];
        inner[j] = pixels[1][j] + (half == 0 ? pixels[2][j] : -pixels[0][j]);
      }
      F2::Input{}(outer, outer_points);
      F2::Input{}(inner, inner_points);
      const int outer_row = half == 0 ? 0 : 3, inner_row = half == 0 ? 1 : 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        slab.tiles[outer_row * F2::kPoints + j][channel][tile] = outer_points[j];
        slab.tiles[inner_row * F2::kPoints + j][channel][tile] = inner_points[j];
      }
    }
  };

  // Sums of a thread's filters and tiles at its warp's points.
  struct Accumulator {
    C at[kPointsPerWarp][kPerThread][kPerThread] = {};
    int first_point;
    int row;
    int column;

    // Lane bits 4 and 0 give the column, bits 3 to 1 the row; gemm::Tile says why.
    __device__ Accumulator() {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      first_point = static_cast<int>(threadIdx.x) / 32 * kPointsPerWarp;
      row = lane % 16 / 2;
      column = lane / 16 * 2 + lane % 2;
    }

    __device__ __forceinline__ void multiply_add(const Slab& slab) {
#pragma unroll
      for (int channel = 0; channel < kSlab; ++channel) {
#pragma unroll
        for (int point = 0; point < kPointsPerWarp; ++point) {
          const C* const filters = &slab.filters[first_point + point][channel][place_of_filter(row * kVector, channel)];
          const C* const tiles = &slab.tiles[first_point + point][channel][column * kVector];
          Vector f[2], t[2];
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            f[v] = *reinterpret_cast<const Vector*>(filters + v * kRows * kVector);
            t[v] = *reinterpret_cast<const Vector*>(tiles + v * kColumns * kVector);
          }
          const auto multiply = [&](int i, int j) {
            at[point][i][j] += f[i / kVector].at[i % kVector] * t[j / kVector].at[j % kVector];
          };
          // In blocks of 2 x 2, there and back, as in gemm::Tile and for the same reason: register banks.
#pragma unroll
          for (int i = 0; i < kPerThread; i += 2) {
#pragma unroll
            for (int step = 0; step < kPerThread; step += 2) {
              const int j = i % 4 == 0 ? step : kPerThread - 2 - step;
              multiply(i, j);
              multiply(i, j + 1);
              multiply(i + 1, j + 1);
              multiply(i + 1, j);
            }
          }
        }
      }
    }

    // Hand the sums of kPerRound filters, times a factor, to the threads that transform them back. Stored without the
    // factor, the sums would have to lie in consecutive registers, and a seventh of the loop's FFMA would read three
    // registers of one bank (sm_90a).
    template <int kRound>
    __device__ __forceinline__ void share(C alpha, Shared& shared) const {
#pragma unroll
      for (int point = 0; point < kPointsPerWarp; ++point) {
#pragma unroll
        for (int i = 0; i < kPerRound; ++i) {
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            Vector sums;
#pragma unroll
            for (int j = 0; j < kVector; ++j) sums.at[j] = alpha * at[point][kRound * kPerRound + i][v * kVector + j];
            C* const place = &shared.sums[first_point + point][row * kPerRound + i][(v * kColumns + column) * kVector];
            *reinterpret_cast<Vector*>(place) = sums;
          }
        }
      }
    }

    // Which of the block's filters a row of Shared::sums belongs to.
    template <int kRound>
    static __device__ int filter_of(int shared_row) {
      constexpr int kFirst = kRound * kPerRound;
      return kFirst / kVector * kRows * kVector + shared_row / kPerRound * kVector + kFirst % kVector +
             shared_row % kPerRound;
    }
  };

  // The outputs of one tile, the same one in every round.
  struct Writer {
    OutputTile<T, F2> outputs;
    int tile;

    __device__ Writer(const Params& params, int group, int64 first_tile)
        : outputs(params, group, first_tile + threadIdx.x % kTiles), tile(static_cast<int>(threadIdx.x) % kTiles) {}

    template <int kRound>
    __device__ __forceinline__ void write(const Shared& shared, int first_filter, const Params& params) const {
#pragma unroll
      for (int row = static_cast<int>(threadIdx.x) / kTiles; row < kRoundFilters; row += kThreads / kTiles) {
        const int64 filter = first_filter + Accumulator::template filter_of<kRound>(row);
        if (!outputs.exists() || filter >= params.filters.value) continue;
        C points[F2::kPoints][F2::kPoints];
#pragma unroll
        for (int i = 0; i < kPoints; ++i) points[i / F2::kPoints][i % F2::kPoints] = shared.sums[i][row][tile];
        outputs.write(points, filter, params);
      }
    }
  };

  template <int kRound>
  static __device__ __forceinline__ void finish(
      const Accumulator& accumulator, const Writer& writer, Shared& shared, int first_filter, const Params& params) {
    if constexpr (kRound < kPerThread / kPerRound) {
      __syncthreads();  // no thread still reads what is overwritten below
      accumulator.template share<kRound>(OutputTile<T, F2>::sum_factor(params), shared);
      __syncthreads();
      writer.template write<kRound>(shared, first_filter, params);
      finish<kRound + 1>(accumulator, writer, shared, first_filter, params);
    }
  }

  static __device__ void run(const Params& params, Shared& shared) {
    // Filter blocks are fastest: blocks that run at the same time share tiles, the larger operand, in the L2 cache.
    const SmallQuotientRemainder filter_block = divide(static_cast<int32>(blockIdx.x), params.filter_blocks);
    const SmallQuotientRemainder tile_block = divide(filter_block.quotient, params.tile_blocks);
    const int group = tile_block.quotient, first_filter = filter_block.remainder * kFilters;
    const int64 first_tile = static_cast<int64>(tile_block.remainder) * kTiles;

    Accumulator accumulator;
    {
      FilterShare filter(params, group, first_filter);
      TileShare tile(params, group, first_tile);
      const int slabs = static_cast<int>((params.channels.value + kSlab - 1) / kSlab);
      filter.read(params);
      tile.read(params);
      filter.store(shared.slabs[0]);
      tile.store(shared.slabs[0]);
      __syncthreads();
      for (int slab = 0; slab < slabs; ++slab) {
        const bool more = slab + 1 < slabs;
        if (more) {
          filter.read(params);
          tile.read(params);
        }
        accumulator.multiply_add(shared.slabs[slab % 2]);
        if (more) {
          filter.store(shared.slabs[(slab + 1) % 2]);
          tile.store(shared.slabs[(slab + 1) % 2]);
        }
        __syncthreads();
      }
    }
    finish<0>(accumulator, Writer(params, group, first_tile), shared, first_filter, params);
  }
};

template <typename T>
__device__ __forceinline__ void fused(const Params& params) {
  __shared__ typename Fused<T>::Shared shared;
  Fused<T>::run(params, shared);
}

}  // namespace dnncore::winograd
