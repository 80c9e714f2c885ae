// What kernels of convolutions (wgmma.cuh, wgmma_patches.cuh) share: their parameters, and how consumers finish sums and store
// them, a box of pixels x 64 filters (wgmma_box.cuh) at a time, in two boxes in turn. The residual, and the old output that is
// blended with, are copied into the same box before.
#pragma once

#include <type_traits>

#include "dnncore/convolution/wgmma_box.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/gemm/epilogue.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/ptx/tensor_copy.cuh"

namespace dnncore::wgmma {

// Taps over pixels: a forward convolution, or a phase of a backward-data one. Pairs are rows and columns, rows first.
struct alignas(64) Phase {
  TensorMap x;          // a slab of a stage's pixels
  TensorMap y;          // a window of a box
  int32 slabs[2];       // the first one of x, and the one behind the last, but for a short one behind these
  int32 taps[2];        // how many
  int32 first_tap[2];   // backward-data: the filter's tap that is the first here, and how far the next one is
  int32 next_tap[2];
  int32 output[2];      // pixels of y; of patches, how many there are
  int32 stride[2];
  int32 padding[2];
  int32 dilation[2];
  int32 short_products; // of the short slab; 0 where there is none
  int32 short_first;    // of the products of a slab, and
  int32 short_channel;  // with which it is loaded
  int32 pixel_tiles;    // up to the first of this phase
  int32 gathers;        // whether x is images; else a matrix whose rows are the pixels of y
  int32 scatters;       // whether y is images; else a matrix
};

inline constexpr int kMostPhases = 4;

// `params_dtype` of convolution/wgmma_tile.py. Coordinates are 32 bits: the host refuses more pixels.
template <bool kBackward>
struct alignas(64) Params {
  TensorMap w;  // a slab of one tap of filter_box filters
  TensorMap z;  // as y
  Phase phases[kBackward ? kMostPhases : 1];
  Blend blend;
  Epilogue epilogue;
  int32 filters;
  int32 pixel_tiles;
  int32 filter_tiles;
  int32 filter_box;
  int32 reads_filters_early;  // whether w is there before the kernel before has ended
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

  __device__ __forceinline__ Pixel(int32 image, int32 row, int32 column) : image(image), row(row), column(column) {}
  __device__ __forceinline__ Pixel(const Phase& phase, int32 pixel) {
    const int32 rows = pixel / phase.output[1];
    image = rows / phase.output[0], row = rows % phase.output[0], column = pixel % phase.output[1];
  }
};

// Of one consumer.
template <typename T, bool kBackward, typename Shape = Runs<T>>
class Output {
  static constexpr bool kInRectangles = std::is_base_of_v<Rectangle, Shape>, kPools = std::is_same_v<Shape, PooledRectangles>;
  static constexpr int kBoxSums = Shape::kPixels / 2, kStored = kPools ? kBoxSums / 4 : kBoxSums;  // of a thread
  using Box = wgmma::Box<T, Shape>;
  using Share = wgmma::Share<T, Shape>;

public:
  __device__ __forceinline__ Output(const Params<kBackward>& params, Box* boxes, Mbarrier* landed, int consumer)
      : params_(params), boxes_(boxes), landed_(landed), consumer_(consumer), leads_(threadIdx.x % kWarpgroup == 0) {}

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
    if constexpr (sizeof(T) != 2) return read_parameters<uint32>(filter);
    return params_.epilogue.widened ? read_parameters<uint32>(filter) : read_parameters<std::uint16_t>(filter);
  }

