// What the backward-filter kernels of sm_90 have in common: who computes which piece of dw, and how both operands come to the
// units that multiply.
//
//     dw[k, r, s, c] = sum over pixels of dy[pixel, k] * x[pixel moved by tap (r, s), c]
//
// A product whose sum runs over the pixels of y. Both operands have a pixel to a row, so that a row of 128 bytes, a slab, is one
// summand of 64 filters, or of 64 channels of a tap; of fp32, of 32. Nothing is unrolled in memory: a producer keeps a ring of
// stages filled (wgmma_ring.cuh), and the copy engine gathers the pixels of each tap:
//
//     stage    64 pixels x kFilters of dy   |   64 pixels x kColumns: a slab of channels of each of several taps
//                         \                                  /
//     consumers            sums of kFilters x kColumns of dw, a part for each, in registers
//
// dw has few tiles and pixels are many. The work, tiles x steps of a stage's pixels, is a line that is cut into as many equal
// pieces as there are blocks (stream-K):
//
//     tile      |        0        |        1        |        2        |
//     block     |    0    |    1    |    2    |    3    |    4    | 5 |
//     slot      |    0    |   1   |2|    3    |  4  | 5 |    6    | 7 |  of the workspace
//
// A block stores a tile that it has all of in dw. Of the others it leaves its sums in the workspace, as its threads have them, and
// a second kernel adds their parts in order (filter_parts.cuh): the same bits every time. A tile's slots follow each other. They
// are tile + block where there are no more tiles than blocks, as in the picture. Where there are more, a block leaves at most two
// parts: that of the tile it ends in slot 2 block, that of the tile it begins in slot 2 block + 1.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/ptx/tensor_copy.cuh"

namespace dnncore::filter {

using wgmma::Position;
using wgmma::produce_and_consume;
using wgmma::Ring;
using wgmma::Row;

// Of dw, where a kernel stores it.
struct Gradient {
  float4* parts;         // [slot][sums of its threads, four at a time]
  void* dw;
  int64 strides[4];      // K, C, R, S
  int32 filters;
  int32 channels;
  int32 taps[2];         // R, S, as are all pairs: rows first
  int32 slabs;           // of channels
  int32 tile_step;       // a slab of columns is number tap * slabs + slab; how far it is to those of the next tile along them,
  int32 block_step;      // and to the next slab of a tile
  int32 steps;           // of a tile
  int32 tiles;
  int32 filter_tiles;
  int32 blocks;
  int32 in_vectors;      // whether dw has channels in 16 bytes each, neighbours that begin at multiples of them
};

// PARAMS in convolution/filter_tile.py. Coordinates are 32 bits: the host sees to it.
struct alignas(64) Params {
  TensorMap x;           // a slab of channels of a stage's pixels
  TensorMap dy;          // a slab of filters of them
  Blend blend;
  Gradient gradient;
  int32 output[2];       // pixels of y; of patches, how many there are; of planes, images and stages of each
  int32 stride[2];
  int32 padding[2];
  int32 dilation[2];
  int32 gathers;         // whether x is images; else a matrix whose rows are the pixels of y
};

// The first step of a block's piece of the line; the host sees to it that 32 bits hold the line times the blocks.
__device__ __forceinline__ uint32 first_step(const Gradient& gradient, uint32 block) {
  return static_cast<uint32>(gradient.tiles) * gradient.steps * block / gradient.blocks;
}

// The block that has a step of the line.
__device__ __forceinline__ uint32 block_of(const Gradient& gradient, uint32 step) {
  return ((step + 1) * gradient.blocks - 1) / (static_cast<uint32>(gradient.tiles) * gradient.steps);
}

// The slot of a tile's first part, which the block `first` leaves; those of the blocks behind it follow. The host counts the slots.
__device__ __forceinline__ int32 first_slot(int32 tile, int32 first) { return first + min(tile, first + 1); }

// What a slab of a tile's columns is.
template <int kSlab>
struct Columns {
  int32 r;
  int32 s;
  int32 channel;  // beyond the last one where there are no such columns

