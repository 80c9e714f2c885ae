// Forward convolution of images of few channels, a network's first layer, by the matrix units of sm_90: channels-last, 16 bits, sums
// in fp32, and whatever follows. A pixel of 3 channels is 6 bytes, which no copy of the engine begins at. But the values that a row
// of a filter meets are neighbours in a row of x: 7 taps of 3 channels are 21, or 3 chunks of 8, the last of them filled up with
// zeros. Threads load these chunks from wherever they begin, and lay them out as the matrix units read operands that are not
// swizzled: 8 rows of 16 bytes are one chunk of 8 neighbouring outputs.
//
//       x, rows that 8 x 14 outputs meet            stage: a place is 8 outputs x 16 bytes
//
//       [ .......21 values....... ]                 row 0:  [chunk 0] [chunk 1] [chunk 2] [zeros]
//             [ .......21 values....... ]           row 1:  [chunk 0] [chunk 1] [chunk 2] [zeros]
//       output 0 and output 1, 6 values on          ...
//                                                   row 32
//
//       w    all chunks of 64 filters x 7 rows, loaded once: a block keeps its filters
//
// The next row of outputs begins `stride` rows of the stage further on, so that a row of x is laid out once for all rows of the
// filters that meet it. One product of 16 summands takes two chunks, of which the second may be in the next row; where the number
// of chunks is odd, that of the last is zeros.
//
//       warpgroup 0   load, lay out   multiply   finish, store   load, lay out   ...
//       warpgroup 1   ...finish, store   load, lay out   multiply   finish, ...
//
// Nobody has a role: each warpgroup takes its own rectangles from x to y, and while one waits for its loads others multiply.
#pragma once

#include "dnncore/convolution/wgmma_output.cuh"

namespace dnncore::wgmma {

inline constexpr int kChunk = 8;  // values
inline constexpr int kMostWarpgroups = 3;

// `_PARAMS` of convolution/wgmma_rows.py.
struct RowsParams : Params<false> {
  const void* images;
  const void* filters_begin;
  int64 x_strides[2];      // from image to image and from row to row
  int64 w_strides[4];      // k, c, r, s
  SmallDivisor chunks;     // of a row of a filter
  int32 pitch;             // chunks from a row of the stage to the next
  int32 stage_rows;
  int32 steps;             // products of two chunks
  int32 channels;
  int32 filter_rows;
  int32 filter_values;     // of a row
  int32 height;            // of x, and the values of its rows
  int32 row_values;
  int32 row_step;          // of x, from an output to the next one below, and beside it in values
  int32 value_step;
  int32 rows_before;       // padding, and the same in values
  int32 values_before;
  int32 output_rows;
  uint32 tail[kChunk / 2]; // bits of the last chunk that are values
  uint32 even;             // whether rows begin and end at pairs of values
};

template <typename T>
struct RowsKernel {
  using Params = RowsParams;
  using Box = wgmma::Box<T, Rectangles>;
  static constexpr int kOutputs = Rectangles::kWidth, kSums = Rectangles::kPixels / 2;
  static constexpr uint32 kPlaceBytes = kOutputs * sizeof(uint4);

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const int warpgroups = static_cast<int>(blockDim.x) / kWarpgroup;
    // Uniform, which the compiler knows of what comes out of a shuffle.
    const int warpgroup = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
    const int stage_chunks = params.stage_rows * params.pitch * kOutputs;
    auto* const boxes = reinterpret_cast<Box*>(memory) + warpgroup * kBoxes;
    auto* const w = reinterpret_cast<uint4*>(memory + warpgroups * kBoxes * sizeof(Box));
    uint4* const stages = w + 2 * params.steps * kConsumerFilters;
    uint4* const stage = stages + warpgroup * stage_chunks;
    auto* const landed = reinterpret_cast<Mbarrier*>(stages + warpgroups * stage_chunks) + warpgroup * kBoxes;
    if (threadIdx.x % kWarpgroup == 0) {
      for (int i = 0; i < kBoxes; ++i) make_barrier(landed[i], 1);
      publish_barriers();
      prefetch(params.phases[0].y);
    }
    // A block keeps its filters. The host sees to it that blocks are a multiple of the tiles of filters.
    const int32 tiles = params.filter_tiles, filter = static_cast<int32>(blockIdx.x) % tiles * kConsumerFilters;
    load_filters(params, filter, w);
    for (int i = threadIdx.x % kWarpgroup; params.pitch > params.chunks.value && i < params.stage_rows * kOutputs; i += kWarpgroup) {
      stage[(i / kOutputs * params.pitch + params.chunks.value) * kOutputs + i % kOutputs] = uint4{};
    }
    publish_to_engine();
    __syncthreads();

