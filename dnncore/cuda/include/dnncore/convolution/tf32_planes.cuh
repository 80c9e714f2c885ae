// Convolution of fp32 planes (NCHW) by filters of one tap, forward and backward-data, by the tensor cores of sm_90 with the precision
// of fp32: three products of tf32 (tf32_split.cuh). Of an image, y (filters x pixels) = w (filters x channels) x (channels x pixels).
//
//                  +------------------------ shared memory -------------------------+
//     planes ----->|  stage 0          stage 1          ...                         |   A stage is 32 channels:
//                  |  [ x  | w ]       [ x  | w ]             x: 8 boxes of 32 pixels, two tiles of 128
//     filters ---->|   |      |                               w: 64 filters, nearest and rest
//     (split by    +---|------|-----------------------------------------------------+
//     split_filters)   v      v
//     consumer 0     registers: A, tile 0, split   x  B, both parts of w   -->  sums of the stage, added to the others by fp32 units
//     consumer 1     registers: A, tile 1, split   x  B                    -->  epilogue, blend --> y, float4 along the pixels
//
// Pixels are the rows of the product. The units transpose 16 bits alone, but A may come from registers, and threads read shared
// memory in any order: planes stay as they are. Of eight channels lane 4 g + t of a warp takes pixels 4 g ... 4 g + 3 of channels 2 t
// and 2 t + 1, 16 bytes each, which swizzled meet all banks: the first two pixels are rows g and g + 8 of one product, the others
// of a second. Any two channels may be elements t and t + 4 of a row, provided that w has them in the same order, in which
// split_filters writes them. A lane then has sums of four neighbouring pixels.
//
// The tensor cores cut sums off where fp32 rounds them; so those of a stage are added up by themselves. Tiles end with the image:
// what copies bring beyond it is zeros, and is not stored. Backward-data is the same with filters and channels of w exchanged.
#pragma once

#include "dnncore/convolution/tf32_split.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/gemm/epilogue.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/ptx/tensor_copy.cuh"
#include "dnncore/ptx/vector_store.cuh"
#include "dnncore/ptx/warpgroup_rows.cuh"

