// Elements of matrices by their EmuType: how wide they are, what they are called, and their values as doubles.
//
// Doubles hold every element exactly, the integers too, so that operands of all types are decoded into one kind of array.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "../abi/emulator.h"
#include "formats.h"

namespace emu {

constexpr const char* type_name(EmuType type) {
  constexpr const char* names[] = {"f16", "bf16", "tf32", "f32", "f64", "s8",  "u8",  "s32", "e4m3",
                                   "e5m2", "u32", "s64",  "u64", "b32", "b64", "b16", "b8"};
  return type < sizeof names / sizeof *names ? names[type] : "unknown type";
}

constexpr bool is_f8(EmuType type) { return type == EMU_E4M3 || type == EMU_E5M2; }
constexpr bool is_i8(EmuType type) { return type == EMU_S8 || type == EMU_U8; }

constexpr int element_bytes(EmuType type) {
  switch (type) {
    case EMU_F64: return 8;
    case EMU_TF32:
    case EMU_F32:
    case EMU_S32: return 4;
    case EMU_F16:
    case EMU_BF16: return 2;
    default: return 1;
  }
}

// Of a multiplicand, the exponent that the unit takes for its zeros and subnormals (see dot.h).
constexpr int min_exponent(EmuType type) {
  switch (type) {
    case EMU_F16: return kF16.min_exponent();
    case EMU_E4M3: return kE4m3.min_exponent();
    case EMU_E5M2: return kE5m2.min_exponent();
    default: return kF32.min_exponent();  // bf16 and tf32 have f32's exponents
  }
}

[[gnu::always_inline]] inline double decode_element(EmuType type, uint64_t bits) {
  const auto low = static_cast<uint32_t>(bits);
  switch (type) {
    case EMU_F16: return _cvtsh_ss(static_cast<uint16_t>(low));  // the processor's own conversion, which is exact
    case EMU_BF16: return std::bit_cast<float>(low << 16);
    case EMU_TF32: return std::bit_cast<float>(low & kTf32Mask);
    case EMU_F32: return std::bit_cast<float>(low);
    case EMU_F64: return std::bit_cast<double>(bits);
    case EMU_S8: return static_cast<int8_t>(low);
    case EMU_U8: return static_cast<uint8_t>(low);
    case EMU_E4M3: return decode(kE4m3, low);
    case EMU_E5M2: return decode(kE5m2, low);
    default: return static_cast<int32_t>(low);
  }
}

// Of an accumulator: f16, f32, f64 or s32. `value` is one of the type's already, so nothing is rounded here.
[[gnu::always_inline]] inline uint64_t encode_element(EmuType type, double value) {
  switch (type) {
    case EMU_F16: return encode(kF16, value, Rounding::kNearestEven);
    case EMU_F32: return std::isnan(value) ? kF32.nan() : std::bit_cast<uint32_t>(static_cast<float>(value));
    case EMU_F64: return std::bit_cast<uint64_t>(value);
    default: return static_cast<uint32_t>(static_cast<int64_t>(value));
  }
}

// Calls visit(constant) with the type of a matrix's elements as a constant, for loops over them that ask for it once.
template <typename Visit>
void with_type(EmuType type, Visit visit) {
  const auto as = [&]<EmuType kType>() { visit(std::integral_constant<EmuType, kType>()); };
  switch (type) {
    case EMU_F16: return as.template operator()<EMU_F16>();
    case EMU_BF16: return as.template operator()<EMU_BF16>();
    case EMU_TF32: return as.template operator()<EMU_TF32>();
    case EMU_F32: return as.template operator()<EMU_F32>();
    case EMU_F64: return as.template operator()<EMU_F64>();
    case EMU_S8: return as.template operator()<EMU_S8>();
    case EMU_U8: return as.template operator()<EMU_U8>();
    case EMU_E4M3: return as.template operator()<EMU_E4M3>();
    case EMU_E5M2: return as.template operator()<EMU_E5M2>();
    default: return as.template operator()<EMU_S32>();
  }
}

}  // namespace emu
