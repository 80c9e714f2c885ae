// Convolution by filters of 3 x 3 without stride, forward and backward-data, as in wgmma.cuh but for what is loaded. There the inputs
// are gathered anew for every tap, as fast as the cache can; here a patch of them, of a slab of channels, is loaded once, and each tap
// is the same memory from another row on:
//
//     x    . . . . . . . . . .      10 x 30 pixels, a row of 128 bytes each, for 8 x 28 outputs (o). Tap (r, s) begins 10 r + s
//          . o o o o o o o o .      rows further on; of its columns, eight are followed by the next eight 10 rows on.
//          . o o o o o o o o .      Or 10 x 16 pixels of two images each, for images of up to 14 rows: the columns of the two
//          . . . . . . . . . .      rows that lie between their outputs are computed in vain.
//
//     w    9 taps x 64 filters x a slab of channels, each tap a stage. Where one slab is all, a block keeps its filters for the
//          whole launch.
//
//     tiles      0      1      2      3    ...       patches x filters; a tile's slabs follow one another through both rings
//                |      |      |      |
//     consumer   0      1      0      1              one stores its outputs while the other multiplies
//
// Pixels beyond the borders of y are computed and not stored. Of int8, which is forward alone, a slab is 128 channels.
#pragma once

#include "dnncore/convolution/wgmma_output.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::wgmma {

// Of as many images as a patch is; forward may store the largest of each two by two pixels alone.
template <typename T, bool kBackward, int kImages, bool kPools>
struct PatchKernel {
  using Params = wgmma::Params<kBackward>;
  static constexpr int kSide = 3, kTaps = kSide * kSide, kPatches = 2;
  using Shape = std::conditional_t<kPools, PooledRectangles, Rectangles<kImages>>;
  static_assert(Shape::kImages == kImages && !(kBackward && kPools));
  static constexpr int kWidth = Shape::kWidth, kHeight = 2 / kImages * Shape::kHeight;  // of an image
  static constexpr int kPatchWidth = kWidth + kSide - 1, kPatchHeight = kHeight + kSide - 1;
  static constexpr int kPatchRows = kImages * kPatchHeight * kPatchWidth;
  static constexpr int kSecond = (kImages == 2 ? kPatchHeight : Shape::kHeight) * kWidth / 2;  // sums of the second rectangle
  static constexpr int kSums = kSecond + Shape::kPixels / 2;                                   // of a thread
  static constexpr int kSlab = kMatrixRowBytes / sizeof(T);
  static constexpr int kProducts = kMatrixRowBytes / 32;               // of a slab
  static constexpr Major kMajor = kBackward ? Major::kMN : Major::kK;  // of w

  struct Shared {
    Row x[kPatches][(kPatchRows + 7) / 8 * 8];  // begin at multiples of 1024 bytes
    Row w[kTaps][kConsumerFilters];
    Box<T, Shape> boxes[kConsumers][kBoxes];
    Ring<kPatches, 1> patches;  // a stage has one consumer
    Ring<kTaps, 1> taps;
    Mbarrier turns[kConsumers];           // the other has begun all products of its tile
    Mbarrier landed[kConsumers][kBoxes];  // residual or old output
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    let_next_start();
    produce_and_consume<kConsumers, 40, 232>(
        [&] {
          prefetch(params.phases[0].x), prefetch(params.w), prefetch(params.phases[0].y);
          shared.patches.make();
          shared.taps.make();
          for (Mbarrier& turn : shared.turns) make_barrier(turn, kWarpgroup / 32);
          for (auto& of_consumer : shared.landed) {
            for (Mbarrier& landed : of_consumer) make_barrier(landed, 1);
          }
        },
        [&] { produce(params, shared); }, [&](int consumer) { consume(params, shared, consumer); });
  }

private:
  // A block's tiles: every so-manyeth, those of filters fastest. Where it keeps its filters, the host sees to it that blocks are a
  // multiple of their tiles.
  static __device__ __forceinline__ int32 tiles(const Params& params) { return params.pixel_tiles * params.filter_tiles; }
  static __device__ __forceinline__ int32 filter(const Params& params, int32 tile) {
    return tile % params.filter_tiles * kConsumerFilters;
  }
  // The first of its rectangles.
  static __device__ __forceinline__ Place place(const Params& params, int32 tile) {
    return {2 * (tile / params.filter_tiles), filter(params, tile), 0};
  }
  static __device__ __forceinline__ int slabs(const Phase& phase) {
    return phase.slabs[1] - phase.slabs[0] + (phase.short_products > 0);
  }

