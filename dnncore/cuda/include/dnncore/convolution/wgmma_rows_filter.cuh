// Backward-filter convolution of images of few channels, a network's first layer, by the matrix units of sm_90: channels-last, 16 bits,
// sums in fp32, the same bits every time.
//
//     dw[k, r, j] = sum over outputs (p, q) of dy[p, q, k] * x[p * stride + r, j-th value from q * stride on]
//
// A product whose sum runs over the outputs. Both operands have an output to a row, so that the units transpose both: dy as the copy
// engine brings it, 64 filters to a row, and the rows of x as threads lay them out in chunks of 8 values (image_rows.cuh). There
// eight rows of 16 bytes, which a forward product reads as 8 columns of 8 summands, are 8 summands of 8 columns. A step of 16
// outputs of a row is one product for each row of the filters, whose columns are that row's values:
//
//     stage      16 outputs x `outputs_down` rows of dy   |   the rows of x that they meet, chunks of 16 outputs each
//                          \                                /
//     consumers      0: sums of the first kRows rows of the filters          1: of the others
//
// Two producers, warpgroups that take rectangles of outputs in turn, lay out rows while the consumers multiply those before. Where the
// copy engine can take rows of x as runs of values, it brings them, with zeros around the image, into `runs` of shared memory, two for
// each producer, of which one lands while the other is laid out. Else, as for images of 227 x 227 x 3, threads load them.
//
// A rectangle may hang over the image's border. Its rows beyond are not multiplied, and there are zeros for columns beyond, so that
// infinity in x reaches those taps alone that meet it for an output. A block takes rectangles until there are none, and leaves its
// sums in the workspace, where a second kernel adds them up (sum_of_parts.cuh). It starts early, but not before all blocks have
// ended, as that of wgmma_filter.cuh.
#pragma once

#include "dnncore/convolution/image_rows.cuh"
#include "dnncore/convolution/sum_of_parts.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/tensor_copy.cuh"

namespace dnncore::wgmma_rows {

using wgmma::ImageRows;
using wgmma::kConsumerFilters;
using wgmma::kConsumers;
using wgmma::kPlaceBytes;
using wgmma::Position;
using wgmma::Row;

inline constexpr int kGroups = 2, kColumns = kGroups * wgmma::kChunkOutputs;  // of outputs: those of a step
inline constexpr int kProducers = 2, kRuns = 2;                               // of each

// _PARAMS in convolution/wgmma_rows_backward_filter.py.
struct alignas(64) Params {
  TensorMap dy;             // 64 filters of a rectangle
  TensorMap runs;           // what they meet of x, where the engine can take it
  ImageRows x;
  float4* parts;            // [tile][block][place]
  SmallDivisor across;      // rectangles of an image
  SmallDivisor down;
  int32 rectangles;
  int32 filter_tiles;
  int32 blocks_of_filters;  // that have the same
  int32 stages;
  int32 outputs_down;       // of a rectangle
  int32 run_values;         // of a row of x; 0 where threads load them
  int32 output[2];          // of y: rows and columns
};

template <typename T, int kChunks, int kRows>
struct Kernel {
  using Loads = wgmma::ChunkLoads<T, T, kGroups>;
  static constexpr int kChunk = wgmma::kChunk<T>;
  static constexpr int kSums = kChunks * kChunk / 2;         // of a thread and a row of the filters
  static constexpr int kPitch = kGroups * kChunks;           // places from a row of x to the next

  // As many stages as there is memory for.
  struct Shared {
    Row* dy;  // each stage begins at a multiple of 1024 bytes
    uint4* x;
    unsigned char* runs;  // each at a multiple of 128
    Mbarrier* filled;
    Mbarrier* free;
    Mbarrier* landed;  // a run
    int dy_rows;
    int x_chunks;
    int run_bytes;