    Output<T, false, Rectangles> output(params, boxes, landed, warpgroup);
    const auto parameters = output.parameters(filter);
    Walk walk(params, warpgroup, warpgroups);
    Loads loads;
    if (walk.any()) loads.begin(params, walk.first(), 0);
    while (walk.any()) {
      loads.lay_out(params, 0, stage);
      for (int start = Loads::kPlaces; start < params.stage_rows * params.chunks.value; start += Loads::kPlaces) {
        loads.begin(params, walk.first(), start);
        loads.lay_out(params, start, stage);
      }
      publish_to_engine();
      synchronize_warpgroup(warpgroup + 1);
      const Place place{walk.rectangle(), filter, 0};
      output.begin(place);
      walk.next();
      if (walk.any()) loads.begin(params, walk.first(), 0);
      float sums[kSums];
      multiply(sums, params, w, stage);
      output.store(sums, parameters, place);  // waits for all warps before the stage is written again
    }
    output.end();
  }

private:
  // A warpgroup's rectangles: neighbours go to different blocks.
  class Walk {
  public:
    __device__ __forceinline__ Walk(const Params& params, int warpgroup, int warpgroups) : params_(params) {
      const int32 blocks = static_cast<int32>(gridDim.x) / params.filter_tiles;
      rectangle_ = warpgroup * blocks + static_cast<int32>(blockIdx.x) / params.filter_tiles, step_ = warpgroups * blocks;
      skip();
    }
    __device__ __forceinline__ bool any() const { return rectangle_ < 2 * params_.pixel_tiles; }
    __device__ __forceinline__ int32 rectangle() const { return rectangle_; }
    __device__ __forceinline__ Pixel first() const {
      Pixel pixel(params_.phases[0], rectangle_ / 2);
      pixel.row = (2 * pixel.row + rectangle_ % 2) * Rectangles::kHeight, pixel.column *= kOutputs;
      return pixel;
    }
    __device__ __forceinline__ void next() { rectangle_ += step_, skip(); }

  private:
    // Past those of which no output is there.
    __device__ __forceinline__ void skip() {
      while (any() && first().row >= params_.output_rows) rectangle_ += step_;
    }

    const Params& params_;
    int32 rectangle_;
    int32 step_;
  };

  // A thread's chunks of one output on their way from x into the stage: every so-manyeth of those of a rectangle.
  class Loads {
    static constexpr int kAtOnce = 7, kStep = kWarpgroup / kOutputs;

  public:
    static constexpr int kPlaces = kAtOnce * kStep;  // of a warpgroup

    __device__ __forceinline__ void begin(const Params& params, const Pixel& first, int start) {
      const T* const image = static_cast<const T*>(params.images) + first.image * params.x_strides[0];
      const int32 top = first.row * params.row_step - params.rows_before;
      const int32 left = (first.column + output()) * params.value_step - params.values_before;
      const bool in_pairs = params.even && reinterpret_cast<uint64>(params.images) % sizeof(uint32) == 0;
      shift_ = in_pairs ? (left & 1) * 16 : 0;  // the first value may be the second of a pair
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const auto place = divide(start + i * kStep + first_place(), params.chunks);
        const int32 row = top + place.quotient, begin = left + place.remainder * kChunk;
        const bool exists = place.quotient < params.stage_rows && row >= 0 && row < params.height;
        const T* const from = image + row * params.x_strides[1];
        in_pairs ? load_pairs(words_[i], from, begin, exists ? params.row_values : 0)
                 : load_each(words_[i], from, begin, exists ? params.row_values : 0);
      }
    }

