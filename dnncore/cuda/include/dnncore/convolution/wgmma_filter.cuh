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
//     consumers            sums of kFilters x kColumns of dw, a part for each, in registers
//
// dw has few tiles and pixels are many. The work, tiles x steps of 64 pixels, is a line that is cut into as many equal pieces
// as there are blocks (stream-K):
//
//     tile      |        0        |        1        |        2        |
//     block     |    0    |    1    |    2    |    3    |    4    | 5 |
//     parts     |   0,0   |0,1| 1,1 |   1,2   | ...                       in the workspace, in slots tile + block
//
// A block stores a tile that it has all of in dw. Of the others it leaves its sums in the workspace, as its threads have them, and
// a second kernel adds their parts in order and stores the totals. It starts early (early_launch.cuh), but not before all blocks have
// ended: else the first multiprocessors to be idle would get most of its blocks.
//
// With few channels it is gathering x for every tap that takes the time. For filters of 3 x 3 without stride there are patches
// instead (`Patches`): a stage is 8 x 14 pixels of dy and the 10 x 16 pixels of x that their taps meet, loaded once, and each
// tap is the same memory from another row on:
//
//     x    . . . . . . . . . .      a pixel is a row of 128 bytes; tap (r, s) begins 10 r + s rows further on, eight pixels are
//          . o o o o o o o o .      followed by the next eight 10 rows on, and the columns of tap s + 1 overlap those of tap s,
//          . o o o o o o o o .      a row further on. A consumer has the three taps of one r.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/convolution/sum_of_parts.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/matrix_store.cuh"
#include "dnncore/ptx/tensor_copy.cuh"

namespace dnncore::wgmma_filter {

using wgmma::kConsumerFilters;
using wgmma::kSlab;
using wgmma::Position;
using wgmma::Ring;
using wgmma::Row;

// Of dw, where a kernel stores it.
struct Gradient {
  float4* parts;         // [tile + block][sums of its threads, four at a time]
  void* dw;
  int64 strides[4];      // K, C, R, S
  int32 filters;
  int32 channels;
  int32 taps[2];         // R, S, as are all pairs: rows first
  int32 slabs;           // of 64 channels
  int32 tile_step;       // 64 columns are number tap * slabs + slab; how far it is to those of the next tile along them,
  int32 block_step;      // and to the next 64 columns of a tile
  int32 steps;           // of a tile
  int32 tiles;
  int32 filter_tiles;
  int32 blocks;
  int32 in_vectors;      // whether dw has channels in eights, neighbours that begin at multiples of 16 bytes
};

// _PARAMS in convolution/wgmma_backward_filter.py. Coordinates are 32 bits: the host sees to it.
struct alignas(64) Params {
  TensorMap x;           // 64 channels of a stage's pixels
  TensorMap dy;          // 64 filters of them
  Blend blend;
  Gradient gradient;
  int32 output[2];       // pixels of y; of patches, how many there are
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

// What 64 columns of a tile are.
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

// Where a thread's totals of 64 columns of two filters, k and k + 8, belong in dw.
template <typename T>
class Target {
public:
  __device__ __forceinline__ Target(const Blend& blend, const Gradient& gradient, const Columns& columns, int32 k)
      : alpha_(static_cast<float>(blend.alpha)),
        beta_(static_cast<float>(blend.beta)),
        in_vectors_(gradient.in_vectors != 0 && blend.beta == 0.0),
        filters_(gradient.filters - k),
        channels_(gradient.channels - columns.channel),
        next_filter_(8 * gradient.strides[0]),
        next_channel_(gradient.strides[1]) {
    dw_ = static_cast<T*>(gradient.dw) + (k * gradient.strides[0] + columns.channel * next_channel_ +
                                          columns.r * gradient.strides[2] + columns.s * gradient.strides[3]);
  }

  __device__ __forceinline__ bool in_vectors() const { return in_vectors_; }

