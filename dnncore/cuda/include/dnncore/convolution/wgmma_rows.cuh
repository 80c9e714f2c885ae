// Forward convolution of images of few channels, a network's first layer, by the matrix units of sm_90: channels-last, of 16 bits,
// or of fp32 as tf32, sums in fp32, or of int8, sums in int32, and whatever follows. What a row of a filter meets is laid out in
// chunks of 16 bytes, 8 values (of fp32: 4, of int8: 16), the last of them filled up with zeros, as image_rows.cuh draws it: 8 rows
// of 16 bytes are one chunk of 8 neighbouring outputs. Or x is pixels of 8 bits, which are looked up in a table while they are laid
// out, or planes of fp32, which the copy engine brings and threads round to 16 bits (image_planes.cuh).
//
//       stage   rows of x that 8 x 14 outputs meet: [chunk 0] [chunk 1] [chunk 2] [zeros]
//       w       all chunks of 64 filters x 7 rows, loaded once: a block keeps its filters
//
// One product of 32 bytes of summands takes two chunks, of which the second may be in the next row; where the number of chunks is
// odd, that of the last is zeros.
//
//       producers 0, 1    load, lay out  --->  stage 0, stage 1, ...  --->  multiply, finish, store    consumers 0, 1
//
// A rectangle has one producer and one consumer, warpgroups that take turns with the other two. Planes, of which nothing but reads of
// shared memory is left to do, have one producer for three consumers, which take turns at its stages. Of fp32 its upper and its lower
// half are stored by themselves, so that boxes take no more memory (wgmma_box.cuh); filters of int8 are in the order that is told
// there.
#pragma once

#include "dnncore/convolution/image_planes.cuh"
#include "dnncore/convolution/image_rows.cuh"
#include "dnncore/convolution/pixel_table.cuh"
#include "dnncore/convolution/wgmma_output.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::wgmma {

inline constexpr int kMostSteps = 50;
inline constexpr int kWindows = 4;  // of planes: some land while one is laid out

// `_PARAMS` of convolution/wgmma_rows.py. The map of the first phase's x is that of windows, where x is planes.
struct RowsParams : Params<false> {
  ImageRows rows;
  ImagePlanes planes;
  const void* filters_begin;
  const float* table;         // [channel][256]: what pixels become; null where x is not pixels
  int64 w_strides[4];         // k, c, r, s
  SmallDivisor across;        // rectangles of an image
  SmallDivisor down;
  int32 rectangles;
  int32 blocks_of_filters;    // that have the same
  int32 stages;
  int32 steps;                // products of two chunks
  int32 channels;
  int32 filter_rows;
  int32 filter_values;        // of a row
  uint32 places[kMostSteps];  // what a step adds to the descriptor of a stage: where its chunks are
};

// T is what is multiplied, Read what x consists of: the same, or uint8, or float in planes.
template <typename T, typename Read>
struct RowsKernel {
  using Params = RowsParams;
  using Stored = std::conditional_t<sizeof(T) == 4, HalfRectangles, Rectangles<>>;
  using Box = wgmma::Box<T, Stored>;
  using Loads = ChunkLoads<T, Read, 1>;
  static constexpr bool kLooksUp = sizeof(Read) < sizeof(T), kRounds = sizeof(Read) > sizeof(T);
  static constexpr int kConsumers = kRounds ? 3 : wgmma::kConsumers, kProducers = kRounds ? 1 : kConsumers;
  static constexpr int kOutputs = Rectangle::kWidth, kSums = Rectangle::kPixels / 2, kChunk = wgmma::kChunk<T>;
  static constexpr int kParts = Rectangle::kPixels / Stored::kPixels;  // of a rectangle, that are stored by themselves
  static_assert(kOutputs == kChunkOutputs);

