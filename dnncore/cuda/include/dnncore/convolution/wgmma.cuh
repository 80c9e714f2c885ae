// Convolution by the matrix units and the copy engine of sm_90, forward and backward-data, and whatever follows a forward
// convolution: channels-last images and filters of 16 bits, sums in fp32, or, forward, of int8, sums in int32. A pixel of the
// output is the product of R S C inputs with as many weights of each filter. The inputs are never unrolled in memory: for a
// tap (r, s) of the filter the copy engine gathers a slab of channels, 64 (of int8: 128), of a run of pixels, zeros where they
// are padding, into rows of shared memory, and the matrix units read them there.
//
//                 +------------------------ shared memory -------------------------+
//    images ----->|  stage 0       stage 1       stage 2      ...                  |   A stage is a step of the sums:
//                 |  [ x  | w ]    [ x  | w ]    [ x  | w ]     x: kPixels rows    |   a slab of one tap.
//    filters ---->|   |      |                                  w: kFilters rows   |
//                 +---|------|------------------------------^----------------------+
//       `filled`: its |      |                              |
//       bytes landed  v      v                              | `free`: all eight warps have multiplied it
//    consumer 0     sums = filters 0...63   x pixels  ------+------->  producer: one thread begins the next copies
//    consumer 1     sums = filters 64...127 x pixels  ------+          (of a tile of 64 filters each has half the pixels)
//         |
//         |  the sums of 96 pixels x 64 filters at a time (of fp32: of 48)
//         v
//    scale, bias, residual, activation, blend  -->  box in shared memory  -->  output
//                     ^ residual and old output: by copies into the same box, of which each consumer has two
//
// Blocks stay for the whole launch, one on each multiprocessor, and take tile after tile, so that the copies for the next
// tile run while this one's sums are stored; its residual comes into the other box meanwhile. Three groups of four warps
// share the registers: the producer's gives most of its own to the two consumers.
//
// Filters are the rows of the product and pixels its columns, of which one instruction takes up to 256: a thread then needs
// scale and bias of two filters only, and tiles come in every multiple of 8 pixels. Filters of int8 are loaded in the order in
// which wgmma_box.cuh wants their outputs: of each sixteen the even ones come first.
//
// Boxes that reach beyond an operand, which the engine fills up with zeros, are slow to copy. So a slab of channels that is short,
// whose taps come behind all others, is loaded with channels before it, where there are any, of which nothing is multiplied again;
// and of the filters of the last tile come only as many boxes as have some. A consumer for which there are none leaves the units to
// the other.
//
// Backward-data is a convolution too: of dy, by the filters with their taps in reverse and filters and channels exchanged. x
// is then dy, y is dx and "filters" are channels of dx. Nothing is rearranged: a stage takes 64 filters of 64 channels each as
// they are in memory, a filter to a row, and the matrix units transpose them; those of fp32, which they do not transpose, come with
// filters and channels exchanged, channel by channel of 32 filters each. With strides, the places of dx that have the same
// remainders are a phase, a convolution of its own by every second (third, ...) tap; all phases are tiles of one launch.
#pragma once

#include "dnncore/convolution/wgmma_output.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::wgmma {

// Tiles of kFilters filters x kPixels pixels, shared out to the consumers along the filters if these are enough for both.
// A row of a stage is kRowBytes: half of 128 for few channels, which else would be filled up with zeros.
template <typename T, int kFilters, int kPixels, int kStages, bool kBackward, int kRowBytes>
struct Kernel {
  using Params = wgmma::Params<kBackward>;
  static constexpr bool kSharesFilters = kFilters == kConsumers * kConsumerFilters;
  static constexpr int kConsumerPixels = kSharesFilters ? kPixels : kPixels / kConsumers;
  static constexpr int kParts = kConsumerPixels / Runs<T>::kPixels;
  static constexpr int kSlab = kRowBytes / sizeof(T);                  // channels of a stage
  static constexpr int kProducts = kRowBytes / 32;                     // of a stage
  static constexpr bool kTransposes = kBackward && sizeof(T) == 2;
  static constexpr Major kMajor = kTransposes ? Major::kMN : Major::kK;  // of w in a stage
  static_assert((kSharesFilters || kFilters == kConsumerFilters) && kConsumerPixels % Runs<T>::kPixels == 0);

