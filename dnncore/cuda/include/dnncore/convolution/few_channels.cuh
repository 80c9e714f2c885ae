// Convolution whose outputs have few channels per group: forward with at most four filters, backward-data with at most
// four channels. A tile of a matrix product would be nearly empty there. A thread sums all those channels for four
// outputs, one below another, so that it uses every weight that it reads from shared memory 4 times, and every input 4
// times. The rows and columns of the output are taken apart by their remainder by the stride (forward: by 1), a
// *phase*: within one, the same taps meet and neighbouring outputs look at neighbouring inputs. Forward, the padding is
// zeros that count; backward, only places inside are added up.
//
//              32 lanes: neighbouring columns of a phase
//    warp 0    o  o  o  ...  o        a thread: 4 outputs, one below another, with up to 4 channels each
//              o  o  o  ...  o
//              o  o  o  ...  o        shared memory: weights [tap][channel][4], for as many channels
//              o  o  o  ...  o        at a time as 32 KiB hold
//    warp 1    o  o  o  ...  o
//    ...                              a block: 4 warps, 16 rows x 32 columns of a phase
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore::few_channels {

constexpr int kWarp = 32;
constexpr int kWarps = 4;
constexpr int kThreads = kWarp * kWarps;
constexpr int kOutputs = 4;       // per thread, one below another
constexpr int kChannels = 4;      // per output, at most
constexpr int kWeightBytes = 32768;
constexpr int kBatch = 4;         // channels whose inputs are on their way at once

// One axis; mirrored by _AXIS in dnncore/cuda/convolution/few_channels.py.
struct Axis {
  int32 input;
  int32 output;
  int32 taps;
  int32 first;       // place of the input at output 0 and tap 0, times phases
  int32 tap_step;    // places of the input from tap to tap, times phases
  int32 input_step;  // places of the input from an output to the next of its phase
  int32 phases;
  int32 taps_apart;  // from a tap to the next of its phase
  int32 tiles;       // per phase
};

// Mirrored by _PARAMS in dnncore/cuda/convolution/few_channels.py.
struct Params {
  Blend blend;
  const void* input;
  const void* weights;
  void* output;
  Axis rows;
  Axis columns;
  int64 input_strides[4];   // n, c, h, w
  int64 output_strides[4];
  int64 weight_strides[4];  // output channel, input channel, tap row, tap column
  int64 weight_group;       // elements from one group's weights to the next group's
  int64 weight_offset;      // elements from the address to tap 0
  int32 in_channels;        // per group
  int32 out_channels;
  int32 groups;
  int32 zeros;              // whether the padding counts
};

// The taps of one phase of an axis, and the place of the input at which the first one looks from the phase's first
// output.
struct Taps {
  int32 first;
  int32 count;
  int32 place;
  int32 place_step;

  __device__ Taps(const Axis& axis, int32 phase) : first(0), count(0), place(0), place_step(0) {
    for (; first < axis.taps_apart; ++first) {
      const int32 distance = axis.first + phase + first * axis.tap_step;
      if (distance % axis.phases != 0) continue;
      count = first < axis.taps ? (axis.taps - first + axis.taps_apart - 1) / axis.taps_apart : 0;
      place = distance / axis.phases;
      place_step = axis.taps_apart * axis.tap_step / axis.phases;
      return;
    }
  }
};

template <typename C>
struct alignas(16) Weights {
  C of[kChannels];
};

// What a thread adds up.
template <typename T>
struct Sums {
  using C = Compute<T>;
  C of[kOutputs][kChannels];

  __device__ __forceinline__ void add(int output, C value, const Weights<C>& weights) {
#pragma unroll
    for (int k = 0; k < kChannels; ++k) of[output][k] += value * weights.of[k];
  }

  // Add kCount channels to all outputs, whose places in the input all exist and lie `under` elements apart.
  template <int kCount>
  __device__ __forceinline__ void add(const T* place, int64 under, int64 channel, const Weights<C>* weights) {
    T raw[kCount][kOutputs];
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) raw[c][i] = place[c * channel + i * under];
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const Weights<C> weight = weights[c];
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) add(i, widen(raw[c][i]), weight);
    }
  }
};

