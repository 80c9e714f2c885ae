// MobileNetV2's inverted residual in one launch: a 1x1 convolution that expands channels, a depthwise 3x3 one, and a 1x1 one that
// projects them. A block computes a tile of output pixels for all output channels, 32 expanded channels at a time, which never
// leave shared memory:
//
//     x, with a border   x   expand[32, C]   ->   expanded [halo pixels, 32]    tensor cores; bias, clamp, rounded
//     expanded           *   depthwise       ->   filtered [pixels, 32]         float32; bias, clamp, rounded
//     filtered           x   project[K, 32]  ->   sums [pixels, K]              tensor cores; stay in registers
//
// x is read once for all chunks. The weights of the next chunk are copied while one is computed. The border of a tile is expanded
// by each of its neighbours, too: with 8 x 16 pixels that is 1.4 times the work, where the layers one by one would write and read
// six times x in memory, twice. Beside the image what is expanded is 0, as the padding is, not what the bias would make of it.
#pragma once

#include "dnncore/ptx/async_copy.cuh"
#include "dnncore/ptx/matrix.cuh"
#include "dnncore/ptx/matrix_store.cuh"

namespace dnncore::inverted_residual {

constexpr int kThreads = 256;  // _THREADS in inverted_residual.py
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 32;     // expanded channels at a time; _CHUNK
constexpr int kPitch = 40;     // elements from pixel to pixel: an odd number of 16 bytes, so that no banks collide; _PITCH

// _PARAMS in inverted_residual.py.
struct Params {
  Blend blend;
  const void* x;
  const void* expand;  // null where x is filtered as it is
  const float* expand_bias;
  const void* depthwise;
  const float* depthwise_bias;
  const void* project;
  const float* project_bias;
  void* y;
  int64 x_image;
  int64 x_row;
  int64 y_image;
  int64 y_row;
  int32 x_column;
  int32 y_column;
  int32 channels;
  int32 expanded;
  int32 outputs;
  int32 height;
  int32 width;
  int32 rows;
  int32 columns;
  int32 stride;
  int32 residual;
  int32 x_pitch;
  int32 tile_rows;
  int32 halo;
  int32 halo_padded;
  SmallDivisor tile_columns;
  SmallDivisor halo_columns;
  SmallDivisor tiles_across;
  SmallDivisor tiles_down;
  float floor;
  float ceiling;
};

// Comparisons are written so that NaN stays NaN.
__device__ __forceinline__ float clamp(const Params& params, float value) {
  return value < params.floor ? params.floor : value > params.ceiling ? params.ceiling : value;
}

// Copy 16 bytes, or fill them with zeros: at once where addresses allow it.
template <typename T>
__device__ __forceinline__ void copy(T* shared, const T* global, bool inside, bool is_aligned) {
  constexpr int kWidth = 16 / sizeof(T);
  if (is_aligned) {
    copy_vector_async(reinterpret_cast<uint4*>(shared), inside ? global : nullptr, inside);
    return;
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) shared[i] = inside ? global[i] : T{};
}

// What lies in shared memory of a chunk's weights.
template <typename T>
struct Weights {
  T* expand;     // [kChunk, x_pitch]
  T* project;    // [outputs, rounded up to 16, kPitch]
  T* depthwise;  // [kChunk, 9]
  float* expand_bias;
  float* depthwise_bias;
};

template <typename T>
__device__ __forceinline__ Weights<T> weights_at(const Params& params, unsigned char* shared, int32 outputs) {
  T* const project = reinterpret_cast<T*>(shared);
  T* const depthwise = project + outputs * kPitch;
  float* const biases = reinterpret_cast<float*>(depthwise + kChunk * 9);
  T* const expand = reinterpret_cast<T*>(biases + 2 * kChunk);
  return {expand, project, depthwise, biases, biases + kChunk};
}

template <typename T>
__device__ __forceinline__ void load_weights(
    const Params& params, const Weights<T>& to, int32 first, int32 outputs, bool is_aligned) {
  const int32 thread = threadIdx.x;
  for (int32 i = thread; i < outputs * (kChunk / 8); i += kThreads) {
    const int32 k = i / (kChunk / 8), e = i % (kChunk / 8) * 8;
    const T* const from = static_cast<const T*>(params.project) + static_cast<int64>(k) * params.expanded + first + e;
    copy(to.project + k * kPitch + e, from, k < params.outputs && first + e < params.expanded, is_aligned);
  }
  if (params.expand != nullptr) {
    const int32 vectors = (params.x_pitch - 8) / 8;
    for (int32 i = thread; i < kChunk * vectors; i += kThreads) {
      const int32 e = i / vectors, c = i % vectors * 8;
      const T* const from = static_cast<const T*>(params.expand) + static_cast<int64>(first + e) * params.channels + c;
      copy(to.expand + e * params.x_pitch + c, from, first + e < params.expanded && c < params.channels, is_aligned);
    }
  }
  constexpr int kTaps = kChunk * 9 / 8, kBiases = kChunk / 4;
  if (thread < kTaps) {
    const T* const from = static_cast<const T*>(params.depthwise) + first * 9 + thread * 8;
    copy(to.depthwise + thread * 8, from, first * 9 + thread * 8 < params.expanded * 9, is_aligned);
  } else if (thread >= 64 && thread < 64 + 2 * kBiases) {
    const int32 which = (thread - 64) / kBiases, e = (thread - 64) % kBiases * 4;
    const float* const from = which == 0 ? params.expand_bias : params.depthwise_bias;
    const bool inside = from != nullptr && first + e < params.expanded;
    copy((which == 0 ? to.expand_bias : to.depthwise_bias) + e, from + first + e, inside, is_aligned);
  }
}

template <typename T, int kPixels, int kMostOutputs>
__device__ void inverted_residual(const Params& params) {
  constexpr int kDown = kPixels / 16, kAcross = kWarps / kDown;         // warps along pixels, and along output channels
  constexpr int kPairs = (kMostOutputs / 16 + kAcross - 1) / kAcross;  // of matrices, 8 output channels each, of a warp
  constexpr int kSteps = kPixels / 16;                                 // pixels that a thread filters
  extern __shared__ __align__(16) unsigned char shared[];
  const int32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int32 outputs = (params.outputs + 15) / 16 * 16;
  const bool spreads = params.expand != nullptr;

  T* const patch = reinterpret_cast<T*>(shared);
  T* const filtered = patch + params.halo_padded * params.x_pitch;
  T* const spread = filtered + kPixels * kPitch;
  unsigned char* const after = reinterpret_cast<unsigned char*>(spread + (spreads ? params.halo_padded * kPitch : 0));
  const int32 weight_bytes = outputs * kPitch * 2 + kChunk * 9 * 2 + 2 * kChunk * 4 + (spreads ? kChunk * params.x_pitch * 2 : 0);
  unsigned char* const insides = after + 2 * weight_bytes;

  const SmallQuotientRemainder across = divide(static_cast<int32>(blockIdx.x), params.tiles_across);
  const SmallQuotientRemainder down = divide(across.quotient, params.tiles_down);
  const int32 first_row = down.remainder * params.tile_rows, first_column = across.remainder * params.tile_columns.value;
  const T* const x = static_cast<const T*>(params.x) + down.quotient * params.x_image;
  const uint64 addresses = reinterpret_cast<uint64>(params.x) | reinterpret_cast<uint64>(params.expand) |
                           reinterpret_cast<uint64>(params.depthwise) | reinterpret_cast<uint64>(params.project) |
                           reinterpret_cast<uint64>(params.expand_bias) | reinterpret_cast<uint64>(params.depthwise_bias);
  const bool is_aligned = addresses % 16 == 0;

  const int32 vectors = (params.x_pitch - 8) / 8;
  for (int32 i = threadIdx.x; i < params.halo_padded * vectors; i += kThreads) {
    const int32 pixel = i / vectors, c = i % vectors * 8;
    const SmallQuotientRemainder place = divide(pixel, params.halo_columns);
    const int32 row = first_row * params.stride - 1 + place.quotient, column = first_column * params.stride - 1 + place.remainder;
    const bool inside = pixel < params.halo && static_cast<uint32>(row) < static_cast<uint32>(params.height) &&
                        static_cast<uint32>(column) < static_cast<uint32>(params.width);
    copy(patch + pixel * params.x_pitch + c, x + row * params.x_row + static_cast<int64>(column) * params.x_column + c,
         inside && c < params.channels, is_aligned);
    if (c == 0) insides[pixel] = inside;
  }
  load_weights(params, weights_at<T>(params, after, outputs), 0, outputs, is_aligned);
  commit_copies();

  // A warp filters 8 channels of 8 pixels at a time, a thread two of them: its loads collide in no bank.
  const int32 group = warp % 4 * 8 + lane % 4 * 2, own_pixel = warp / 4 * 8 + lane / 4;
  int32 sources[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const SmallQuotientRemainder place = divide(own_pixel + 16 * i, params.tile_columns);
    const bool there = place.quotient < params.tile_rows;
    sources[i] = there ? (place.quotient * params.halo_columns.value + place.remainder) * params.stride : 0;
  }
  const int32 warp_down = warp % kDown, warp_across = warp / kDown;
  float sums[kPairs][2][4] = {};

  for (int32 first = 0, turn = 0; first < params.expanded; first += kChunk, turn ^= 1) {
    const Weights<T> weights = weights_at<T>(params, after + turn * weight_bytes, outputs);
    wait_for_copies<0>();
    __syncthreads();
    if (first + kChunk < params.expanded) {
      const Weights<T> next = weights_at<T>(params, after + (turn ^ 1) * weight_bytes, outputs);
      load_weights(params, next, first + kChunk, outputs, is_aligned);
    }
    commit_copies();

    if (spreads) {
      for (int32 tile = warp; tile < params.halo_padded / 16; tile += kWarps) {
        float found[4][4] = {};
        for (int32 c = 0; c < params.x_pitch - 8; c += 16) {
          uint32 a[4];
          load_matrices(a, patch + (tile * 16 + lane % 16) * params.x_pitch + c + lane / 16 * 8);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint32 b[4];
            load_matrices(b, weights.expand + (half * 16 + lane / 16 * 8 + lane % 8) * params.x_pitch + c + lane / 8 % 2 * 8);
            multiply_add_matrices<T>(found[2 * half], a, b[0], b[1]);
            multiply_add_matrices<T>(found[2 * half + 1], a, b[2], b[3]);
          }
        }
        const int32 pixel = tile * 16 + lane / 4;
        const bool inside[2] = {insides[pixel] != 0, insides[pixel + 8] != 0};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int32 e = n * 8 + lane % 4 * 2;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float one = clamp(params, found[n][2 * half] + weights.expand_bias[e]);
            const float two = clamp(params, found[n][2 * half + 1] + weights.expand_bias[e + 1]);
            *reinterpret_cast<uint32*>(spread + (pixel + 8 * half) * kPitch + e) = inside[half] ? narrow_pair<T>(one, two) : 0U;
          }
        }
      }
      __syncthreads();
    }

    const T* const source = spreads ? spread : patch + first;
    const int32 pitch = spreads ? kPitch : params.x_pitch;
    float taps[9][2];
