// What the kernels of whole channels are told (resident.cuh, ring.cuh): batch normalisation in training, in one launch.
#pragma once

#include "dnncore/common/loaded.cuh"

namespace dnncore {

// Mirrored by ChannelParameter in dnncore/cuda/normalization/channel_params.py: what a channel has one value of. Of the last four, forward
// takes running mean and variance, backward the gradients of scale and bias.
enum ChannelParameter : int { kOfScale, kOfBias, kOfMean, kOfInvStd, kOldOne, kOldTwo, kNewOne, kNewTwo, kChannelParameters };

// Mirrored by CHANNEL_PARAMS there.
struct ChannelParams {
  Blend blend;
  const void* x;
  const void* dy;
  const void* y;  // what the activation gave; backward
  void* z;        // what is added before the activation; backward, its gradient
  void* output;   // y; backward, dx
  void* parameters[kChannelParameters];  // null where there is none
  int64 parameter_steps[kChannelParameters];
  int64 step;  // from a channel to the next, in elements
  double epsilon;
  double momentum;
  double parameter_alpha;
  double parameter_beta;
  SmallDivisor run;  // vectors that lie `inner` elements apart, before it goes `outer` elements further
  int32 outer;
  int32 inner;
  int32 dy_outer;  // likewise, of dy, which may be a part of another tensor
  int32 dy_inner;
  int32 vectors;   // of a channel, or pack of channels
  int32 part;      // of resident.cuh: of those, a block's; the last may have fewer
  int32 columns;   // of resident.cuh: packs of channels that a block has: 1 or 2; of planes 1
  int32 channels;  // of ring.cuh: that there are
  uint32 narrow;   // a bit for each parameter: whether it is stored as x is
  int32 rectifies;
  SmallDivisor planes;  // of resident.cuh, of single elements: planes of which each lane has one element at a time
};

template <typename T>
__device__ __forceinline__ bool is_stored_as_x(const ChannelParams& params, ChannelParameter which) {
  return sizeof(T) < sizeof(Compute<T>) && (params.narrow >> which & 1) != 0;
}

// Of a channel; `otherwise` where there is no such parameter.
template <typename T>
__device__ __forceinline__ Compute<T> read_parameter(
    const ChannelParams& params, ChannelParameter which, int64 channel, Compute<T> otherwise
) {
  const void* found = params.parameters[which];
  const int64 place = channel * params.parameter_steps[which];
  if (found == nullptr) return otherwise;
  return is_stored_as_x<T>(params, which) ? widen(static_cast<const T*>(found)[place]) : static_cast<const Compute<T>*>(found)[place];
}
template <typename T>
__device__ __forceinline__ void write_parameter(const ChannelParams& params, ChannelParameter which, int64 channel, Compute<T> value) {
  void* found = params.parameters[which];
  const int64 place = channel * params.parameter_steps[which];
  if (found == nullptr) return;
  if (is_stored_as_x<T>(params, which)) {
    static_cast<T*>(found)[place] = narrow<T>(value);
  } else {
    static_cast<Compute<T>*>(found)[place] = value;
  }
}

// Of a channel, what the last two parameters were; 0 where they are not asked for. A kernel may read them long before it writes.
template <typename C>
struct OldParameters {
  C one;
  C two;
};
template <typename T>
__device__ __forceinline__ OldParameters<Compute<T>> read_old(const ChannelParams& params, int64 channel) {
  using C = Compute<T>;
  return {read_parameter<T>(params, kOldOne, channel, C(0)), read_parameter<T>(params, kOldTwo, channel, C(0))};
}

// Running mean and variance go on from a batch that had `count` elements, whose squared distances from the mean were `squares`.
template <typename T>
__device__ __forceinline__ void write_running(
    const ChannelParams& params, int64 channel, const OldParameters<Compute<T>>& old, Compute<T> mean, Compute<T> squares, Compute<T> count
) {
  using C = Compute<T>;
  if (params.parameters[kNewOne] == nullptr) return;
  const C fresh = static_cast<C>(params.momentum), kept = static_cast<C>(1.0 - params.momentum);
  const C unbiased = squares / (count - C(1));
  write_parameter<T>(params, kNewOne, channel, kept * old.one + fresh * mean);
  write_parameter<T>(params, kNewTwo, channel, kept * old.two + fresh * unbiased);
}

// The gradients of scale and bias.
template <typename T>
__device__ __forceinline__ void write_gradients(
    const ChannelParams& params, int64 channel, const OldParameters<Compute<T>>& old, Compute<T> of_scale, Compute<T> of_bias
) {
  using C = Compute<T>;
  const C alpha = static_cast<C>(params.parameter_alpha), beta = static_cast<C>(params.parameter_beta);
  write_parameter<T>(params, kNewOne, channel, alpha * of_scale + beta * old.one);
  write_parameter<T>(params, kNewTwo, channel, alpha * of_bias + beta * old.two);
}

template <typename T, int kWidth>
__device__ __forceinline__ void store_vector(const Compute<T> (&values)[kWidth], T* place) {
  Vector<T, kWidth> result;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) result.at[i] = narrow<T>(values[i]);
  *reinterpret_cast<Vector<T, kWidth>*>(place) = result;
}
// Write a vector of the output, whose values alpha is part of.
template <typename T, int kWidth>
__device__ __forceinline__ void write_vector(const ChannelParams& params, Compute<T> (&values)[kWidth], T* place) {
  using C = Compute<T>;
  if (params.blend.beta != 0.0) {
    const Vector<T, kWidth> old = *reinterpret_cast<const Vector<T, kWidth>*>(place);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += static_cast<C>(params.blend.beta) * widen(old.at[i]);
  }
  store_vector<T>(values, place);
}

}  // namespace dnncore