template <typename T>
__device__ void convolve(const Params& params) {
  using C = Compute<T>;
  constexpr int kSlots = kWeightBytes / sizeof(Weights<C>);
  __shared__ Weights<C> shared[kSlots];

  // Which tile of which phase of which image and group.
  QuotientRemainder split = divide(blockIdx.x, params.columns.tiles);
  const int32 column_tile = static_cast<int32>(split.remainder);
  split = divide(split.quotient, params.rows.tiles);
  const int32 row_tile = static_cast<int32>(split.remainder);
  split = divide(split.quotient, params.columns.phases);
  const int32 column_phase = static_cast<int32>(split.remainder);
  split = divide(split.quotient, params.rows.phases);
  const int32 row_phase = static_cast<int32>(split.remainder);
  split = divide(split.quotient, params.groups);
  const int64 image = split.quotient, group = split.remainder;

  const int32 column = column_tile * kWarp + threadIdx.x % kWarp;  // within the phase
  const int32 row = (row_tile * kWarps + threadIdx.x / kWarp) * kOutputs;
  const Taps rows(params.rows, row_phase), columns(params.columns, column_phase);
  const int32 taps = rows.count * columns.count;

  const T* const input = static_cast<const T*>(params.input) + image * params.input_strides[0] +
                         group * params.in_channels * params.input_strides[1];
  const T* const weights = static_cast<const T*>(params.weights) + params.weight_offset + group * params.weight_group;
  const int64 channel_stride = params.input_strides[1];
  const int64 under = params.rows.input_step * params.input_strides[2];
  Sums<T> sums{};

  const int32 slab = taps == 0 ? params.in_channels : kSlots / taps;  // channels whose weights there is room for
  for (int32 start = 0; start < params.in_channels && taps != 0; start += slab) {
    const int32 channels = min(slab, params.in_channels - start);
    __syncthreads();
    bool finite = true;
    for (int32 slot = threadIdx.x; slot < taps * channels; slot += kThreads) {
      const int32 tap = slot / channels, channel = slot - tap * channels;
      const int32 tap_row = rows.first + tap / columns.count * params.rows.taps_apart;
      const int32 tap_column = columns.first + tap % columns.count * params.columns.taps_apart;
      const T* const at = weights + (start + channel) * params.weight_strides[1] + tap_row * params.weight_strides[2] +
                          tap_column * params.weight_strides[3];
      Weights<C> found;
#pragma unroll
      for (int k = 0; k < kChannels; ++k) {
        found.of[k] = k < params.out_channels ? widen(at[k * params.weight_strides[0]]) : C(0);
        finite = finite && found.of[k] - found.of[k] == C(0);
      }
      shared[slot] = found;
    }
    // Adding zeros makes a difference only where a weight is not finite.
    const bool zeros = __syncthreads_or(!finite) != 0 && params.zeros != 0;

    for (int32 tap = 0; tap < taps; ++tap) {
      const int32 m = tap / columns.count;
      const int32 in_column = column * params.columns.input_step + columns.place + (tap - m * columns.count) * columns.place_step;
      const int32 in_row = row * params.rows.input_step + rows.place + m * rows.place_step;
      const bool beside = in_column < 0 || in_column >= params.columns.input;
      if (beside && !zeros) continue;
      const Weights<C>* const weight = shared + tap * channels;
      const T* const place = input + start * channel_stride + in_row * params.input_strides[2] + in_column * params.input_strides[3];
      const int32 last = in_row + (kOutputs - 1) * params.rows.input_step;
      if (!beside && in_row >= 0 && last < params.rows.input) {
        int32 c = 0;
        for (; c + kBatch <= channels; c += kBatch) {
          sums.template add<kBatch>(place + c * channel_stride, under, channel_stride, weight + c);
        }
#pragma unroll 1
        for (; c < channels; ++c) sums.template add<1>(place + c * channel_stride, under, channel_stride, weight + c);
        continue;
      }
#pragma unroll
      for (int i = 0; i < kOutputs; ++i) {
        const int32 at = in_row + i * params.rows.input_step;
        const bool inside = !beside && at >= 0 && at < params.rows.input;
        if (!inside && !zeros) continue;
#pragma unroll 1
        for (int32 c = 0; c < channels; ++c) {
          sums.add(i, inside ? widen(place[c * channel_stride + i * under]) : C(0), weight[c]);
        }
      }
    }
  }

  const int32 out_column = column * params.columns.phases + column_phase;
  if (out_column >= params.columns.output) return;
  T* const output = static_cast<T*>(params.output) + image * params.output_strides[0] +
                    group * params.out_channels * params.output_strides[1] + out_column * params.output_strides[3];
#pragma unroll
  for (int i = 0; i < kOutputs; ++i) {
    const int32 out_row = (row + i) * params.rows.phases + row_phase;
    if (out_row >= params.rows.output) continue;
#pragma unroll
    for (int k = 0; k < kChannels; ++k) {
      if (k < params.out_channels) {
        blend_into(params.blend, sums.of[i][k], output + k * params.output_strides[1] + out_row * params.output_strides[2]);
      }
    }
  }
}

}  // namespace dnncore::few_channels
