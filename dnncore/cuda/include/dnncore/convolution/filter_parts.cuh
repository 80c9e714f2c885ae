// The second kernel of a backward-filter convolution (filter_feed.cuh): the sums that blocks have left of the tiles they share are
// added, those of the first block first, and stored. It starts early (early_launch.cuh), but not before all blocks have ended: else
// the first multiprocessors to be idle would get most of its blocks.
#pragma once

#include "dnncore/convolution/filter_feed.cuh"
#include "dnncore/convolution/sum_of_parts.cuh"

namespace dnncore::filter {

// SUM_PARAMS in convolution/filter_tile.py.
struct SumParams {
  Blend blend;
  Gradient gradient;
  int32 rows;        // filters of a tile
  int32 fragments;   // of four sums, of a thread
  int32 consumers;
  int32 log2_ways;   // of how many threads share the parts of four sums
};

// Finish the tiles that several blocks have pieces of: blocks along x share out the sums of tile y. store(tile, place, sums) is for the
// place in a part where a thread of a block has left its four.
template <typename Store>
__device__ __forceinline__ void add_parts(const SumParams& params, const Store& store) {
  const Gradient& gradient = params.gradient;
  const auto tile = static_cast<int32>(blockIdx.y);
  const SumOfParts sum_of_parts(params.log2_ways);
  const int32 place = sum_of_parts.place();
  const auto first = static_cast<int32>(block_of(gradient, tile * gradient.steps));
  const auto last = static_cast<int32>(block_of(gradient, (tile + 1) * gradient.steps - 1));
  wait_for_previous();
  if (first == last) return;  // it is stored
  const int64 next = static_cast<int64>(params.consumers * params.fragments * kWarpgroup);  // from part to part
  float4 sum;
  if (sum_of_parts.add(gradient.parts + first_slot(tile, first) * next + place, last - first + 1, next, sum)) store(tile, place, sum);
}

}  // namespace dnncore::filter
