// Its gradients, of one thread of ring.cuh. Where an activation followed, dy is masked by y as it is added up, and stays so in its slot; where a
// residual was added, what is masked is dz as well.
#pragma once

#include "dnncore/normalization/ring.cuh"

namespace dnncore {

template <typename T>
struct RingBackward {
  using C = Compute<T>;
  using Found = Sums<C>;
  static constexpr int kTensors = 2;
  using Slots = Ring<T, kTensors>;
  using Elements = typename Slots::Elements;
  static constexpr int kWidth = Slots::kWidth, kAtOnce = Slots::kAtOnce;
  struct Passing {
    Elements of[kTensors][kAtOnce];
    Elements y[kAtOnce];  // what masks dy, if it is not masked yet
  };

  const ChannelParams& params;
  const Slots& ring;
  const bool blends;
  Elements y[kAtOnce];          // of what is added up next
  C plain, weighted, mean, inv_std, scale;  // of the channel that is added up
  C next_mean, next_inv_std;    // of the one after that
  OldParameters<C> old;
  C a, b, c, centre;  // of the channel that is written

  __device__ __forceinline__ RingBackward(const ChannelParams& params, const Slots& ring)
      : params(params),
        ring(ring),
        blends(params.blend.beta != 0.0),
        next_mean(0),
        next_inv_std(0) {}

  // What is read here is there when the channel is added up: the one after it is asked for before.
  __device__ __forceinline__ void start(int32 channel, int32 stride) {
    if (channel < stride) ask_for(channel);
    plain = weighted = C(0);
    mean = next_mean;
    inv_std = next_inv_std;
    if (channel + stride < params.channels) ask_for(channel + stride);
  }
  __device__ __forceinline__ void expect(int32 channel, int first) {
    if (params.y != nullptr) ring.load(y, params.y, channel, first);
  }

  // Once more, dy may be what the thread itself has left as dz.
  __device__ __forceinline__ void load(Passing& passing, int32 channel, int first, bool once_more) const {
    const bool is_masked = once_more && params.z != nullptr;
    ring.load(passing.of[0], params.x, channel, first);
    if (is_masked) {
      ring.load(passing.of[1], params.z, channel, first);
    } else {
      ring.template load<true>(passing.of[1], params.dy, channel, first);
    }
    if (params.y != nullptr && !is_masked) ring.load(passing.y, params.y, channel, first);
  }

  __device__ __forceinline__ void add_slots(Elements (&found)[kTensors][kAtOnce], int32 channel, int32 from, int first) {
    if (params.y != nullptr) {
      mask(found[1], y);
      Elements* const place = ring.slots_of(1, from, first);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) place[k * blockDim.x] = found[1][k];
    }
    add_up(found, channel, first);
  }
  __device__ __forceinline__ void add_passing(Passing& passing, int32 channel, int first) {
    if (params.y != nullptr) mask(passing.of[1], passing.y);
    add_up(passing.of, channel, first);
  }

  __device__ __forceinline__ Found found(int32 channel) {
    scale = read_parameter<T>(params, kOfScale, channel, C(1));  // on its way while warps put together what they have
    old = {};
    if (ring.writes()) old = read_old<T>(params, channel);
    return {plain, weighted * inv_std};
  }

  __device__ __forceinline__ void conclude(int32 channel, const Found& sums) {
    centre = mean;
    const C share = C(1) / static_cast<C>(params.vectors * kWidth);
    a = inv_std * scale * static_cast<C>(params.blend.alpha);
    b = sums.normalized * (share * a) * inv_std;
    c = sums.plain * (share * a);
    if (ring.writes()) write_gradients<T>(params, channel, old, sums.normalized, sums.plain);
  }

  __device__ __forceinline__ void write(const Elements (&found)[kTensors][kAtOnce], int32 channel, int first) const {
    if (blends || !ring.all(first)) {
      write<false>(found, channel, first);
    } else {
      write<true>(found, channel, first);
    }
  }
  __device__ __forceinline__ void write_passing(Passing& passing, int32 channel, int first, bool once_more) const {
    if (once_more && params.y != nullptr && params.z == nullptr) mask(passing.of[1], passing.y);
    write(passing.of, channel, first);
  }

 private:
  __device__ __forceinline__ void ask_for(int32 channel) {
    next_mean = read_parameter<T>(params, kOfMean, channel, C(0));
    next_inv_std = read_parameter<T>(params, kOfInvStd, channel, C(1));
  }
  __device__ __forceinline__ static void mask(Elements (&dy)[kAtOnce], const Elements (&of_y)[kAtOnce]) {
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      C values[kWidth];
      of_y[k].widen_into(values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        T& place = reinterpret_cast<T*>(&dy[k].word)[i];
        place = values[i] > C(0) ? place : T{};
      }
    }
  }

  __device__ __forceinline__ void add_up(const Elements (&found)[kTensors][kAtOnce], int32 channel, int first) {
    if (params.z != nullptr) {
      int32 offsets[kAtOnce];
      ring.find(offsets, first);
      T* const dz = ring.channel_of(static_cast<T*>(params.z), channel);
      using Word = decltype(found[1][0].word);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (ring.has(first + k)) *reinterpret_cast<Word*>(dz + offsets[k]) = found[1][k].word;
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {  // where there is no vector, dy is 0
      C values[kWidth], weights[kWidth];
      found[0][k].widen_into(values);
      found[1][k].widen_into(weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        plain += weights[i];
        weighted += weights[i] * (values[i] - mean);
      }
    }
  }

  // kPlain: each thread has all vectors, and dx is nothing but what is found.
  template <bool kPlain>
  __device__ __forceinline__ void write(const Elements (&found)[kTensors][kAtOnce], int32 channel, int first) const {
    int32 offsets[kAtOnce];
    ring.find(offsets, first);
    T* const output = ring.channel_of(static_cast<T*>(params.output), channel);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (!kPlain && !ring.has(first + k)) continue;
      C values[kWidth], weights[kWidth];
      found[0][k].widen_into(values);
      found[1][k].widen_into(weights);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = a * weights[i] - b * (values[i] - centre) - c;
      if constexpr (kPlain) {
        store_vector<T>(values, output + offsets[k]);
      } else {
        write_vector<T>(params, values, output + offsets[k]);
      }
    }
  }
};

}  // namespace dnncore
