// The arithmetic of the matrix units: D = A * B + C of a tile of up to 16 x 8 x 32, with operands and results as doubles.
//
// The PTX ISA leaves precision and order open (9.7.14.5, 9.7.15.5). This is the model of Hopper that publications have found to be
// bit-accurate (Khattak and Mikaitis, arXiv 2512.07004; MMA-Sim, arXiv 2511.10909). An H200 gave the same bits in every check of the
// families matrix and wgmma (conformance/results):
//
//   f16, bf16, tf32  The k products of an instruction and c are summed at once, in fixed point. Products are exact; the exponent
//                    of a product is the sum of its factors' (it is not normalised; subnormals have the least normal exponent,
//                    zeros -126). Every addend is truncated to 25 binary digits behind the largest exponent; their sum is exact.
//                    It is rounded once: to f32 toward zero, to f16 to nearest even.
//   f8 of wgmma      The same with 13 digits, and an f32 result keeps 13 digits of fraction.
//   f8 of mma.sync   sm_90 has no such instruction: ptxas makes two f16 ones of it, of the elements at k % 4 < 2 and of the others,
//                    with f16's model, the second adding to the first, and then adds c, rounding to nearest even.
//   f64              k fused multiply-adds, one after the other.
//   s8, u8           Exact; c is added last, modulo 2^32 or, with .satfinite, saturating.
//
// A NaN or infinity among the operands of a sum makes it what IEEE 754 says. A NaN in a register is 0x7fffffff, or 0x7fff in f16.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "element.h"

namespace emu {

inline constexpr int kTileRows = 16, kTileColumns = 8, kTileDepth = 32;

// A multiplicand: values and, for alignment, the powers of two at or below them.
template <int kRows, int kColumns>
struct Factor {
  double value[kRows][kColumns];
  double power[kRows][kColumns];
  bool finite = true;

  void set(int row, int column, EmuType aligned_as, double v) {
    value[row][column] = v;
    const double least = v == 0 ? power_of_two(kF32.min_exponent()) : power_of_two(min_exponent(aligned_as));
    const double leading = leading_power(v);
    power[row][column] = std::max(leading, least);
    finite &= leading < std::numeric_limits<double>::infinity();  // also of a NaN, the exponent is infinity's
  }

  // The largest power of two that is not above |v|, for a normal double.
  static double leading_power(double v) {
    return std::bit_cast<double>(std::bit_cast<uint64_t>(v) & 0x7ffull << kDoubleFractionBits);
  }
};

using LeftFactor = Factor<kTileRows, kTileDepth>;
using RightFactor = Factor<kTileDepth, kTileColumns>;

struct Accumulators {
  double value[kTileRows][kTileColumns];
};

struct Arithmetic {
  enum class Sum : uint8_t {
    kWrapping,    // integers
    kSaturating,  // integers with .satfinite
    kFused,       // f64
    kAligned,     // the rest
    kPairs,       // f8 of mma.sync
  };
  Sum sum;
  int digits = 0;  // kAligned, kPairs: behind the largest exponent
  EmuType result;
};

Arithmetic arithmetic_of(const EmuMma&);
Arithmetic arithmetic_of(const EmuWgmma&);

// c += a * b for `rows` rows, with `k` products each. c holds values of the result's type, before and after.
void multiply_add(const Arithmetic&, int rows, int k, const LeftFactor& a, const RightFactor& b, Accumulators& c);

}  // namespace emu
