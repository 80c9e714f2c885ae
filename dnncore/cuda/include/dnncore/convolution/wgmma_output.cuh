// What kernels of convolutions (wgmma.cuh, wgmma_patches.cuh) share: their parameters, and how consumers finish sums and store
// them, a box of pixels x 64 filters at a time, in two boxes in turn. In a box a pixel is a row of 128 bytes, 64 filters, as the
// copy engine stores it; the residual, and the old output that is blended with, are copied into the same box before.
#pragma once

#include <type_traits>

#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/gemm/epilogue.cuh"
#include "dnncore/ptx/matrix.cuh"
#include "dnncore/ptx/matrix_store.cuh"
#include "dnncore/ptx/tensor_copy.cuh"

namespace dnncore::wgmma {

// Taps over pixels: a forward convolution, or a phase of a backward-data one. Pairs are rows and columns, rows first.
struct alignas(64) Phase {
  TensorMap x;          // 64 channels of a stage's pixels
  TensorMap y;          // 64 filters of a box's pixels
  int32 slabs[2];       // the first one of 64 channels of x, and the one behind the last
  int32 taps[2];        // how many
  int32 first_tap[2];   // backward-data: the filter's tap that is the first here, and how far the next one is
  int32 next_tap[2];
  int32 output[2];      // pixels of y; of patches, how many there are
  int32 stride[2];
  int32 padding[2];
  int32 dilation[2];
  int32 pixel_tiles;    // up to the first of this phase
  int32 gathers;        // whether x is images; else a matrix whose rows are the pixels of y
  int32 scatters;       // whether y is images; else a matrix
};

inline constexpr int kMostPhases = 4;

// `params_dtype` of convolution/wgmma_tile.py. Coordinates are 32 bits: the host refuses more pixels.
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

inline constexpr int kBoxes = 2;  // of a consumer

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

// Boxes that are runs of pixels.
struct Runs {
  static constexpr int kPixels = 96;
};

// Boxes that are rectangles of 8 x 14 pixels, two of which are the output of a patch: place.pixel counts the rectangles.
struct Rectangles {
  static constexpr int kWidth = 8, kHeight = 14, kPixels = kWidth * kHeight;
};

template <typename Shape>
struct Box {
  Row pixels[Shape::kPixels];
};

// Of one consumer.
template <typename T, bool kBackward, typename Shape = Runs>
class Output {
  static constexpr bool kInRectangles = std::is_same_v<Shape, Rectangles>;
  static constexpr int kBoxSums = Shape::kPixels / 2;  // of a thread
  using Box = wgmma::Box<Shape>;

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
      if constexpr (kInRectangles) {
        const Pixel at = rectangle(place);
        store_window(phase.y, &boxes_[current_], place.filter, at.column, at.row, at.image);
      } else if (kBackward && phase.scatters) {
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

  // Where a box that is a rectangle begins.
  __device__ __forceinline__ Pixel rectangle(const Place& place) const {
    Pixel at(params_.phases[place.phase], place.pixel / 2);
    at.row = (at.row * 2 + place.pixel % 2) * Rectangles::kHeight, at.column *= Rectangles::kWidth;
    return at;
  }

  __device__ __forceinline__ void synchronize() const { synchronize_warpgroup(consumer_ + 1); }

  __device__ __forceinline__ void load(const TensorMap& map, bool gathers, uint32 box, const Place& place) {
    if (!leads_) return;
    wait_for_stores_to_read<0>();
    arrive_expecting(landed_[box], sizeof(Box));
    if constexpr (kInRectangles) {
      const Pixel at = rectangle(place);
      load_window(&boxes_[box], map, landed_[box], place.filter, at.column, at.row, at.image);
    } else if (gathers) {
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
    for (int group = 0; group < Shape::kPixels / 16; ++group) {
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
    for (int group = 0; group < Shape::kPixels / 16; ++group) {
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

}  // namespace dnncore::wgmma
