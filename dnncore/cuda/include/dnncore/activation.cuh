// Activations and their slopes, chosen at run time: all threads take the same branch, so that the choice costs a
// memory-bound kernel nothing, and one compiled kernel serves them all. Loops choose once, outside: with_mode turns the
// mode into a template argument.
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by _MODES in dnncore/cuda/activation.py.
enum class ActivationMode : int32 {
  kIdentity,
  kRelu,
  kClippedRelu,
  kLeakyRelu,
  kSigmoid,
  kTanh,
  kElu,
  kSilu,
  kGelu,
  kGeluTanh,
  kHardSigmoid,
  kHardSwish,
};

// Mirrored by ACTIVATION in dnncore/cuda/activation.py.
struct Activation {
  double coefficient;
  ActivationMode mode;
};

template <typename C>
__device__ __forceinline__ C sigmoid(C x) {
  return C(1) / (C(1) + exp(-x));  // exp overflows to infinity for a very negative x, which gives the right 0
}

// Twice the argument of the tanh in GELU's approximation, because 0.5 x (1 + tanh(u)) = x sigmoid(2u).
template <typename C>
__device__ __forceinline__ C gelu_argument(C x) {
  return C(1.5957691216057308) * (x + C(0.044715) * x * x * x);  // sqrt(8 / pi)
}

template <typename C>
__device__ __forceinline__ C hard_sigmoid(C x) {
  const C y = x / C(6) + C(0.5);
  return y < C(0) ? C(0) : y > C(1) ? C(1) : y;
}

// f(x). Comparisons are written so that NaN stays NaN.
template <ActivationMode kMode, typename C>
__device__ __forceinline__ C activate(const Activation& activation, C x) {
  const C c = static_cast<C>(activation.coefficient);
  if constexpr (kMode == ActivationMode::kRelu) return x < C(0) ? C(0) : x;
  if constexpr (kMode == ActivationMode::kClippedRelu) return x < C(0) ? C(0) : x > c ? c : x;
  if constexpr (kMode == ActivationMode::kLeakyRelu) return x > C(0) ? x : c * x;
  if constexpr (kMode == ActivationMode::kSigmoid) return sigmoid(x);
  if constexpr (kMode == ActivationMode::kTanh) return tanh(x);
  if constexpr (kMode == ActivationMode::kElu) return x > C(0) ? x : c * expm1(x);
  if constexpr (kMode == ActivationMode::kSilu) return x * sigmoid(x);
  // erfc, because 1 + erf would lose a very negative x to cancellation.
  if constexpr (kMode == ActivationMode::kGelu) return C(0.5) * x * erfc(-x * C(0.70710678118654752));
  if constexpr (kMode == ActivationMode::kGeluTanh) return x * sigmoid(gelu_argument(x));
  if constexpr (kMode == ActivationMode::kHardSigmoid) return hard_sigmoid(x);
  if constexpr (kMode == ActivationMode::kHardSwish) return x * hard_sigmoid(x);
  return x;
}

// dy/dx at x, where y is f(x).
template <ActivationMode kMode, typename C>
__device__ __forceinline__ C slope(const Activation& activation, C y, C x) {
  const C c = static_cast<C>(activation.coefficient);
  if constexpr (kMode == ActivationMode::kRelu) return x > C(0) ? C(1) : C(0);
  if constexpr (kMode == ActivationMode::kClippedRelu) return x > C(0) && x < c ? C(1) : C(0);
  if constexpr (kMode == ActivationMode::kLeakyRelu) return x > C(0) ? C(1) : c;
  if constexpr (kMode == ActivationMode::kSigmoid) return y * (C(1) - y);
  if constexpr (kMode == ActivationMode::kTanh) return C(1) - y * y;
  if constexpr (kMode == ActivationMode::kElu) return x > C(0) ? C(1) : c * exp(x);
  if constexpr (kMode == ActivationMode::kSilu) {
    const C s = sigmoid(x);
    return s * (C(1) + x * (C(1) - s));
  }
  if constexpr (kMode == ActivationMode::kGelu) {
    return C(0.5) * erfc(-x * C(0.70710678118654752)) + x * C(0.3989422804014327) * exp(C(-0.5) * x * x);
  }
  if constexpr (kMode == ActivationMode::kGeluTanh) {
    const C s = sigmoid(gelu_argument(x));
    return s + x * s * (C(1) - s) * C(1.5957691216057308) * (C(1) + C(3 * 0.044715) * x * x);
  }
  if constexpr (kMode == ActivationMode::kHardSigmoid) return x > C(-3) && x < C(3) ? C(1) / C(6) : C(0);
  if constexpr (kMode == ActivationMode::kHardSwish) return x <= C(-3) ? C(0) : x < C(3) ? x / C(3) + C(0.5) : C(1);
  return C(1);
}

// A mode that the compiler knows.
template <ActivationMode kChosen>
struct KnownMode {
  static constexpr ActivationMode kMode = kChosen;
};

// Call then(KnownMode) for the activation's mode.
template <typename Then>
__device__ __forceinline__ void with_mode(const Activation& activation, Then then) {
  switch (activation.mode) {
    case ActivationMode::kIdentity: return then(KnownMode<ActivationMode::kIdentity>{});
    case ActivationMode::kRelu: return then(KnownMode<ActivationMode::kRelu>{});
    case ActivationMode::kClippedRelu: return then(KnownMode<ActivationMode::kClippedRelu>{});
    case ActivationMode::kLeakyRelu: return then(KnownMode<ActivationMode::kLeakyRelu>{});
    case ActivationMode::kSigmoid: return then(KnownMode<ActivationMode::kSigmoid>{});
    case ActivationMode::kTanh: return then(KnownMode<ActivationMode::kTanh>{});
    case ActivationMode::kElu: return then(KnownMode<ActivationMode::kElu>{});
    case ActivationMode::kSilu: return then(KnownMode<ActivationMode::kSilu>{});
    case ActivationMode::kGelu: return then(KnownMode<ActivationMode::kGelu>{});
    case ActivationMode::kGeluTanh: return then(KnownMode<ActivationMode::kGeluTanh>{});
    case ActivationMode::kHardSigmoid: return then(KnownMode<ActivationMode::kHardSigmoid>{});
    case ActivationMode::kHardSwish: return then(KnownMode<ActivationMode::kHardSwish>{});
  }
}

// f(x) for one element.
template <typename C>
__device__ __forceinline__ C activate(const Activation& activation, C x) {
  C y = x;
  with_mode(activation, [&](auto chosen) { y = activate<chosen.kMode>(activation, x); });
  return y;
}

}  // namespace dnncore
