// Discrete Fourier transforms of 16 or 32 complex numbers that one thread holds in registers, without normalisation.
// Radix 2, decimation in frequency (Van Loan, Computational Frameworks for the Fast Fourier Transform, chapter 1):
// natural order in, bit-reversed order out. The compiler knows every index, so that reversing the order costs nothing
// and twiddle factors are immediate operands.
//
//    stage 1      pairs (j, j + size / 2)          a ---+--- a + b
//    stage 2      the same in each half                 |
//    ...                                           b ---+--- (a - b) * exp(-2 pi i j / size)
//    last stage   neighbours                       frequency k ends up at place reversed(k)
#pragma once

#include "dnncore/common/tensor.cuh"

namespace dnncore::fft {

template <typename C>
struct alignas(2 * sizeof(C)) Complex {
  C re;
  C im;
};

template <typename C>
__device__ __forceinline__ Complex<C> operator+(Complex<C> a, Complex<C> b) {
  return {a.re + b.re, a.im + b.im};
}

template <typename C>
__device__ __forceinline__ Complex<C> operator-(Complex<C> a, Complex<C> b) {
  return {a.re - b.re, a.im - b.im};
}

// cos(2 pi kIndex / 32), in the first quadrant.
template <int kIndex>
__device__ __forceinline__ constexpr double cosine() {
  constexpr double kTable[] = {1.0,
                               0.98078528040323044912618223613424,
                               0.92387953251128675612818318939679,
                               0.83146961230254523707878837761791,
                               0.70710678118654752440084436210485,
                               0.55557023301960222474283081394853,
                               0.38268343236508977172845998403040,
                               0.19509032201612826784828486847702,
                               0.0};
  return kTable[kIndex];
}

// value * exp(-2 pi i kIndex / kSize), or its conjugate for the inverse; kIndex < kSize / 2.
template <int kSize, int kIndex, bool kInverse, typename C>
__device__ __forceinline__ Complex<C> rotate(Complex<C> value) {
  constexpr int kAngle = kIndex * (32 / kSize);
  static_assert(32 % kSize == 0 && kAngle < 16);
  if constexpr (kAngle == 0) {
    return value;
  } else if constexpr (kAngle == 8) {
    return kInverse ? Complex<C>{-value.im, value.re} : Complex<C>{value.im, -value.re};
  } else {
    constexpr bool kSecond = kAngle > 8;
    constexpr C kCosine = static_cast<C>(kSecond ? -cosine<kSecond ? 16 - kAngle : 0>() : cosine<kSecond ? 0 : kAngle>());
    constexpr C kSine = static_cast<C>(kInverse ? 1 : -1) * static_cast<C>(cosine<kSecond ? kAngle - 8 : 8 - kAngle>());
    return {value.re * kCosine - value.im * kSine, value.re * kSine + value.im * kCosine};
  }
}

// Where frequency `index` stands after a transform.
template <int kSize>
__device__ __forceinline__ constexpr int reversed(int index) {
  int result = 0;
  for (int bit = 1; bit < kSize; bit *= 2) result = 2 * result + (index & bit ? 1 : 0);
  return result;
}

// The butterflies kIndex, kIndex + 1, ... of a transform of 2 * kHalf numbers that begin at kFirst.
template <int kFirst, int kHalf, bool kInverse, int kIndex = 0, typename C, int kSize>
__device__ __forceinline__ void butterflies(Complex<C> (&values)[kSize]) {
  if constexpr (kIndex < kHalf) {
    const Complex<C> a = values[kFirst + kIndex], b = values[kFirst + kHalf + kIndex];
    values[kFirst + kIndex] = a + b;
    values[kFirst + kHalf + kIndex] = rotate<2 * kHalf, kIndex, kInverse>(a - b);
    butterflies<kFirst, kHalf, kInverse, kIndex + 1>(values);
  }
}

template <bool kInverse, int kFirst, int kCount, typename C, int kSize>
__device__ __forceinline__ void transform_part(Complex<C> (&values)[kSize]) {
  if constexpr (kCount > 1) {
    butterflies<kFirst, kCount / 2, kInverse>(values);
    transform_part<kInverse, kFirst, kCount / 2>(values);
    transform_part<kInverse, kFirst + kCount / 2, kCount / 2>(values);
  }
}

// values[reversed(k)] becomes sum over j of values[j] * exp(-+ 2 pi i j k / kSize).
template <bool kInverse, typename C, int kSize>
__device__ __forceinline__ void transform(Complex<C> (&values)[kSize]) {
  transform_part<kInverse, 0, kSize>(values);
}

// Two real sequences a and b were transformed as one, a + i b: their spectra at frequency k, 0 < k < size / 2, from the
// joint spectrum at k and at size - k.
template <typename C>
__device__ __forceinline__ void split(Complex<C> low, Complex<C> high, Complex<C>& a, Complex<C>& b) {
  a = {C(0.5) * (low.re + high.re), C(0.5) * (low.im - high.im)};
  b = {C(0.5) * (low.im + high.im), C(0.5) * (high.re - low.re)};
}

// The reverse: the spectrum of a + i b at k and at size - k.
template <typename C>
__device__ __forceinline__ void join(Complex<C> a, Complex<C> b, Complex<C>& low, Complex<C>& high) {
  low = {a.re - b.im, a.im + b.re};
  high = {a.re + b.im, b.re - a.im};
}

}  // namespace dnncore::fft