  struct Shared {
    unsigned char x[kStages][kPixels][kRowBytes];
    unsigned char w[kStages][kFilters][kRowBytes];
    Box<T, Runs<T>> boxes[kConsumers][kBoxes];
    Ring<kStages> ring;
    Mbarrier landed[kConsumers][kBoxes];  // residual or old output
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    let_next_start();
    produce_and_consume<kConsumers, 40, 232>(
        [&] {
          prefetch(params.phases[0].x), prefetch(params.w), prefetch(params.phases[0].y);
          shared.ring.make();
          for (auto& of_consumer : shared.landed) {
            for (Mbarrier& landed : of_consumer) make_barrier(landed, 1);
          }
        },
        [&] { produce(params, shared); }, [&](int consumer) { consume(params, shared, consumer); });
  }

private:
  // A block's tiles. Those of filters are fastest: blocks that run at the same time read the same pixels.
  class Tiles {
  public:
    __device__ __forceinline__ explicit Tiles(const Params& params)
        : params_(params), filter_tiles_(params.filter_tiles), left_(params.pixel_tiles * params.filter_tiles - static_cast<int>(blockIdx.x)) {}
    __device__ __forceinline__ bool any() const { return left_ > 0; }
    __device__ __forceinline__ void next() { left_ -= static_cast<int>(gridDim.x), index_ += static_cast<int>(gridDim.x); }
    __device__ __forceinline__ Place place() const {
      int32 tile = index_ / filter_tiles_, phase = 0;
      if constexpr (kBackward) {
        for (int i = 1; i < kMostPhases; ++i) phase += tile >= params_.phases[i].pixel_tiles;
        tile -= params_.phases[phase].pixel_tiles;
      }
      return {tile * kPixels, index_ % filter_tiles_ * kFilters, phase};
    }

  private:
    const Params& params_;
    int filter_tiles_;
    int left_;
    int index_ = static_cast<int>(blockIdx.x);
  };