  static __device__ __forceinline__ void produce(const Params& params, Shared& shared) {
    const Phase& phase = params.phases[0];
    const int whole = phase.slabs[1] - phase.slabs[0], all = slabs(phase);
    auto patch_at = Ring<kPatches, 1>::first_free();
    auto tap_at = Ring<kTaps, 1>::first_free();
    const auto first = static_cast<int32>(blockIdx.x);
    for (int32 tile = first; tile < tiles(params); tile += static_cast<int32>(gridDim.x)) {
      const Pixel at(phase, tile / params.filter_tiles);
      for (int slab = 0; slab < all; ++slab) {
        const int32 channel = slab < whole ? slab * kSlab : phase.short_channel;
        load_window(
            shared.x[patch_at.stage], phase.x, shared.patches.begin_to_fill(patch_at, kPatchRows * kMatrixRowBytes), channel,
            at.column * kWidth - phase.padding[1], at.row * kHeight - phase.padding[0], at.image * kImages);
        patch_at.advance();
        if (all == 1 && tile != first) continue;
        for (int tap = 0; tap < kTaps; ++tap) {
          const int32 r = tap / kSide, s = tap % kSide;
          Mbarrier& filled = shared.taps.begin_to_fill(tap_at, sizeof(shared.w[tap]));
          if constexpr (kBackward) {
            const int32 tap_r = phase.first_tap[0] + r * phase.next_tap[0], tap_s = phase.first_tap[1] + s * phase.next_tap[1];
            load_window(shared.w[tap], params.w, filled, filter(params, tile), tap_s, tap_r, channel);
          } else if constexpr (std::is_same_v<T, int8>) {
            load_groups(shared.w[tap], params.w, filled, channel, filter(params, tile) / 16, tap);
          } else {
            load_window(shared.w[tap], params.w, filled, channel, s, r, filter(params, tile));
          }
          tap_at.advance();
        }
      }
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    Output<T, kBackward, Shape> output(params, shared.boxes[consumer], shared.landed[consumer], consumer);
    const Phase& phase = params.phases[0];
    const int32 step = kConsumers * static_cast<int32>(gridDim.x);
    int32 tile = static_cast<int32>(blockIdx.x) + consumer * static_cast<int32>(gridDim.x);
    if (tile >= tiles(params)) return;
    auto parameters = output.parameters(filter(params, tile));
    output.begin(place(params, tile));
    const int all = slabs(phase);
    // Stages are filled for both in turn: who waits for a filling must know that the one before it was seen.
    uint32 turn = consumer == 0;
    for (int number = consumer * all; tile < tiles(params); tile += step, number += kConsumers * all, turn ^= 1) {
      wait(shared.turns[consumer], turn);
      MatrixSum<T> sums[kSums];
      multiply(sums, phase, shared, number, shared.turns[1 - consumer]);
      const Place first = place(params, tile), second{first.pixel + 1, first.filter, 0};
      const auto now = parameters;
      output.begin(second);
      if (tile + step < tiles(params)) parameters = output.parameters(filter(params, tile + step));
      output.store(sums, now, first);
      if (tile + step < tiles(params)) output.begin(place(params, tile + step));
      output.store(sums + kSecond, now, second);
    }
    output.end();
  }

  // The sums of a tile, whose first slab is the block's of that number; then it is the other's turn.
  static __device__ __forceinline__ void multiply(
      MatrixSum<T> (&sums)[kSums], const Phase& phase, Shared& shared, int number, Mbarrier& turn) {
    const int whole = phase.slabs[1] - phase.slabs[0], last = number + slabs(phase) - 1;
    const bool keeps = slabs(phase) == 1;
    for (int slab = 0; slab < whole; ++slab) {
      multiply_taps(Products<kProducts>{}, sums, shared, number + slab, 0, slab > 0, keeps);
    }
    // The compiler keeps products of the units apart unless it sees how many there are.
    if (phase.short_products == 1) multiply_taps(Products<1>{}, sums, shared, last, phase.short_first, whole > 0, keeps);
    if (phase.short_products == 2) multiply_taps(Products<2>{}, sums, shared, last, phase.short_first, whole > 0, keeps);
    if (phase.short_products == 3) multiply_taps(Products<3>{}, sums, shared, last, phase.short_first, whole > 0, keeps);
    if (threadIdx.x % 32 == 0) arrive(turn);
    wait_for_products<0>();
    settle_sums(sums);
    if (!keeps) shared.taps.release(kTaps - 1);
    shared.patches.release(last % kPatches);
  }

  // Of one slab the products from `first` on, added to those of the slab before if the sums go on.
  template <typename Products>
  static __device__ __forceinline__ void multiply_taps(
      Products, MatrixSum<T> (&sums)[kSums], Shared& shared, int number, int first, bool goes_on, bool keeps) {
    const int stage = number % kPatches;
    wait(shared.patches.filled[stage], number / kPatches % 2);
    for (int tap = 0; tap < kTaps; ++tap) {
      wait(shared.taps.filled[tap], keeps ? 0 : number % 2);
      fence_sums();
      const uint64 w = matrix_descriptor(shared_address(shared.w[tap])) + first * kMatrixStep<kMajor>;
      const uint64 x = matrix_descriptor(
          shared_address(&shared.x[stage][tap / kSide * kPatchWidth + tap % kSide]), 16, kPatchWidth * kMatrixRowBytes) +
          first * kMatrixStep<Major::kK>;
#pragma unroll
      for (int k = 0; k < Products::value; ++k) {
        multiply_matrices<T, kMajor>(
            sums, w + k * kMatrixStep<kMajor>, x + k * kMatrixStep<Major::kK>, goes_on || tap + k > 0);
      }
      commit_products();
      wait_for_products<1>();  // those of the tap before
      if (tap > 0) {
        if (!keeps) shared.taps.release(tap - 1);
      } else if (goes_on) {
        shared.taps.release(kTaps - 1);
        shared.patches.release((number - 1) % kPatches);
      }
    }
  }
};

}  // namespace dnncore::wgmma