  // Two neighbouring columns of both filters.
  __device__ __forceinline__ void store(int column, const float4& sums) const {
    if (in_vectors_) {
      if (column >= channels_) return;
      if (filters_ > 0) *reinterpret_cast<uint32*>(dw_ + column) = pair(sums.x, sums.y);
      if (filters_ > 8) *reinterpret_cast<uint32*>(dw_ + next_filter_ + column) = pair(sums.z, sums.w);
      return;
    }
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (column + i % 2 >= channels_ || filters_ <= i / 2 * 8) continue;
      T* const dw = dw_ + (i / 2 * next_filter_ + (column + i % 2) * next_channel_);
      const float old = beta_ == 0.0F ? 0.0F : beta_ * widen(*dw);
      *dw = narrow<T>(alpha_ * values[i] + old);
    }
  }

  // Four times as many, of which neighbouring lanes have a quarter each, every eight columns: 16 bytes of a lane at a time.
  __device__ __forceinline__ void store_vectors(int column, const float4 (&sums)[4]) const {
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    uint32 upper[4], lower[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) upper[i] = pair(sums[i].x, sums[i].y), lower[i] = pair(sums[i].z, sums[i].w);
    exchange(upper, quarter), exchange(lower, quarter);
    const int here = column + quarter * 8;
    if (here >= channels_) return;
    if (filters_ > 0) *reinterpret_cast<uint4*>(dw_ + here) = {upper[0], upper[1], upper[2], upper[3]};
    if (filters_ > 8) *reinterpret_cast<uint4*>(dw_ + next_filter_ + here) = {lower[0], lower[1], lower[2], lower[3]};
  }

private:
  __device__ __forceinline__ uint32 pair(float first, float second) const {
    return narrow_pair<T>(alpha_ * first, alpha_ * second);
  }

  // Four lanes with four values each: value i of lane q becomes value q of lane i.
  static __device__ __forceinline__ void exchange(uint32 (&values)[4], int lane) {
#pragma unroll
    for (int far = 1; far <= 2; far *= 2) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32& first = values[far == 1 ? 2 * i : i];
        uint32& second = values[far == 1 ? 2 * i + 1 : i + 2];
        const bool keeps_second = (lane & far) != 0;
        const uint32 other = __shfl_xor_sync(~0U, keeps_second ? first : second, far);
        (keeps_second ? first : second) = other;
      }
    }
  }

  float alpha_;
  float beta_;
  bool in_vectors_;
  int32 filters_;   // from k on
  int32 channels_;  // from the first of these columns on
  int64 next_filter_;
  int64 next_channel_;
  T* dw_;
};

// A stage: 64 pixels of dy and, of x, what several taps or slabs meet of them.
template <int kFilters, int kColumns>
struct Pixels {
  static constexpr int kRowsOfDy = 64, kSteps = kRowsOfDy / 16;
  static constexpr int kRowsOfX = 64, kBlocksOfX = kColumns / kSlab;
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

// Tiles of kFilters x kColumns, shared out to the consumers along the filters if these are enough for all.
template <typename T, int kFilters, int kColumns, int kStages, typename Stage = Pixels<kFilters, kColumns>>
struct Kernel {
  static constexpr int kConsumers = Stage::kConsumers;
  static constexpr bool kInPatches = std::is_same_v<Stage, Patches>;
  static constexpr bool kSharesFilters = kFilters == kConsumers * kConsumerFilters;
  static constexpr int kConsumerColumns = kSharesFilters ? kColumns : kColumns / kConsumers;
  static constexpr int kFragments = kConsumerColumns / 8;  // of four sums, of a thread
  static constexpr int kSlabsOfDy = kFilters / kSlab;
  static_assert((kSharesFilters || kFilters == kConsumerFilters) && kConsumerColumns % kSlab == 0);

