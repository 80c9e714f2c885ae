// GELU and its slope, and the error function, by fewer instructions than erfc, exp and erf take in float32, which keep an element-wise
// kernel from the memory's rate: as elements of 16 bits need them, and of float32. For GELU, with t = |x| and q(t) the probability that
// a normal variable is above t,
//
//    q(t) = exp(-t^2 / 2) r(t),    r(t) = w (c0 + c1 w + c2 w^2 + c3 w^3 + c4 w^4),    w = 1 / (1 + t / 4)
//
// r falls smoothly, about as 1 / t, which w does too. The coefficients have the smallest relative error up to t = 14, where q is
// below what bfloat16 holds: 5.4e-5, a ninth of what a rounding to float16 may be off by. The same exp serves the slope. For float32
// there are ten terms, in 1 - 2w with w = 1 / (1 + 2t / 5): relative error 1.6e-8 up to t = 14.5, which is below all of float32. The error
// function is a quotient of polynomials up to 3.2, relative error 6.4e-6, from where on it stays; there it is 6e-6 below 1.
#pragma once

#include <type_traits>

#include "dnncore/activation.cuh"
#include "dnncore/ptx/approximate.cuh"
#include "dnncore/ptx/extremum.cuh"

namespace dnncore {

// Of a normal variable: the probability that it is below x, and its density there times sqrt(2 pi).
struct NarrowNormal {
  float below;
  float bell;

  explicit __device__ __forceinline__ NarrowNormal(float x) {
    const float t = fabsf(x);
    const float w = reciprocal_approx(fmaf(0.25f, t, 1.0f));
    // Half of log2(e); 24 powers more, so that nothing is denormal that counts.
    bell = 5.9604645e-8f * power_of_two_approx(fmaf(-0.72134752f * t, t, 24.0f));
    float sum = 0.24069142f;
    sum = fmaf(sum, w, -0.10168852f);
    sum = fmaf(sum, w, 0.17852038f);
    sum = fmaf(sum, w, 0.08118598f);
    sum = fmaf(sum, w, 0.10126555f);
    const float tail = sum * w * bell;
    below = x < 0.0f ? tail : 1.0f - tail;  // a NaN stays one
  }
};

// The same in float32's precision: `below` is within 5.4e-7 of itself, where it is not denormal.
struct WideNormal {
  float below;
  float bell;

  explicit __device__ __forceinline__ WideNormal(float x) {
    const float t = fminf(fabsf(x), 16.0f);  // of a NaN 16: the caller multiplies by x
    // 1 / d, with d's own rounding and the approximation's made up for.
    const float d = fmaf(0.4f, t, 1.0f), close = reciprocal_approx(d);
    const float off = fmaf(-fmaf(0.4f, t, 1.0f - d), close, fmaf(-d, close, 1.0f));
    const float w = fmaf(close, off, close);
    // Half of log2(e) times t^2, and what each rounding of it lost.
    const float square = t * t, scaled = -0.7213475f * square;
    float lost = fmaf(-0.7213475f, square, -scaled);
    lost = fmaf(-0.7213475f, fmaf(t, t, -square), lost);
    lost = fmaf(-9.6298150e-9f, square, lost);
    const float power = exp2f(scaled);
    bell = fmaf(power, 0.69314718f * lost, power);
    const float q = fmaf(-2.0f, w, 1.0f);
    float sum = -6.2906525e-5f;
    sum = fmaf(sum, q, -1.2434575e-4f);
    sum = fmaf(sum, q, 2.7373765e-4f);
    sum = fmaf(sum, q, 1.0093186e-3f);
    sum = fmaf(sum, q, -6.4038440e-4f);
    sum = fmaf(sum, q, -6.5544085e-3f);
    sum = fmaf(sum, q, 3.6943660e-3f);
    sum = fmaf(sum, q, 5.2794784e-2f);
    sum = fmaf(sum, q, -0.17347680f);
    sum = fmaf(sum, q, 0.28266266f);
    const float tail = sum * w * bell;
    below = x < 0.0f ? tail : 1.0f - tail;
  }
};

// For elements that are stored as T, but for float64.
template <typename T>
using Normal = std::conditional_t<sizeof(T) == 2, NarrowNormal, WideNormal>;

// erf(x) for an element that is stored as T.
template <typename T, typename C>
__device__ __forceinline__ C erf_stored(C x) {
  if constexpr (sizeof(T) == 2) {
    const float near = smaller(larger(x, -3.2f), 3.2f), square = near * near;
    float above = 0.00075405295f, below = 0.0093288561f;
    above = fmaf(above, square, 0.043281302f);
    above = fmaf(above, square, 0.15397421f);
    above = fmaf(above, square, 1.128381f);
    below = fmaf(below, square, 0.094817042f);
    below = fmaf(below, square, 0.46982774f);
    below = fmaf(below, square, 1.0f);
    return near * above * reciprocal_approx(below);
  } else {
    return erf(x);
  }
}

// f(x) for an element that is stored as T.
template <typename T, ActivationMode kMode, typename C>
__device__ __forceinline__ C activate_stored(const Activation& activation, C x) {
  if constexpr (kMode == ActivationMode::kGelu && sizeof(T) <= 4) {
    return x * Normal<T>(x).below;
  } else {
    return activate<kMode>(activation, x);
  }
}

// dy/dx for elements that are stored as T, where y is f(x).
template <typename T, ActivationMode kMode, typename C>
__device__ __forceinline__ C slope_stored(const Activation& activation, C y, C x) {
  if constexpr (kMode == ActivationMode::kGelu && sizeof(T) <= 4) {
    const Normal<T> normal(x);
    return normal.below + x * 0.39894228f * normal.bell;
  } else {
    return slope<kMode>(activation, y, x);
  }
}

}  // namespace dnncore
