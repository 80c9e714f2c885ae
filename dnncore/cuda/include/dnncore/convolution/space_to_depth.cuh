// Images as phases, and back. With a stride of s, place t of a padded axis is place t / s of phase t % s; a phase of an
// image is a channel of its own, and a convolution of that stride is one of stride 1 over all phases:
//
//    a b a b a b        a a a     b b b
//    c d c d c d   <->  a a a  ,  b b b  ,  and those of c and d
//    a b a b a b
//
// Threads take neighbours of the image, so that its side is coalesced whatever the stride, and the phases' side is as
// many runs as there are phases in a row. Nothing is added up: it is memory-bound.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore::space_to_depth {

constexpr int kMostAxes = 5;  // images, channels and three spatial ones; _MOST_AXES in phase_layout.py

// One axis of the image; those that have no phases have one.
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
  int32 count;
  int32 num_axes;
  Axis axes[kMostAxes];  // slowest first, in the image's order in memory
};

// kSplits: from the image to its phases, zeros in the padding; else from phases to the image, zeros where no phase reaches.
template <typename T, bool kSplits>
__device__ void space_to_depth(const Params& params) {
  // Counted in 64 bits: the next item of a thread may be beyond 2^31.
  for (int64 index = grid_index(); index < params.count; index += grid_size()) {
    int32 rest = static_cast<int32>(index);
    int64 at_image = 0, at_phases = 0;
    bool in_image = true, in_phases = true;
#pragma unroll
    for (int i = kMostAxes - 1; i >= 0; --i) {
      if (i < params.num_axes) {
        const Axis& axis = params.axes[i];
        const SmallQuotientRemainder split = divide(rest, axis.extent);
        rest = split.quotient;
        const int32 padded = split.remainder + axis.first;
        const int32 place = padded - axis.before;
        in_image = in_image && place >= 0 && place < axis.image;
        at_image += place * axis.image_stride;
        const SmallQuotientRemainder phase = divide(padded, axis.phases);
        in_phases = in_phases && phase.quotient < axis.places;
        at_phases += phase.remainder * axis.phase_stride + phase.quotient * axis.place_stride;
      }
    }
    const T* const input = static_cast<const T*>(params.input);
    T* const output = static_cast<T*>(params.output);
    if constexpr (kSplits) {
      const Compute<T> value = in_image ? widen(input[at_image]) : Compute<T>{0};
      blend_into(params.blend, value, output + at_phases);
    } else {
      const Compute<T> value = in_phases ? widen(input[at_phases]) : Compute<T>{0};
      blend_into(params.blend, value, output + at_image);
    }
  }
}

}  // namespace dnncore::space_to_depth