  struct Shared {
    // Every matrix begins at a multiple of 1024 bytes.
    Row dy[kStages][kSlabsOfDy][Stage::kRowsOfDy];
    Row x[kStages][Stage::kBlocksOfX][Stage::kRowsOfX];
    Ring<kStages, kConsumers> ring;
  };
  static constexpr uint32 kStageBytes = sizeof(Shared::dy[0]) + sizeof(Shared::x[0]);

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
      prefetch(params.x), prefetch(params.dy);
      shared.ring.make();
      publish_barriers();
    }
    __syncthreads();
    wait_for_previous();
    // Uniform, which the compiler knows of what comes out of a shuffle.
    const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    if (warpgroup == kConsumers) {
      leave_registers<Stage::kProducerRegisters>();
      if (threadIdx.x % kWarpgroup == 0) produce(params, shared);
    } else {
      take_registers<Stage::kConsumerRegisters>();
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
    const auto end = static_cast<int32>(first_step(gradient, blockIdx.x + 1));
    for (auto step = static_cast<int32>(first_step(gradient, blockIdx.x)); step < end;) {
      const int32 tile = step / gradient.steps, first = step - tile * gradient.steps;
      const int32 steps = min(end - step, gradient.steps - first);
      visit(Piece{tile, first, steps});
      step += steps;
    }
  }

