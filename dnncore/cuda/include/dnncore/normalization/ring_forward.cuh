// Batch normalisation of planes in training, of one thread of ring.cuh. Sums are of distances from its first element, which is one of those that
// it adds up, so that what cancels is at most as many times larger than what is left as the thread has elements.
#pragma once

#include "dnncore/normalization/ring.cuh"
#include "dnncore/ptx/extremum.cuh"

namespace dnncore {

template <typename T>
struct RingForward {
  using C = Compute<T>;
  using Found = Moments<C>;
  static constexpr int kTensors = 1;
  using Slots = Ring<T, kTensors>;
  using Elements = typename Slots::Elements;
  static constexpr int kWidth = Slots::kWidth, kAtOnce = Slots::kAtOnce;
  struct Passing {
    Elements of[kTensors][kAtOnce];
  };

  const ChannelParams& params;
  const Slots& ring;
  const bool blends;
  const C epsilon, alpha, floor;
  C centre, sum, squares;  // of the channel that is added up
  C scale, bias;
  OldParameters<C> old;
  C mean, factor, added;  // of the channel that is written

  __device__ __forceinline__ RingForward(const ChannelParams& params, const Slots& ring)
      : params(params),
        ring(ring),
        blends(params.blend.alpha != 1.0 || params.blend.beta != 0.0),
        epsilon(static_cast<C>(params.epsilon)),
        alpha(static_cast<C>(params.blend.alpha)),
        floor(params.rectifies ? C(0) : -C(INFINITY)),
        centre(0) {}

  // What is read here is there when the channel is added up.
  __device__ __forceinline__ void start(int32 channel, int32) {
    sum = squares = C(0);
    scale = read_parameter<T>(params, kOfScale, channel, C(1));
    bias = read_parameter<T>(params, kOfBias, channel, C(0));
  }
  __device__ __forceinline__ void expect(int32, int) {}

  __device__ __forceinline__ void load(Passing& passing, int32 channel, int first, bool) const {
    ring.load(passing.of[0], params.x, channel, first);
  }

  __device__ __forceinline__ void add_slots(const Elements (&found)[kTensors][kAtOnce], int32, int32, int first) {
    if (first == 0) centre = first_of(found[0][0]);
    if (ring.all(first)) {
      add_up<true>(found[0], first);
    } else {
      add_up<false>(found[0], first);
    }
  }
  __device__ __forceinline__ void add_passing(const Passing& passing, int32 channel, int first) {
    add_slots(passing.of, channel, 0, first);
  }

  __device__ __forceinline__ Found found(int32 channel) {
    old = {};
    if (ring.writes()) old = read_old<T>(params, channel);  // on its way while warps put together what they have
    const C count = static_cast<C>(ring.mine * kWidth), apart = sum / max(count, C(1)), left = squares - sum * apart;
    return {centre + apart, left < C(0) ? C(0) : left, count};  // NaN stays
  }

  __device__ __forceinline__ void conclude(int32 channel, const Found& moments) {
    const C inv_std = C(1) / sqrt(moments.squares / moments.count + epsilon);
    factor = inv_std * scale;
    const bool is_line = sizeof(T) == 2;  // with the roundings of channels.cuh, by which a gradient finds out where y > 0
    mean = is_line ? C(0) : moments.mean;
    added = is_line ? bias - moments.mean * factor : bias;
    if (!ring.writes()) return;
    write_parameter<T>(params, kOfMean, channel, moments.mean);
    write_parameter<T>(params, kOfInvStd, channel, inv_std);
    write_running<T>(params, channel, old, moments.mean, moments.squares, moments.count);
  }

  __device__ __forceinline__ void write(const Elements (&found)[kTensors][kAtOnce], int32 channel, int first) const {
    if (blends || !ring.all(first)) {
      write<false, true>(found[0], channel, first);
    } else if (params.z != nullptr) {
      write<true, true>(found[0], channel, first);
    } else {
      write<true, false>(found[0], channel, first);
    }
  }
  __device__ __forceinline__ void write_passing(const Passing& passing, int32 channel, int first, bool) const {
    write(passing.of, channel, first);
  }

 private:
  __device__ __forceinline__ static C first_of(const Elements& vector) {
    C values[kWidth];
    vector.widen_into(values);
    return values[0];
  }

  template <bool kAll>
  __device__ __forceinline__ void add_up(const Elements (&found)[kAtOnce], int first) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (!kAll && !ring.has(first + k)) continue;
      C values[kWidth];
      found[k].widen_into(values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const C distance = values[i] - centre;
        sum += distance;
        squares += distance * distance;
      }
    }
  }

  // kPlain: each thread has all vectors, and y is nothing but what is found.
  template <bool kPlain, bool kMayAdd>
  __device__ __forceinline__ void write(const Elements (&found)[kAtOnce], int32 channel, int first) const {
    const bool adds = kMayAdd && params.z != nullptr;
    int32 offsets[kAtOnce];
    ring.find(offsets, first);
    T* const output = ring.channel_of(static_cast<T*>(params.output), channel);
    Elements z[kAtOnce];
    if (adds) ring.load(z, params.z, channel, first);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (!kPlain && !ring.has(first + k)) continue;
      C values[kWidth], addends[kWidth];
      found[k].widen_into(values);
      z[k].widen_into(addends);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        C value = factor * (values[i] - mean) + added;
        if (adds) value += addends[i];
        values[i] = larger(value, floor);
      }
      if constexpr (kPlain) {
        store_vector<T>(values, output + offsets[k]);
      } else {
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] *= alpha;
        write_vector<T>(params, values, output + offsets[k]);
      }
    }
  }
};

}  // namespace dnncore
