// Element-wise operations on up to three inputs: out = alpha * function(a, b, c) + beta * out. They are memory-bound.
// The host collapses the dimensions (collapse in dnncore/cuda/params.py), so that tensors without gaps come as one
// dimension and take the contiguous kernel, 16 bytes at a time. Where the last dimension that is left is not short (a
// bias over an image's planes, or over its channels), a thread takes 16 bytes of a row and works out once where they
// are; otherwise it takes one element. An input may be the output itself: each element is read before it is written, by
// the same thread.
//
//    contiguous    [16 bytes][16 bytes][16 bytes][16 bytes] ...     no divisions
//    rows          [16 bytes][16 bytes][16 b..]                     divisions for each pack; the last may be incomplete
//                  [16 bytes][16 bytes][16 b..]
//    strided       .    .    .    .    .                            divisions for each element
//
// A function is an object made of the launch's settings. It takes all elements of a pack at once, so that it makes its
// run-time choices once per pack. The first input of Where is a condition, a byte each: as many bytes as a pack of the
// others has lanes.
#pragma once

#include "dnncore/activation_narrow.cuh"
#include "dnncore/common/loaded.cuh"
#include "dnncore/common/pack.cuh"
#include "dnncore/common/tensor.cuh"

namespace dnncore {

constexpr int kMaxInputs = 3;

// Mirrored by _SETTINGS in dnncore/cuda/elementwise.py; each function says what they mean to it.
struct Settings {
  double first;
  double second;
  int32 mode;
};

// Mirrored by _PARAMS in dnncore/cuda/elementwise.py. The views share one shape; strides count elements.
struct ElementwiseParams {
  Blend blend;
  const void* inputs[kMaxInputs];
  void* output;
  int64 size;
  Divisor row_packs;  // packs per row; the last may have fewer lanes
  Settings settings;
  TensorView views[kMaxInputs];
  TensorView output_view;
};

// Mirrored by _FUNCTIONS in dnncore/cuda/tensor.py.
enum class UnaryOperator : int32 {
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

// Mirrored by _OPERATORS in dnncore/cuda/tensor.py.
enum class BinaryOperator : int32 { kAdd, kSub, kMul, kDiv, kMin, kMax };

// The storage type of a function's values, for what need not be more accurate than that.
template <typename T>
struct Stored {};

// Functions. Each says how many inputs it takes, and which of them its settings need; the others are zeros.
struct One {
  static constexpr int kInputs = 0;
  static constexpr bool kComputes = false;
  explicit __device__ One(const Settings&) {}
  __device__ __forceinline__ bool needs(int) const { return true; }
  template <typename T, typename C, int kLanes>
  __device__ __forceinline__ void operator()(
      Stored<T>, const C (&)[kLanes], const C (&)[kLanes], const C (&)[kLanes], C (&out)[kLanes]
  ) const {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[i] = C(1);
  }
};

struct Copy {
  static constexpr int kInputs = 1;
  static constexpr bool kComputes = false;
  explicit __device__ Copy(const Settings&) {}
  __device__ __forceinline__ bool needs(int) const { return true; }
  template <typename T, typename C, int kLanes>
  __device__ __forceinline__ void operator()(
      Stored<T>, const C (&a)[kLanes], const C (&)[kLanes], const C (&)[kLanes], C (&out)[kLanes]
  ) const {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[i] = a[i];
  }
};

// mode is a UnaryOperator.
struct Unary {
  static constexpr int kInputs = 1;
  static constexpr bool kComputes = false;
  UnaryOperator chosen;
  explicit __device__ Unary(const Settings& given) : chosen(static_cast<UnaryOperator>(given.mode)) {}