  // As many stages as there is memory for.
  struct Shared {
    Box (*boxes)[kBoxes];
    uint4* w;
    uint32* table;
    uint4* stages;
    unsigned char* windows;          // of planes, each at a multiple of 128 bytes
    Mbarrier* filled;
    Mbarrier* free;
    Mbarrier (*landed)[kBoxes];      // residual or old output
    Mbarrier* arrived;               // a window
    int stage_chunks;
    int window_bytes;

    __device__ __forceinline__ Shared(const Params& params, unsigned char* memory)
        : stage_chunks(params.rows.stage_rows * params.rows.pitch * kOutputs),
          window_bytes(kRounds ? (params.planes.window_bytes + 127) / 128 * 128 : 0) {
      boxes = reinterpret_cast<Box(*)[kBoxes]>(memory);
      w = reinterpret_cast<uint4*>(boxes + kConsumers);
      table = reinterpret_cast<uint32*>(w + 2 * params.steps * kConsumerFilters);
      stages = reinterpret_cast<uint4*>(table + (kLooksUp ? PixelTable<T>::words(params.channels) : 0));
      windows = reinterpret_cast<unsigned char*>(stages + params.stages * stage_chunks);
      filled = reinterpret_cast<Mbarrier*>(windows + kWindows * window_bytes);
      free = filled + params.stages;
      landed = reinterpret_cast<Mbarrier(*)[kBoxes]>(free + params.stages);
      arrived = reinterpret_cast<Mbarrier*>(landed + kConsumers);
    }
    __device__ __forceinline__ uint4* stage(int index) const { return stages + index * stage_chunks; }
    __device__ __forceinline__ float* window(int index) const { return reinterpret_cast<float*>(windows + index * window_bytes); }
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Shared shared(params, memory);
    let_next_start();
    if (threadIdx.x == 0) {
      prefetch(params.phases[0].y);
      for (int i = 0; i < params.stages; ++i) {
        make_barrier(shared.filled[i], kWarpgroup), make_barrier(shared.free[i], kWarpgroup / 32);
      }
      for (int i = 0; i < kConsumers * kBoxes; ++i) make_barrier(shared.landed[i / kBoxes][i % kBoxes], 1);
      if constexpr (kRounds) {
        prefetch(params.phases[0].x);
        for (int i = 0; i < kWindows; ++i) make_barrier(shared.arrived[i], 1);
      }
      publish_barriers();
    }
    if (!params.reads_filters_early) wait_for_previous();
    // A block keeps its filters. The host sees to it that blocks are a multiple of the tiles of filters.
    const int32 filter = static_cast<int32>(blockIdx.x) % params.filter_tiles * kConsumerFilters;
    load_filters(params, filter, shared.w);
    clear_chunks_behind_rows(params, shared);
    publish_to_engine();
    wait_for_previous();
    // Behind the wait: the kernel before may have written it.
    if constexpr (kLooksUp) PixelTable<T>(shared.table, params.channels).load(params.table);
    __syncthreads();
    const int warpgroup = warpgroup_index();
    if (warpgroup >= kConsumers) {
      leave_registers<kRounds ? 80 : 112>();
      if constexpr (kRounds) {
        produce_from_planes(params, shared);
      } else {
        produce(params, shared, warpgroup - kConsumers);
      }
    } else {
      take_registers<144>();
      consume(params, shared, warpgroup, filter);
    }
  }

private:
  // A block's rectangles, every so-manyeth: those of one consumer or one producer. Neighbours go to different blocks.
  template <int kStep>
  class Walk {
  public:
    __device__ __forceinline__ Walk(const Params& params, int first)
        : params_(params),
          rectangle_(static_cast<int32>(blockIdx.x) / params.filter_tiles + first * params.blocks_of_filters),
          stage_(first) {}
    __device__ __forceinline__ bool any() const { return rectangle_ < params_.rectangles; }
    __device__ __forceinline__ int stage() const { return stage_; }
    __device__ __forceinline__ uint32 parity() const { return parity_; }
    __device__ __forceinline__ void next() {
      rectangle_ += kStep * params_.blocks_of_filters, stage_ += kStep;
      if (stage_ >= params_.stages) stage_ -= params_.stages, parity_ ^= 1;
    }

