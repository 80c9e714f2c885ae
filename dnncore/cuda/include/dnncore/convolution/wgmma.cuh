// Convolution by the matrix units and the copy engine of sm_90, forward and backward-data: 16-bit channels-last images and
// filters, sums in fp32, and whatever follows a forward convolution. A pixel of the output is the product of R S C inputs with as many weights of
// each filter. The inputs are never unrolled in memory: for a tap (r, s) of the filter the copy engine gathers 64 channels
// of a run of pixels, zeros where they are padding, into rows of shared memory, and the matrix units read them there.
//
//                 +------------------------ shared memory -------------------------+
//    images ----->|  stage 0       stage 1       stage 2      ...                  |   A stage is a step of the sums:
//                 |  [ x  | w ]    [ x  | w ]    [ x  | w ]     x: kPixels rows    |   64 channels of one tap.
//    filters ---->|   |      |                                  w: kFilters rows   |
//                 +---|------|------------------------------^----------------------+
//       `filled`: its |      |                              |
//       bytes landed  v      v                              | `free`: all eight warps have multiplied it
//    consumer 0     sums = filters 0...63   x pixels  ------+------->  producer: one thread begins the next copies
//    consumer 1     sums = filters 64...127 x pixels  ------+          (of a tile of 64 filters each has half the pixels)
//         |
//         |  the sums of 96 pixels x 64 filters at a time
//         v
//    scale, bias, residual, activation, blend  -->  box in shared memory  -->  output
//                     ^ residual and old output: by copies into the same box, of which each consumer has two
//
// Blocks stay for the whole launch, one on each multiprocessor, and take tile after tile, so that the copies for the next
// tile run while this one's sums are stored; its residual comes into the other box meanwhile. Three groups of four warps
// share the registers: the producer's gives most of its own to the two consumers.
//
// Filters are the rows of the product and pixels its columns, of which one instruction takes up to 256: a thread then needs
// scale and bias of two filters only, and tiles come in every multiple of 8 pixels. In the box a pixel is a row of 128
// bytes, 64 channels, as the copy engine stores it.
//
// Backward-data is a convolution too: of dy, by the filters with their taps in reverse and filters and channels exchanged. x
// is then dy, y is dx and "filters" are channels of dx. Nothing is rearranged: a stage takes 64 filters of 64 channels each as
// they are in memory, a filter to a row, and the matrix units transpose them. With strides, the places of dx that have the same
// remainders are a phase, a convolution of its own by every second (third, ...) tap; all phases are tiles of one launch.
#pragma once

#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/gemm/epilogue.cuh"
#include "dnncore/ptx/matrix.cuh"
#include "dnncore/ptx/matrix_store.cuh"
#include "dnncore/ptx/tensor_copy.cuh"

namespace dnncore::wgmma {

// Taps over pixels: a forward convolution, or a phase of a backward-data one. Pairs are rows and columns, rows first.
struct alignas(64) Phase {
  TensorMap x;          // runs of kPixels pixels, 64 channels of each
  TensorMap y;          // boxes of 96 pixels, 64 channels of each
  int32 slabs[2];       // the first one of 64 channels of x, and the one behind the last
  int32 taps[2];        // how many
  int32 first_tap[2];   // backward-data: the filter's tap that is the first here, and how far the next one is
  int32 next_tap[2];
  int32 output[2];      // pixels of y
  int32 stride[2];
  int32 padding[2];
  int32 dilation[2];
  int32 pixel_tiles;    // up to the first of this phase
  int32 gathers;        // whether x is images; else a matrix whose rows are the pixels of y
  int32 scatters;       // whether y is images; else a matrix
};

inline constexpr int kMostPhases = 4;

// _PARAMS in convolution/wgmma_kernel.py. Coordinates are 32 bits: the host refuses more pixels.
template <bool kBackward>
struct alignas(64) Params {
  TensorMap w;  // 64 channels of one tap of kFilters filters; backward-data: of 64 filters
  TensorMap z;  // as y
  Phase phases[kBackward ? kMostPhases : 1];
  Blend blend;
  Epilogue epilogue;
  int32 filters;
  int32 pixel_tiles;
  int32 filter_tiles;
};

inline constexpr int kBoxPixels = 96;
inline constexpr int kBoxSums = kBoxPixels / 2;                 // of a thread
inline constexpr int kBoxes = 2;                                // of a consumer

// The first output of a tile or a box.
struct Place {
  int32 pixel;
  int32 filter;
  int32 phase;
};

// The same pixel of y among images.
struct Pixel {
  int32 image;
  int32 row;
  int32 column;