  __device__ __forceinline__ bool needs(int) const { return true; }
  template <typename T, typename C, int kLanes>
  __device__ __forceinline__ void operator()(
      Stored<T>, const C (&a)[kLanes], const C (&)[kLanes], const C (&)[kLanes], C (&out)[kLanes]
  ) const {
    const auto each = [&](auto function) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) out[i] = function(a[i]);
    };
    switch (chosen) {
      case UnaryOperator::kAbs: return each([](C x) { return fabs(x); });
      case UnaryOperator::kCeil: return each([](C x) { return ceil(x); });
      case UnaryOperator::kCos: return each([](C x) { return cos(x); });
      case UnaryOperator::kErf: return each([](C x) { return erf_stored<T>(x); });
      case UnaryOperator::kExp: return each([](C x) { return exp(x); });
      case UnaryOperator::kFloor: return each([](C x) { return floor(x); });
      case UnaryOperator::kLog: return each([](C x) { return log(x); });
      case UnaryOperator::kNeg: return each([](C x) { return -x; });
      case UnaryOperator::kReciprocal: return each([](C x) { return C(1) / x; });
      case UnaryOperator::kRound: return each([](C x) { return rint(x); });
      case UnaryOperator::kRsqrt: return each([](C x) { return rsqrt(x); });
      case UnaryOperator::kSign: return each([](C x) { return x > C(0) ? C(1) : x < C(0) ? C(-1) : x; });
      case UnaryOperator::kSin: return each([](C x) { return sin(x); });
      case UnaryOperator::kSoftplus: return each([](C x) { return (x < C(0) ? C(0) : x) + log1p(exp(-fabs(x))); });
      case UnaryOperator::kSqrt: return each([](C x) { return sqrt(x); });
      case UnaryOperator::kSquare: return each([](C x) { return x * x; });
    }
  }
};

// operator(first * a, second * b), mode being a BinaryOperator. A minimum or maximum with NaN is NaN.
struct Binary {
  static constexpr int kInputs = 2;
  static constexpr bool kComputes = false;
  Settings settings;
  explicit __device__ Binary(const Settings& given) : settings(given) {}

  __device__ __forceinline__ bool needs(int) const { return true; }
  template <typename T, typename C, int kLanes>
  __device__ __forceinline__ void operator()(
      Stored<T>, const C (&a)[kLanes], const C (&b)[kLanes], const C (&)[kLanes], C (&out)[kLanes]
  ) const {
    const C first = static_cast<C>(settings.first), second = static_cast<C>(settings.second);
    const auto each = [&](auto function) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) out[i] = function(first * a[i], second * b[i]);
    };
    switch (static_cast<BinaryOperator>(settings.mode)) {
      case BinaryOperator::kAdd: return each([](C x, C y) { return x + y; });
      case BinaryOperator::kSub: return each([](C x, C y) { return x - y; });
      case BinaryOperator::kMul: return each([](C x, C y) { return x * y; });
      case BinaryOperator::kDiv: return each([](C x, C y) { return x / y; });
      case BinaryOperator::kMin: return each([](C x, C y) { return x != x || x < y ? x : y; });
      case BinaryOperator::kMax: return each([](C x, C y) { return x != x || x > y ? x : y; });
    }
  }
};

// The second input where the first, a condition, is not 0, else the third.
struct Where {
  static constexpr int kInputs = 3;
  static constexpr bool kComputes = false;
  explicit __device__ Where(const Settings&) {}
  __device__ __forceinline__ bool needs(int) const { return true; }
  template <typename T, typename C, int kLanes>
  __device__ __forceinline__ void operator()(
      Stored<T>, const C (&a)[kLanes], const C (&b)[kLanes], const C (&c)[kLanes], C (&out)[kLanes]
  ) const {
#pragma unroll
    for (int i = 0; i < kLanes; ++i) out[i] = a[i] != C(0) ? b[i] : c[i];
  }
};

struct ActivationForward {
  static constexpr int kInputs = 1;
  static constexpr bool kComputes = true;
  Activation activation;
  explicit __device__ ActivationForward(const Settings& given)
      : activation{given.first, static_cast<ActivationMode>(given.mode)} {}