    __device__ __forceinline__ Shared(const Params& params, unsigned char* memory)
        : dy(reinterpret_cast<Row*>(memory)),
          dy_rows(params.outputs_down * kColumns),
          x_chunks(params.x.stage_rows * kPitch * wgmma::kChunkOutputs),
          run_bytes(params.x.stage_rows * params.run_values * static_cast<int>(sizeof(T))) {
      x = reinterpret_cast<uint4*>(dy + params.stages * dy_rows);
      runs = reinterpret_cast<unsigned char*>(x + params.stages * x_chunks);
      filled = reinterpret_cast<Mbarrier*>(runs + kProducers * kRuns * run_pitch());
      free = filled + params.stages;
      landed = free + params.stages;
    }
    __device__ __forceinline__ Row* dy_of(int stage) const { return dy + stage * dy_rows; }
    __device__ __forceinline__ uint4* x_of(int stage) const { return x + stage * x_chunks; }
    __device__ __forceinline__ int run_pitch() const { return (run_bytes + 127) / 128 * 128; }
    __device__ __forceinline__ T* run(int index) const { return reinterpret_cast<T*>(runs + index * run_pitch()); }
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Shared shared(params, memory);
    if (threadIdx.x == 0) {
      prefetch(params.dy);
      if (params.run_values) prefetch(params.runs);
      for (int i = 0; i < kProducers * kRuns; ++i) make_barrier(shared.landed[i], 1);
      for (int i = 0; i < params.stages; ++i) {
        make_barrier(shared.filled[i], kWarpgroup + 1);  // a producer's threads, and the one that announces dy
        make_barrier(shared.free[i], kConsumers * kWarpgroup / 32);
      }
      publish_barriers();
    }
    __syncthreads();
    wait_for_previous();
    const int warpgroup = warpgroup_index();
    if (warpgroup >= kConsumers) {
      leave_registers<104>();
      if (params.run_values) {
        lay_out_runs(params, shared, warpgroup - kConsumers);
      } else {
        lay_out_loads(params, shared, warpgroup - kConsumers);
      }
    } else {
      take_registers<152>();
      consume(params, shared, warpgroup);
    }
  }

private:
  struct Output {
    int32 image;
    int32 row;
    int32 column;
  };

  // A block's rectangles, or every so-manyeth from one on, and where in the ring they are. Neighbours go to different blocks.
  class Walk {
  public:
    __device__ __forceinline__ Walk(const Params& params, int first, int step)
        : params_(params),
          rectangle_(static_cast<int32>(blockIdx.x) / params.filter_tiles + first * params.blocks_of_filters),
          step_(step),
          stage_(first) {}
    __device__ __forceinline__ bool any() const { return rectangle_ < params_.rectangles; }
    __device__ __forceinline__ int stage() const { return stage_; }
    __device__ __forceinline__ uint32 parity() const { return parity_; }
    __device__ __forceinline__ void next() {
      rectangle_ += step_ * params_.blocks_of_filters, stage_ += step_;
      if (stage_ >= params_.stages) stage_ -= params_.stages, parity_ ^= 1;
    }
    __device__ __forceinline__ Output first() const {
      const auto rows = divide(rectangle_, params_.across), images = divide(rows.quotient, params_.down);
      return {images.quotient, images.remainder * params_.outputs_down, rows.remainder * kColumns};
    }

  private:
    const Params& params_;
    int32 rectangle_;
    int step_;
    int stage_;
    uint32 parity_ = 0;
  };

  // Wait until a stage is free, and have dy copied into it. The host sees to it that there are two stages or more: no producer then
  // comes to a stage before the consumers, which take all rectangles in their order, have left the one that it filled before, and so
  // every phase before that.
  static __device__ __forceinline__ void begin_to_fill(
      const Params& params, const Shared& shared, int stage, uint32 parity, const Output& first) {
    wait(shared.free[stage], parity ^ 1);
    if (threadIdx.x % kWarpgroup != 0) return;
    const int32 filter = static_cast<int32>(blockIdx.x) % params.filter_tiles * kConsumerFilters;
    arrive_expecting(shared.filled[stage], shared.dy_rows * sizeof(Row));
    load_window(shared.dy_of(stage), params.dy, shared.filled[stage], filter, first.column, first.row, first.image);
  }

