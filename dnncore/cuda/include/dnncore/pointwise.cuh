// out = alpha * function(a, b, c) + beta * out, where the function and the types of all four are known to the launch only:
// comparisons, which give bool, integers, powers. One element per thread at a time, by way of double precision, which
// holds every element of every type, in a kernel that is compiled once. What networks spend time in has kernels of its
// own in elementwise.cuh.
#pragma once

#include "dnncore/common/element.cuh"

namespace dnncore {

constexpr int kPointwiseInputs = 3;

// The type behind those of ElementType: a byte, 0 or 1. No other kernel knows it.
constexpr int32 kBool = 7;

// Mirrored by _FUNCTIONS in dnncore/cuda/pointwise.py; from kAdd on they are those of BinaryOperator in Python.
enum class PointwiseFunction : int32 {
  kOne,
  kFirst,
  kWhere,
  kQuotient,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMin,
  kMax,
  kFmod,
  kMod,
  kPow,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kAnd,
  kOr,
  kXor,
};

// Mirrored by _PARAMS in dnncore/cuda/pointwise.py. The views share one shape; types are those of ElementType, or kBool.
struct PointwiseParams {
  Blend blend;
  const void* inputs[kPointwiseInputs];
  void* output;
  int64 size;
  double factors[2];  // of the first two inputs
  TensorView views[kPointwiseInputs];
  TensorView output_view;
  int32 types[kPointwiseInputs];
  int32 output_type;
  PointwiseFunction function;
};

// 0 for an input that is not there.
__device__ __forceinline__ double input_of(const PointwiseParams& params, int input, int64 index) {
  if (params.inputs[input] == nullptr) return 0.0;
  const int64 offset = offset_of(params.views[input], index);
  const int32 type = params.types[input];
  if (type == kBool) return static_cast<const std::uint8_t*>(params.inputs[input])[offset] != 0 ? 1.0 : 0.0;
  return element_of(params.inputs[input], offset, static_cast<ElementType>(type));
}

// What a division leaves, with the sign of the divisor.
__device__ __forceinline__ double floored_remainder(double a, double b) {
  const double left = fmod(a, b);
  return left != 0.0 && (left < 0.0) != (b < 0.0) ? left + b : left;
}

__device__ __forceinline__ double evaluate(PointwiseFunction function, double a, double b, double c) {
  switch (function) {
    case PointwiseFunction::kOne: return 1.0;
    case PointwiseFunction::kFirst: return a;
    case PointwiseFunction::kWhere: return a != 0.0 ? b : c;
    case PointwiseFunction::kQuotient: return a / b;
    case PointwiseFunction::kAdd: return a + b;
    case PointwiseFunction::kSub: return a - b;
    case PointwiseFunction::kMul: return a * b;
    case PointwiseFunction::kDiv: return trunc(a / b);  // of integers
    case PointwiseFunction::kMin: return a < b || isnan(a) ? a : b;
    case PointwiseFunction::kMax: return a > b || isnan(a) ? a : b;
    case PointwiseFunction::kFmod: return fmod(a, b);
    case PointwiseFunction::kMod: return floored_remainder(a, b);
    case PointwiseFunction::kPow: return pow(a, b);
    case PointwiseFunction::kEqual: return a == b;
    case PointwiseFunction::kNotEqual: return a != b;
    case PointwiseFunction::kLess: return a < b;
    case PointwiseFunction::kLessEqual: return a <= b;
    case PointwiseFunction::kGreater: return a > b;
    case PointwiseFunction::kGreaterEqual: return a >= b;
    case PointwiseFunction::kAnd: return a != 0.0 && b != 0.0;
    case PointwiseFunction::kOr: return a != 0.0 || b != 0.0;
    case PointwiseFunction::kXor: return (a != 0.0) != (b != 0.0);
  }
  return 0.0;
}

__device__ void pointwise(const PointwiseParams& params) {
  for (int64 index = grid_index(); index < params.size; index += grid_size()) {
    const double a = params.factors[0] * input_of(params, 0, index), b = params.factors[1] * input_of(params, 1, index);
    const double value = evaluate(params.function, a, b, input_of(params, 2, index));
    const int64 offset = offset_of(params.output_view, index);
    if (params.output_type == kBool) {
      auto* const output = static_cast<std::uint8_t*>(params.output) + offset;
      const double old = params.blend.beta != 0.0 && *output != 0 ? params.blend.beta : 0.0;
      *output = params.blend.alpha * value + old != 0.0;
    } else {
      blend_element(params.blend, value, params.output, offset, static_cast<ElementType>(params.output_type));
    }
  }
}

}  // namespace dnncore