namespace dnncore::tf32_planes {

using tf32_split::Split;
using wgmma::Position;
using wgmma::produce_and_consume;
using wgmma::Ring;
using wgmma::Row;

inline constexpr int kFilters = 64;   // of a block's tile
inline constexpr int kPixels = 128;   // of a consumer's
inline constexpr int kSlab = 32;      // channels of a stage, and pixels of a box
inline constexpr int kBoxes = kPixels / kSlab;
inline constexpr int kStages = 4;
inline constexpr int kSteps = kSlab / 8;
inline constexpr int kConsumers = 2;

// SPLIT_PARAMS in convolution/tf32_planes.py.
struct SplitParams {
  const float* w;
  uint32* parts;      // [nearest, rest][filters][pitch]
  int64 strides[2];   // of filters and channels of w
  int32 filters;
  int32 channels;
  int32 pitch;        // channels, filled up with zeros to whole stages
};

// Both parts of w; of each eight channels the even ones first.
inline __device__ void split_filters(const SplitParams& params) {
  const int64 count = static_cast<int64>(params.filters) * params.pitch;
  for (int64 index = grid_index(); index < count; index += grid_size()) {
    const auto k = static_cast<int32>(index / params.pitch), place = static_cast<int32>(index % params.pitch);
    const int32 c = place / 8 * 8 + place % 4 * 2 + place / 4 % 2;
    const bool exists = c < params.channels;
    const Split split(exists ? __float_as_uint(params.w[k * params.strides[0] + c * params.strides[1]]) : 0U);
    params.parts[index] = split.nearest;
    params.parts[count + index] = split.rest;
  }
}

// PARAMS in convolution/tf32_planes.py. Coordinates are 32 bits: the host sees to it.
struct alignas(64) Params {
  TensorMap x;          // pixels, channels, images: a box of 32 x 32 x 1
  TensorMap w;          // channels, filters, parts: 32 x 64 x 2
  Blend blend;
  Epilogue epilogue;
  float* y;
  int64 strides[2];     // of images and filters of y, and of the residual
  int32 pixels;         // of an image
  int32 filters;
  int32 steps;          // of a sum
  int32 image_tiles;    // of 128 pixels
  int32 pixel_tiles;    // of all images
  int32 filter_tiles;
};

struct Shared {
  // Every box begins at a multiple of 1024 bytes.
  Row x[kStages][kConsumers][kBoxes][kSlab];
  Row w[kStages][2][kFilters];
  Ring<kStages> ring;
};
inline constexpr uint32 kStageBytes = sizeof(Shared::x[0]) + sizeof(Shared::w[0]);

// visit(first filter, first tile of pixels) of each of the block's tiles. Those of filters are fastest: they read the same pixels.
template <typename Visit>
__device__ __forceinline__ void for_each_tile(const Params& params, const Visit& visit) {
  const int32 tiles = (params.pixel_tiles + kConsumers - 1) / kConsumers * params.filter_tiles;
  for (auto tile = static_cast<int32>(blockIdx.x); tile < tiles; tile += static_cast<int32>(gridDim.x)) {
    visit(tile % params.filter_tiles * kFilters, tile / params.filter_tiles * kConsumers);
  }
}

__device__ __forceinline__ void produce(const Params& params, Shared& shared) {
  auto at = Ring<kStages>::first_free();
  for_each_tile(params, [&](int32 filter, int32 tile) {
    for (int32 step = 0; step < params.steps; ++step) {
      Mbarrier& filled = shared.ring.begin_to_fill(at, kStageBytes);
      for (int consumer = 0; consumer < kConsumers; ++consumer) {
        const int32 image = (tile + consumer) / params.image_tiles;  // behind the last one there are zeros
        const int32 pixel = (tile + consumer) % params.image_tiles * kPixels;
        for (int box = 0; box < kBoxes; ++box) {
          load_window(shared.x[at.stage][consumer][box], params.x, filled, pixel + box * kSlab, step * kSlab, image);
        }
      }
      load_window(shared.w[at.stage], params.w, filled, step * kSlab, filter, 0);
      at.advance();
    }
  });
}

// Of two products: [rows of which pixels][as warpgroup_matrix.cuh says].
using Sums = float[2][kFilters / 2];

// A stage's sums, added to the others.
__device__ __forceinline__ void multiply(Sums& sums, Shared& shared, int stage, int consumer) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32;
  const Row* const box = shared.x[stage][consumer][warp];
  uint32 nearest[kSteps][2][4], rest[kSteps][2][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const int channel = lane % 4 * 2 + odd;  // and where the swizzle puts chunks of its row
      const uint4 four = *reinterpret_cast<const uint4*>(box[step * 8 + channel].bytes + ((lane / 4) ^ channel) * 16);
      const uint32 pixels[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Split split(pixels[i]);
        nearest[step][i / 2][odd * 2 + i % 2] = split.nearest;
        rest[step][i / 2][odd * 2 + i % 2] = split.rest;
      }
    }
  }
  const uint64 of_nearest = matrix_descriptor(shared_address(shared.w[stage][0]));
  const uint64 of_rest = matrix_descriptor(shared_address(shared.w[stage][1]));
  Sums of_stage;
  fence_sums();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint64 next = step * kMatrixStep<Major::kK>;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply_rows_tf32(of_stage[i], rest[step][i], of_nearest + next, step > 0);
      multiply_rows_tf32(of_stage[i], nearest[step][i], of_rest + next, true);
      multiply_rows_tf32(of_stage[i], nearest[step][i], of_nearest + next, true);
    }
  }
  commit_products();
  wait_for_products<0>();
  __syncwarp();  // all lanes have read it
  shared.ring.release(stage);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < kFilters / 2; ++j) sums[i][j] += of_stage[i][j];
  }
}

// Activations that are a comparison or two, without a branch: their code is there for every one of a thread's sums.
struct Clamp {
  float slope;    // of what is below 0
  float floor;
  float ceiling;

  __device__ __forceinline__ explicit Clamp(const Activation& activation)
      : slope(activation.mode == ActivationMode::kLeakyRelu ? static_cast<float>(activation.coefficient) : 1.0F),
        floor(activation.mode == ActivationMode::kRelu || activation.mode == ActivationMode::kClippedRelu ? 0.0F : -INFINITY),
        ceiling(activation.mode == ActivationMode::kClippedRelu ? static_cast<float>(activation.coefficient) : INFINITY) {}

  __device__ __forceinline__ float operator()(float x) const {
    return smaller(larger(x > 0.0F ? x : slope * x, floor), ceiling);
  }
};

