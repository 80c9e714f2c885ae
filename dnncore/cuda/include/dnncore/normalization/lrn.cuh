// Local response normalisation: y = x * b^-beta with b = k + share * (sum of x^2 over the element's window). Backward,
// with the sum over the elements whose windows contain this one,
//
//  dx = dy * b^-beta - 2 beta share x * (sum of dy x b^(-beta - 1))
//
// Across channels, a thread takes a strip of channels at one place. It takes each channel in reach once and adds what
// that contributes, forward its square, to every sum of the strip whose window contains it. Where channels are
// neighbours in memory, the strip is one channel, and neighbouring threads read the same cache lines. Windows over any
// dimensions are summed with a thread per element; backward takes two launches through the workspace, which holds dy x
// b^(-beta - 1), or one that sums the window of every neighbour anew.
//
//    channel       0   1   2   3   4   5   6   7          a strip of channels 2 to 5, windows of 5 channels:
//    squares[0]    +   +   +   +   +                      each of channels 0 to 7 is taken once
//    squares[1]        +   +   +   +   +
//    squares[2]            +   +   +   +   +
//    squares[3]                +   +   +   +   +
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Operands by their place in LrnParams::strides; _OPERANDS of them in dnncore/cuda/normalization/lrn.py.
enum LrnOperand : int { kLrnX, kLrnDy, kLrnOutput, kLrnShares, kLrnOperands };

enum class LrnStage : int32 { kForward, kShares, kGather, kBackward };  // _STAGES in lrn.py

// Mirrored by _PARAMS in dnncore/cuda/normalization/lrn.py.
struct LrnParams {
  Blend blend;
  const void* x;
  const void* dy;
  void* output;
  void* shares;  // in the compute type, one per element: dy x b^(-beta - 1)
  double share;
  double exponent;
  double k;
  int64 before;
  int64 after;
  int64 size;                 // elements, or strips of channels
  int64 channels;
  int64 steps[kLrnOperands];  // from channel to channel
  Divisor extents[kMaxNdim];  // slowest first; across channels, the channels' extent counts strips
  int64 strides[kLrnOperands][kMaxNdim];
  int32 ndim;
  int32 axis;     // of the channels; for windows, the one along which they are walked
  int32 windows;  // a bit for each axis that windows extend along
  LrnStage stage;
};

// base^-exponent. The three usual exponents need no logarithm.
__device__ __forceinline__ float inverse_root(float value) { return rsqrtf(value); }
__device__ __forceinline__ double inverse_root(double value) { return 1.0 / sqrt(value); }

template <typename C>
__device__ __forceinline__ C shrink(const LrnParams& params, C base) {
  if (params.exponent == 0.75) {
    const C root = inverse_root(base);
    return root * sqrt(root);
  }
  if (params.exponent == 0.5) return inverse_root(base);
  if (params.exponent == 1.0) return C(1) / base;
  return pow(base, -static_cast<C>(params.exponent));
}

template <typename C>
__device__ __forceinline__ C base_of(const LrnParams& params, C squares) {
  return static_cast<C>(params.k) + static_cast<C>(params.share) * squares;
}

template <typename T>
__device__ __forceinline__ Compute<T> squares_between(const T* x, int64 step, int64 first, int64 last) {
  Compute<T> sum = 0;
  for (int64 i = first; i <= last; ++i) {
    const Compute<T> value = widen(x[i * step]);
    sum += value * value;
  }
  return sum;
}

// Where a strip is.
template <typename T, int kStrip>
struct Strip {
  int64 channel = 0;  // the first one of the strip
  int64 offsets[kLrnOperands] = {};

  __device__ Strip(const LrnParams& params, int64 index) {
#pragma unroll 1
    for (int axis = params.ndim - 1; axis >= 0; --axis) {
      const QuotientRemainder split = divide(index, params.extents[axis]);
      index = split.quotient;
      if (axis == params.axis) channel = split.remainder * kStrip;
#pragma unroll
      for (int operand = 0; operand < kLrnShares; ++operand) {
        offsets[operand] += split.remainder * params.strides[operand][axis];
      }
    }
  }
  // Pointers to channel 0 at the strip's place.
  __device__ const T* input(const LrnParams& params, const void* base, LrnOperand operand) const {
    return static_cast<const T*>(base) + offsets[operand] - channel * params.steps[operand];
  }
  __device__ T* output(const LrnParams& params) const {
    return static_cast<T*>(params.output) + offsets[kLrnOutput] - channel * params.steps[kLrnOutput];
  }
};

template <typename T, int kStrip>
__device__ void lrn_across_forward(const LrnParams& params) {
  using C = Compute<T>;
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Strip<T, kStrip> strip(params, index);
    const T* x = strip.input(params, params.x, kLrnX);
    T* y = strip.output(params);
    C squares[kStrip] = {};
    const int64 last = min(strip.channel + kStrip - 1 + params.after, params.channels - 1);
    for (int64 c = max(strip.channel - params.before, int64(0)); c <= last; ++c) {
      const C value = widen(x[c * params.steps[kLrnX]]);
#pragma unroll
      for (int s = 0; s < kStrip; ++s) {
        const int64 distance = c - (strip.channel + s);
        if (-params.before <= distance && distance <= params.after) squares[s] += value * value;
      }
    }
#pragma unroll
    for (int s = 0; s < kStrip; ++s) {
      const int64 c = strip.channel + s;
      if (c >= params.channels) break;
      const C value = widen(x[c * params.steps[kLrnX]]);
      blend_into(params.blend, value * shrink(params, base_of(params, squares[s])), y + c * params.steps[kLrnOutput]);
    }
  }
}