  __device__ __forceinline__ Columns(const Gradient& gradient, int32 tile, int32 block) {
    const int32 number = tile / gradient.filter_tiles * gradient.tile_step + block * gradient.block_step;
    const int32 tap = number / gradient.slabs;
    const bool exists = tap < gradient.taps[0] * gradient.taps[1];
    r = exists ? tap / gradient.taps[1] : 0;
    s = exists ? tap % gradient.taps[1] : 0;
    channel = (exists ? number % gradient.slabs : gradient.slabs) * kSlab;
  }
};

// Of a tile, what a block has of it.
struct Piece {
  int32 tile;
  int32 first;
  int32 steps;

  // Of the block's part. A tile that it does not begin, the block before it does; or there are no more tiles than blocks, and the
  // tile's number is the lesser anyway.
  __device__ __forceinline__ int32 slot() const {
    const auto block = static_cast<int32>(blockIdx.x);
    return block + min(tile, block + (first == 0 ? 1 : 0));
  }
};

// visit(piece) for each tile that this block has a piece of.
template <typename Visit>
__device__ __forceinline__ void for_each_piece(const Gradient& gradient, const Visit& visit) {
  const auto end = static_cast<int32>(first_step(gradient, blockIdx.x + 1));
  for (auto step = static_cast<int32>(first_step(gradient, blockIdx.x)); step < end;) {
    const int32 tile = step / gradient.steps, first = step - tile * gradient.steps;
    const int32 steps = min(end - step, gradient.steps - first);
    visit(Piece{tile, first, steps});
    step += steps;
  }
}

// A stage: so many pixels of dy and, of x, what several taps or slabs meet of them.
template <int kPixels, int kSlabs>
struct Pixels {
  static constexpr int kRowsOfDy = kPixels, kSteps = kRowsOfDy / 16;
  static constexpr int kRowsOfX = kPixels, kBlocksOfX = kSlabs;
  static constexpr uint32 kNext = kRowsOfX * kMatrixRowBytes, kPitch = 8 * kMatrixRowBytes;
  static constexpr int kConsumers = 2;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
};

// A stage: 8 x 14 pixels of dy and the patch of x that the taps of 3 x 3 filters meet of them.
struct Patches {
  static constexpr int kWidth = 8, kHeight = 14;
  static constexpr int kRowsOfDy = kWidth * kHeight, kSteps = kRowsOfDy / 16;
  static constexpr int kPatchWidth = kWidth + 2, kRowsOfX = kPatchWidth * (kHeight + 2), kBlocksOfX = 1;
  static constexpr uint32 kNext = kMatrixRowBytes, kPitch = kPatchWidth * kMatrixRowBytes;
  static constexpr int kConsumers = 3;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 152;
};

// A stage: neighbouring pixels of an image, of planes (NCHW) of dy and of x. A slab is as many planes, each a row.
template <int kPixels, int kSlabs>
struct Planes : Pixels<kPixels, kSlabs> {};

// The ring of a kernel with tiles of kFilters x kColumns, and who fills it.
template <typename T, int kFilters, int kColumns, int kStages, typename Stage>
struct Feed {
  static constexpr int kConsumers = Stage::kConsumers;
  static constexpr int kSlab = kMatrixRowBytes / sizeof(T);
  static constexpr int kSlabsOfDy = kFilters / kSlab;
  static constexpr bool kInPatches = std::is_same_v<Stage, Patches>;
  static constexpr bool kInPlanes = std::is_same_v<Stage, Planes<kSlab, kColumns / kSlab>>;
  static_assert(kInPatches || Stage::kBlocksOfX * kSlab == kColumns);

  struct Shared {
    // Every matrix begins at a multiple of 1024 bytes.
    Row dy[kStages][kSlabsOfDy][Stage::kRowsOfDy];
    Row x[kStages][Stage::kBlocksOfX][Stage::kRowsOfX];
    Ring<kStages, kConsumers> ring;
  };
  static constexpr uint32 kStageBytes = sizeof(Shared::dy[0]) + sizeof(Shared::x[0]);

