// Dropout: y = scale * x, or 0 where an element's random word is below a threshold. The words are those of
// Philox4x32-10 (J. K. Salmon et al., SC11): each four elements, counted in row-major order, draw four words from their
// number alone, so that nothing has to be kept for the backward pass, which is the same operation on dy, and every
// layout drops the same elements.
//
//    element    0  1  2  3 | 4  5  6  7 | 8  9 ...
//    counter        0      |     1      |   2          philox(counter, seed, offset) -> a word for each of the four
#pragma once

#include "dnncore/common/pack.cuh"
#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by _PARAMS in dnncore/cuda/dropout.py.
struct DropoutParams {
  Blend blend;
  const void* x;
  const uint32* state;  // seed and offset, low words first
  void* y;
  int64 size;
  uint64 threshold;  // words below it drop their element
  double scale;      // factor of what is kept
  TensorView x_view;
  TensorView y_view;
};

struct Words {
  uint32 at[4];
};

__device__ __forceinline__ Words philox(uint64 number, const uint32* state) {
  uint32 a = static_cast<uint32>(number), b = static_cast<uint32>(number >> 32), c = state[2], d = state[3];
  uint32 first_key = state[0], second_key = state[1];
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64 first = static_cast<uint64>(a) * 0xD2511F53u, second = static_cast<uint64>(c) * 0xCD9E8D57u;
    a = static_cast<uint32>(second >> 32) ^ b ^ first_key;
    b = static_cast<uint32>(second);
    c = static_cast<uint32>(first >> 32) ^ d ^ second_key;
    d = static_cast<uint32>(first);
    first_key += 0x9E3779B9u;  // the golden ratio, and the root of 3 less 1
    second_key += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// Every word is below 2^32, which drops all: a comparison of 32 bits, and what all threads know.
__device__ __forceinline__ bool keeps(const DropoutParams& params, uint32 word) {
  return params.threshold >> 32 == 0 && word >= static_cast<uint32>(params.threshold);
}

// Elements of whole counters that fill 16 bytes or more, which a thread takes together; and how many times, a block's threads side by side;
// `_at_once` in dnncore/cuda/dropout.py.
template <typename T>
constexpr int kGroup = Pack<T>::kWidth < 4 ? 4 : Pack<T>::kWidth;
template <typename T>
constexpr int kAtOnce = sizeof(T) == 8 ? 1 : 2;

// One element, by the one word of its counter that it needs.
template <typename T>
__device__ __forceinline__ void drop_at(const DropoutParams& params, int64 index, int64 x_offset, int64 y_offset) {
  const Words drawn = philox(index / 4, params.state);
  const int lane = static_cast<int>(index % 4);
  const uint32 word = lane == 0 ? drawn.at[0] : lane == 1 ? drawn.at[1] : lane == 2 ? drawn.at[2] : drawn.at[3];
  const T x = static_cast<const T*>(params.x)[x_offset];
  using C = Compute<T>;
  const C value = keeps(params, word) ? static_cast<C>(params.scale) * widen(x) : C(0);
  blend_into(params.blend, value, static_cast<T*>(params.y) + y_offset);
}

// Both tensors are row-major and without gaps: groups where the addresses allow it, and one element at a time what is left. Every thread
// has all of x that it takes under way while it draws, and takes it once.
template <typename T>
__device__ void dropout_contiguous(const DropoutParams& params) {
  constexpr int kPacks = kGroup<T> / Pack<T>::kWidth;
  const bool is_aligned = (reinterpret_cast<uint64>(params.x) | reinterpret_cast<uint64>(params.y)) % sizeof(Pack<T>) == 0;
  const int64 groups = is_aligned ? params.size / kGroup<T> : 0;
#pragma unroll 1
  for (int64 index = groups * kGroup<T> + grid_index(); index < params.size; index += grid_size()) {
    drop_at<T>(params, index, index, index);
  }
  const bool reads_output = params.blend.beta != 0.0;
  const int64 begin = static_cast<int64>(blockIdx.x) * (blockDim.x * kAtOnce<T>) + threadIdx.x;
  const Pack<T>* const x = static_cast<const Pack<T>*>(params.x);
  Pack<T>* const y = static_cast<Pack<T>*>(params.y);
  Pack<T> taken[kAtOnce<T>][kPacks], results[kAtOnce<T>][kPacks];
#pragma unroll
  for (int k = 0; k < kAtOnce<T>; ++k) {
    const int64 group = begin + k * blockDim.x;
    if (group >= groups) break;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      taken[k][pack] = x[group * kPacks + pack];
      if (reads_output) results[k][pack] = y[group * kPacks + pack];
    }
  }
  uint32 words[kAtOnce<T>][kGroup<T>];
#pragma unroll
  for (int k = 0; k < kAtOnce<T>; ++k) {
#pragma unroll
    for (int i = 0; i < kGroup<T>; i += 4) {
      const Words drawn = philox(((begin + k * blockDim.x) * kGroup<T> + i) / 4, params.state);
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) words[k][i + lane] = drawn.at[lane];
    }
  }
  // It is bound by instructions in 16 bits: one factor for what is kept, and beta where there is one alone.
  using C = Compute<T>;
  const C factor = static_cast<C>(params.blend.alpha) * static_cast<C>(params.scale), beta = static_cast<C>(params.blend.beta);
#pragma unroll
  for (int k = 0; k < kAtOnce<T>; ++k) {
    const int64 group = begin + k * blockDim.x;
    if (group >= groups) break;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      constexpr int kWidth = Pack<T>::kWidth;
      C values[kWidth];
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) {
        values[lane] = keeps(params, words[k][pack * kWidth + lane]) ? factor * widen(taken[k][pack].lanes[lane]) : C(0);
      }
      if (reads_output) {
#pragma unroll
        for (int lane = 0; lane < kWidth; ++lane) values[lane] += beta * widen(results[k][pack].lanes[lane]);
      }
#pragma unroll
      for (int lane = 0; lane < kWidth; ++lane) results[k][pack].lanes[lane] = narrow<T>(values[lane]);
      y[group * kPacks + pack] = results[k][pack];
    }
  }
}

// Any strides. Neighbouring threads take neighbouring elements.
template <typename T>
__device__ void dropout_strided(const DropoutParams& params) {
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    drop_at<T>(params, index, offset_of(params.x_view, index), offset_of(params.y_view, index));
  }
}

}  // namespace dnncore
