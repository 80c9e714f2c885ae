// Local response normalisation across channels in windows of five, where each element is read once. The formula is in lrn.cuh. The sums
// of a stretch of neighbouring channels are taken from registers, which hold the stretch and what its windows reach on either side:
//
//      x         . . | o o o o o o o o | . .        forward: a square reaches two channels
//      x     . . . . | o o o o o o o o | . . . .    backward: so does a share, dy x b^(-beta - 1), whose b reaches two more
//
// Where channels are planes (walk), a thread takes one or two neighbouring places, goes from stretch to stretch, and keeps the end of one
// for the next; what the next one adds is under way meanwhile. Backward, a stretch of x gives the shares of one that lies two channels
// before it, and these give dx another two before:
//
//      x       . . . . + + + +          read now: +
//      shares    . . . . + + + +        computed from x
//      dx          + + + +              computed from shares
//
// Where channels are neighbours (vectors), a thread takes one vector of them; those on either side are in the first-level cache, for they
// are other threads'.
#pragma once

#include "dnncore/common/loaded.cuh"
#include "dnncore/normalization/lrn.cuh"

namespace dnncore {

constexpr int kLrnReach = 2;                     // of a window, on either side
constexpr int kLrnWindow = 2 * kLrnReach + 1;    // _WINDOW in lrn_stretches.py
constexpr int kLrnForward = 8, kLrnBackward = 4; // channels of a stretch of a walk; _STRETCH in lrn_stretches.py

// Mirrored by _PARAMS in dnncore/cuda/normalization/lrn_stretches.py. Distances count elements; each has one for x, dy and the output.
struct LrnStretchParams {
  Blend blend;
  const void* x;
  const void* dy;
  void* output;
  double share;
  double exponent;
  double k;
  int64 image[kLrnShares];
  int64 place[kLrnShares];
  int64 channel[kLrnShares];
  SmallDivisor places;  // of an image; of a walk, those that a thread takes count as one
  SmallDivisor parts;   // of all channels: what a walk takes, or vectors
  int32 part;           // channels of one
  int32 channels;
  int32 items;
};

// b^-beta, and 1 / b where shares are wanted.
template <typename C>
struct LrnPower {
  C power;
  C inverse;
};

template <bool kUsual, typename C>
__device__ __forceinline__ LrnPower<C> lrn_power(const LrnStretchParams& params, C squares) {
  const C base = static_cast<C>(params.k) + static_cast<C>(params.share) * squares;
  const C root = inverse_root(base), inverse = root * root;
  if constexpr (kUsual) {  // beta is 0.75
    return {inverse * inverse_root(root), inverse};
  } else {
    return {pow(base, -static_cast<C>(params.exponent)), inverse};
  }
}

// The power of the channel whose window begins at `first`.
template <bool kUsual, typename C, int kExtent>
__device__ __forceinline__ LrnPower<C> lrn_power_of(const LrnStretchParams& params, const C (&x)[kExtent], int first) {
  C squares = x[first] * x[first];
#pragma unroll
  for (int i = 1; i < kLrnWindow; ++i) squares += x[first + i] * x[first + i];
  return lrn_power<kUsual>(params, squares);
}

template <typename C, int kExtent>
__device__ __forceinline__ C lrn_sum_of(const C (&shares)[kExtent], int first) {
  C sum = shares[first];
#pragma unroll
  for (int i = 1; i < kLrnWindow; ++i) sum += shares[first + i];
  return sum;
}

// The addresses of a thread's first place at channel 0.
template <typename T>
struct LrnPlaces {
  const T* x;
  const T* dy;
  T* output;

  __device__ __forceinline__ LrnPlaces(const LrnStretchParams& params, int64 image, int64 place)
      : x(static_cast<const T*>(params.x) + image * params.image[kLrnX] + place * params.place[kLrnX]),
        dy(static_cast<const T*>(params.dy) + image * params.image[kLrnDy] + place * params.place[kLrnDy]),
        output(static_cast<T*>(params.output) + image * params.image[kLrnOutput] + place * params.place[kLrnOutput]) {}
};

template <int kAt, typename C, int kColumns, int kExtent, typename T, int kRows>
__device__ __forceinline__ void widen_columns(const Loaded<T, kColumns> (&rows)[kRows], C (&values)[kColumns][kExtent]) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    C row[kColumns];
    rows[r].widen_into(row);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) values[i][kAt + r] = row[i];
  }
}

// Keep the last kKept values as the first ones.
template <int kKept, typename C, int kColumns, int kExtent>
__device__ __forceinline__ void keep_last(C (&values)[kColumns][kExtent]) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
#pragma unroll
    for (int j = 0; j < kKept; ++j) values[i][j] = values[i][kExtent - kKept + j];
  }
}