  static __device__ __forceinline__ void produce(const Params& params, Shared& shared) {
    auto at = Ring<kStages>::first_free();
    for (Tiles tiles(params); tiles.any(); tiles.next()) {
      const Place tile = tiles.place();
      const Phase& phase = params.phases[tile.phase];
      const Pixel first(phase, tile.pixel);
      const int32 h = first.row * phase.stride[0] - phase.padding[0];
      const int32 w = first.column * phase.stride[1] - phase.padding[1];
      // Boxes of a consumer's filters each, of which the last tile may have one alone; or one for both.
      const int32 box = params.filter_box, boxes = (min(kFilters, params.filters - tile.filter) + box - 1) / box;
      const uint32 nbytes = (kPixels + boxes * box) * kRowBytes;
      const auto load_taps = [&](int32 first_channel, int slabs) {
        const int32 behind = first_channel + slabs * kSlab;
        for (int r = 0; r < phase.taps[0]; ++r) {
          for (int s = 0; s < phase.taps[1]; ++s) {
            const int32 tap_r = kBackward ? phase.first_tap[0] + r * phase.next_tap[0] : r;
            const int32 tap_s = kBackward ? phase.first_tap[1] + s * phase.next_tap[1] : s;
            for (int32 channel = first_channel; channel < behind; channel += kSlab) {
              Mbarrier& filled = shared.ring.begin_to_fill(at, nbytes);
              if (phase.gathers) {
                load_pixels(
                    shared.x[at.stage], phase.x, filled, channel, w, h, first.image, s * phase.dilation[1],
                    r * phase.dilation[0]);
              } else {
                load_window(shared.x[at.stage], phase.x, filled, channel, tile.pixel);
              }
#pragma unroll
              for (int32 i = 0; i < kFilters / kConsumerFilters; ++i) {
                if (i >= boxes) break;
                auto& to = shared.w[at.stage][i * kConsumerFilters];
                const int32 filter = tile.filter + i * kConsumerFilters;
                if constexpr (kTransposes) {
                  load_window(&to, params.w, filled, filter, tap_s, tap_r, channel);
                } else if constexpr (std::is_same_v<T, int8>) {
                  load_groups(&to, params.w, filled, channel, filter / 16, tap_r * phase.taps[1] + tap_s);
                } else {
                  load_window(&to, params.w, filled, channel, tap_s, tap_r, filter);
                }
              }
              at.advance();
            }
          }
        }
      };
      load_taps(phase.slabs[0] * kSlab, phase.slabs[1] - phase.slabs[0]);
      if (phase.short_products > 0) load_taps(phase.short_channel, 1);
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    Output<T, kBackward> output(params, shared.boxes[consumer], shared.landed[consumer], consumer);
    Tiles tiles(params);
    const auto place_of_tile = [&] {
      Place place = tiles.place();
      (kSharesFilters ? place.filter : place.pixel) += consumer * (kSharesFilters ? kConsumerFilters : kConsumerPixels);
      return place;
    };
    // The last tile may have filters for the first consumer alone.
    const auto has_filters = [&](const Place& place) { return !kSharesFilters || place.filter < params.filters; };
    Place next = place_of_tile();
    auto next_parameters = output.parameters(next.filter);
    if (has_filters(next)) output.begin(next);
    Position<kStages> at;
    while (tiles.any()) {
      const Place tile = next;
      const auto parameters = next_parameters;
      const bool multiplies = has_filters(tile);
      MatrixSum<T> sums[kConsumerPixels / 2];
      if (multiplies) {
        multiply(sums, params.phases[tile.phase], shared, consumer, at);
      } else {
        shared.ring.pass_each(at, steps(params.phases[tile.phase]));
      }
      // What the next tile needs beside its sums is under way before this one is stored.
      tiles.next();
      if (tiles.any()) {
        next = place_of_tile();
        next_parameters = output.parameters(next.filter);
      }
      const bool goes_on = tiles.any() && has_filters(next);
      if (!multiplies) {
        if (goes_on) output.begin(next);
        continue;
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const Place here{tile.pixel + part * Runs<T>::kPixels, tile.filter, tile.phase};
        if (part + 1 < kParts) {
          output.begin({here.pixel + Runs<T>::kPixels, here.filter, here.phase});
        } else if (goes_on) {
          output.begin(next);
        }
        output.store(sums + part * (Runs<T>::kPixels / 2), parameters, here);
      }
    }
    output.end();
  }

  static __device__ __forceinline__ int steps(const Phase& phase) {
    return phase.taps[0] * phase.taps[1] * (phase.slabs[1] - phase.slabs[0] + (phase.short_products > 0));
  }

  static __device__ __forceinline__ void multiply(
      MatrixSum<T> (&sums)[kConsumerPixels / 2], const Phase& phase, Shared& shared, int consumer, Position<kStages>& at) {
    const int first_w = kSharesFilters ? consumer * kConsumerFilters : 0;
    const int first_x = kSharesFilters ? 0 : consumer * kConsumerPixels;
    const auto multiply_more = [&](auto products, int steps, int first, bool goes_on) {
      shared.ring.multiply_more(at, steps, goes_on, [&](int stage, bool is_first) {
        const uint64 w = matrix_descriptor<kRowBytes>(shared_address(&shared.w[stage][first_w])) + first * kMatrixStep<kMajor>;
        const uint64 x =
            matrix_descriptor<kRowBytes>(shared_address(&shared.x[stage][first_x])) + first * kMatrixStep<Major::kK>;
#pragma unroll
        for (int k = 0; k < decltype(products)::value; ++k) {
          multiply_matrices<T, kMajor>(sums, w + k * kMatrixStep<kMajor>, x + k * kMatrixStep<Major::kK>, !is_first || k > 0);
        }
      });
    };
    const int taps = phase.taps[0] * phase.taps[1], whole = phase.slabs[1] - phase.slabs[0];
    multiply_more(Products<kProducts>{}, taps * whole, 0, false);
    // The compiler keeps products of the units apart unless it sees how many there are.
    if (phase.short_products == 1) multiply_more(Products<1>{}, taps, phase.short_first, whole > 0);
    if constexpr (kProducts > 2) {
      if (phase.short_products == 2) multiply_more(Products<2>{}, taps, phase.short_first, whole > 0);
      if (phase.short_products == 3) multiply_more(Products<3>{}, taps, phase.short_first, whole > 0);
    }
    shared.ring.end_products(at);
    settle_sums(sums);
  }
};

}  // namespace dnncore::wgmma