  __device__ __forceinline__ bool needs(int) const { return true; }
  template <typename T, typename C, int kLanes>
  __device__ __forceinline__ void operator()(
      Stored<T>, const C (&x)[kLanes], const C (&)[kLanes], const C (&)[kLanes], C (&out)[kLanes]
  ) const {
    with_mode(activation, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) out[i] = activate_stored<T, chosen.kMode>(activation, x[i]);
    });
  }
};

// Takes y, dy and x. Where the slope is 0 the gradient is 0, whatever dy is.
struct ActivationBackward {
  static constexpr int kInputs = 3;
  static constexpr bool kComputes = true;
  Activation activation;
  explicit __device__ ActivationBackward(const Settings& given)
      : activation{given.first, static_cast<ActivationMode>(given.mode)} {}

  __device__ __forceinline__ bool needs(int input) const {
    const bool has_slope_of_y = activation.mode == ActivationMode::kSigmoid || activation.mode == ActivationMode::kTanh;
    return input == 1 || (input == 0) == has_slope_of_y;
  }
  template <typename T, typename C, int kLanes>
  __device__ __forceinline__ void operator()(
      Stored<T>, const C (&y)[kLanes], const C (&dy)[kLanes], const C (&x)[kLanes], C (&out)[kLanes]
  ) const {
    with_mode(activation, [&](auto chosen) {
#pragma unroll
      for (int i = 0; i < kLanes; ++i) {
        const C rise = slope_stored<T, chosen.kMode>(activation, y[i], x[i]);
        out[i] = rise == C(0) ? C(0) : rise * dy[i];
      }
    });
  }
};

// The storage type of a function's first input: that of the others, but for a condition.
template <typename T, typename Function>
struct FirstInput {
  using Type = T;
};
template <typename T>
struct FirstInput<T, Where> {
  using Type = uint8;
};
template <typename T, typename Function>
using First = typename FirstInput<T, Function>::Type;

// Of the first input, what belongs to a pack of the others.
template <typename T, typename Function>
using FirstPack = Vector<First<T, Function>, Pack<T>::kWidth>;

// Where the same element of every tensor is.
struct Offsets {
  int64 inputs[kMaxInputs];
  int64 output;
};

// Those of the index-th element over dimensions 0 to ndim - 1, in row-major order.
template <typename Function>
__device__ __forceinline__ Offsets offsets_of(const ElementwiseParams& params, int ndim, int64 index) {
  Offsets offsets{};
#pragma unroll 1
  for (int axis = ndim - 1; axis >= 0; --axis) {
    const QuotientRemainder split = divide(index, params.output_view.shape[axis]);
    index = split.quotient;
    offsets.output += split.remainder * params.output_view.strides[axis];
#pragma unroll
    for (int input = 0; input < Function::kInputs; ++input) {
      offsets.inputs[input] += split.remainder * params.views[input].strides[axis];
    }
  }
  return offsets;
}

// The function's values for one pack of each input.
template <typename T, typename Function, int kLanes>
__device__ __forceinline__ void evaluate(
    const Function& function,
    const First<T, Function> (&a)[kLanes],
    const T (&b)[kLanes],
    const T (&c)[kLanes],
    Compute<T> (&out)[kLanes]) {
  Compute<T> wide[kMaxInputs][kLanes] = {};
#pragma unroll
  for (int i = 0; i < kLanes; ++i) {
    if (Function::kInputs > 0) wide[0][i] = static_cast<Compute<T>>(widen(a[i]));
    if (Function::kInputs > 1) wide[1][i] = widen(b[i]);
    if (Function::kInputs > 2) wide[2][i] = widen(c[i]);
  }
  function(Stored<T>{}, wide[0], wide[1], wide[2], out);
}

