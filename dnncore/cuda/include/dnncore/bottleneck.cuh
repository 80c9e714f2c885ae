// ResNet's bottleneck with 64 channels within, in one kernel of 16 bits, channels-last:
//
//     y = f(restore(f(middle(f(reduce(x) + b)) + b)) + b [+ z])          1 x 1 to 64 channels, 3 x 3, 1 x 1 to 256; f: ReLU or nothing
//
// z is some tensor, x itself, or, of 64 channels of x, shortcut(x) + b, again 1 x 1 to 256.
//
// Its tensors of 256 channels are nearly all that the three convolutions move, and all that this moves. Blocks stay for the whole
// launch, and keep the filters in shared memory. A tile is 8 x 8 pixels of y, which one consumer of four warps computes from the patch
// of 10 x 10 pixels of x around them:
//
//     x        . . . . . . . . . .      The patch arrives 64 channels at a time, zeros outside of the image, in a ring of stages.
//              . o o o o o o o o .
//     reduce   . o o o o o o o o .      64 filters (rows) x 104 pixels (columns, the last four of which are nobody's), added up over
//              . o o o o o o o o .      the stages. Rounded, they become 100 rows of 128 bytes in shared memory, and those that are
//                ...                    outside of the image become zeros: the middle convolution is padded, not the first.
//
//     middle   64 pixels (rows) x 64 filters (columns). The pixels of tap (r, s) begin 10 r + s rows further on, and of them eight are
//              followed by the next eight ten rows on. Rounded, the sums are, where they are, an operand in registers.
//
//     restore  64 pixels (rows) x 128 filters (columns), twice. The copy engine lays these filters out so that a thread has eight
//              neighbouring channels of a pixel: it adds z, which it has loaded before, and stores, 16 bytes at a time. A shortcut's
//              products are added to the same sums: its operand is the patch, which keeps its stage until then, from (1, 1) on.
//
//     tiles        0        1        2        3    ...
//                  |        |        |        |
//     consumer 0   reduce | middle, restore | reduce | middle, restore | ...
//     consumer 1            reduce | middle, restore | reduce | ...
//
// Only one consumer reduces at a time, as fast as x arrives; the other multiplies what it has meanwhile, and stores. So memory
// never waits for the units, and 8 x 8 pixels fill a row of matrices without waste, at the price of 100 pixels read of the cache for 64.
#pragma once

#include "dnncore/bottleneck_outputs.cuh"
#include "dnncore/convolution/wgmma_box.cuh"
#include "dnncore/convolution/wgmma_ring.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/extremum.cuh"
#include "dnncore/ptx/tensor_copy.cuh"
#include "dnncore/ptx/warpgroup_rows.cuh"

namespace dnncore::bottleneck {

using wgmma::Row;

template <typename T, bool kHasShortcut>
struct Kernel {
  using Params = bottleneck::Params;
  static constexpr int kConsumers = 2, kStages = 4;
  static constexpr int kPatchSide = kSide + 2, kPatchPixels = kPatchSide * kPatchSide;
  static constexpr int kPatchRows = (kPatchPixels + 7) / 8 * 8;
  static constexpr int kInner = 64, kMostSlabs = kHasShortcut ? 1 : 4, kTaps = 9;
  static constexpr int kProducts = kMatrixRowBytes / 32;  // of a row
  struct Patch {
    static constexpr int kPixels = kPatchRows;
  };
  using Share = wgmma::Share<T, Patch>;
  using Outputs = bottleneck::Outputs<T, kHasShortcut>;