    // The first output, and its place as the boxes are counted: two, one below the other, follow each other, which are the parts of
    // a rectangle or two rectangles.
    __device__ __forceinline__ Pixel first() const {
      const auto at = indices();
      return {at.image, at.row * Rectangle::kHeight, at.column * kOutputs};
    }
    __device__ __forceinline__ int32 place() const {
      const auto at = indices();
      const int32 box_row = at.row * kParts;
      return 2 * ((at.image * params_.phases[0].output[0] + box_row / 2) * params_.across.value + at.column) + box_row % 2;
    }

  private:
    __device__ __forceinline__ Pixel indices() const {
      const auto rows = divide(rectangle_, params_.across), images = divide(rows.quotient, params_.down);
      return {images.quotient, images.remainder, rows.remainder};
    }

    const Params& params_;
    int32 rectangle_;
    int stage_;
    uint32 parity_ = 0;
  };

  static __device__ __forceinline__ void produce(const Params& params, const Shared& shared, int producer) {
    Loads even(params.rows), odd(params.rows);
    Walk<kProducers> walk(params, producer);
    int start = 0;  // row of the stage
    if (walk.any()) even.begin(params.rows, walk.first(), start);
    // Lays out the rows that were begun, while the next are on their way.
    const auto fill = [&](Loads& loads, Loads& next_loads) {
      const int stage = walk.stage(), first_row = start;
      const uint32 parity = walk.parity();
      start += Loads::rows(params.rows);
      const bool ends = start >= params.rows.stage_rows;
      if (ends) start = 0, walk.next();
      if (walk.any()) next_loads.begin(params.rows, walk.first(), start);
      if (first_row == 0) wait(shared.free[stage], parity ^ 1);
      if constexpr (kLooksUp) {
        loads.lay_out(params.rows, first_row, shared.stage(stage), PixelTable<T>(shared.table, params.channels));
      } else {
        loads.lay_out(params.rows, first_row, shared.stage(stage));
      }
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

  static __device__ __forceinline__ void produce_from_planes(const Params& params, const Shared& shared) {
    const PlaneChunks<T> chunks(params.rows, params.planes, params.channels, params.filter_values);
    Position<kWindows> at;
    Walk<kProducers> walk(params, 0), next(params, 0);
    const auto copy = [&](int window) {  // what is next
      if (next.any() && threadIdx.x % kWarpgroup == 0) {
        const Pixel first = next.first();
        Mbarrier& arrived = shared.arrived[window];
        arrive_expecting(arrived, params.planes.window_bytes);
        load_window(
            shared.window(window), params.phases[0].x, arrived,
            first.column * params.planes.column_step - params.planes.columns_before,
            first.row * params.rows.row_step - params.rows.rows_before, 0, first.image);
      }
      next.next();
    };
    for (int window = 0; window < kWindows; ++window) copy(window);
    for (; walk.any(); walk.next(), at.advance()) {
      wait(shared.free[walk.stage()], walk.parity() ^ 1);
      wait(shared.arrived[at.stage], at.parity);
      chunks.lay_out(params.rows, params.planes, shared.window(at.stage), shared.stage(walk.stage()));
      publish_to_engine();
      arrive(shared.filled[walk.stage()]);
      synchronize_warpgroup(1 + kConsumers);  // all have read it
      copy(at.stage);
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, const Shared& shared, int consumer, int32 filter) {
    Output<T, false, Stored> output(params, shared.boxes[consumer], shared.landed[consumer], consumer);
    const auto parameters = output.parameters(filter);
    Walk<kConsumers> walk(params, consumer);
    if (walk.any()) output.begin({walk.place(), filter, 0});
    while (walk.any()) {
      const Place place{walk.place(), filter, 0};
      const int stage = walk.stage();
      wait(shared.filled[stage], walk.parity());
      MatrixSum<T> sums[kSums];
      multiply(sums, params, shared.w, shared.stage(stage));
      if (threadIdx.x % 32 == 0) arrive(shared.free[stage]);
      walk.next();
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        if (part + 1 < kParts) {
          output.begin({place.pixel + part + 1, filter, 0});
        } else if (walk.any()) {
          output.begin({walk.place(), filter, 0});
        }
        output.store(sums + part * (Stored::kPixels / 2), parameters, {place.pixel + part, filter, 0});
      }
    }
    output.end();
  }

  // Which the last step of an odd number of chunks multiplies.
  static __device__ __forceinline__ void clear_chunks_behind_rows(const Params& params, const Shared& shared) {
    if (params.rows.pitch == params.rows.chunks) return;
    const int count = params.stages * params.rows.stage_rows * kOutputs;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      shared.stages[(i / kOutputs * params.rows.pitch + params.rows.chunks) * kOutputs + i % kOutputs] = uint4{};
    }
  }

  // Which filter, counted from the tile's first, is a row of the product.
  static __device__ __forceinline__ int32 filter_of_row(int32 row) {
    if constexpr (Share<T, Stored>::kNext == 1) return row / 16 * 16 + row % 8 * 2 + row / 8 % 2;
    return row;
  }

  // By the whole block: [chunk][row of the product], zeros where there is nothing.
  static __device__ __forceinline__ void load_filters(const Params& params, int32 first, uint4* w) {
    constexpr int kAtOnce = 4;
    const int count = 2 * params.steps * kConsumerFilters, threads = static_cast<int>(blockDim.x);
    for (int start = static_cast<int>(threadIdx.x); start < count; start += kAtOnce * threads) {
      uint4 found[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = start + i * threads;
        found[i] = chunk_of_filter(params, first + filter_of_row(at % kConsumerFilters), at / kConsumerFilters);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (start + i * threads < count) w[start + i * threads] = found[i];
      }
    }
  }

  static __device__ __forceinline__ uint4 chunk_of_filter(const Params& params, int32 filter, int32 chunk) {
    const int32 row = chunk / params.rows.chunks, value = chunk % params.rows.chunks * kChunk;
    const int32 values = filter < params.filters && row < params.filter_rows ? params.filter_values : 0;
    int32 tap = value / params.channels, channel = value % params.channels;
    const T* const weights =
        static_cast<const T*>(params.filters_begin) + filter * params.w_strides[0] + row * params.w_strides[2];
    constexpr int kOfWord = kChunk / kChunkWords;
    uint32 words[kChunkWords] = {};
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const uint32 bits =
          value + i < values ? operand_bits(weights[channel * params.w_strides[1] + tap * params.w_strides[3]]) : 0;
      words[i / kOfWord] |= bits << i % kOfWord * 8 * sizeof(T);
      if (++channel == params.channels) channel = 0, ++tap;
    }
    return {words[0], words[1], words[2], words[3]};
  }

  static __device__ __forceinline__ void multiply(
      MatrixSum<T> (&sums)[kSums], const Params& params, const uint4* w, const uint4* stage) {
    constexpr uint32 kChunkOfFilters = kConsumerFilters * sizeof(uint4);
    const uint64 of_w = matrix_descriptor<16>(shared_address(w), kChunkOfFilters);
    const uint64 of_x = matrix_descriptor<16>(shared_address(stage), 0, params.rows.row_step * params.rows.pitch * kPlaceBytes);
#pragma unroll 1
    for (int step = 0; step < params.steps; ++step) {
      fence_sums();
      multiply_matrices<T>(sums, of_w + 2 * step * kChunkOfFilters / 16, of_x + params.places[step], step > 0);
      commit_products();
    }
    wait_for_products<0>();
    settle_sums(sums);
  }
};

}  // namespace dnncore::wgmma
