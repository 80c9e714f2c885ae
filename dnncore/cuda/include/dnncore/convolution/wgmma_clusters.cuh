// Forward convolution as in wgmma.cuh where there are few outputs: a batch of one image has so few tiles that most of the
// multiprocessors would be idle, and what a tile takes is one block's way through all of its sum. Here tiles are small, 64 filters
// x 64 pixels, and the blocks of a cluster share out the steps of the sum:
//
//     block 0      steps 0...4      sums of 64 pixels  ---+--+--+--> pixels  0...15  of all blocks: add, finish, store
//     block 1      steps 5...8      sums of 64 pixels  ---+--+--+--> pixels 16...31
//     block 2      steps 9...13     sums of 64 pixels  ---+--+--+--> pixels 32...47
//     block 3      steps 14...17    sums of 64 pixels  ---+--+--+--> pixels 48...63
//                                                         |
//                                   stored into the other blocks' shared memory, and added there in the order of the blocks
//
// A launch has one wave of blocks, each with one tile, and two blocks fit on a multiprocessor, so that those of the next kernel
// settle beside these. What such a launch takes is latencies, of which those are hidden that need not wait for the kernel before:
//
//     before   ............................ end |
//     next     | barriers | filters of the first stages |  wait_for_previous  | x | multiply | exchange | finish, store
//
// Filters come that early where nothing in the same graph writes them, which the host knows (`reads_filters_early`).
#pragma once

#include "dnncore/convolution/wgmma_output.cuh"
#include "dnncore/ptx/cluster.cuh"
#include "dnncore/ptx/early_launch.cuh"

namespace dnncore::wgmma {

// The part of a tile's pixels that a block finishes.
template <int kPixelsOfBlock>
struct Parts {
  static constexpr int kPixels = kPixelsOfBlock;
};

template <typename T, int kBlocks, int kStages>
struct ClusterKernel {
  using Params = wgmma::Params<false>;
  static constexpr int kPixels = 64, kSums = kPixels / 2;  // of a tile, and of a thread
  static constexpr int kLeastPart = 16;                    // pixels whose outputs are stored by one instruction (wgmma_box.cuh)
  using Part = Parts<(kPixels / kBlocks > kLeastPart ? kPixels / kBlocks : kLeastPart)>;
  static constexpr int kParts = kPixels / Part::kPixels;   // the first so many blocks have one
  static constexpr int kGroups = Part::kPixels / 8;        // of eight pixels, four sums of a thread
  static constexpr int kSlab = kMatrixRowBytes / sizeof(T);  // channels of a step
  static constexpr uint32 kStageBytes = (kPixels + kConsumerFilters) * kMatrixRowBytes;
  using Sum = MatrixSum<T>;

  // Of a part: the bits of each block's sums as its threads have them.
  using Exchanged = uint4[kGroups][kWarpgroup];

  struct Shared {
    Row x[kStages][kPixels];
    Row w[kStages][kConsumerFilters];
    Exchanged sums[kBlocks];
    Box<T, Part> boxes[1];
    Ring<kStages, 1> ring;
    Mbarrier landed[1];  // residual or old output
    Mbarrier exchanged;
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    auto& shared = *reinterpret_cast<Shared*>(memory);
    let_next_start();
    const uint32 rank = block_rank();
    if (threadIdx.x == 0) {
      shared.ring.make();
      make_barrier(shared.landed[0], 1), make_barrier(shared.exchanged, 1);
      if (rank < kParts) arrive_expecting(shared.exchanged, sizeof(shared.sums));
      publish_barriers();
    }
    __syncthreads();
    arrive_in_cluster();
    const Work work(params.phases[0], rank);
    // Uniform, which the compiler knows of what comes out of a shuffle.
    const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) / 32, 0);
    if (warp == kWarpgroup / 32) {
      if (threadIdx.x % 32 == 0) produce(params, shared, work);
    } else {
      consume(params, shared, work, rank);
    }
  }