  static __device__ __forceinline__ void lay_out_loads(const Params& params, const Shared& shared, int producer) {
    const auto begin = [&](Loads& loads, const Output& first, int start) {
      loads.begin(params.x, first, start, params.output[1] - first.column);
    };
    Loads even(params.x), odd(params.x);
    Walk walk(params, producer, kProducers);
    int start = 0;  // row of the stage
    if (walk.any()) begin(even, walk.first(), start);
    // Lays out the rows that were begun, while the next are on their way.
    const auto fill = [&](Loads& loads, Loads& next_loads) {
      const int stage = walk.stage(), first_row = start;
      const uint32 parity = walk.parity();
      const Output first = walk.first();
      start += Loads::rows(params.x);
      const bool ends = start >= params.x.stage_rows;
      if (ends) start = 0, walk.next();
      if (walk.any()) begin(next_loads, walk.first(), start);
      if (first_row == 0) begin_to_fill(params, shared, stage, parity, first);
      loads.lay_out(params.x, first_row, shared.x_of(stage));
      if (ends) {
        publish_to_engine();
        arrive(shared.filled[stage]);
      }
    };
    while (walk.any()) {
      fill(even, odd);
      if (walk.any()) fill(odd, even);
    }
  }

  // Values of the padding that a run begins with: the engine takes only whole 16 bytes.
  static __device__ __forceinline__ int32 run_before(const Params& params) {
    return (params.x.values_before + kChunk - 1) / kChunk * kChunk;
  }

  static __device__ __forceinline__ void lay_out_runs(const Params& params, const Shared& shared, int producer) {
    Position<kRuns> at;
    Walk walk(params, producer, kProducers), next(params, producer, kProducers);
    const auto copy = [&](int run) {  // what is next
      if (next.any() && threadIdx.x % kWarpgroup == 0) {
        const Output first = next.first();
        Mbarrier& landed = shared.landed[producer * kRuns + run];
        arrive_expecting(landed, shared.run_bytes);
        load_window(
            shared.run(producer * kRuns + run), params.runs, landed, first.column * params.x.value_step - run_before(params),
            first.row * params.x.row_step - params.x.rows_before, first.image);
      }
      next.next();
    };
    for (int run = 0; run < kRuns; ++run) copy(run);
    for (; walk.any(); walk.next(), at.advance()) {
      const Output first = walk.first();
      begin_to_fill(params, shared, walk.stage(), walk.parity(), first);
      wait(shared.landed[producer * kRuns + at.stage], at.parity);
      lay_out_run(params, shared.run(producer * kRuns + at.stage), shared.x_of(walk.stage()), params.output[1] - first.column);
      publish_to_engine();
      arrive(shared.filled[walk.stage()]);
      synchronize_warpgroup(1 + producer);  // all have read it
      copy(at.stage);
    }
  }

  // A thread has one of the outputs, of which `outputs` exist, and every so-manyeth chunk.
  static __device__ __forceinline__ void lay_out_run(const Params& params, const T* run, uint4* stage, int outputs) {
    constexpr int kTogether = kWarpgroup / kColumns;
    const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, output = thread % kColumns;
    const int value = output * params.x.value_step + run_before(params) - params.x.values_before;
    const int chunks = params.x.stage_rows * kChunks;
    const int shift = value % 2 * 16;  // the first value may be the second of a pair
    const uint32 kept = output < outputs ? ~0U : 0;
    const T* const from = run + value / 2 * 2;
    uint4* const to = stage + output / wgmma::kChunkOutputs * kChunks * wgmma::kChunkOutputs + output % wgmma::kChunkOutputs;
#pragma unroll 4
    for (int i = thread / kColumns; i < chunks; i += kTogether) {
      const int row = i / kChunks, chunk = i % kChunks;
      const auto* const pairs = reinterpret_cast<const uint32*>(from + row * params.run_values + chunk * kChunk);
      uint32 words[5];
#pragma unroll
      for (int j = 0; j < 5; ++j) words[j] = pairs[j] & kept;
      to[(row * kPitch + chunk) * wgmma::kChunkOutputs] = {
          __funnelshift_r(words[0], words[1], shift), __funnelshift_r(words[1], words[2], shift),
          __funnelshift_r(words[2], words[3], shift), __funnelshift_r(words[3], words[4], shift)};
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, const Shared& shared, int consumer) {
    float sums[kRows][kSums];
    bool adds = false;
    int before = -1;  // the stage whose products may still be running
    for (Walk walk(params, 0, 1); walk.any(); walk.next()) {
      const int steps = min(params.outputs_down, params.output[0] - walk.first().row);
      wait(shared.filled[walk.stage()], walk.parity());
      multiply(sums, params, shared, consumer, walk.stage(), steps, adds);
      wait_for_products<1>();
      if (before >= 0) release(shared, before);
      adds = true, before = walk.stage();
    }
    wait_for_products<0>();
    leave(params, sums, consumer);
  }

  static __device__ __forceinline__ void release(const Shared& shared, int stage) {
    if (threadIdx.x % 32 == 0) arrive(shared.free[stage]);
  }

  static __device__ __forceinline__ void multiply(
      float (&sums)[kRows][kSums], const Params& params, const Shared& shared, int consumer, int stage, int steps, bool adds) {
    constexpr uint32 kRowBytes = kPitch * kPlaceBytes;
    const uint64 of_dy = matrix_descriptor(shared_address(shared.dy_of(stage)));
    const uint64 of_x = matrix_descriptor<16>(
        shared_address(shared.x_of(stage)) + consumer * kRows * kRowBytes, kChunks * kPlaceBytes, kPlaceBytes);
    int step = 0;
#pragma unroll 1
    do {
      fence_sums();
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        multiply_matrices<T, Major::kMN, Major::kMN>(
            sums[r], of_dy + step * kMatrixStep<Major::kMN>, of_x + (step * params.x.row_step + r) * (kRowBytes / 16),
            adds || step > 0);
      }
      commit_products();
    } while (++step < steps);
  }