// visit(filter, the lane's four neighbouring pixels of it) for each of a lane's filters: every other two of a tile's.
template <typename Visit>
__device__ __forceinline__ void for_each_filter(Sums& sums, const Visit& visit) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int i = 0; i < kFilters / 4; ++i) {
    const int j = i / 2 * 4 + i % 2;
    visit(first + i / 2 * 8 + i % 2, sums[0][j], sums[0][j + 2], sums[1][j], sums[1][j + 2]);
  }
}

// Four neighbouring pixels, or as many as there are of the image.
__device__ __forceinline__ float4 read(const float* from, int32 count) {
  if (count >= 4) return *reinterpret_cast<const float4*>(from);
  return {from[0], count > 1 ? from[1] : 0.0F, count > 2 ? from[2] : 0.0F, 0.0F};
}

// All that follows the products, but the store. Of the lane's pixels the first is `offset` elements from y and from the residual, for
// filter 0 of the tile, and as many are of the image as there are.
__device__ __forceinline__ void finish(const Params& params, Sums& sums, int32 first_filter, int64 offset, int32 count) {
  const Epilogue& epilogue = params.epilogue;
  const Clamp clamp(epilogue.activation);
  const auto alpha = static_cast<float>(params.blend.alpha), beta = static_cast<float>(params.blend.beta);
  const bool reads_z = epilogue.reads_z();
  for_each_filter(sums, [&](int filter, float& a, float& b, float& c, float& d) {
    const int32 k = first_filter + filter;
    if (k >= params.filters || count <= 0) return;
    const float scale = epilogue.scale_of<float>(k), bias = epilogue.bias_of<float>(k);
    const int64 place = offset + filter * params.strides[1];
    float4 of_z{}, before{};
    if (reads_z) of_z = read(static_cast<const float*>(epilogue.z) + place, count);
    if (beta != 0.0F) before = read(params.y + place, count);
    a = alpha * clamp(epilogue.affine(a, scale, bias, of_z.x)) + beta * before.x;
    b = alpha * clamp(epilogue.affine(b, scale, bias, of_z.y)) + beta * before.y;
    c = alpha * clamp(epilogue.affine(c, scale, bias, of_z.z)) + beta * before.z;
    d = alpha * clamp(epilogue.affine(d, scale, bias, of_z.w)) + beta * before.w;
  });
}

// The lane's pixels, where these are as for `finish`.
__device__ __forceinline__ void store(const Params& params, Sums& sums, int32 first_filter, int64 offset, int32 count) {
  const bool is_plain = !params.epilogue.is_present && params.blend.beta == 0.0;
  const float factor = is_plain ? static_cast<float>(params.blend.alpha) : 1.0F;
  if (!is_plain) finish(params, sums, first_filter, offset, count);
  const auto each = [&](const auto& write) {
    for_each_filter(sums, [&](int filter, float a, float b, float c, float d) {
      if (first_filter + filter >= params.filters) return;
      write(params.y + offset + filter * params.strides[1], factor * a, factor * b, factor * c, factor * d);
    });
  };
  if (count >= 4) {
    each(store_four);
  } else if (count > 0) {
    each([&](float* y, float a, float b, float c, float) {
      y[0] = a;
      if (count > 1) y[1] = b;
      if (count > 2) y[2] = c;
    });
  }
}

__device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  Position<kStages> at;
  for_each_tile(params, [&](int32 filter, int32 tile) {
    Sums sums{};
    for (int32 step = 0; step < params.steps; ++step) {
      wait(shared.ring.filled[at.stage], at.parity);
      multiply(sums, shared, at.stage, consumer);
      at.advance();
    }
    const int32 own = tile + consumer, image = own / params.image_tiles;
    const int32 pixel = own % params.image_tiles * kPixels + thread / 32 * kSlab + lane / 4 * 4;
    if (own < params.pixel_tiles) {
      const int64 offset = image * params.strides[0] + filter * params.strides[1] + pixel;
      store(params, sums, filter, offset, params.pixels - pixel);
    }
    __syncwarp();  // the next products are the whole warp's
  });
}

inline __device__ void run(const Params& params) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  let_next_start();
  produce_and_consume<kConsumers, 40, 232>(
      [&] {
        prefetch(params.x), prefetch(params.w);
        shared.ring.make();
      },
      [&] { produce(params, shared); }, [&](int consumer) { consume(params, shared, consumer); });
}

}  // namespace dnncore::tf32_planes
