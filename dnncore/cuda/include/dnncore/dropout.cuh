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

template <typename T>
__device__ __forceinline__ Compute<T> dropped(const DropoutParams& params, uint32 word, T x) {
  using C = Compute<T>;
  return word < params.threshold ? C(0) : static_cast<C>(params.scale) * widen(x);
}

// Both tensors are row-major and without gaps: 16 bytes at a time where the addresses allow it.
template <typename T>
__device__ void dropout_contiguous(const DropoutParams& params) {
  constexpr int kWidth = Pack<T>::kWidth < 4 ? 4 : Pack<T>::kWidth;  // whole counters
  constexpr int kPacks = kWidth / Pack<T>::kWidth;
  const bool reads_output = params.blend.beta != 0.0;
  const int64 groups = (params.size + kWidth - 1) / kWidth;
  for (int64 group = grid_index(); group < groups; group += grid_size()) {
    uint32 words[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      const Words drawn = philox((group * kWidth + i) / 4, params.state);
#pragma unroll
      for (int lane = 0; lane < 4; ++lane) words[i + lane] = drawn.at[lane];
    }
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      const int64 first = group * kWidth + pack * Pack<T>::kWidth;
      const int64 lanes = params.size - first;
      if (lanes <= 0) break;
      const Pack<T> x = load_pack(static_cast<const T*>(params.x) + first, 1, lanes);
      T* const y = static_cast<T*>(params.y) + first;
      Pack<T> result{};
      if (reads_output) result = load_pack<T>(y, 1, lanes);
#pragma unroll
      for (int lane = 0; lane < Pack<T>::kWidth; ++lane) {
        blend_into(params.blend, dropped(params, words[pack * Pack<T>::kWidth + lane], x.lanes[lane]), &result.lanes[lane]);
      }
      store_pack(result, y, 1, lanes);
    }
  }
}

// Any strides. Neighbouring threads take neighbouring elements, and each uses the one word of its counter that it
// needs.
template <typename T>
__device__ void dropout_strided(const DropoutParams& params) {
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Words drawn = philox(index / 4, params.state);
    const int lane = static_cast<int>(index % 4);
    const uint32 word = lane == 0 ? drawn.at[0] : lane == 1 ? drawn.at[1] : lane == 2 ? drawn.at[2] : drawn.at[3];
    const T x = static_cast<const T*>(params.x)[offset_of(params.x_view, index)];
    blend_into(params.blend, dropped(params, word, x), static_cast<T*>(params.y) + offset_of(params.y_view, index));
  }
}

}  // namespace dnncore