  struct Shared {  // rows begin at multiples of 1024 bytes
    Row x[kStages][kPatchRows];
    wgmma::Box<T, Patch> inner[kConsumers];
    Row reduce[kMostSlabs][kInner];
    Row middle[kTaps][kInner];
    Row restore[kOutputs];
    Row shortcut[kHasShortcut ? kOutputs : 0];
    float middle_bias[kInner];
    float restore_bias[kOutputs];
    wgmma::Ring<kStages, 1> ring;  // a stage has one consumer
    Mbarrier turns[kConsumers];    // the one before has begun all products of its patch
    Mbarrier reduces;              // filters have landed
    Mbarrier others;
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    let_next_start();
    wgmma::produce_and_consume<kConsumers, 40, 232>(
        [&] {
          prefetch(params.x), prefetch(params.reduce), prefetch(params.middle), prefetch(params.restore);
          shared.ring.make();
          for (Mbarrier& turn : shared.turns) make_barrier(turn, kWarpgroup / 32);
          make_barrier(shared.reduces, 1), make_barrier(shared.others, 1);
        },
        [&] { produce(params, shared); }, [&](int consumer) { consume(params, shared, consumer); });
  }

private:
  static __device__ __forceinline__ void produce(const Params& params, Shared& shared) {
    arrive_expecting(shared.reduces, params.slabs * sizeof(shared.reduce[0]));
    for (int slab = 0; slab < params.slabs; ++slab) {
      load_window(shared.reduce[slab], params.reduce, shared.reduces, slab * wgmma::kSlab, 0, 0, 0);
    }
    auto at = wgmma::Ring<kStages, 1>::first_free();
    const auto first = static_cast<int32>(blockIdx.x);
    for (int32 tile = first; tile < params.tiles; tile += static_cast<int32>(gridDim.x)) {
      const Place place(params, tile);
      for (int slab = 0; slab < params.slabs; ++slab) {
        Mbarrier& filled = shared.ring.begin_to_fill(at, kPatchPixels * kMatrixRowBytes);
        load_window(
            shared.x[at.stage], params.x, filled, slab * wgmma::kSlab, place.column - 1, place.row - 1, place.image);
        at.advance();
      }
      if (tile != first) continue;
      arrive_expecting(shared.others, sizeof(shared.middle) + sizeof(shared.restore) + sizeof(shared.shortcut));
      for (int tap = 0; tap < kTaps; ++tap) load_window(shared.middle[tap], params.middle, shared.others, 0, tap % 3, tap / 3, 0);
      load_groups(shared.restore, params.restore, shared.others, 0, 0, 0);
      if constexpr (kHasShortcut) load_groups(shared.shortcut, params.shortcut, shared.others, 0, 0, 0);
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int consumer) {
    const Share share;
    prepare(params, shared);
    const float bias[2] = {bias_of(params.reduce_bias, share.first()), bias_of(params.reduce_bias, share.first() + Share::kNext)};
    const int32 blocks = static_cast<int32>(gridDim.x);
    wait(shared.reduces, 0);
    // Stages are filled for both in turn: who waits for a filling must know that the one before it was seen.
    uint32 turn = consumer == 0;
    int number = consumer * params.slabs;  // of the patch's first stage
    for (int32 tile = static_cast<int32>(blockIdx.x) + consumer * blocks; tile < params.tiles; tile += kConsumers * blocks) {
      const Place place(params, tile);
      wait(shared.turns[consumer], turn);
      turn ^= 1;
      reduce(params, shared, number, consumer, share, bias, place);
      const Outputs outputs(params, place);  // begins to load z, which the compiler would do later but for the barrier
      synchronize_warpgroup(consumer + 1);
      wait(shared.others, 0);
      uint32 inner[kProducts][4];
      filter(params, shared, consumer, inner);
      restore(params, shared, inner, outputs, number % kStages);
      if constexpr (kHasShortcut) shared.ring.release(number % kStages);
      number += kConsumers * params.slabs;
    }
  }

  static __device__ __forceinline__ float bias_of(const float* bias, int channel) { return bias == nullptr ? 0.0F : bias[channel]; }

  // Biases that threads share, and rows behind the patches: products read them for columns that nobody wants.
  static __device__ __forceinline__ void prepare(const Params& params, Shared& shared) {
    const int thread = static_cast<int>(threadIdx.x);
    constexpr int kThreads = kConsumers * kWarpgroup;
    for (int i = thread; i < kInner; i += kThreads) shared.middle_bias[i] = bias_of(params.middle_bias, i);
    for (int i = thread; i < kOutputs; i += kThreads) {
      shared.restore_bias[i] = bias_of(params.restore_bias, i) + bias_of(params.shortcut_bias, i);
    }
    constexpr int kChunks = kMatrixRowBytes / 16, kOfStage = (kPatchRows - kPatchPixels) * kChunks;
    for (int i = thread; i < kStages * kOfStage; i += kThreads) {
      Row& row = shared.x[i / kOfStage][kPatchPixels + i % kOfStage / kChunks];
      reinterpret_cast<uint4*>(row.bytes)[i % kChunks] = {};
    }
    publish_to_engine();
    synchronize<kThreads>(kConsumers + 1);
  }

  // What the first convolution gives of a patch, rounded, into the consumer's rows.
  static __device__ __forceinline__ void reduce(
      const Params& params, Shared& shared, int number, int consumer, const Share& share, const float (&bias)[2], const Place& place) {
    float sums[kPatchRows / 2];
    for (int slab = 0; slab < params.slabs; ++slab) {
      const int at = number + slab, stage = at % kStages;
      wait(shared.ring.filled[stage], at / kStages % 2);
      fence_sums();
      const uint64 w = matrix_descriptor(shared_address(shared.reduce[slab])), x = matrix_descriptor(shared_address(shared.x[stage]));
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        multiply_matrices<T>(sums, w + k * kMatrixStep<Major::kK>, x + k * kMatrixStep<Major::kK>, slab + k > 0);
      }
      commit_products();
      wait_for_products<1>();  // those of the stage before
      if (slab > 0) shared.ring.release((at - 1) % kStages);
    }
    if (threadIdx.x % 32 == 0) arrive(shared.turns[(consumer + 1) % kConsumers]);
    wait_for_products<0>();
    settle_sums(sums);
    if constexpr (!kHasShortcut) shared.ring.release((number + params.slabs - 1) % kStages);
#pragma unroll
    for (int i = 0; i < kPatchRows / 2; ++i) sums[i] = larger(sums[i] + bias[i / 2 % 2], params.floor);
    synchronize_warpgroup(consumer + 1);  // all warps have multiplied the rows of the tile before
    share.write(sums, shared.inner[consumer]);
    if (place.is_at_border(params)) {
      synchronize_warpgroup(consumer + 1);
      const int pixel = static_cast<int>(threadIdx.x) % kWarpgroup;
      const int row = place.row - 1 + pixel / kPatchSide, column = place.column - 1 + pixel % kPatchSide;
      const bool is_inside = row >= 0 && row < params.height && column >= 0 && column < params.width;
      if (pixel < kPatchPixels && !is_inside) {
        auto* const chunks = reinterpret_cast<uint4*>(shared.inner[consumer].pixels[0][pixel]);
#pragma unroll
        for (int i = 0; i < kMatrixRowBytes / 16; ++i) chunks[i] = {};
      }
    }
    publish_to_engine();
  }