  // consume(shared, consumer) in each consumer.
  template <typename Consume>
  static __device__ __forceinline__ void run(const Params& params, const Consume& consume) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    produce_and_consume<kConsumers, Stage::kProducerRegisters, Stage::kConsumerRegisters>(
        [&] {
          prefetch(params.x), prefetch(params.dy);
          shared.ring.make();
        },
        [&] { produce(params, shared); }, [&](int consumer) { consume(shared, consumer); });
  }

private:
  static __device__ __forceinline__ void produce(const Params& params, Shared& shared) {
    auto at = Ring<kStages, kConsumers>::first_free();
    for_each_piece(params.gradient, [&](const Piece& piece) {
      if constexpr (kInPatches) {
        load_patches(params, shared, piece, at);
      } else if constexpr (kInPlanes) {
        load_planes(params, shared, piece, at);
      } else {
        load_pixels_of_taps(params, shared, piece, at);
      }
    });
  }

  static __device__ __forceinline__ void load_pixels_of_taps(
      const Params& params, Shared& shared, const Piece& piece, Position<kStages>& at) {
    const int32 filter = piece.tile % params.gradient.filter_tiles * kFilters;
    int32 channel[Stage::kBlocksOfX], h_offset[Stage::kBlocksOfX], w_offset[Stage::kBlocksOfX];
#pragma unroll
    for (int i = 0; i < Stage::kBlocksOfX; ++i) {
      const Columns<kSlab> columns(params.gradient, piece.tile, i);
      channel[i] = columns.channel;
      h_offset[i] = columns.r * params.dilation[0], w_offset[i] = columns.s * params.dilation[1];
    }
    for (int32 step = piece.first; step < piece.first + piece.steps; ++step) {
      const int32 pixel = step * Stage::kRowsOfDy;
      const int32 row = pixel / params.output[1], image = row / params.output[0];
      const int32 h = row % params.output[0] * params.stride[0] - params.padding[0];
      const int32 w = pixel % params.output[1] * params.stride[1] - params.padding[1];
      Mbarrier& filled = shared.ring.begin_to_fill(at, kStageBytes);
#pragma unroll
      for (int i = 0; i < Stage::kBlocksOfX; ++i) {
        if (params.gathers) {
          load_pixels(shared.x[at.stage][i], params.x, filled, channel[i], w, h, image, w_offset[i], h_offset[i]);
        } else {
          load_window(shared.x[at.stage][i], params.x, filled, channel[i], pixel);
        }
      }
#pragma unroll
      for (int i = 0; i < kSlabsOfDy; ++i) {
        load_window(shared.dy[at.stage][i], params.dy, filled, filter + i * kSlab, pixel);
      }
      at.advance();
    }
  }

  static __device__ __forceinline__ void load_planes(
      const Params& params, Shared& shared, const Piece& piece, Position<kStages>& at) {
    const int32 filter = piece.tile % params.gradient.filter_tiles * kFilters;
    for (int32 step = piece.first; step < piece.first + piece.steps; ++step) {
      const int32 image = step / params.output[1], pixel = step % params.output[1] * Stage::kRowsOfDy;
      Mbarrier& filled = shared.ring.begin_to_fill(at, kStageBytes);
#pragma unroll
      for (int i = 0; i < Stage::kBlocksOfX; ++i) {
        const int32 channel = Columns<kSlab>(params.gradient, piece.tile, i).channel;
        load_window(shared.x[at.stage][i], params.x, filled, pixel, channel, image);
      }
#pragma unroll
      for (int i = 0; i < kSlabsOfDy; ++i) {
        load_window(shared.dy[at.stage][i], params.dy, filled, pixel, filter + i * kSlab, image);
      }
      at.advance();
    }
  }

  static __device__ __forceinline__ void load_patches(
      const Params& params, Shared& shared, const Piece& piece, Position<kStages>& at) {
    const int32 filter = piece.tile % params.gradient.filter_tiles * kFilters;
    const int32 channel = Columns<kSlab>(params.gradient, piece.tile, 0).channel;
    for (int32 step = piece.first; step < piece.first + piece.steps; ++step) {
      const int32 row = step / params.output[1], image = row / params.output[0];
      const int32 h = row % params.output[0] * Patches::kHeight, w = step % params.output[1] * Patches::kWidth;
      Mbarrier& filled = shared.ring.begin_to_fill(at, kStageBytes);
      load_window(shared.x[at.stage][0], params.x, filled, channel, w - params.padding[1], h - params.padding[0], image);
      load_window(shared.dy[at.stage][0], params.dy, filled, filter, w, h, image);
      at.advance();
    }
  }
};

}  // namespace dnncore::filter