// One element; only the inputs that the function takes are read.
template <typename T, typename Function>
__device__ __forceinline__ void evaluate_at(
    const ElementwiseParams& params, const Function& function, const First<T, Function>* a, const T* b, const T* c, T* output) {
  First<T, Function> first[1] = {};
  T second[1] = {}, third[1] = {};
  if (Function::kInputs > 0) first[0] = *a;
  if (Function::kInputs > 1) second[0] = *b;
  if (Function::kInputs > 2) third[0] = *c;
  Compute<T> value[1];
  evaluate<T>(function, first, second, third, value);
  blend_into(params.blend, value[0], output);
}

// Any strides; an input's stride may be 0.
template <typename T, typename Function>
__device__ void elementwise_strided(const ElementwiseParams& params) {
  const auto* a = static_cast<const First<T, Function>*>(params.inputs[0]);
  const auto* b = static_cast<const T*>(params.inputs[1]);
  const auto* c = static_cast<const T*>(params.inputs[2]);
  const Function function(params.settings);
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const Offsets at = offsets_of<Function>(params, params.output_view.ndim, index);
    T* const output = static_cast<T*>(params.output) + at.output;
    evaluate_at<T>(params, function, a + at.inputs[0], b + at.inputs[1], c + at.inputs[2], output);
  }
}

// The lanes of the first input that exist, each `step` elements behind the one before; zeros in place of the others.
template <typename T, typename Function>
__device__ __forceinline__ FirstPack<T, Function> load_first(const First<T, Function>* place, int64 step, int64 lanes) {
  using Whole = FirstPack<T, Function>;
  const bool is_aligned = reinterpret_cast<uint64>(place) % sizeof(Whole) == 0;
  if (step == 1 && is_aligned && lanes >= Pack<T>::kWidth) return *reinterpret_cast<const Whole*>(place);
  Whole pack{};
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) {
    if (lane < lanes) pack.at[lane] = place[lane * step];
  }
  return pack;
}

// Any strides, a last dimension long enough to be cut into packs.
template <typename T, typename Function>
__device__ void elementwise_rows(const ElementwiseParams& params) {
  const int last = params.output_view.ndim - 1;
  const int64 length = params.output_view.shape[last].value;
  const int64 output_step = params.output_view.strides[last];
  const bool reads_output = params.blend.beta != 0.0;
  const int64 packs = divide(params.size, params.output_view.shape[last]).quotient * params.row_packs.value;
  const Function function(params.settings);
  for (int64 index = grid_index(); index < packs; index += grid_size()) {
    const QuotientRemainder split = divide(index, params.row_packs);
    const Offsets at = offsets_of<Function>(params, last, split.quotient);
    const int64 first = split.remainder * Pack<T>::kWidth;
    const int64 lanes = length - first;
    const auto load = [&](int input) {
      const int64 step = params.views[input].strides[last];
      return load_pack(static_cast<const T*>(params.inputs[input]) + at.inputs[input] + first * step, step, lanes);
    };
    T* output = static_cast<T*>(params.output) + at.output + first * output_step;
    FirstPack<T, Function> a{};
    Pack<T> b{}, c{}, result{};
    if (Function::kInputs > 0 && function.needs(0)) {
      const int64 step = params.views[0].strides[last];
      const auto* place = static_cast<const First<T, Function>*>(params.inputs[0]) + at.inputs[0] + first * step;
      a = load_first<T, Function>(place, step, lanes);
    }
    if (Function::kInputs > 1 && function.needs(1)) b = load(1);
    if (Function::kInputs > 2 && function.needs(2)) c = load(2);
    if (reads_output) result = load_pack<T>(output, output_step, lanes);
    Compute<T> values[Pack<T>::kWidth];
    evaluate<T>(function, a.at, b.lanes, c.lanes, values);
#pragma unroll
    for (int lane = 0; lane < Pack<T>::kWidth; ++lane) blend_into(params.blend, values[lane], &result.lanes[lane]);
    store_pack(result, output, output_step, lanes);
  }
}