  // Four sums are a place: [row of the filters][chunk][thread].
  static __device__ __forceinline__ void leave(const Params& params, const float (&sums)[kRows][kSums], int consumer) {
    constexpr int kOfRow = kChunks * kWarpgroup, kOfTile = kConsumers * kRows * kOfRow;
    const int32 tile = static_cast<int32>(blockIdx.x) % params.filter_tiles;
    const int32 block = static_cast<int32>(blockIdx.x) / params.filter_tiles;
    float4* const to = params.parts + (static_cast<int64>(tile) * params.blocks_of_filters + block) * kOfTile +
                       (consumer * kRows * kOfRow + static_cast<int>(threadIdx.x) % kWarpgroup);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        to[r * kOfRow + i * kWarpgroup] = {sums[r][4 * i], sums[r][4 * i + 1], sums[r][4 * i + 2], sums[r][4 * i + 3]};
      }
    }
  }
};

// _SUM_PARAMS in convolution/wgmma_rows_backward_filter.py.
struct SumParams {
  Blend blend;
  const float4* parts;
  void* dw;
  int64 strides[4];   // K, C, R, S
  int32 filters;
  int32 channels;
  int32 rows;         // of a filter, and the values of each
  int32 values;
  int32 chunks;       // of a row, as above
  int32 tile_places;
  int32 blocks;       // that left sums of a tile
  int32 log2_ways;
};

// Blocks along x share out the sums of 64 filters, tile y. T is dw's; a chunk has kValues of x's.
template <typename T, int kValues>
__device__ void add_parts(const SumParams& params) {
  const SumOfParts sum_of_parts(params.log2_ways);
  const int32 place = sum_of_parts.place(), tile = static_cast<int32>(blockIdx.y);
  wait_for_previous();
  float4 sum;
  const float4* const parts = params.parts + (static_cast<int64>(tile) * params.blocks * params.tile_places + place);
  if (!sum_of_parts.add(parts, params.blocks, params.tile_places, sum)) return;
  const int32 thread = place % kWarpgroup, lane = thread % 32, chunk = place / kWarpgroup % params.chunks;
  const int32 row = place / kWarpgroup / params.chunks;
  const int32 filter = tile * kConsumerFilters + thread / 32 * 16 + lane / 4;
  const int32 value = chunk * kValues + lane % 4 * 2;
  if (row >= params.rows) return;
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32 k = filter + i / 2 * 8, j = value + i % 2;
    if (k >= params.filters || j >= params.values) continue;
    const int64 offset = k * params.strides[0] + j % params.channels * params.strides[1] + row * params.strides[2] +
                         j / params.channels * params.strides[3];
    blend_into(params.blend, sums[i], static_cast<T*>(params.dw) + offset);
  }
}

}  // namespace dnncore::wgmma_rows
