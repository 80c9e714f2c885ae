// The functions of element-wise kernels: of up to three elements, in the compute type. Each is a type of its own, down to the operator
// and the mode, so that a kernel has the registers and instructions of the one thing that it computes: a kernel of all operators has the
// registers of the most demanding, and leaves a multiprocessor half of the threads that memory's latency takes. Where a layout costs more
// than that, one kernel is enough for all (AnyOf).
//
// A function is an object made of the launch's settings; T is the type in which elements are stored.
#pragma once

#include "dnncore/activation_stored.cuh"
#include "dnncore/common/tensor.cuh"

namespace dnncore {

// Mirrored by _SETTINGS in dnncore/cuda/elementwise.py; each function says what they mean to it.
struct Settings {
  double first;
  double second;
  int32 kind;  // of several functions the one to compute: see AnyOf
};

enum class UnaryOperator {
  kAbs,
  kCeil,
  kCos,
  kErf,
  kExp,
  kFloor,
  kLog,
  kNeg,
  kReciprocal,
  kRound,
  kRsqrt,
  kSign,
  kSin,
  kSoftplus,
  kSqrt,
  kSquare,
};

enum class BinaryOperator { kAdd, kSub, kMul, kDiv, kMin, kMax };

// What a function says of itself: the types of what it takes, how many, and whether its value depends on the one with a given index.
template <typename T, int kCount>
struct FunctionOf {
  using Stored = T;
  using First = T;
  static constexpr int kInputs = kCount;
  static __device__ constexpr bool reads(int input) { return input < kCount; }
};

template <typename T>
struct One : FunctionOf<T, 0> {
  using C = Compute<T>;
  explicit __device__ One(const Settings&) {}
  __device__ __forceinline__ C operator()(C, C, C) const { return C(1); }
};

template <typename T>
struct Copy : FunctionOf<T, 1> {
  using C = Compute<T>;
  explicit __device__ Copy(const Settings&) {}
  __device__ __forceinline__ C operator()(C a, C, C) const { return a; }
};

template <typename T, UnaryOperator kOperator>
struct Unary : FunctionOf<T, 1> {
  using C = Compute<T>;
  explicit __device__ Unary(const Settings&) {}
  __device__ __forceinline__ C operator()(C x, C, C) const {
    if constexpr (kOperator == UnaryOperator::kAbs) return fabs(x);
    if constexpr (kOperator == UnaryOperator::kCeil) return ceil(x);
    if constexpr (kOperator == UnaryOperator::kCos) return cos(x);
    if constexpr (kOperator == UnaryOperator::kErf) return erf_stored<T>(x);
    if constexpr (kOperator == UnaryOperator::kExp) return exp(x);
    if constexpr (kOperator == UnaryOperator::kFloor) return floor(x);
    if constexpr (kOperator == UnaryOperator::kLog) return log(x);
    if constexpr (kOperator == UnaryOperator::kNeg) return -x;
    if constexpr (kOperator == UnaryOperator::kReciprocal) return C(1) / x;
    if constexpr (kOperator == UnaryOperator::kRound) return rint(x);
    if constexpr (kOperator == UnaryOperator::kRsqrt) return rsqrt(x);
    if constexpr (kOperator == UnaryOperator::kSign) return x > C(0) ? C(1) : x < C(0) ? C(-1) : x;
    if constexpr (kOperator == UnaryOperator::kSin) return sin(x);
    if constexpr (kOperator == UnaryOperator::kSoftplus) return (x < C(0) ? C(0) : x) + log1p(exp(-fabs(x)));
    if constexpr (kOperator == UnaryOperator::kSqrt) return sqrt(x);
    if constexpr (kOperator == UnaryOperator::kSquare) return x * x;
  }
};

// operator(first * a, second * b). A minimum or maximum with NaN is NaN.
template <typename T, BinaryOperator kOperator>
struct Binary : FunctionOf<T, 2> {
  using C = Compute<T>;
  C first, second;
  explicit __device__ Binary(const Settings& given) : first(static_cast<C>(given.first)), second(static_cast<C>(given.second)) {}
  __device__ __forceinline__ C operator()(C a, C b, C) const {
    const C x = first * a, y = second * b;
    if constexpr (kOperator == BinaryOperator::kAdd) return x + y;
    if constexpr (kOperator == BinaryOperator::kSub) return x - y;
    if constexpr (kOperator == BinaryOperator::kMul) return x * y;
    if constexpr (kOperator == BinaryOperator::kDiv) return x / y;
    if constexpr (kOperator == BinaryOperator::kMin) return x != x || x < y ? x : y;
    if constexpr (kOperator == BinaryOperator::kMax) return x != x || x > y ? x : y;
  }
};

// The second where the first, a condition of a byte, is not 0, else the third.
template <typename T>
struct Where : FunctionOf<T, 3> {
  using C = Compute<T>;
  using First = uint8;
  explicit __device__ Where(const Settings&) {}
  __device__ __forceinline__ C operator()(C a, C b, C c) const { return a != C(0) ? b : c; }
};

// The setting is the activation's coefficient, here and below.
template <typename T, ActivationMode kMode>
struct ActivationForward : FunctionOf<T, 1> {
  using C = Compute<T>;
  Activation activation;
  explicit __device__ ActivationForward(const Settings& given) : activation{given.first, kMode} {}
  __device__ __forceinline__ C operator()(C x, C, C) const { return activate_stored<T, kMode>(activation, x); }
};

// Takes y, dy and x; a sigmoid's and a tanh's slope depend on y, all others' on x. Where the slope is 0 the gradient is 0, whatever dy is.
template <typename T, ActivationMode kMode>
struct ActivationBackward : FunctionOf<T, 3> {
  using C = Compute<T>;
  static __device__ constexpr bool reads(int input) {
    return input == 1 || (input == 0) == (kMode == ActivationMode::kSigmoid || kMode == ActivationMode::kTanh);
  }
  Activation activation;
  explicit __device__ ActivationBackward(const Settings& given) : activation{given.first, kMode} {}
  __device__ __forceinline__ C operator()(C y, C dy, C x) const {
    const C rise = slope_stored<T, kMode>(activation, y, x);
    return rise == C(0) ? C(0) : rise * dy;
  }
};

// One of several functions, chosen at run time, for layouts that are seldom seen.
template <typename Function, typename... Others>
struct AnyOf {
  using Stored = typename Function::Stored;
  using First = typename Function::First;
  static constexpr int kInputs = Function::kInputs;
  static __device__ constexpr bool reads(int input) { return Function::reads(input) || (Others::reads(input) || ...); }
  Settings settings;
  explicit __device__ AnyOf(const Settings& given) : settings(given) {}
};

// Call then with the function that is to be computed: all threads take the same branch.
template <typename Function, typename Then>
__device__ __forceinline__ void with_function(const Function& function, Then then) {
  then(function);
}
template <typename... Functions, typename Then>
__device__ __forceinline__ void with_function(const AnyOf<Functions...>& any, Then then) {
  int32 kind = 0;
  ((any.settings.kind == kind++ ? then(Functions(any.settings)) : void()), ...);
}

}  // namespace dnncore
