// The models of dot.h.
#include "dot.h"

#include <algorithm>
#include <limits>

namespace emu {
namespace {

constexpr int kHopperDigits = 25, kHopperF8Digits = 13;

Arithmetic arithmetic(EmuType a, EmuType d, bool saturate, bool is_mma) {
  using Sum = Arithmetic::Sum;
  if (is_i8(a)) return {saturate ? Sum::kSaturating : Sum::kWrapping, 0, d};
  if (a == EMU_F64) return {Sum::kFused, 0, d};
  if (!is_f8(a)) return {Sum::kAligned, kHopperDigits, d};
  return is_mma ? Arithmetic{Sum::kPairs, kHopperDigits, d} : Arithmetic{Sum::kAligned, kHopperF8Digits, d};
}

// Cuts a double behind `digits` binary digits of fraction.
double truncate(double x, int digits) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(x) & ~0ull << (kDoubleFractionBits - digits));
}

double round_to_f16(double x) { return decode(kF16, encode(kF16, x, Rounding::kNearestEven)); }

// The one rounding of an aligned sum.
double round_sum(const Arithmetic& how, double sum) {
  if (how.result == EMU_F16) return round_to_f16(sum);
  const double magnitude = std::fabs(sum);
  if (magnitude >= power_of_two(128)) return std::copysign(std::numeric_limits<double>::infinity(), sum);
  if (magnitude >= power_of_two(kF32.min_exponent())) return truncate(sum, std::min(how.digits, kF32.fraction_bits));
  return std::bit_cast<float>(encode(kF32, sum, Rounding::kTowardZero));
}

// All of them: at once where they are ordinary numbers of f32, as nearly all are.
template <int kWidth>
void round_sums(const Arithmetic& how, const double (&sums)[kWidth], double* rounded) {
  const double least = power_of_two(kF32.min_exponent()), beyond = power_of_two(128);
  int ordinary = how.result != EMU_F16;
  for (double sum : sums) ordinary &= (std::fabs(sum) >= least && std::fabs(sum) < beyond) | (sum == 0);
  if (ordinary) {
    for (int j = 0; j < kWidth; ++j) rounded[j] = truncate(sums[j], std::min(how.digits, kF32.fraction_bits));
  } else {
    for (int j = 0; j < kWidth; ++j) rounded[j] = round_sum(how, sums[j]);
  }
}

// The products of one row of A with columns of B from some column on, at k of [first, last).
struct Products {
  const double *a, *a_power;  // along k
  const double *b, *b_power;  // of the first column; the next k is kTileColumns further
  int first, last;

  double value(int k, int column) const { return a[k] * b[k * kTileColumns + column]; }
  double power(int k, int column) const { return a_power[k] * b_power[k * kTileColumns + column]; }
};

// kWidth neighbouring sums of one row, each of c and its products: truncated to a common exponent and added. The loops over the
// width have no branches, for the compiler to make vectors of them.
template <int kWidth>
void aligned_sums(const Arithmetic& how, const Products& products, double* c) {
  double top[kWidth], total[kWidth], scale[kWidth], unit[kWidth];
  const double least = power_of_two(kF32.min_exponent());
  const double c_least = how.result == EMU_F16 ? power_of_two(kF16.min_exponent()) : least;
  for (int j = 0; j < kWidth; ++j) top[j] = c[j] == 0 ? least : std::max(LeftFactor::leading_power(c[j]), c_least);
  for (int k = products.first; k < products.last; ++k) {
    for (int j = 0; j < kWidth; ++j) top[j] = std::max(top[j], products.power(k, j));
  }
  const double one = power_of_two(how.digits);
  for (int j = 0; j < kWidth; ++j) {
    scale[j] = one / top[j];
    unit[j] = top[j] / one;
    total[j] = static_cast<int32_t>(c[j] * scale[j]);
  }
  for (int k = products.first; k < products.last; ++k) {
    for (int j = 0; j < kWidth; ++j) {
      total[j] += static_cast<int32_t>(products.value(k, j) * scale[j]);  // below 2^27: a product is below four times its power
    }
  }
  for (int j = 0; j < kWidth; ++j) total[j] *= unit[j];
  round_sums<kWidth>(how, total, c);
}