    __device__ __forceinline__ void lay_out(const Params& params, int start, uint4* stage) const {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const auto place = divide(start + i * kStep + first_place(), params.chunks);
        uint32 chunk[kChunk / 2];
#pragma unroll
        for (int j = 0; j < kChunk / 2; ++j) {
          chunk[j] = __funnelshift_r(words_[i][j], words_[i][j + 1], shift_);
          if (place.remainder + 1 == params.chunks.value) chunk[j] &= params.tail[j];
        }
        if (place.quotient >= params.stage_rows) break;
        stage[(place.quotient * params.pitch + place.remainder) * kOutputs + output()] = {chunk[0], chunk[1], chunk[2], chunk[3]};
      }
    }

  private:
    static __device__ __forceinline__ int output() { return static_cast<int>(threadIdx.x) % kOutputs; }
    static __device__ __forceinline__ int first_place() { return static_cast<int>(threadIdx.x) % kWarpgroup / kOutputs; }

    // The pairs in which the values from `begin` on are, of a row of so many; zeros beyond it. Rows are whole pairs.
    static __device__ __forceinline__ void load_pairs(uint32 (&words)[kChunk / 2 + 1], const T* row, int32 begin, int32 values) {
#pragma unroll
      for (int j = 0; j < kChunk / 2 + 1; ++j) {
        const int32 at = (begin & ~1) + 2 * j;
        words[j] = static_cast<uint32>(at) < static_cast<uint32>(values) ? *reinterpret_cast<const uint32*>(row + at) : 0;
      }
    }

    // The values themselves, of any row.
    static __device__ __forceinline__ void load_each(uint32 (&words)[kChunk / 2 + 1], const T* row, int32 begin, int32 values) {
      const auto value = [&](int32 at) {
        return static_cast<uint32>(at) < static_cast<uint32>(values) ? uint32{row[at].bits} : 0;
      };
#pragma unroll
      for (int j = 0; j < kChunk / 2; ++j) words[j] = value(begin + 2 * j) | value(begin + 2 * j + 1) << 16;
      words[kChunk / 2] = 0;
    }

    uint32 words_[kAtOnce][kChunk / 2 + 1];
    uint32 shift_;
  };

  // By the whole block: [chunk][filter], zeros where there is nothing.
  static __device__ __forceinline__ void load_filters(const Params& params, int32 first, uint4* w) {
    for (int i = static_cast<int>(threadIdx.x); i < 2 * params.steps * kConsumerFilters; i += static_cast<int>(blockDim.x)) {
      const int32 filter = first + i % kConsumerFilters;
      const auto row = divide(i / kConsumerFilters, params.chunks);
      const T* const weights = static_cast<const T*>(params.filters_begin) + filter * params.w_strides[0] + row.quotient * params.w_strides[2];
      uint32 pairs[kChunk / 2] = {};
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const int32 value = row.remainder * kChunk + j, tap = value / params.channels, channel = value % params.channels;
        if (filter < params.filters && row.quotient < params.filter_rows && value < params.filter_values) {
          pairs[j / 2] |= uint32{weights[channel * params.w_strides[1] + tap * params.w_strides[3]].bits} << (16 * (j % 2));
        }
      }
      w[i] = {pairs[0], pairs[1], pairs[2], pairs[3]};
    }
  }

  static __device__ __forceinline__ void multiply(float (&sums)[kSums], const Params& params, const uint4* w, const uint4* stage) {
    const uint32 of_w = shared_address(w), of_x = shared_address(stage);
    const uint32 next_output_row = params.row_step * params.pitch * kPlaceBytes;
    constexpr uint32 kNextOfW = kConsumerFilters * sizeof(uint4);
    const auto summands = params.filter_rows * params.chunks.value;
    uint32 place = 0;  // of a step's first chunk, in the stage
    int32 chunk = 0;   // in its row
    const auto advance = [&] {
      place += ++chunk == params.chunks.value ? 1 + params.pitch - params.chunks.value : 1;
      if (chunk == params.chunks.value) chunk = 0;
    };
#pragma unroll 1
    for (int step = 0; step < params.steps; ++step) {
      const uint32 begin = place;
      advance();
      const uint32 next = 2 * step + 1 < summands ? place - begin : 1;  // or the zeros behind the last one
      fence_sums();
      multiply_matrices<T>(
          sums, matrix_descriptor<16>(of_w + 2 * step * kNextOfW, kNextOfW),
          matrix_descriptor<16>(of_x + begin * kPlaceBytes, next * kPlaceBytes, next_output_row), step > 0);
      advance();
    }
    commit_products();
    wait_for_products<0>();
  }
};

}  // namespace dnncore::wgmma
