// A reduction that is cut into parts (split-K) and joined again by the launch that computes them. Each block of a tile
// leaves its sums in the workspace and takes a ticket; the one that takes the last finds the sums of all parts there
// and stores their totals in C as it would store its own sums. Whichever block comes last adds the parts in the same
// order, so the same inputs give the same bits. What bounds it is that one block reads all parts of a tile: where they
// are many, a kernel of its own (split.cuh) is faster. Kernels that join parts do nothing else: what follows a loop is
// enough to change the registers in it, for 6 % more instructions in one that would never join any.
//
//    reduction      |  part 0  |  part 1  |  part 2  |     a block for each, in any order
//    workspace      [block][sum][thread]                   accumulators as the threads have them, whole tiles
//    tickets        0, 1, 2 and 0 again                    a counter for each tile, 0 between launches
//    C              part 0  +  part 1  +  part 2           by the block that takes the last ticket
#pragma once

#include "dnncore/gemm/params.cuh"
#include "dnncore/ptx/index.cuh"

namespace dnncore::gemm {

template <typename Tile>
class Parts {
  using Sum = typename Tile::C;
  static constexpr int kThreads = Tile::kThreads;
  static constexpr int kTile = Tile::kRows * Tile::kColumns;

public:
  static constexpr int kSums = kTile / kThreads;  // of each thread

  // Everything is worked out here, from the number of the block: no register is taken from the loops before.
  __device__ explicit Parts(const Params& params) : splits_(params.splits) {
    const uint32 block = read_block_index();
    const uint32 tiles = params.row_tiles * params.column_tiles;  // of a group, and from one part of a tile to the next
    const uint32 group = block / (tiles * splits_), tile = block % tiles;
    ticket_ = params.tickets + (group * tiles + tile);
    Sum* const sums = static_cast<Sum*>(params.parts) + read_thread_index();
    own_ = sums + static_cast<int64>(block) * kTile;
    first_ = sums + static_cast<int64>(group * tiles * splits_ + tile) * kTile;
    step_ = static_cast<int64>(tiles) * kTile;
  }

  // Leave the sums of this block's part; whether those of all parts of its tile are there, so that it is to store C.
  // They are written one by one: vectors would need neighbouring registers, and the loops before then more of them.
  __device__ bool leave(const typename Tile::Accumulator& accumulator) {
    accumulator.for_each_of_thread([&](int n, Sum sum) { own_[n * kThreads] = sum; });
    __syncthreads();
    bool is_last = false;
    if (read_thread_index() == 0) {  // fences and barriers together order what all threads of the blocks wrote and read
      __threadfence();
      is_last = atomicInc(ticket_, splits_ - 1) == splits_ - 1;  // and leaves 0
      __threadfence();
    }
    return __syncthreads_or(is_last);
  }

  // visit(n, totals, positions) for the totals of all parts of this thread's sums, kAtATime from the n-th on, and where
  // in the tile they are.
  template <int kAtATime, typename Visit>
  __device__ void for_each_group(const Visit& visit) const {
    static_assert(kSums % kAtATime == 0);
    constexpr int kPartsAtATime = 32 / kAtATime;  // so that 32 loads are under way
    const typename Tile::Positions positions(static_cast<int>(read_thread_index()));
#pragma unroll 1
    for (int n = 0; n < kSums; n += kAtATime) {
      Sum totals[kAtATime] = {};
      const Sum* sums = first_ + n * kThreads;
#pragma unroll kPartsAtATime
      for (uint32 part = 0; part < splits_; ++part, sums += step_) {
#pragma unroll
        for (int i = 0; i < kAtATime; ++i) totals[i] += __ldcg(sums + i * kThreads);  // from where all blocks meet
      }
      visit(n, totals, positions);
    }
  }

  // visit(row, column, total) for each of them, as an accumulator does for its sums.
  template <typename Visit>
  __device__ void for_each(const Visit& visit) const {
    constexpr int kAtATime = kSums < 32 ? kSums : 32;
    for_each_group<kAtATime>([&](int n, const auto& totals, const auto& positions) {
#pragma unroll
      for (int i = 0; i < kAtATime; ++i) visit(positions.row(n + i), positions.column(n + i), totals[i]);
    });
  }

private:
  uint32 splits_;
  uint32* ticket_;
  Sum* own_;          // what this thread leaves
  const Sum* first_;  // what it left, or its like in another block, of the first part
  int64 step_;        // from one part to the next
};

}  // namespace dnncore::gemm