  // Finish and store the sums of one box; `begin` has been called for it, and for the next one if there is any.
  __device__ __forceinline__ void store(const MatrixSum<T>* products, const Parameters& parameters, const Place& place) {
    const Phase& phase = params_.phases[place.phase];
    float sums[kBoxSums];
#pragma unroll
    for (int i = 0; i < kBoxSums; ++i) sums[i] = static_cast<float>(products[i]);
    const auto alpha = static_cast<float>(params_.blend.alpha);
    const bool is_linear = !kBackward && (alpha == 1.0F || (alpha > 0.0F && is_linear_beyond_zero()));
    if constexpr (!kBackward) finish(sums, parameters, is_linear ? alpha : 1.0F);
    if constexpr (kPools) share_.pool(sums);
    if (!is_linear) {
#pragma unroll
      for (int i = 0; i < kStored; ++i) sums[i] *= alpha;
    }
    if (params_.blend.beta != 0.0) {
      synchronize();  // all warps have read the residual
      load(phase.y, kBackward && phase.scatters, current_, place);
      add(sums, static_cast<float>(params_.blend.beta));
    }
    if (leads_) wait_for_stores_to_read<(kBoxes - 1) * Box::kWindows>();
    synchronize();
    share_.write(sums, boxes_[current_]);
    publish_to_engine();
    synchronize();
    if (leads_) {
      if constexpr (kInRectangles) {
        const Pixel at = rectangle(place);
#pragma unroll
        for (int i = 0; i < Box::kWindows; ++i) {
          const int32 filter = place.filter + i * Box::kWindowFilters;
          store_window(phase.y, boxes_[current_].pixels[i], filter, at.column, at.row, at.image);
        }
      } else if (kBackward && phase.scatters) {
        const Pixel at(phase, place.pixel);
#pragma unroll
        for (int i = 0; i < Box::kWindows; ++i) {
          const int32 filter = place.filter + i * Box::kWindowFilters;
          store_pixels(phase.y, boxes_[current_].pixels[i], filter, at.column, at.row, at.image);
        }
      } else {
#pragma unroll
        for (int i = 0; i < Box::kWindows; ++i) {
          store_window(phase.y, boxes_[current_].pixels[i], place.filter + i * Box::kWindowFilters, place.pixel);
        }
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

  // Whether a positive factor of what the activation gives may as well be one of what it is given.
  __device__ __forceinline__ bool is_linear_beyond_zero() const {
    const ActivationMode mode = params_.epilogue.activation.mode;
    return mode == ActivationMode::kIdentity || mode == ActivationMode::kRelu;
  }

  // All that follows the convolution, but for blending, of what is `factor` times it.
  __device__ __forceinline__ void finish(float* sums, const Parameters& parameters, float factor) {
    const Epilogue& epilogue = params_.epilogue;
    float scales[2], biases[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = epilogue.scale == nullptr ? 1.0F : number_of(parameters.scale[i]);
      scales[i] = factor * (static_cast<float>(epilogue.alpha1) * scale);
      biases[i] = factor * number_of(parameters.bias[i]);
    }
#pragma unroll
    for (int i = 0; i < kBoxSums; ++i) sums[i] = sums[i] * scales[i / 2 % 2] + biases[i / 2 % 2];
    if (reads_z()) add(sums, factor * static_cast<float>(epilogue.alpha2));
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
      const int32 k = filter + share_.first() + Share::kNext * i;
      if (k < params_.filters && scale != nullptr) found.scale[i] = scale[k * epilogue.scale_stride];
      if (k < params_.filters && bias != nullptr) found.bias[i] = bias[k * epilogue.bias_stride];
    }
    return found;
  }
  __device__ __forceinline__ float number_of(uint32 bits) const {
    if constexpr (sizeof(T) != 2) {
      return __uint_as_float(bits);
    } else {
      return params_.epilogue.widened ? __uint_as_float(bits) : first_of<T>(bits);
    }
  }

  // Where a box that is a rectangle begins.
  __device__ __forceinline__ Pixel rectangle(const Place& place) const {
    Pixel at(params_.phases[place.phase], place.pixel / 2);
    const int32 second = place.pixel % 2;
    if constexpr (Shape::kImages == 2) {
      at.image = at.image * 2 + second;
    } else {
      at.row = at.row * 2 + second;
    }
    at.row *= Shape::kStoredHeight, at.column *= Shape::kStoredWidth;
    return at;
  }

  __device__ __forceinline__ void synchronize() const { synchronize_warpgroup(consumer_ + 1); }

  __device__ __forceinline__ void load(const TensorMap& map, bool gathers, uint32 box, const Place& place) {
    if (!leads_) return;
    wait_for_stores_to_read<0>();
    if constexpr (kPools) {
      arrive_expecting(landed_[box], Shape::kStoredHeight * Shape::kStoredWidth * kConsumerFilters * sizeof(T));
    } else {
      arrive_expecting(landed_[box], sizeof(Box));
    }
    if constexpr (kInRectangles) {
      const Pixel at = rectangle(place);
#pragma unroll
      for (int i = 0; i < Box::kWindows; ++i) {
        const int32 filter = place.filter + i * Box::kWindowFilters;
        load_window(boxes_[box].pixels[i], map, landed_[box], filter, at.column, at.row, at.image);
      }
    } else if (gathers) {
      const Pixel at(params_.phases[place.phase], place.pixel);
#pragma unroll
      for (int i = 0; i < Box::kWindows; ++i) {
        const int32 filter = place.filter + i * Box::kWindowFilters;
        load_pixels(boxes_[box].pixels[i], map, landed_[box], filter, at.column, at.row, at.image, 0, 0);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Box::kWindows; ++i) {
        load_window(boxes_[box].pixels[i], map, landed_[box], place.filter + i * Box::kWindowFilters, place.pixel);
      }
    }
  }

  // Add what was loaded into the current box, times a factor.
  __device__ __forceinline__ void add(float* sums, float factor) {
    wait(landed_[current_], parities_ >> current_ & 1);
    parities_ ^= 1U << current_;
    share_.add(boxes_[current_], factor, sums);
  }

  // Only activations that are a comparison or two: their code is there for every one of a thread's sums.
  __device__ __forceinline__ void activate_all(float* sums) const {
    const Activation& activation = params_.epilogue.activation;
    const auto coefficient = static_cast<float>(activation.coefficient);
    const auto all = [&](auto function) {
#pragma unroll
      for (int i = 0; i < kBoxSums; ++i) sums[i] = function(sums[i]);
    };
    switch (activation.mode) {
      case ActivationMode::kRelu: return all([](float x) { return larger(x, 0.0F); });
      case ActivationMode::kClippedRelu: return all([=](float x) { return smaller(larger(x, 0.0F), coefficient); });
      case ActivationMode::kLeakyRelu:
        return all([&](float x) { return activate<ActivationMode::kLeakyRelu>(activation, x); });
      default: return;  // the identity
    }
  }

  const Params<kBackward>& params_;
  Box* boxes_;
  Mbarrier* landed_;     // of each box
  int consumer_;
  bool leads_;
  Share share_;
  uint32 begun_ = 0;     // the next box to begin
  uint32 current_ = 0;   // the next one to store
  uint32 parities_ = 0;  // a bit for each box
};

}  // namespace dnncore::wgmma