template <typename T, int kColumns>
struct LrnWalk {
  using C = Compute<T>;
  static constexpr int kReach = kLrnReach;

  const LrnStretchParams& params;
  LrnPlaces<T> at;
  int32 begin;
  int32 end;

  __device__ __forceinline__ LrnWalk(const LrnStretchParams& params, SmallQuotientRemainder place, SmallQuotientRemainder part)
      : params(params), at(params, part.quotient, static_cast<int64>(place.remainder) * kColumns) {
    begin = part.remainder * params.part;
    end = min(begin + params.part, params.channels);
  }

  template <int kRows>
  __device__ __forceinline__ void load(Loaded<T, kColumns> (&rows)[kRows], const T* base, LrnOperand operand, int32 from, bool wanted) const {
    const T* row = base + from * params.channel[operand];
#pragma unroll
    for (int r = 0; r < kRows; ++r, row += params.channel[operand]) {
      rows[r].load_if(wanted && static_cast<uint32>(from + r) < static_cast<uint32>(params.channels), row);
    }
  }

  __device__ __forceinline__ void store(const C (&values)[kColumns], int32 channel) const {
    using Stored = Vector<T, kColumns>;
    Stored* place = reinterpret_cast<Stored*>(at.output + channel * params.channel[kLrnOutput]);
    Stored stored{};
    if (params.blend.beta != 0.0) stored = *place;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) blend_into(params.blend, values[i], &stored.at[i]);
    *place = stored;
  }

  template <bool kUsual>
  __device__ __forceinline__ void forward() const {
    constexpr int kStretch = kLrnForward;
    C x[kColumns][kStretch + 2 * kReach];
    Loaded<T, kColumns> before[2 * kReach], next[kStretch];
    load(before, at.x, kLrnX, begin - kReach, true);
    load(next, at.x, kLrnX, begin + kReach, true);
    widen_columns<0>(before, x);
    for (int32 channel = begin; channel < end; channel += kStretch) {
      widen_columns<2 * kReach>(next, x);
      load(next, at.x, kLrnX, channel + kStretch + kReach, channel + kStretch < end);
#pragma unroll
      for (int c = 0; c < kStretch; ++c) {
        if (channel + c >= end) break;
        C values[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) values[i] = x[i][c + kReach] * lrn_power_of<kUsual>(params, x[i], c).power;
        store(values, channel + c);
      }
      keep_last<2 * kReach>(x);
    }
  }

  template <bool kUsual>
  __device__ __forceinline__ void backward() const {
    constexpr int kStretch = kLrnBackward;
    // Of a stretch: x ends at its end, shares and dy b^-beta end kReach channels before, and dx another kReach before.
    C x[kColumns][kStretch + 2 * kReach], shares[kColumns][kStretch + 2 * kReach] = {}, scaled[kColumns][kStretch + kReach] = {};
    const C factor = static_cast<C>(2.0 * params.exponent * params.share);
    Loaded<T, kColumns> before[2 * kReach], next_x[kStretch], next_dy[kStretch];
    load(before, at.x, kLrnX, begin - 2 * kReach, true);
    load(next_x, at.x, kLrnX, begin, true);
    load(next_dy, at.dy, kLrnDy, begin - kReach, true);
    widen_columns<0>(before, x);
    for (int32 channel = begin; channel < end + 2 * kReach; channel += kStretch) {
      C dy[kColumns][kStretch];
      widen_columns<2 * kReach>(next_x, x);
      widen_columns<0>(next_dy, dy);
      const bool goes_on = channel + kStretch < end + 2 * kReach;
      load(next_x, at.x, kLrnX, channel + kStretch, goes_on);
      load(next_dy, at.dy, kLrnDy, channel + kStretch - kReach, goes_on);
#pragma unroll
      for (int c = 0; c < kStretch; ++c) {
        const bool exists = static_cast<uint32>(channel + c - kReach) < static_cast<uint32>(params.channels);
#pragma unroll
        for (int i = 0; i < kColumns; ++i) {
          const LrnPower<C> power = lrn_power_of<kUsual>(params, x[i], c);
          const C value = dy[i][c] * power.power;
          scaled[i][c + kReach] = value;
          shares[i][c + 2 * kReach] = exists ? value * x[i][c + kReach] * power.inverse : C(0);
        }
      }
#pragma unroll
      for (int c = 0; c < kStretch; ++c) {
        const int32 written = channel + c - 2 * kReach;
        if (written < begin || written >= end) continue;
        C values[kColumns];
#pragma unroll
        for (int i = 0; i < kColumns; ++i) values[i] = scaled[i][c] - factor * x[i][c] * lrn_sum_of(shares[i], c);
        store(values, written);
      }
      keep_last<2 * kReach>(x);
      keep_last<2 * kReach>(shares);
      keep_last<kReach>(scaled);
    }
  }
};

