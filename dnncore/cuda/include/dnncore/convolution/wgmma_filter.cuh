// Backward-filter convolution by the matrix units and the copy engine of sm_90: 16-bit channels-last images, sums in fp32,
// the same bits every time.
//
//     dw[k, r, s, c] = sum over pixels of dy[pixel, k] * x[pixel moved by tap (r, s), c]
//
// A product whose sum runs over the pixels of y. Both operands have a pixel to a row, so that a row is one summand of 64
// filters, or of 64 channels of a tap: the matrix units transpose both. As in the other directions (wgmma.cuh) nothing is
// unrolled in memory, and a producer keeps a ring of stages filled (wgmma_ring.cuh):
//
//     stage    64 pixels x kFilters of dy   |   64 pixels x kColumns: 64 channels of each of several taps or slabs
//                         \                                  /
//     consumers            sums of kFilters x kColumns of dw, a half for each, in registers
//
// dw has few tiles and pixels are many. The work, tiles x steps of 64 pixels, is a line that is cut into as many equal pieces
// as there are blocks (stream-K):
//
//     tile      |        0        |        1        |        2        |
//     block     |    0    |    1    |    2    |    3    |    4    | 5 |
//     parts     |   0,0   |0,1| 1,1 |   1,2   | ...                       in the workspace, in slots tile + block
//
// A block leaves the sums of each tile that it has a piece of in a slot of the workspace. It finishes a tile that it has all of
// itself; the others are finished by a second kernel, which adds their parts in order.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/ptx/matrix_store.cuh"
#include "dnncore/ptx/tensor_copy.cuh"

namespace dnncore::wgmma_filter {

using wgmma::kConsumerFilters;
using wgmma::kConsumers;
using wgmma::kSlab;
using wgmma::Position;
using wgmma::Ring;
using wgmma::Row;

inline constexpr int kStagePixels = 64;
inline constexpr int kSumThreads = 128;
inline constexpr int kSumsAtATime = 4;  // of neighbouring columns

// Of dw, where a kernel stores it.
struct Gradient {
  const float* parts;    // [tile + block][filter][column]
  void* dw;
  int64 strides[4];      // K, C, R, S
  int32 filters;
  int32 channels;
  int32 taps[2];         // R, S, as are all pairs: rows first
  int32 slabs;           // of 64 channels
  int32 steps;           // of a tile
  int32 tiles;
  int32 filter_tiles;
  int32 blocks;
};

// _PARAMS in convolution/wgmma_backward_filter.py. Coordinates are 32 bits, and steps of all tiles: the host sees to it.
struct alignas(64) Params {
  TensorMap x;           // 64 pixels, 64 channels of each
  TensorMap dy;          // 64 pixels, 64 filters of each
  Blend blend;
  Gradient gradient;
  int32 output[2];
  int32 stride[2];
  int32 padding[2];
  int32 dilation[2];
  int32 gathers;         // whether x is images; else a matrix whose rows are the pixels of y
};

// The first step of a block's piece of the line.
__device__ __forceinline__ int32 first_step(const Gradient& gradient, int32 block) {
  return static_cast<int32>(static_cast<uint64>(gradient.tiles * gradient.steps) * block / gradient.blocks);
}

// The block that has a step of the line.
__device__ __forceinline__ int32 block_of(const Gradient& gradient, int32 step) {
  const uint32 work = gradient.tiles * gradient.steps;
  return static_cast<int32>(((static_cast<uint64>(step) + 1) * gradient.blocks - 1) / work);
}

__device__ __forceinline__ float* part_of(const Gradient& gradient, int32 tile, int32 block, int sums) {
  return const_cast<float*>(gradient.parts) + static_cast<int64>(tile + block) * sums;
}

// What columns of a tile are: 64 channels of a tap, in the order of rows, columns and channels of the filter.
struct Columns {
  int32 r;
  int32 s;
  int32 channel;  // beyond the last one where there are no such columns