  __device__ __forceinline__ Pixel(const Phase& phase, int32 pixel) {
    const int32 rows = pixel / phase.output[1];
    image = rows / phase.output[0], row = rows % phase.output[0], column = pixel % phase.output[1];
  }
};

struct Box {
  Row pixels[kBoxPixels];
};

// How a consumer's four warps finish sums and store them, 96 pixels x 64 filters at a time, in two boxes in turn.
template <typename T, bool kBackward>
class Output {
public:
  __device__ __forceinline__ Output(const Params<kBackward>& params, Box* boxes, Mbarrier* landed, int consumer)
      : params_(params), boxes_(boxes), landed_(landed), consumer_(consumer) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
    leads_ = thread == 0;
    row_ = thread / 32 * 16 + lane / 4;
    // Lanes 8 m to 8 m + 7 address the rows of matrix m: pixels, and of these 8 filters, which are a chunk of 16 bytes.
    const int pixel = lane / 16 * 8 + lane % 8, chunk = thread / 32 * 2 + lane / 8 % 2;
    matrices_ = pixel * kMatrixRowBytes + ((chunk ^ (pixel % 8)) << 4);
  }

  // Begin to load the residual of the box after those that were begun; nothing where there is none.
  __device__ __forceinline__ void begin(const Place& place) {
    if (reads_z()) load(params_.z, false, begun_, place);
    begun_ ^= 1;
  }

  // Scale and bias of a thread's two filters, as they are stored: nothing waits for them before they are used.
  struct Parameters {
    uint32 scale[2];
    uint32 bias[2];
  };
  __device__ __forceinline__ Parameters parameters(int32 filter) const {
    if constexpr (kBackward) return {};
    return params_.epilogue.widened ? read_parameters<uint32>(filter) : read_parameters<std::uint16_t>(filter);
  }

  // Finish and store the sums of one box; `begin` has been called for it, and for the next one if there is any.
  __device__ __forceinline__ void store(float* sums, const Parameters& parameters, const Place& place) {
    const Phase& phase = params_.phases[place.phase];
    if constexpr (!kBackward) finish(sums, parameters);
    const auto alpha = static_cast<float>(params_.blend.alpha);
#pragma unroll
    for (int i = 0; i < kBoxSums; ++i) sums[i] *= alpha;
    if (params_.blend.beta != 0.0) {
      synchronize();  // all warps have read the residual
      load(phase.y, kBackward && phase.scatters, current_, place);
      add(sums, static_cast<float>(params_.blend.beta));
    }
    if (leads_) wait_for_stores_to_read<kBoxes - 1>();
    synchronize();
    write(sums);
    publish_to_engine();
    synchronize();
    if (leads_) {
      if (kBackward && phase.scatters) {
        const Pixel at(phase, place.pixel);
        store_pixels(phase.y, &boxes_[current_], place.filter, at.column, at.row, at.image);
      } else {
        store_window(phase.y, &boxes_[current_], place.filter, place.pixel);
      }
    }
    current_ ^= 1;
  }

  // Shared memory must outlive the reading of the last boxes.
  __device__ __forceinline__ void end() const {
    if (leads_) wait_for_stores_to_read<0>();
  }

private:
  __device__ __forceinline__ bool reads_z() const { return !kBackward && params_.epilogue.reads_z(); }

  // All that follows the convolution, but for blending.
  __device__ __forceinline__ void finish(float* sums, const Parameters& parameters) {
    const Epilogue& epilogue = params_.epilogue;
    float scales[2], biases[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = epilogue.scale == nullptr ? 1.0F : number_of(parameters.scale[i]);
      scales[i] = static_cast<float>(epilogue.alpha1) * scale;
      biases[i] = number_of(parameters.bias[i]);
    }
#pragma unroll
    for (int i = 0; i < kBoxSums; ++i) sums[i] = sums[i] * scales[i / 2 % 2] + biases[i / 2 % 2];
    if (reads_z()) add(sums, static_cast<float>(epilogue.alpha2));
    activate_all(sums);
  }

