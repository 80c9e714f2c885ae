// Convolution by filters of one tap over few channels, or by few filters: images of 16 bits, channels-last, sums in fp32. There is
// so little to multiply that memory bounds it, if nothing waits: warps work alone, each on 32 pixels at a time, and meet at no
// barrier once the filters are in shared memory. Nothing is staged: operands of the matrix units come from memory, and results go
// there, 16 bytes per thread, because which channel is which row or column of a fragment is free to choose. Of 32 channels, thread
// 4 g + t has the eight from 8 t on:
//
//     x, pixel g        | t = 0: 0...7 | t = 1: 8...15 | t = 2: 16...23 | t = 3: 24...31 |     16 bytes each
//                          k = 2t, 2t + 1, 2t + 8, 2t + 9 of one product of 16 channels, and the same of a second one
//
//     filters           column 2 t + e of the j-th 8 columns is filter 8 t + 2 j + e, so that a thread's sums of four such
//                       products are those of eight neighbouring filters of its pixel
//
// Expanding, all channels of the pixels stay in registers and filters come 32 at a time; reducing, all sums do, and channels come.
#pragma once

#include "dnncore/activation.cuh"
#include "dnncore/common/loaded.cuh"
#include "dnncore/gemm/epilogue.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/ptx/matrix.cuh"
#include "dnncore/ptx/matrix_store.cuh"

namespace dnncore::thin {

constexpr int kBlock = 32;   // channels, and filters, that are taken together
constexpr int kHalves = 2;   // a warp's pixels are two products of 16
constexpr int kEights = 4;   // threads that share a pixel's 32 channels
constexpr int kPixels = 32;  // of a warp

// Mirrored by _PARAMS in dnncore/cuda/convolution/thin.py. Pitches are elements from pixel to pixel.
struct Params {
  Blend blend;
  Epilogue epilogue;
  const void* x;
  const void* w;
  void* y;
  int64 w_filter;
  int32 x_pitch;
  int32 y_pitch;
  int32 z_pitch;
  int32 pixels;
  int32 channels;
  int32 filters;
  int32 chunks;               // blocks of 32 channels
  int32 groups;               // blocks of 32 filters
  int32 reads_filters_early;  // whether w is there before the kernel before has ended
};

// Fetch the filters, [chunk][filter][4]: each row's 64 bytes are a filter's 32 channels, zeros where there are none.
template <typename T>
__device__ __forceinline__ void fetch_filters(const Params& params, uint4* rows) {
  const int32 count = params.groups * kBlock;
  const T* const w = static_cast<const T*>(params.w);
#pragma unroll 4
  for (int32 i = threadIdx.x; i < params.chunks * count * kEights; i += blockDim.x) {
    const int32 filter = i / kEights % count, channel = i / kEights / count * kBlock + i % kEights * 8;
    Loaded<T, 8> eight;
    eight.load_if(filter < params.filters && channel < params.channels, w + filter * params.w_filter + channel);
    rows[i] = eight.word;
  }
}

// Fetch what each filter's sums are multiplied by, and what is added.
template <typename T>
__device__ __forceinline__ void fetch_scales(const Params& params, float* scales, float* biases) {
  const Epilogue& epilogue = params.epilogue;
  for (int32 k = threadIdx.x; k < params.groups * kBlock; k += blockDim.x) {
    const bool exists = epilogue.is_present && k < params.filters;
    scales[k] = exists ? static_cast<float>(epilogue.alpha1) * epilogue.template scale_of<T>(k) : 1.0F;
    biases[k] = exists ? epilogue.template bias_of<T>(k) : 0.0F;
  }
}

// A thread's eight channels of its four pixels: g and g + 8 of either half.
template <typename T>
struct Eights {
  Loaded<T, 8> at[kHalves][2];

  __device__ __forceinline__ void load(const Params& params, int32 pixel, int32 channel) {
    const T* const x = static_cast<const T*>(params.x) + static_cast<int64>(pixel) * params.x_pitch + channel;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int32 further = half * 16 + row * 8;
        at[half][row].load_if(pixel + further < params.pixels && channel < params.channels, x + further * params.x_pitch);
      }
    }
  }
};

// Sums of 32 pixels and 32 filters.
struct Sums {
  float at[kHalves][4][4] = {};

  // Add the products of 32 channels; `filters` is the thread's own place in the first of their rows.
  template <typename T>
  __device__ __forceinline__ void add(const Eights<T>& x, const uint4* filters) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 w = filters[2 * j * kEights];
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const uint4 upper = x.at[half][0].word, lower = x.at[half][1].word;
        multiply_add_matrices<T>(at[half][j], {upper.x, lower.x, upper.y, lower.y}, w.x, w.y);
        multiply_add_matrices<T>(at[half][j], {upper.z, lower.z, upper.w, lower.w}, w.z, w.w);
      }
    }
  }
};

// What follows the sums, and their way to memory.
template <typename T>
class Output {
public:
  __device__ __forceinline__ explicit Output(const Params& params)
      : params_(params),
        alpha_(static_cast<float>(params.blend.alpha)),
        beta_(static_cast<float>(params.blend.beta)),
        residual_(params.epilogue.is_present && params.epilogue.reads_z() ? static_cast<float>(params.epilogue.alpha2) : 0.0F),
        ceiling_(static_cast<float>(params.epilogue.activation.coefficient)),
        mode_(params.epilogue.is_present ? params.epilogue.activation.mode : ActivationMode::kIdentity) {}