  __device__ __forceinline__ Columns(const Gradient& gradient, int32 block_of_columns) {
    const int32 tap = block_of_columns / gradient.slabs;
    const bool exists = tap < gradient.taps[0] * gradient.taps[1];
    r = exists ? tap / gradient.taps[1] : 0;
    s = exists ? tap % gradient.taps[1] : 0;
    channel = (exists ? block_of_columns % gradient.slabs : gradient.slabs) * kSlab;
  }
};

// Add the parts of four neighbouring sums of a tile of so many filters and columns, in order, and store them in dw.
template <typename T>
__device__ __forceinline__ void finish(
    const Blend& blend, const Gradient& gradient, int32 tile, int32 first_block, int32 last_block, int filters, int columns,
    int row, int column) {
  constexpr int kPartsAtATime = 8;  // loads that are under way
  float4 sum{};
  const float* from = part_of(gradient, tile, first_block, filters * columns) + (row * columns + column);
  for (int32 block = first_block; block <= last_block; block += kPartsAtATime) {
    float4 parts[kPartsAtATime];
#pragma unroll
    for (int i = 0; i < kPartsAtATime; ++i) {
      parts[i] = block + i <= last_block ? __ldcg(reinterpret_cast<const float4*>(from)) : float4{};
      from += filters * columns;
    }
#pragma unroll
    for (int i = 0; i < kPartsAtATime; ++i) {
      sum.x += parts[i].x, sum.y += parts[i].y, sum.z += parts[i].z, sum.w += parts[i].w;
    }
  }
  const Columns at(gradient, tile / gradient.filter_tiles * (columns / kSlab) + column / kSlab);
  const int32 k = tile % gradient.filter_tiles * filters + row, c = at.channel + column % kSlab;
  if (k >= gradient.filters) return;
  const int64 step = gradient.strides[1];
  const int64 offset = k * gradient.strides[0] + c * step + at.r * gradient.strides[2] + at.s * gradient.strides[3];
  T* const dw = static_cast<T*>(gradient.dw) + offset;
  const auto alpha = static_cast<float>(blend.alpha), beta = static_cast<float>(blend.beta);
  float values[kSumsAtATime] = {sum.x * alpha, sum.y * alpha, sum.z * alpha, sum.w * alpha};
  const bool is_whole = c + kSumsAtATime <= gradient.channels;
  if (is_whole && step == 1 && beta == 0.0F && reinterpret_cast<uint64>(dw) % (kSumsAtATime * sizeof(T)) == 0) {
    *reinterpret_cast<uint2*>(dw) = {narrow_pair<T>(values[0], values[1]), narrow_pair<T>(values[2], values[3])};
    return;
  }
#pragma unroll
  for (int i = 0; i < kSumsAtATime; ++i) {
    if (c + i >= gradient.channels) continue;
    if (beta != 0.0F) values[i] += beta * widen(dw[i * step]);
    dw[i * step] = narrow<T>(values[i]);
  }
}

// Tiles of kFilters x kColumns, shared out to the consumers along the filters if these are enough for both.
template <typename T, int kFilters, int kColumns, int kStages>
struct Kernel {
  static constexpr bool kSharesFilters = kFilters == kConsumers * kConsumerFilters;
  static constexpr int kConsumerColumns = kSharesFilters ? kColumns : kColumns / kConsumers;
  static constexpr int kColumnBlocks = kColumns / kSlab;
  static constexpr uint32 kStageBytes = (kFilters + kColumns) / kSlab * kStagePixels * kMatrixRowBytes;
  static_assert((kSharesFilters || kFilters == kConsumerFilters) && kConsumerColumns % kSlab == 0);

  struct Shared {
    Row dy[kStages][kFilters / kSlab][kStagePixels];
    Row x[kStages][kColumnBlocks][kStagePixels];
    Ring<kStages> ring;
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
      prefetch(params.x), prefetch(params.dy);
      shared.ring.make();
      publish_barriers();
    }
    __syncthreads();
    // Uniform, which the compiler knows of what comes out of a shuffle.
    const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (warpgroup == kConsumers) {
      leave_registers<40>();
      if (threadIdx.x % kWarpgroup == 0) produce(params, shared);
    } else {
      take_registers<232>();
      consume(params, shared, warpgroup);
    }
  }

private:
  // Of a tile, what a block has of it.
  struct Piece {
    int32 tile;
    int32 first;
    int32 steps;
  };

  // visit(piece) for each tile that this block has a piece of.
  template <typename Visit>
  static __device__ __forceinline__ void for_each_piece(const Gradient& gradient, const Visit& visit) {
    const auto block = static_cast<int32>(blockIdx.x);
    const int32 end = first_step(gradient, block + 1);
    for (int32 step = first_step(gradient, block); step < end;) {
      const int32 tile = step / gradient.steps, first = step - tile * gradient.steps;
      const int32 steps = min(end - step, gradient.steps - first);
      visit(Piece{tile, first, steps});
      step += steps;
    }
  }

  static __device__ __forceinline__ void produce(const Params& params, Shared& shared) {
    auto at = Ring<kStages>::first_free();
    const Gradient& gradient = params.gradient;
    for_each_piece(gradient, [&](const Piece& piece) {
      const int32 filter = piece.tile % gradient.filter_tiles * kFilters;
      int32 channel[kColumnBlocks], h_offset[kColumnBlocks], w_offset[kColumnBlocks];
#pragma unroll
      for (int i = 0; i < kColumnBlocks; ++i) {
        const Columns columns(gradient, piece.tile / gradient.filter_tiles * kColumnBlocks + i);
        channel[i] = columns.channel;
        h_offset[i] = columns.r * params.dilation[0], w_offset[i] = columns.s * params.dilation[1];
      }
      for (int32 step = piece.first; step < piece.first + piece.steps; ++step) {
        const int32 pixel = step * kStagePixels;
        const int32 row = pixel / params.output[1], image = row / params.output[0];
        const int32 h = row % params.output[0] * params.stride[0] - params.padding[0];
        const int32 w = pixel % params.output[1] * params.stride[1] - params.padding[1];
        Mbarrier& filled = shared.ring.begin_to_fill(at, kStageBytes);
#pragma unroll
        for (int i = 0; i < kFilters / kSlab; ++i) {
          load_window(shared.dy[at.stage][i], params.dy, filled, filter + i * kSlab, pixel);
        }
#pragma unroll
        for (int i = 0; i < kColumnBlocks; ++i) {
          if (params.gathers) {
            load_pixels(shared.x[at.stage][i], params.x, filled, channel[i], w, h, image, w_offset[i], h_offset[i]);
          } else {
            load_window(shared.x[at.stage][i], params.x, filled, channel[i], pixel);
          }
        }
        at.advance();
      }
    });
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    const Gradient& gradient = params.gradient;
    Position<kStages> at;
    for_each_piece(gradient, [&](const Piece& piece) {
      float sums[kConsumerColumns / 2];
      multiply(sums, piece.steps, shared, consumer, at);
      leave(gradient, piece.tile, sums, consumer);
      if (piece.steps == gradient.steps) finish_own(params, piece.tile, consumer);
    });
  }