  // Word is as large as they are.
  template <typename Word>
  __device__ __forceinline__ Parameters read_parameters(int32 filter) const {
    const Epilogue& epilogue = params_.epilogue;
    const auto* scale = static_cast<const Word*>(epilogue.scale);
    const auto* bias = static_cast<const Word*>(epilogue.bias);
    Parameters found{};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32 k = filter + row_ + 8 * i;
      if (k < params_.filters && scale != nullptr) found.scale[i] = scale[k * epilogue.scale_stride];
      if (k < params_.filters && bias != nullptr) found.bias[i] = bias[k * epilogue.bias_stride];
    }
    return found;
  }
  __device__ __forceinline__ float number_of(uint32 bits) const {
    return params_.epilogue.widened ? __uint_as_float(bits) : first_of<T>(bits);
  }

  __device__ __forceinline__ void synchronize() const { synchronize_warpgroup(consumer_ + 1); }

  __device__ __forceinline__ void load(const TensorMap& map, bool gathers, uint32 box, const Place& place) {
    if (!leads_) return;
    wait_for_stores_to_read<0>();
    arrive_expecting(landed_[box], sizeof(Box));
    if (gathers) {
      const Pixel at(params_.phases[place.phase], place.pixel);
      load_pixels(&boxes_[box], map, landed_[box], place.filter, at.column, at.row, at.image, 0, 0);
    } else {
      load_window(&boxes_[box], map, landed_[box], place.filter, place.pixel);
    }
  }

  // Sixteen pixels of the current box, as the warp's matrices.
  __device__ __forceinline__ void* matrices(int group) const {
    return reinterpret_cast<unsigned char*>(&boxes_[current_].pixels[group * 16]) + matrices_;
  }

  // Add what was loaded into the current box, times a factor.
  __device__ __forceinline__ void add(float* sums, float factor) {
    wait(landed_[current_], parities_ >> current_ & 1);
    parities_ ^= 1U << current_;
#pragma unroll
    for (int group = 0; group < kBoxPixels / 16; ++group) {
      uint32 pairs[4];
      load_transposed_matrices(pairs, matrices(group));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[8 * group + 2 * i] += factor * first_of<T>(pairs[i]);
        sums[8 * group + 2 * i + 1] += factor * second_of<T>(pairs[i]);
      }
    }
  }

  // Only activations that are a comparison or two: their code is there for every one of a thread's sums.
  __device__ __forceinline__ void activate_all(float* sums) const {
    const Activation& activation = params_.epilogue.activation;
    const auto all = [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < kBoxSums; ++i) sums[i] = activate<chosen.kMode>(activation, sums[i]);
    };
    switch (activation.mode) {
      case ActivationMode::kRelu: return all(KnownMode<ActivationMode::kRelu>{});
      case ActivationMode::kClippedRelu: return all(KnownMode<ActivationMode::kClippedRelu>{});
      case ActivationMode::kLeakyRelu: return all(KnownMode<ActivationMode::kLeakyRelu>{});
      default: return;  // the identity
    }
  }

  __device__ __forceinline__ void write(const float* sums) const {
#pragma unroll
    for (int group = 0; group < kBoxPixels / 16; ++group) {
      uint32 pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = narrow_pair<T>(sums[8 * group + 2 * i], sums[8 * group + 2 * i + 1]);
      store_transposed_matrices(matrices(group), pairs);
    }
  }

  const Params<kBackward>& params_;
  Box* boxes_;
  Mbarrier* landed_;     // of each box
  int consumer_;
  bool leads_;
  int row_;              // of the sums: a filter
  int matrices_;         // bytes of a box from its beginning
  uint32 begun_ = 0;     // the next box to begin
  uint32 current_ = 0;   // the next one to store
  uint32 parities_ = 0;  // a bit for each box
};

// Tiles of kFilters filters x kPixels pixels, shared out to the consumers along the filters if these are enough for both.
template <typename T, int kFilters, int kPixels, int kStages, bool kBackward>
struct Kernel {
  using Params = wgmma::Params<kBackward>;
  static constexpr bool kSharesFilters = kFilters == kConsumers * kConsumerFilters;
  static constexpr int kConsumerPixels = kSharesFilters ? kPixels : kPixels / kConsumers;
  static constexpr int kParts = kConsumerPixels / kBoxPixels;
  static constexpr Major kMajor = kBackward ? Major::kMN : Major::kK;  // of w in a stage
  static constexpr uint32 kStageBytes = (kPixels + kFilters) * kMatrixRowBytes;
  static_assert((kSharesFilters || kFilters == kConsumerFilters) && kConsumerPixels % kBoxPixels == 0);