// How a thread takes whole tensors; `packs_at_once` in elementwise.py. Where there is much to compute of few elements it has one pack
// after the other, and the next one under way meanwhile; else all that it will ever have at once.
template <typename T, typename Function>
constexpr bool kTakesTurns = sizeof(T) >= 4 && Function::kComputes;
template <typename T>
constexpr int kPacksAtOnce = sizeof(T) >= 4 ? 2 : 1;

// All tensors are in one piece and in the same order: 16 bytes at a time where every address allows it.
template <typename T, typename Function>
__device__ void elementwise_contiguous(const ElementwiseParams& params) {
  constexpr int kWidth = Pack<T>::kWidth;
  const auto* a = static_cast<const First<T, Function>*>(params.inputs[0]);
  const auto* b = static_cast<const T*>(params.inputs[1]);
  const auto* c = static_cast<const T*>(params.inputs[2]);
  auto* output = static_cast<T*>(params.output);
  uint64 addresses = reinterpret_cast<uint64>(output);
  if (Function::kInputs > 1) addresses |= reinterpret_cast<uint64>(b);
  if (Function::kInputs > 2) addresses |= reinterpret_cast<uint64>(c);
  bool is_aligned = addresses % sizeof(Pack<T>) == 0;
  if (Function::kInputs > 0) is_aligned = is_aligned && reinterpret_cast<uint64>(a) % sizeof(FirstPack<T, Function>) == 0;
  const int64 packs = is_aligned ? params.size / kWidth : 0;
  const bool reads_output = params.blend.beta != 0.0;
  const Function function(params.settings);
  struct Taken {
    FirstPack<T, Function> first{};
    Pack<T> second{}, third{}, result{};
  };
  const auto take = [&](int64 pack) {
    Taken taken;
    if (pack >= packs) return taken;
    if (Function::kInputs > 0 && function.needs(0)) taken.first = reinterpret_cast<const FirstPack<T, Function>*>(a)[pack];
    if (Function::kInputs > 1 && function.needs(1)) taken.second = reinterpret_cast<const Pack<T>*>(b)[pack];
    if (Function::kInputs > 2 && function.needs(2)) taken.third = reinterpret_cast<const Pack<T>*>(c)[pack];
    if (reads_output) taken.result = reinterpret_cast<const Pack<T>*>(output)[pack];
    return taken;
  };
  const auto give = [&](Taken& taken, int64 pack) {
    Compute<T> values[kWidth];
    evaluate<T>(function, taken.first.at, taken.second.lanes, taken.third.lanes, values);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) blend_into(params.blend, values[lane], &taken.result.lanes[lane]);
    reinterpret_cast<Pack<T>*>(output)[pack] = taken.result;
  };
  // What is under way lies elsewhere than what is written, even where an input is the output.
  if constexpr (kTakesTurns<T, Function>) {
    Taken next = take(grid_index());
    for (int64 pack = grid_index(); pack < packs; pack += grid_size()) {
      Taken now = next;
      next = take(pack + grid_size());
      give(now, pack);
    }
  } else {
    // Blocks take tiles in their order, most of them one, so that all together go through memory from its beginning to its end.
    constexpr int kAtOnce = kPacksAtOnce<T>;
    const int64 tile = static_cast<int64>(blockDim.x) * kAtOnce;
    for (int64 begin = blockIdx.x * tile + threadIdx.x; begin < packs; begin += gridDim.x * tile) {
      Taken taken[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) taken[k] = take(begin + k * static_cast<int64>(blockDim.x));
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int64 pack = begin + k * static_cast<int64>(blockDim.x);
        if (pack < packs) give(taken[k], pack);
      }
    }
  }
  for (int64 index = packs * kWidth + grid_index(); index < params.size; index += grid_size()) {
    evaluate_at<T>(params, function, a + index, b + index, c + index, output + index);
  }
}

}  // namespace dnncore