  // Of eight filters from `filter` on, whose scales and biases begin at the two places.
  __device__ __forceinline__ void store(
      const Sums& sums, int32 pixel, int32 filter, const float* scales, const float* biases) const {
    if (filter >= params_.filters) return;
    float scale[8], bias[8];
    read(scales, scale), read(biases, bias);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int32 p = pixel + half * 16 + row * 8;
        if (p >= params_.pixels) continue;
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = sums.at[half][i / 2][2 * row + i % 2] * scale[i] + bias[i];
        if (residual_ != 0.0F) {
          add(residual_, static_cast<const T*>(params_.epilogue.z) + static_cast<int64>(p) * params_.z_pitch + filter, values);
        }
        activate(values);
        T* const y = static_cast<T*>(params_.y) + static_cast<int64>(p) * params_.y_pitch + filter;
        if (alpha_ != 1.0F) {
#pragma unroll
          for (float& value : values) value *= alpha_;
        }
        if (beta_ != 0.0F) add(beta_, y, values);
        *reinterpret_cast<uint4*>(y) = {narrow_pair<T>(values[0], values[1]), narrow_pair<T>(values[2], values[3]),
                                        narrow_pair<T>(values[4], values[5]), narrow_pair<T>(values[6], values[7])};
      }
    }
  }

private:
  __device__ __forceinline__ static void read(const float* place, float (&values)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(place + i);
      values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    }
  }
  __device__ __forceinline__ static void add(float factor, const T* place, float (&values)[8]) {
    Loaded<T, 8> eight;
    eight.load_if(true, place);
    float others[8];
    eight.widen_into(others);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] += factor * others[i];
  }
  __device__ __forceinline__ void activate(float (&values)[8]) const {
    if (mode_ == ActivationMode::kIdentity) return;
    if (mode_ == ActivationMode::kLeakyRelu) {
#pragma unroll
      for (float& value : values) value = dnncore::activate<ActivationMode::kLeakyRelu>(params_.epilogue.activation, value);
      return;
    }
#pragma unroll
    for (float& value : values) value = larger(value, 0.0F);
    if (mode_ == ActivationMode::kRelu) return;
#pragma unroll
    for (float& value : values) value = smaller(value, ceiling_);
  }

  const Params& params_;
  float alpha_, beta_, residual_, ceiling_;
  ActivationMode mode_;
};

// visit(filters, pixel, eight, scales), from the lane's own place on each: the warps of all blocks take 32 pixels in turn.
template <typename T, typename Visit>
__device__ __forceinline__ void visit_pixels(const Params& params, const Visit& visit) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int32 count = params.groups * kBlock;
  uint4* const rows = reinterpret_cast<uint4*>(shared);
  float* const scales = reinterpret_cast<float*>(rows + params.chunks * count * kEights);
  let_next_start();
  if (!params.reads_filters_early) wait_for_previous();
  fetch_filters<T>(params, rows);
  wait_for_previous();
  fetch_scales<T>(params, scales, scales + count);
  __syncthreads();

  const int32 lane = threadIdx.x % 32, g = lane / kEights, t = lane % kEights;
  // Column g of the j-th eight is filter 8 (g / 2) + 2 j + g % 2.
  const uint4* const own = rows + (g / 2 * 8 + g % 2) * kEights + t;
  const int32 warps = static_cast<int32>(gridDim.x * blockDim.x / 32);
  int32 pixel = static_cast<int32>((blockIdx.x * blockDim.x + threadIdx.x) / 32) * kPixels + g;
  for (; pixel - g < params.pixels; pixel += warps * kPixels) visit(own, pixel, t * 8, scales + t * 8);
}

// All channels, at most 32, stay; filters come.
template <typename T>
__device__ void expand(const Params& params) {
  const int32 count = params.groups * kBlock;
  const Output<T> output(params);
  visit_pixels<T>(params, [&](const uint4* filters, int32 pixel, int32 eight, const float* scales) {
    Eights<T> x;
    x.load(params, pixel, eight);
    for (int32 first = 0; first < count; first += kBlock) {
      Sums sums;
      sums.add(x, filters + first * kEights);
      output.store(sums, pixel, first + eight, scales + first, scales + count + first);
      __syncwarp();  // the next products are the whole warp's
    }
  });
}

// All filters, at most 32 kGroups, stay; channels come, the next ones while these are multiplied if registers are left for them.
template <typename T, int kGroups>
__device__ void reduce(const Params& params) {
  constexpr int32 kCount = kGroups * kBlock;
  constexpr bool kLoadsAhead = kGroups == 1;
  const Output<T> output(params);
  visit_pixels<T>(params, [&](const uint4* filters, int32 pixel, int32 eight, const float* scales) {
    Sums sums[kGroups];
    Eights<T> next;
    if (kLoadsAhead) next.load(params, pixel, eight);
#pragma unroll 1
    for (int32 chunk = 0; chunk < params.chunks; ++chunk) {
      Eights<T> now = next;
      if (!kLoadsAhead) now.load(params, pixel, chunk * kBlock + eight);
      if (kLoadsAhead && chunk + 1 < params.chunks) next.load(params, pixel, (chunk + 1) * kBlock + eight);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) sums[group].add(now, filters + (chunk * kCount + group * kBlock) * kEights);
    }
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      output.store(sums[group], pixel, group * kBlock + eight, scales + group * kBlock, scales + kCount + group * kBlock);
    }
    __syncwarp();  // the next products are the whole warp's
  });
}

}  // namespace dnncore::thin