template <typename T, int kStrip>
__device__ void lrn_across_backward(const LrnParams& params) {
  using C = Compute<T>;
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Strip<T, kStrip> strip(params, index);
    const T* x = strip.input(params, params.x, kLrnX);
    const T* dy = strip.input(params, params.dy, kLrnDy);
    T* dx = strip.output(params);
    C shares[kStrip] = {}, direct[kStrip] = {};
    const int64 last = min(strip.channel + kStrip - 1 + params.before, params.channels - 1);
    for (int64 c = max(strip.channel - params.after, int64(0)); c <= last; ++c) {
      const int64 end = min(c + params.after, params.channels - 1);
      const C base = base_of(params, squares_between(x, params.steps[kLrnX], max(c - params.before, int64(0)), end));
      const C scaled = widen(dy[c * params.steps[kLrnDy]]) * shrink(params, base);
      const C share = scaled * widen(x[c * params.steps[kLrnX]]) / base;
#pragma unroll
      for (int s = 0; s < kStrip; ++s) {
        const int64 distance = c - (strip.channel + s);
        if (-params.after <= distance && distance <= params.before) shares[s] += share;
        if (distance == 0) direct[s] = scaled;
      }
    }
    const C factor = static_cast<C>(2.0 * params.exponent * params.share);
#pragma unroll
    for (int s = 0; s < kStrip; ++s) {
      const int64 c = strip.channel + s;
      if (c >= params.channels) break;
      const C value = direct[s] - factor * widen(x[c * params.steps[kLrnX]]) * shares[s];
      blend_into(params.blend, value, dx + c * params.steps[kLrnOutput]);
    }
  }
}

// An element, given by its index in each dimension.
struct LrnPlace {
  int64 at[kMaxNdim];

  __device__ LrnPlace(const LrnParams& params, int64 index) {
    for (int axis = params.ndim - 1; axis >= 0; --axis) {
      const QuotientRemainder split = divide(index, params.extents[axis]);
      at[axis] = split.remainder;
      index = split.quotient;
    }
  }
  __device__ int64 offset(const LrnParams& params, LrnOperand operand) const {
    int64 offset = 0;
    for (int axis = 0; axis < params.ndim; ++axis) offset += at[axis] * params.strides[operand][axis];
    return offset;
  }
};

// Call visit(place, length) for every row, along params.axis, of the elements that lie from `before` places before the
// centre to `after` places behind it in each dimension of the window; `place` is the first element of the row.
template <typename Visit>
__device__ void visit_rows(const LrnParams& params, const LrnPlace& centre, int64 before, int64 after, const Visit& visit) {
  int64 low[kMaxNdim], length[kMaxNdim];
  int64 rows = 1;
  for (int axis = 0; axis < params.ndim; ++axis) {
    const bool extends = (params.windows >> axis & 1) != 0;
    low[axis] = extends ? max(centre.at[axis] - before, int64(0)) : centre.at[axis];
    const int64 high = extends ? min(centre.at[axis] + after, params.extents[axis].value - 1) : centre.at[axis];
    length[axis] = high - low[axis] + 1;
    if (axis != params.axis) rows *= length[axis];
  }
  for (int64 row = 0; row < rows; ++row) {
    LrnPlace place = centre;
    int64 rest = row;
    for (int axis = params.ndim - 1; axis >= 0; --axis) {
      place.at[axis] = low[axis];
      if (axis == params.axis || length[axis] == 1) continue;
      const QuotientRemainder split = divide(rest, length[axis]);
      place.at[axis] += split.remainder;
      rest = split.quotient;
    }
    visit(place, length[params.axis]);
  }
}

template <typename T>
__device__ Compute<T> base_at(const LrnParams& params, const LrnPlace& centre) {
  Compute<T> squares = 0;
  visit_rows(params, centre, params.before, params.after, [&](const LrnPlace& row, int64 length) {
    const T* x = static_cast<const T*>(params.x) + row.offset(params, kLrnX);
    squares += squares_between(x, params.strides[kLrnX][params.axis], 0, length - 1);
  });
  return base_of(params, squares);
}

template <typename T>
__device__ void lrn_windows(const LrnParams& params) {
  using C = Compute<T>;
  const auto x_at = [&](const LrnPlace& place) { return widen(static_cast<const T*>(params.x)[place.offset(params, kLrnX)]); };
  const auto dy_at = [&](const LrnPlace& place) { return widen(static_cast<const T*>(params.dy)[place.offset(params, kLrnDy)]); };
  const auto share_at = [&](const LrnPlace& place) {
    const C base = base_at<T>(params, place);
    return dy_at(place) * x_at(place) * shrink(params, base) / base;
  };
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const LrnPlace place(params, index);
    if (params.stage == LrnStage::kShares) {
      static_cast<C*>(params.shares)[index] = share_at(place);
      continue;
    }
    const C factor = shrink(params, base_at<T>(params, place));
    C value;
    if (params.stage == LrnStage::kForward) {
      value = x_at(place) * factor;
    } else {
      C shares = 0;
      visit_rows(params, place, params.after, params.before, [&](const LrnPlace& row, int64 length) {
        LrnPlace other = row;
        const int64 first = row.offset(params, kLrnShares), step = params.strides[kLrnShares][params.axis];
        for (int64 i = 0; i < length; ++i) {
          if (params.stage == LrnStage::kGather) {
            shares += static_cast<const C*>(params.shares)[first + i * step];
          } else {
            other.at[params.axis] = row.at[params.axis] + i;
            shares += share_at(other);
          }
        }
      });
      value = dy_at(place) * factor - static_cast<C>(2.0 * params.exponent * params.share) * x_at(place) * shares;
    }
    blend_into(params.blend, value, static_cast<T*>(params.output) + place.offset(params, kLrnOutput));
  }
}

}  // namespace dnncore