private:
  // The tile of a block's cluster, and the block's share of the steps.
  struct Work {
    int32 tile, first, steps;

    __device__ __forceinline__ Work(const Phase& phase, uint32 rank) : tile(static_cast<int32>(blockIdx.x) / kBlocks) {
      const int32 all = phase.taps[0] * phase.taps[1] * phase.slabs[1];
      first = all * static_cast<int32>(rank) / kBlocks;
      steps = all * static_cast<int32>(rank + 1) / kBlocks - first;
    }
    __device__ __forceinline__ Place place(const Params& params) const {
      return {tile / params.filter_tiles * kPixels, tile % params.filter_tiles * kConsumerFilters, 0};
    }
  };

  // A slab of a tap.
  struct Step {
    int32 slab, s, r;

    __device__ __forceinline__ Step(const Phase& phase, int32 index) : slab(index % phase.slabs[1]) {
      const int32 tap = index / phase.slabs[1];
      s = tap % phase.taps[1], r = tap / phase.taps[1];
    }
    __device__ __forceinline__ void advance(const Phase& phase) {
      if (++slab < phase.slabs[1]) return;
      slab = 0;
      if (++s == phase.taps[1]) s = 0, ++r;
    }
  };

  static __device__ __forceinline__ void produce(const Params& params, Shared& shared, const Work& work) {
    const Phase& phase = params.phases[0];
    const Place tile = work.place(params);
    const auto load_filters = [&](int stage, const Step& step) {
      Mbarrier& filled = shared.ring.filled[stage];
      const int32 channel = step.slab * kSlab;
      if constexpr (std::is_same_v<T, int8>) {
        load_groups(shared.w[stage], params.w, filled, channel, tile.filter / 16, step.r * phase.taps[1] + step.s);
      } else {
        load_window(shared.w[stage], params.w, filled, channel, step.s, step.r, tile.filter);
      }
    };
    auto early = Ring<kStages, 1>::first_free();
    int32 num_early = 0;
    if (params.reads_filters_early) {
      Step step(phase, work.first);
      for (num_early = min(work.steps, kStages); early.stage < num_early; ++early.stage, step.advance(phase)) {
        shared.ring.begin_to_fill(early, kStageBytes);
        load_filters(early.stage, step);
      }
    }
    prefetch(phase.x), prefetch(phase.y);
    const Pixel first(phase, tile.pixel);
    const int32 h = first.row * phase.stride[0] - phase.padding[0];
    const int32 w = first.column * phase.stride[1] - phase.padding[1];
    wait_for_previous();
    auto at = Ring<kStages, 1>::first_free();
    Step step(phase, work.first);
    for (int32 i = 0; i < work.steps; ++i, at.advance(), step.advance(phase)) {
      if (i >= num_early) {
        shared.ring.begin_to_fill(at, kStageBytes);
        load_filters(at.stage, step);
      }
      Mbarrier& filled = shared.ring.filled[at.stage];
      if (phase.gathers) {
        load_pixels(
            shared.x[at.stage], phase.x, filled, step.slab * kSlab, w, h, first.image, step.s * phase.dilation[1],
            step.r * phase.dilation[0]);
      } else {
        load_window(shared.x[at.stage], phase.x, filled, step.slab * kSlab, tile.pixel);
      }
    }
  }

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, const Work& work, uint32 rank) {
    wait_for_previous();
    Output<T, false, Part> output(params, shared.boxes, shared.landed, 0);
    Place part = work.place(params);
    part.pixel += static_cast<int32>(rank) * Part::kPixels;
    const auto parameters = output.parameters(part.filter);
    if (rank < kParts) output.begin(part);
    Sum sums[kSums];
    multiply(sums, work.steps, shared);
    if constexpr (kBlocks > 1) {
      wait_for_cluster();
      send(sums, rank, shared);
      if (rank >= kParts) return;
      add_all(sums, shared);
    }
    output.store(sums, parameters, part);
    output.end();
  }

  static __device__ __forceinline__ void multiply(Sum (&sums)[kSums], int32 steps, Shared& shared) {
    Position<kStages> at;
    shared.ring.multiply_each(at, steps, [&](int stage, bool is_first) {
      const uint64 w = matrix_descriptor(shared_address(shared.w[stage]));
      const uint64 x = matrix_descriptor(shared_address(shared.x[stage]));
#pragma unroll
      for (int k = 0; k < kMatrixRowBytes / 32; ++k) {
        multiply_matrices<T, Major::kK>(sums, w + k * kMatrixStep<Major::kK>, x + k * kMatrixStep<Major::kK>, !is_first || k > 0);
      }
    });
    settle_sums(sums);
  }

  // To each block that has a part of the pixels, this one's sums of it.
  static __device__ __forceinline__ void send(const Sum (&sums)[kSums], uint32 rank, Shared& shared) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const Sum* four = sums + 4 * (part * kGroups + group);
        store_in_block(
            part, shared.sums[rank][group][threadIdx.x], {bits(four[0]), bits(four[1]), bits(four[2]), bits(four[3])},
            shared.exchanged);
      }
    }
  }
  static __device__ __forceinline__ uint32 bits(float sum) { return __float_as_uint(sum); }
  static __device__ __forceinline__ uint32 bits(int32 sum) { return static_cast<uint32>(sum); }
  static __device__ __forceinline__ Sum sum_of(uint32 bits) {
    if constexpr (std::is_same_v<Sum, float>) {
      return __uint_as_float(bits);
    } else {
      return static_cast<Sum>(bits);
    }
  }

  // The first sums become those of this block's part.
  static __device__ __forceinline__ void add_all(Sum (&sums)[kSums], Shared& shared) {
    wait(shared.exchanged, 0);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint4 found = shared.sums[block][group][threadIdx.x];
        const Sum more[4] = {sum_of(found.x), sum_of(found.y), sum_of(found.z), sum_of(found.w)};
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[4 * group + i] = block == 0 ? more[i] : sums[4 * group + i] + more[i];
      }
    }
  }
};

}  // namespace dnncore::wgmma