// The same for one sum whose addends may be NaN or infinite.
void special_sum(const Arithmetic& how, const Products& products, double* c) {
  double sum = *c;
  for (int k = products.first; k < products.last; ++k) sum += products.value(k, 0);
  if (std::isfinite(sum)) {
    aligned_sums<1>(how, products, c);
  } else {
    *c = sum;
  }
}

bool all_finite(const Accumulators& c, int rows) {
  double zero = 0;
  for (int i = 0; i < rows; ++i) {
    for (double value : c.value[i]) zero += value * 0;
  }
  return zero == 0;
}

void add_aligned(const Arithmetic& how, int rows, int first, int last, const LeftFactor& a, const RightFactor& b, Accumulators& c) {
  const bool special = !a.finite || !b.finite || !all_finite(c, rows);
  for (int i = 0; i < rows; ++i) {
    Products products{a.value[i], a.power[i], b.value[0], b.power[0], first, last};
    if (!special) {
      aligned_sums<kTileColumns>(how, products, c.value[i]);
      continue;
    }
    for (int j = 0; j < kTileColumns; ++j, ++products.b, ++products.b_power) special_sum(how, products, &c.value[i][j]);
  }
}

// f8 of mma.sync: the even pairs of elements along k, then the odd ones, then c.
void add_pairs(const Arithmetic& how, int rows, int k, const LeftFactor& a, const RightFactor& b, Accumulators& c) {
  LeftFactor a_sorted;
  RightFactor b_sorted;
  a_sorted.finite = a.finite;
  b_sorted.finite = b.finite;
  for (int from = 0; from < k; ++from) {
    const int to = from % 4 / 2 * (k / 2) + from / 4 * 2 + from % 2;
    for (int i = 0; i < rows; ++i) {
      a_sorted.value[i][to] = a.value[i][from];
      a_sorted.power[i][to] = a.power[i][from];
    }
    for (int j = 0; j < kTileColumns; ++j) {
      b_sorted.value[to][j] = b.value[from][j];
      b_sorted.power[to][j] = b.power[from][j];
    }
  }
  Accumulators sum{};
  add_aligned(how, rows, 0, k / 2, a_sorted, b_sorted, sum);
  add_aligned(how, rows, k / 2, k, a_sorted, b_sorted, sum);
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < kTileColumns; ++j) {
      const double exact = c.value[i][j] + sum.value[i][j];
      c.value[i][j] = how.result == EMU_F16 ? round_to_f16(exact) : static_cast<float>(exact);
    }
  }
}

double add_integers(const Arithmetic& how, double sum) {
  constexpr double lowest = std::numeric_limits<int32_t>::min(), highest = std::numeric_limits<int32_t>::max();
  if (how.sum == Arithmetic::Sum::kSaturating) return std::fmin(std::fmax(sum, lowest), highest);
  return static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(sum)));
}

}  // namespace

Arithmetic arithmetic_of(const EmuMma& mma) { return arithmetic(mma.a, mma.d, mma.saturate, true); }
Arithmetic arithmetic_of(const EmuWgmma& wgmma) { return arithmetic(wgmma.a, wgmma.d, wgmma.saturate, false); }

void multiply_add(const Arithmetic& how, int rows, int k, const LeftFactor& a, const RightFactor& b, Accumulators& c) {
  switch (how.sum) {
    case Arithmetic::Sum::kAligned: add_aligned(how, rows, 0, k, a, b, c); return;
    case Arithmetic::Sum::kPairs: add_pairs(how, rows, k, a, b, c); return;
    case Arithmetic::Sum::kFused:
      for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < kTileColumns; ++j) {
          for (int l = 0; l < k; ++l) c.value[i][j] = std::fma(a.value[i][l], b.value[l][j], c.value[i][j]);
        }
      }
      return;
    case Arithmetic::Sum::kWrapping:
    case Arithmetic::Sum::kSaturating:
      for (int i = 0; i < rows; ++i) {
        double* sums = c.value[i];
        for (int l = 0; l < k; ++l) {
          for (int j = 0; j < kTileColumns; ++j) sums[j] += a.value[i][l] * b.value[l][j];
        }
        for (int j = 0; j < kTileColumns; ++j) sums[j] = add_integers(how, sums[j]);
      }
  }
}

}  // namespace emu
