// Images as phases, and back. With a stride of s, place t of a padded axis is place t / s of phase t % s; a phase of an
// image is a channel of its own, and a convolution of that stride is one of stride 1 over all phases:
//
//    a b a b a b        a a a     b b b
//    c d c d c d   <->  a a a  ,  b b b  ,  and those of c and d
//    a b a b a b
//
// Threads take neighbours of the image, a run of one or two of its axes, so that its side is coalesced whatever the stride, and the
// phases' side is as many runs as there are phases in a row. Each goes through a few rows, along the next axis: where it is along the
// other axes it finds out once for all of them. Nothing is added up: it is memory-bound.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore::space_to_depth {

constexpr int kRunAxes = 2;    // as are the next two in phase_layout.py
constexpr int kOuterAxes = 3;
constexpr int kRows = 8;

// One axis of the image; those that have no phases have one, and those that are not there an extent of 1.
struct Axis {
  SmallDivisor extent;  // of what threads count
  SmallDivisor phases;
  int32 first;   // padded place of the first that is counted
  int32 before;  // padding
  int32 image;   // extent of the image
  int32 places;  // extent of a phase
  int64 image_stride;
  int64 phase_stride;  // from one phase to the next
  int64 place_stride;  // from one place of a phase to the next
};

// Mirrored by _PARAMS in dnncore/cuda/convolution/phase_layout.py.
struct Params {
  Blend blend;
  const void* input;
  void* output;
  int32 items;             // of blocks: threads along a run, for kRows rows
  int32 run;               // length
  SmallDivisor run_tiles;  // items of a run, and
  SmallDivisor row_tiles;  // of all rows
  Axis outer[kOuterAxes];  // slowest first, in the image's order in memory
  Axis rows;
  Axis runs[kRunAxes];
};

// Where an element is, and whether what is read exists.
struct Place {
  int64 image = 0;
  int64 phases = 0;
  bool exists = true;

  template <bool kSplits>
  __device__ __forceinline__ void move(const Axis& axis, int32 index) {
    const int32 padded = index + axis.first, place = padded - axis.before;
    const SmallQuotientRemainder phase = divide(padded, axis.phases);
    image += place * axis.image_stride;
    phases += phase.remainder * axis.phase_stride + phase.quotient * axis.place_stride;
    exists = exists && (kSplits ? place >= 0 && place < axis.image : phase.quotient < axis.places);
  }

  // By all coordinates of these axes, of which an index counts the last one fastest.
  template <bool kSplits, int kCount>
  __device__ __forceinline__ void move(const Axis (&axes)[kCount], int32 index) {
#pragma unroll
    for (int i = kCount - 1; i >= 0; --i) {
      const SmallQuotientRemainder split = divide(index, axes[i].extent);
      move<kSplits>(axes[i], split.remainder);
      index = split.quotient;
    }
  }
};

// kSplits: from the image to its phases, zeros in the padding; else from phases to the image, zeros where no phase reaches.
template <typename T, bool kSplits>
__device__ void space_to_depth(const Params& params) {
  const T* const input = static_cast<const T*>(params.input);
  T* const output = static_cast<T*>(params.output);
  const Axis& rows = params.rows;
  for (auto item = static_cast<int32>(blockIdx.x); item < params.items; item += static_cast<int32>(gridDim.x)) {
    const SmallQuotientRemainder tile = divide(item, params.run_tiles), some = divide(tile.quotient, params.row_tiles);
    const auto in_run = tile.remainder * static_cast<int32>(blockDim.x) + static_cast<int32>(threadIdx.x);
    if (in_run >= params.run) continue;
    Place place;
    place.move<kSplits>(params.outer, some.quotient);
    place.move<kSplits>(params.runs, in_run);
    const int32 first = some.remainder * kRows, count = min(kRows, rows.extent.value - first);
    int32 padded = first + rows.first;
    SmallQuotientRemainder phase = divide(padded, rows.phases);
    int64 image = place.image + (padded - rows.before) * rows.image_stride;
    int64 phases = place.phases + phase.remainder * rows.phase_stride + phase.quotient * rows.place_stride;
    const int64 wrap = rows.place_stride - (rows.phases.value - 1) * rows.phase_stride;
    Compute<T> values[kRows];
    int64 targets[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const bool exists = kSplits ? padded >= rows.before && padded - rows.before < rows.image : phase.quotient < rows.places;
      values[row] = place.exists && exists && row < count ? widen(input[kSplits ? image : phases]) : Compute<T>{0};
      targets[row] = kSplits ? phases : image;
      ++padded;
      image += rows.image_stride;
      const bool wraps = ++phase.remainder == rows.phases.value;
      phases += wraps ? wrap : rows.phase_stride;
      if (wraps) phase.remainder = 0, ++phase.quotient;
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      if (row < count) blend_into(params.blend, values[row], output + targets[row]);
    }
  }
}

}  // namespace dnncore::space_to_depth