// A vector of channels, and those within kReach of it on either side, of which the vectors beside it have the values.
template <int kReach, typename T, typename C, int kExtent>
__device__ __forceinline__ void load_around(const T* place, int32 part, int32 parts, C (&values)[kExtent]) {
  constexpr int kVector = kExtent - 2 * kReach;
  static_assert(kReach <= kVector);
  Loaded<T, kVector> before, own, after;
  before.load_if(part > 0, place - kVector);
  own.load_if(true, place);
  after.load_if(part + 1 < parts, place + kVector);
  C each[kVector];
  before.widen_into(each);
#pragma unroll
  for (int i = 0; i < kReach; ++i) values[i] = each[kVector - kReach + i];
  own.widen_into(each);
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[kReach + i] = each[i];
  after.widen_into(each);
#pragma unroll
  for (int i = 0; i < kReach; ++i) values[kReach + kVector + i] = each[i];
}

template <typename T>
struct LrnVector {
  using C = Compute<T>;
  static constexpr int kReach = kLrnReach, kVector = 16 / sizeof(T);

  const LrnStretchParams& params;
  LrnPlaces<T> at;
  int32 part;

  __device__ __forceinline__ LrnVector(const LrnStretchParams& params, SmallQuotientRemainder part, SmallQuotientRemainder place)
      : params(params), at(params, place.quotient, place.remainder), part(part.remainder) {}

  __device__ __forceinline__ void store(const C (&values)[kVector]) const {
    using Stored = Vector<T, kVector>;
    Stored* place = reinterpret_cast<Stored*>(at.output + part * kVector);
    Stored stored{};
    if (params.blend.beta != 0.0) stored = *place;
#pragma unroll
    for (int i = 0; i < kVector; ++i) blend_into(params.blend, values[i], &stored.at[i]);
    *place = stored;
  }

  template <bool kUsual>
  __device__ __forceinline__ void forward() const {
    C x[kVector + 2 * kReach], values[kVector];
    load_around<kReach>(at.x + part * kVector, part, params.parts.value, x);
#pragma unroll
    for (int c = 0; c < kVector; ++c) values[c] = x[c + kReach] * lrn_power_of<kUsual>(params, x, c).power;
    store(values);
  }

  template <bool kUsual>
  __device__ __forceinline__ void backward() const {
    C x[kVector + 4 * kReach], dy[kVector + 2 * kReach], shares[kVector + 2 * kReach], values[kVector];
    load_around<2 * kReach>(at.x + part * kVector, part, params.parts.value, x);
    load_around<kReach>(at.dy + part * kVector, part, params.parts.value, dy);
#pragma unroll
    for (int c = 0; c < kVector + 2 * kReach; ++c) {
      const LrnPower<C> power = lrn_power_of<kUsual>(params, x, c);
      const C scaled = dy[c] * power.power;
      const bool exists = static_cast<uint32>(part * kVector + c - kReach) < static_cast<uint32>(params.channels);
      shares[c] = exists ? scaled * x[c + kReach] * power.inverse : C(0);
      if (kReach <= c && c < kReach + kVector) values[c - kReach] = scaled;
    }
    const C factor = static_cast<C>(2.0 * params.exponent * params.share);
#pragma unroll
    for (int c = 0; c < kVector; ++c) values[c] -= factor * x[c + 2 * kReach] * lrn_sum_of(shares, c);
    store(values);
  }
};

template <bool kBackward, typename Stretches>
__device__ __forceinline__ void lrn_stretches(const Stretches& stretches, bool is_usual) {
  if constexpr (kBackward) {
    is_usual ? stretches.template backward<true>() : stretches.template backward<false>();
  } else {
    is_usual ? stretches.template forward<true>() : stretches.template forward<false>();
  }
}

template <typename T, int kColumns, bool kBackward>
__device__ void lrn_walk(const LrnStretchParams& params) {
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.items) return;
  const SmallQuotientRemainder place = divide(item, params.places);
  lrn_stretches<kBackward>(LrnWalk<T, kColumns>(params, place, divide(place.quotient, params.parts)), params.exponent == 0.75);
}

template <typename T, bool kBackward>
__device__ void lrn_vectors(const LrnStretchParams& params) {
  const int32 item = static_cast<int32>(blockIdx.x * blockDim.x + threadIdx.x);
  if (item >= params.items) return;
  const SmallQuotientRemainder part = divide(item, params.parts);
  lrn_stretches<kBackward>(LrnVector<T>(params, part, divide(part.quotient, params.places)), params.exponent == 0.75);
}

}  // namespace dnncore
