// Convolution by filters of 3 x 3 without stride over images of at most 64 channels, forward and backward-data, as in wgmma.cuh
// but for what is loaded. There it is gathering the inputs anew for every tap that takes the time; here a stage is a patch of
// them, loaded once, and each tap is the same memory from another row on:
//
//     x    . . . . . . . . . .      10 x 30 pixels, a row of 128 bytes each, for 8 x 28 outputs (o). Tap (r, s) begins 10 r + s
//          . o o o o o o o o .      rows further on; of its columns, eight are followed by the next eight 10 rows on.
//          . o o o o o o o o .
//
//     w    9 taps x 64 filters x 64 channels, loaded once for the whole launch: a block keeps its filters
//
//     patches    0      1      2      3    ...       a stage for each consumer
//                |      |      |      |
//     consumer   0      1      0      1              one stores its outputs while the other multiplies
//
// Pixels beyond the borders of y are computed and not stored.
#pragma once

#include "dnncore/convolution/wgmma_output.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::wgmma {

template <typename T, bool kBackward>
struct PatchKernel {
  using Params = wgmma::Params<kBackward>;
  static constexpr int kTaps = 3, kStages = kConsumers;
  static constexpr int kWidth = Rectangles::kWidth, kHeight = 2 * Rectangles::kHeight;
  static constexpr int kPatchWidth = kWidth + kTaps - 1, kPatchRows = kPatchWidth * (kHeight + kTaps - 1);
  static constexpr int kSums = kWidth * kHeight / 2;  // of a thread
  static constexpr Major kMajor = kBackward ? Major::kMN : Major::kK;  // of w

  struct Shared {
    Row x[kStages][(kPatchRows + 7) / 8 * 8];  // begin at multiples of 1024 bytes
    Row w[kTaps][kTaps][kConsumerFilters];
    Box<T, Rectangles> boxes[kConsumers][kBoxes];
    Ring<kStages, 1> ring;                     // a stage has one consumer
    Mbarrier filters;                          // have landed
    Mbarrier landed[kConsumers][kBoxes];       // residual or old output
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    let_next_start();
    produce_and_consume<kConsumers, 40, 232>(
        [&] {
          prefetch(params.phases[0].x), prefetch(params.w), prefetch(params.phases[0].y);
          shared.ring.make();
          make_barrier(shared.filters, 1);
          for (auto& of_consumer : shared.landed) {
            for (Mbarrier& landed : of_consumer) make_barrier(landed, 1);
          }
        },
        [&] { produce(params, shared); }, [&](int consumer) { consume(params, shared, consumer); });
  }

private:
  // The block's filters, and its patches: every so-manyeth. The host sees to it that blocks are a multiple of the tiles of filters.
  static __device__ __forceinline__ int32 filter(const Params& params) {
    return static_cast<int32>(blockIdx.x) % params.filter_tiles * kConsumerFilters;
  }
  static __device__ __forceinline__ int32 first_patch(const Params& params) {
    return static_cast<int32>(blockIdx.x) / params.filter_tiles;
  }
  static __device__ __forceinline__ int32 patch_step(const Params& params) {
    return static_cast<int32>(gridDim.x) / params.filter_tiles;
  }

  static __device__ __forceinline__ void produce(const Params& params, Shared& shared) {
    const Phase& phase = params.phases[0];
    arrive_expecting(shared.filters, sizeof(shared.w));
    for (int r = 0; r < kTaps; ++r) {
      for (int s = 0; s < kTaps; ++s) {
        if constexpr (kBackward) {
          const int32 tap_r = phase.first_tap[0] + r * phase.next_tap[0], tap_s = phase.first_tap[1] + s * phase.next_tap[1];
          load_window(shared.w[r][s], params.w, shared.filters, filter(params), tap_s, tap_r, 0);
        } else {
          load_window(shared.w[r][s], params.w, shared.filters, 0, s, r, filter(params));
        }
      }
    }
    auto at = Ring<kStages, 1>::first_free();
    for (int32 patch = first_patch(params); patch < params.pixel_tiles; patch += patch_step(params)) {
      const Pixel place(phase, patch);
      Mbarrier& filled = shared.ring.begin_to_fill(at, kPatchRows * kMatrixRowBytes);
      load_window(
          shared.x[at.stage], phase.x, filled, 0, place.column * kWidth - phase.padding[1],
          place.row * kHeight - phase.padding[0], place.image);
      at.advance();
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    Output<T, kBackward, Rectangles> output(params, shared.boxes[consumer], shared.landed[consumer], consumer);
    const int32 step = kConsumers * patch_step(params);
    const auto parameters = output.parameters(filter(params));
    int32 patch = first_patch(params) + consumer * patch_step(params);
    if (patch >= params.pixel_tiles) return;
    output.begin({2 * patch, filter(params), 0});
    const Phase& phase = params.phases[0];
    const int products = phase.short_products > 0 ? phase.short_products : kSlab / 16;
    wait(shared.filters, 0);
    for (Position<kStages> at{consumer, 0}; patch < params.pixel_tiles; patch += step) {
      float sums[kSums];
      multiply(sums, products, shared, at);
      const Place first{2 * patch, filter(params), 0}, second{2 * patch + 1, filter(params), 0};
      output.begin(second);
      output.store(sums, parameters, first);
      if (patch + step < params.pixel_tiles) output.begin({2 * (patch + step), filter(params), 0});
      output.store(sums + kSums / 2, parameters, second);
    }
    output.end();
  }

  static __device__ __forceinline__ void multiply(float (&sums)[kSums], int products, Shared& shared, Position<kStages>& at) {
    wait(shared.ring.filled[at.stage], at.parity);
    for (int k = 0; k < products; ++k) {
      fence_sums();
#pragma unroll
      for (int tap = 0; tap < kTaps * kTaps; ++tap) {
        const int r = tap / kTaps, s = tap % kTaps;
        const uint64 w = matrix_descriptor(shared_address(shared.w[r][s]));
        const uint64 x = matrix_descriptor(
            shared_address(&shared.x[at.stage][r * kPatchWidth + s]), 16, kPatchWidth * kMatrixRowBytes);
        multiply_matrices<T, kMajor>(sums, w + k * kMatrixStep<kMajor>, x + k * kMatrixStep<Major::kK>, tap + k > 0);
      }
      commit_products();
      wait_for_products<1>();
    }
    wait_for_products<0>();
    shared.ring.release(at.stage);
    at.advance();
    at.advance();  // past the other's
  }
};

}  // namespace dnncore::wgmma