  struct Shared {
    Row x[kStages][kPixels];
    Row w[kStages][kFilters];
    Box boxes[kConsumers][kBoxes];
    Ring<kStages> ring;
    Mbarrier landed[kConsumers][kBoxes];  // residual or old output
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x == 0) {
      prefetch(params.phases[0].x), prefetch(params.w), prefetch(params.phases[0].y);
      shared.ring.make();
      for (auto& of_consumer : shared.landed) {
        for (Mbarrier& landed : of_consumer) make_barrier(landed, 1);
      }
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
      for (int r = 0; r < phase.taps[0]; ++r) {
        for (int s = 0; s < phase.taps[1]; ++s) {
          for (int slab = phase.slabs[0]; slab < phase.slabs[1]; ++slab) {
            Mbarrier& filled = shared.ring.begin_to_fill(at, kStageBytes);
            if (phase.gathers) {
              load_pixels(
                  shared.x[at.stage], phase.x, filled, slab * kSlab, w, h, first.image, s * phase.dilation[1],
                  r * phase.dilation[0]);
            } else {
              load_window(shared.x[at.stage], phase.x, filled, slab * kSlab, tile.pixel);
            }
            if constexpr (kBackward) {
              const int32 tap_r = phase.first_tap[0] + r * phase.next_tap[0];
              const int32 tap_s = phase.first_tap[1] + s * phase.next_tap[1];
#pragma unroll
              for (int i = 0; i < kFilters; i += kSlab) {
                load_window(&shared.w[at.stage][i], params.w, filled, tile.filter + i, tap_s, tap_r, slab * kSlab);
              }
            } else {
              load_window(shared.w[at.stage], params.w, filled, slab * kSlab, s, r, tile.filter);
            }
            at.advance();
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    const auto steps = [&](const Place& place) {
      const Phase& phase = params.phases[place.phase];
      return phase.taps[0] * phase.taps[1] * (phase.slabs[1] - phase.slabs[0]);
    };
    Output<T, kBackward> output(params, shared.boxes[consumer], shared.landed[consumer], consumer);
    Tiles tiles(params);
    const auto place_of_tile = [&] {
      Place place = tiles.place();
      (kSharesFilters ? place.filter : place.pixel) += consumer * (kSharesFilters ? kConsumerFilters : kConsumerPixels);
      return place;
    };
    Place next = place_of_tile();
    auto next_parameters = output.parameters(next.filter);
    output.begin(next);
    Position<kStages> at;
    while (tiles.any()) {
      const Place tile = next;
      const auto parameters = next_parameters;
      float sums[kConsumerPixels / 2];
      multiply(sums, steps(tile), shared, consumer, at);
      // What the next tile needs beside its sums is under way before this one is stored.
      tiles.next();
      if (tiles.any()) {
        next = place_of_tile();
        next_parameters = output.parameters(next.filter);
      }
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const Place here{tile.pixel + part * kBoxPixels, tile.filter, tile.phase};
        if (part + 1 < kParts) {
          output.begin({here.pixel + kBoxPixels, here.filter, here.phase});
        } else if (tiles.any()) {
          output.begin(next);
        }
        output.store(sums + part * kBoxSums, parameters, here);
      }
    }
    output.end();
  }

  static __device__ __forceinline__ void multiply(
      float (&sums)[kConsumerPixels / 2], int steps, Shared& shared, int consumer, Position<kStages>& at) {
    const int first_w = kSharesFilters ? consumer * kConsumerFilters : 0;
    const int first_x = kSharesFilters ? 0 : consumer * kConsumerPixels;
    shared.ring.multiply_each(at, steps, [&](int stage, bool is_first) {
      const uint64 w = matrix_descriptor(shared_address(&shared.w[stage][first_w]));
      const uint64 x = matrix_descriptor(shared_address(&shared.x[stage][first_x]));
#pragma unroll
      for (int k = 0; k < kSlab / 16; ++k) {
        multiply_matrices<T, kMajor>(sums, w + k * kMatrixStep<kMajor>, x + k * kMatrixStep<Major::kK>, !is_first || k > 0);
      }
    });
  }
};

}  // namespace dnncore::wgmma