  // What the middle convolution gives of a tile, rounded, as rows of the next product.
  static __device__ __forceinline__ void filter(const Params& params, Shared& shared, int consumer, uint32 (&inner)[kProducts][4]) {
    float sums[kInner / 2];
    fence_sums();
#pragma unroll
    for (int tap = 0; tap < kTaps; ++tap) {
      const uint64 x = matrix_descriptor(
          shared_address(shared.inner[consumer].pixels[0][tap / 3 * kPatchSide + tap % 3]), 16, kPatchSide * kMatrixRowBytes);
      const uint64 w = matrix_descriptor(shared_address(shared.middle[tap]));
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        multiply_matrices<T>(sums, x + k * kMatrixStep<Major::kK>, w + k * kMatrixStep<Major::kK>, tap + k > 0);
      }
    }
    commit_products();
    wait_for_products<0>();
    settle_sums(sums);
#pragma unroll
    for (int eight = 0; eight < kInner / 8; ++eight) {
      const float2 bias = *reinterpret_cast<const float2*>(&shared.middle_bias[eight * 8 + threadIdx.x % 4 * 2]);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float* const pair = sums + eight * 4 + row * 2;
        inner[eight / 2][eight % 2 * 2 + row] =
            narrow_pair<T>(larger(pair[0] + bias.x, params.floor), larger(pair[1] + bias.y, params.floor));
      }
    }
  }

  static __device__ __forceinline__ void restore(
      const Params& params, Shared& shared, const uint32 (&inner)[kProducts][4], const Outputs& outputs, int stage) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      float sums[kChunk / 2];
      const uint64 w = matrix_descriptor(shared_address(&shared.restore[chunk * kChunk]));
      fence_sums();
      if constexpr (kHasShortcut) {
        const uint64 x = matrix_descriptor(
            shared_address(&shared.x[stage][kPatchSide + 1]), 16, kPatchSide * kMatrixRowBytes);
        const uint64 filters = matrix_descriptor(shared_address(&shared.shortcut[chunk * kChunk]));
#pragma unroll
        for (int k = 0; k < kProducts; ++k) {
          multiply_matrices<T>(sums, x + k * kMatrixStep<Major::kK>, filters + k * kMatrixStep<Major::kK>, k > 0);
        }
      }
#pragma unroll
      for (int k = 0; k < kProducts; ++k) {
        multiply_rows<T>(sums, inner[k], w + k * kMatrixStep<Major::kK>, kHasShortcut || k > 0);
      }
      commit_products();
      wait_for_products<0>();
      settle_sums(sums);
      outputs.store(chunk, sums, shared.restore_bias + chunk * kChunk, params.floor);
    }
  }
};

}  // namespace dnncore::bottleneck