  static __device__ __forceinline__ void produce(const Params& params, Shared& shared) {
    auto at = Ring<kStages, kConsumers>::first_free();
    for_each_piece(params.gradient, [&](const Piece& piece) {
      if constexpr (kInPatches) {
        load_patches(params, shared, piece, at);
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
      const Columns columns(params.gradient, piece.tile, i);
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

  static __device__ __forceinline__ void load_patches(
      const Params& params, Shared& shared, const Piece& piece, Position<kStages>& at) {
    const int32 filter = piece.tile % params.gradient.filter_tiles * kFilters;
    const int32 channel = Columns(params.gradient, piece.tile, 0).channel;
    for (int32 step = piece.first; step < piece.first + piece.steps; ++step) {
      const int32 row = step / params.output[1], image = row / params.output[0];
      const int32 h = row % params.output[0] * Patches::kHeight, w = step % params.output[1] * Patches::kWidth;
      Mbarrier& filled = shared.ring.begin_to_fill(at, kStageBytes);
      load_window(shared.x[at.stage][0], params.x, filled, channel, w - params.padding[1], h - params.padding[0], image);
      load_window(shared.dy[at.stage][0], params.dy, filled, filter, w, h, image);
      at.advance();
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    Position<kStages> at;
    for_each_piece(params.gradient, [&](const Piece& piece) {
      float sums[kConsumerColumns / 2];
      multiply(sums, piece.steps, shared, consumer, at);
      if (piece.steps == params.gradient.steps) {
        store(params, piece.tile, sums, consumer);
      } else {
        leave(params.gradient, piece.tile, sums, consumer);
      }
    });
  }

  static __device__ __forceinline__ void multiply(
      float (&sums)[kConsumerColumns / 2], int steps, Shared& shared, int consumer, Position<kStages>& at) {
    const int first_dy = kSharesFilters ? consumer : 0;
    const int first_block = kSharesFilters || kInPatches ? 0 : consumer * (kConsumerColumns / kSlab);
    const int first_row = kInPatches ? consumer * Patches::kPatchWidth : 0;
    shared.ring.multiply_each(at, steps, [&](int stage, bool is_first) {
      const uint64 dy =
          matrix_descriptor(shared_address(&shared.dy[stage][first_dy]), 16, 8 * kMatrixRowBytes);
      const uint64 x =
          matrix_descriptor(shared_address(&shared.x[stage][first_block][first_row]), Stage::kNext, Stage::kPitch);
#pragma unroll
      for (int i = 0; i < Stage::kSteps; ++i) {
        multiply_matrices<T, Major::kMN, Major::kMN>(
            sums, dy + i * kMatrixStep<Major::kMN>, x + i * (2 * Stage::kPitch / 16), !is_first || i > 0);
      }
    });
  }

  static __device__ __forceinline__ float4 fragment(const float (&sums)[kConsumerColumns / 2], int i) {
    return {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  }

  static __device__ __forceinline__ void leave(
      const Gradient& gradient, int32 tile, const float (&sums)[kConsumerColumns / 2], int consumer) {
    constexpr int kOfTile = kConsumers * kFragments * kWarpgroup;
    float4* const to = gradient.parts + static_cast<int64>(tile + static_cast<int32>(blockIdx.x)) * kOfTile +
                       (consumer * kFragments * kWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) to[i * kWarpgroup] = fragment(sums, i);
  }

  static __device__ __forceinline__ void store(
      const Params& params, int32 tile, const float (&sums)[kConsumerColumns / 2], int consumer) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    const int row = (kSharesFilters ? consumer * kConsumerFilters : 0) + thread / 32 * 16 + lane / 4;
    const int first_block = kSharesFilters ? 0 : consumer * (kConsumerColumns / kSlab);
    const int32 k = tile % params.gradient.filter_tiles * kFilters + row;
#pragma unroll
    for (int block = 0; block < kConsumerColumns / kSlab; ++block) {
      const Columns columns(params.gradient, tile, first_block + block);
      const Target<T> target(params.blend, params.gradient, columns, k);
#pragma unroll
      for (int i = 0; i < kSlab / 8; i += 4) {
        const int first = block * (kSlab / 8) + i;
        const float4 four[4] = {
            fragment(sums, first), fragment(sums, first + 1), fragment(sums, first + 2), fragment(sums, first + 3)};
        if (!kInPatches && target.in_vectors()) {  // those of patches have no registers to spare, and are hardly ever whole
          target.store_vectors(8 * i, four);
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) target.store(8 * (i + j) + lane % 4 * 2, four[j]);
        }
      }
    }
  }
};

// _SUM_PARAMS in convolution/wgmma_backward_filter.py.
struct SumParams {
  Blend blend;
  Gradient gradient;
  int32 rows;        // filters of a tile
  int32 fragments;   // of a thread, as above
  int32 consumers;
  int32 log2_ways;   // of how many threads share the parts of four sums
};

// Finish the tiles that several blocks have pieces of: blocks along x share out the sums of tile y.
template <typename T>
__device__ void add_parts(const SumParams& params) {
  const Gradient& gradient = params.gradient;
  const auto tile = static_cast<int32>(blockIdx.y);
  const SumOfParts sum_of_parts(params.log2_ways);
  const int32 place = sum_of_parts.place();
  const auto first = static_cast<int32>(block_of(gradient, tile * gradient.steps));
  const auto last = static_cast<int32>(block_of(gradient, (tile + 1) * gradient.steps - 1));
  wait_for_previous();
  if (first == last) return;  // it is stored
  const int64 next = static_cast<int64>(params.consumers * params.fragments * kWarpgroup);  // from part to part
  float4 sum;
  if (!sum_of_parts.add(gradient.parts + (tile + first) * next + place, last - first + 1, next, sum)) return;
  const int32 of_warpgroup = place % kWarpgroup, lane = of_warpgroup % 32;
  const int32 fragment = place / kWarpgroup % params.fragments, consumer = place / kWarpgroup / params.fragments;
  const bool shares_filters = params.rows > kConsumerFilters;
  const int32 row = (shares_filters ? consumer * kConsumerFilters : 0) + of_warpgroup / 32 * 16 + lane / 4;
  const int32 column = ((shares_filters ? 0 : consumer * params.fragments) + fragment) * 8 + lane % 4 * 2;
  const Columns columns(gradient, tile, column / kSlab);
  const int32 k = tile % gradient.filter_tiles * params.rows + row;
  Target<T>(params.blend, gradient, columns, k).store(column % kSlab, sum);
}

}  // namespace dnncore::wgmma_filter