  static __device__ __forceinline__ void multiply(
      float (&sums)[kConsumerColumns / 2], int steps, Shared& shared, int consumer, Position<kStages>& at) {
    constexpr uint32 kNext = kStagePixels * kMatrixRowBytes;
    const int first_dy = kSharesFilters ? consumer : 0;
    const int first_x = kSharesFilters ? 0 : consumer * (kConsumerColumns / kSlab);
    shared.ring.multiply_each(at, steps, [&](int stage, bool is_first) {
      const uint64 dy = matrix_descriptor(shared_address(&shared.dy[stage][first_dy]), kNext);
      const uint64 x = matrix_descriptor(shared_address(&shared.x[stage][first_x]), kNext);
#pragma unroll
      for (int i = 0; i < kStagePixels / 16; ++i) {
        constexpr int kStep = kMatrixStep<Major::kMN>;
        multiply_matrices<T, Major::kMN, Major::kMN>(sums, dy + i * kStep, x + i * kStep, !is_first || i > 0);
      }
    });
  }

  // The consumer's half of a tile begins at such a row and column.
  static __device__ __forceinline__ int first_row(int consumer) { return kSharesFilters ? consumer * kConsumerFilters : 0; }
  static __device__ __forceinline__ int first_column(int consumer) { return kSharesFilters ? 0 : consumer * kConsumerColumns; }

  static __device__ __forceinline__ void leave(
      const Gradient& gradient, int32 tile, const float (&sums)[kConsumerColumns / 2], int consumer) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    const int row = first_row(consumer) + thread / 32 * 16 + lane / 4, column = first_column(consumer) + lane % 4 * 2;
    float* const to = part_of(gradient, tile, static_cast<int32>(blockIdx.x), kFilters * kColumns) + (row * kColumns + column);
#pragma unroll
    for (int i = 0; i < kConsumerColumns / 8; ++i) {
      *reinterpret_cast<float2*>(to + 8 * i) = {sums[4 * i], sums[4 * i + 1]};
      *reinterpret_cast<float2*>(to + 8 * kColumns + 8 * i) = {sums[4 * i + 2], sums[4 * i + 3]};
    }
  }

  static __device__ __forceinline__ void finish_own(const Params& params, int32 tile, int consumer) {
    synchronize_warpgroup(consumer + 1);
    constexpr int kUnits = kConsumerColumns / kSumsAtATime;  // of a row
    const auto block = static_cast<int32>(blockIdx.x);
    for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < kConsumerFilters * kUnits; i += kWarpgroup) {
      const int row = first_row(consumer) + i / kUnits, column = first_column(consumer) + i % kUnits * kSumsAtATime;
      finish<T>(params.blend, params.gradient, tile, block, block, kFilters, kColumns, row, column);
    }
  }
};

// _SUM_PARAMS in convolution/wgmma_backward_filter.py.
struct SumParams {
  Blend blend;
  Gradient gradient;
  int32 rows;     // filters and columns of a tile
  int32 columns;
};

// Finish the tiles that several blocks have pieces of; a block takes as many sums of one tile as its threads take at a time.
template <typename T>
__device__ void add_parts(const SumParams& params) {
  const Gradient& gradient = params.gradient;
  const int32 units = params.rows * params.columns / kSumsAtATime, blocks_per_tile = units / kSumThreads;
  const int32 tile = static_cast<int32>(blockIdx.x) / blocks_per_tile;
  const int32 unit = static_cast<int32>(blockIdx.x) % blocks_per_tile * kSumThreads + static_cast<int32>(threadIdx.x);
  const int32 first = block_of(gradient, tile * gradient.steps), last = block_of(gradient, (tile + 1) * gradient.steps - 1);
  if (first == last) return;  // it is finished
  const int32 sum = unit * kSumsAtATime;
  finish<T>(params.blend, gradient, tile, first, last, params.rows, params.columns, sum / params.columns, sum % params.columns);
}

}  // namespace dnncore::wgmma_filter