#pragma unroll
    for (int t = 0; t < 9; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) taps[t][i] = widen(weights.depthwise[(group + i) * 9 + t]);
    }
    const float biases[2] = {weights.depthwise_bias[group], weights.depthwise_bias[group + 1]};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float one = 0.0F, two = 0.0F;
#pragma unroll
      for (int t = 0; t < 9; ++t) {
        const int32 pixel = sources[i] + t / 3 * params.halo_columns.value + t % 3;
        const uint32 pair = *reinterpret_cast<const uint32*>(source + pixel * pitch + group);
        one += first_of<T>(pair) * taps[t][0];
        two += second_of<T>(pair) * taps[t][1];
      }
      *reinterpret_cast<uint32*>(filtered + (own_pixel + 16 * i) * kPitch + group) =
          narrow_pair<T>(clamp(params, one + biases[0]), clamp(params, two + biases[1]));
    }
    __syncthreads();

#pragma unroll
    for (int step = 0; step < kChunk; step += 16) {
      uint32 a[4];
      load_matrices(a, filtered + (warp_down * 16 + lane % 16) * kPitch + step + lane / 16 * 8);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const int32 k = (warp_across + j * kAcross) * 16;
        if (k >= outputs) break;
        uint32 b[4];
        load_matrices(b, weights.project + (k + lane / 16 * 8 + lane % 8) * kPitch + step + lane / 8 % 2 * 8);
        multiply_add_matrices<T>(sums[j][0], a, b[0], b[1]);
        multiply_add_matrices<T>(sums[j][1], a, b[2], b[3]);
      }
    }
  }
  wait_for_copies<0>();

  T* const y = static_cast<T*>(params.y) + down.quotient * params.y_image;
  const bool has_pairs = reinterpret_cast<uint64>(params.y) % 4 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const SmallQuotientRemainder place = divide(warp_down * 16 + lane / 4 + 8 * half, params.tile_columns);
    const int32 row = first_row + place.quotient, column = first_column + place.remainder;
    if (place.quotient >= params.tile_rows || row >= params.rows || column >= params.columns) continue;
    T* const target = y + row * params.y_row + static_cast<int64>(column) * params.y_column;
    const T* const center = patch + ((place.quotient + 1) * params.halo_columns.value + place.remainder + 1) * params.x_pitch;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int32 k = (warp_across + j * kAcross) * 16 + n * 8 + lane % 4 * 2;
        if (k >= params.outputs) continue;
        T values[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float bias = params.project_bias ? params.project_bias[k + i] : 0.0F;
          const float residual = params.residual ? widen(center[k + i]) : 0.0F;
          values[i] = blended(params.blend, sums[j][n][2 * half + i] + bias + residual, target + k + i);
        }
        if (has_pairs) {
          *reinterpret_cast<uint32*>(target + k) = values[0].bits | static_cast<uint32>(values[1].bits) << 16;
        } else {
          target[k] = values[0];
          target[k + 1] = values[1];
        }
      }
    }
  }
}

}  // namespace dnncore::inverted_residual
