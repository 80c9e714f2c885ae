// What follows the last product of a bottleneck (bottleneck.cuh): where a thread's outputs are, what is added to them, and how they
// are stored, 16 bytes at a time. The copy engine has laid the filters out for it: of each 32 columns of the product a thread has
// eight neighbouring channels.
#pragma once

#include "dnncore/common/tensor.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/ptx/matrix_store.cuh"
#include "dnncore/ptx/tensor_copy.cuh"
#include "dnncore/ptx/warpgroup.cuh"

namespace dnncore::bottleneck {

// _PARAMS in bottleneck.py. Strides count elements; offsets within an image have 32 bits.
struct alignas(64) Params {
  TensorMap x;         // 64 channels of 10 x 10 pixels
  TensorMap reduce;    // 64 channels of all filters
  TensorMap middle;    // a tap of all filters
  TensorMap restore;   // all of it: filters 8 q + 2 j + e of each 32 as (j, q, e)
  TensorMap shortcut;  // likewise
  Blend blend;
  const float* reduce_bias;  // null: 0; so are the others
  const float* middle_bias;
  const float* restore_bias;
  const float* shortcut_bias;
  const void* z;  // null: nothing is added
  void* y;
  int64 z_image;
  int64 y_image;
  int32 z_row;
  int32 z_column;
  int32 y_row;
  int32 y_column;
  int32 height;
  int32 width;
  int32 slabs;  // of 64 channels of x
  int32 tiles;
  SmallDivisor tiles_across;
  SmallDivisor tiles_down;
  float floor;  // 0, or -infinity without an activation
};

inline constexpr int kSide = 8;  // pixels of a tile, down and across
inline constexpr int kOutputs = 256, kChunk = 128, kChunks = kOutputs / kChunk;
inline constexpr int kPacks = kChunk / 32;  // 16 bytes each, of a thread's pixel and a chunk

// A tile's image and its first pixel.
struct Place {
  int32 image;
  int32 row;
  int32 column;

  __device__ __forceinline__ Place(const Params& params, int32 tile) {
    const auto across = divide(tile, params.tiles_across), down = divide(across.quotient, params.tiles_down);
    image = down.quotient, row = down.remainder * kSide, column = across.remainder * kSide;
  }
  // Whether the patch is not all in the image.
  __device__ __forceinline__ bool is_at_border(const Params& params) const {
    return row == 0 || column == 0 || row + kSide >= params.height || column + kSide >= params.width;
  }
};

// The factors of a launch, which are 1 and 0 as a rule.
template <typename T>
struct Blended {
  float alpha;
  float beta;

  __device__ __forceinline__ explicit Blended(const Params& params)
      : alpha(static_cast<float>(params.blend.alpha)), beta(static_cast<float>(params.blend.beta)) {}

  __device__ __forceinline__ bool changes() const { return alpha != 1.0F || beta != 0.0F; }
  __device__ __forceinline__ void apply(float (&values)[8], const uint4& y) const {
    const uint4 old = beta != 0.0F ? y : uint4{};
    const uint32 pairs[4] = {old.x, old.y, old.z, old.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      values[i] = alpha * values[i] + beta * (i % 2 == 0 ? first_of<T>(pairs[i / 2]) : second_of<T>(pairs[i / 2]));
    }
  }
};

// A thread's outputs of a tile: of two pixels, one below the other, eight channels of each 32.
template <typename T, bool kHasShortcut>
class Outputs {
public:
  __device__ __forceinline__ Outputs(const Params& params, const Place& place) : blend_(params) {
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
    const int32 row = place.row + thread / 32 * 2, column = place.column + thread % 32 / 4, channel = thread % 4 * 8;
    y_ = static_cast<T*>(params.y) + place.image * params.y_image + (row * params.y_row + column * params.y_column + channel);
    below_ = params.y_row;
#pragma unroll
    for (int below = 0; below < 2; ++below) is_inside_[below] = row + below < params.height && column < params.width;
    if constexpr (!kHasShortcut) {
      const int64 first = place.image * params.z_image + (row * params.z_row + column * params.z_column + channel);
      load(static_cast<const T*>(params.z), first, params.z_row);
    }
  }

  // Finish and store the sums of a chunk, whose biases are given.
  __device__ __forceinline__ void store(int chunk, const float (&sums)[kChunk / 2], const float* biases, float floor) const {
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack) {
      const auto* const four = reinterpret_cast<const float4*>(biases + thread_channel() + pack * 32);
      const float4 first = four[0], second = four[1];
      const float bias[8] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = sums[pack * 16 + i / 2 * 4 + below * 2 + i % 2] + bias[i];
        if constexpr (!kHasShortcut) {
          const uint4& z = z_[below][chunk * kPacks + pack];
          const uint32 pairs[4] = {z.x, z.y, z.z, z.w};
#pragma unroll
          for (int i = 0; i < 8; ++i) values[i] += i % 2 == 0 ? first_of<T>(pairs[i / 2]) : second_of<T>(pairs[i / 2]);
        }
#pragma unroll
        for (float& value : values) value = larger(value, floor);
        if (!is_inside_[below]) continue;
        auto& y = *reinterpret_cast<uint4*>(y_ + below * below_ + chunk * kChunk + pack * 32);
        if (blend_.changes()) blend_.apply(values, y);
        y = {narrow_pair<T>(values[0], values[1]), narrow_pair<T>(values[2], values[3]), narrow_pair<T>(values[4], values[5]),
             narrow_pair<T>(values[6], values[7])};
      }
    }
  }

private:
  __device__ __forceinline__ void load(const T* z, int64 first, int32 next_row) {
#pragma unroll
    for (int below = 0; below < 2; ++below) {
#pragma unroll
      for (int i = 0; i < kChunks * kPacks; ++i) {
        z_[below][i] = {};
        if (z != nullptr && is_inside_[below]) {
          z_[below][i] = *reinterpret_cast<const uint4*>(z + first + below * next_row + i * 32);
        }
      }
    }
  }

  static __device__ __forceinline__ int thread_channel() { return static_cast<int>(threadIdx.x) % 4 * 8; }

  Blended<T> blend_;
  T* y_;
  int32 below_;
  bool is_inside_[2];
  uint4 z_[2][kChunks * kPacks];
};

}  // namespace dnncore::bottleneck
