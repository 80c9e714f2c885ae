// GELU and its slope, and the error function, as elements of 16 bits need them: fewer instructions than erfc, exp and erf take in
// float32, which keep an element-wise kernel from the memory's rate. For GELU, with t = |x| and q(t) the probability that a normal variable is above t,
//
//    q(t) = exp(-t^2 / 2) r(t),    r(t) = w (c0 + c1 w + c2 w^2 + c3 w^3 + c4 w^4),    w = 1 / (1 + t / 4)
//
// r falls smoothly, about as 1 / t, which w does too. The coefficients have the smallest relative error up to t = 14, where q is
// below what bfloat16 holds: 5.4e-5, a ninth of what a rounding to float16 may be off by. The same exp serves the slope. The error
// function is a quotient of polynomials up to 3.2, relative error 6.4e-6, from where on it stays; there it is 6e-6 below 1.
#pragma once

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
  if constexpr (kMode == ActivationMode::kGelu && sizeof(T) == 2) {
    return x * NarrowNormal(x).below;
  } else {
    return activate<kMode>(activation, x);
  }
}

// dy/dx for elements that are stored as T, where y is f(x).
template <typename T, ActivationMode kMode, typename C>
__device__ __forceinline__ C slope_stored(const Activation& activation, C y, C x) {
  if constexpr (kMode == ActivationMode::kGelu && sizeof(T) == 2) {
    const NarrowNormal normal(x);
    return normal.below + x * 0.39894228f * normal.bell;
  } else {
    return slope<kMode>(activation, y, x);
  }
}

}  // namespace dnncore
