// PTX's fundamental types (PTX ISA 5.2) as C++ types of the same names, and registers: untyped bits that instructions read and
// write as one of these types.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../abi/emulator.h"

#ifndef EMU_CHECK
#define EMU_CHECK 0
#endif

namespace emu {

inline constexpr bool kChecked = EMU_CHECK;

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using b8 = u8;
using b16 = u16;
using b32 = u32;
using b64 = u64;
using b128 = unsigned __int128;
using f32 = float;
using f64 = double;
using pred = bool;

// Sixteen bits of a floating format, and the formats that have no C++ type. Arithmetic on them is in half.h.
struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};
struct tf32 {
  u32 bits;
};
struct e4m3 {
  u8 bits;
};
struct e5m2 {
  u8 bits;
};

// Packed pairs; `low` is in the less significant half.
template <class T>
struct Pair {
  T low, high;
};
using f16x2 = Pair<f16>;
using bf16x2 = Pair<bf16>;
using u16x2 = Pair<u16>;
using s16x2 = Pair<s16>;
using e4m3x2 = Pair<e4m3>;
using e5m2x2 = Pair<e5m2>;

template <class T>
inline constexpr bool kIsPair = false;
template <class T>
inline constexpr bool kIsPair<Pair<T>> = true;

// The value of T whose bits are the low ones of `from`; missing ones are zero.
template <class T, class From>
inline T get(const From& from) {
  T value{};
  __builtin_memcpy(&value, &from, sizeof(T) < sizeof(From) ? sizeof(T) : sizeof(From));
  return value;
}

// Writes a value of type T to a register. One wider than T gets it extended: with its sign if T is signed, else with zeros (9.4.1).
template <class T, class Register>
inline void put(Register& to, std::type_identity_t<T> value) {
  if constexpr (sizeof(Register) == sizeof(T)) {
    __builtin_memcpy(&to, &value, sizeof(T));
  } else if constexpr (sizeof(Register) > sizeof(T) && std::is_integral_v<T> && std::is_signed_v<T>) {
    const std::conditional_t<(sizeof(Register) > 4), s64, s32> extended = value;
    __builtin_memcpy(&to, &extended, sizeof(Register) < sizeof(extended) ? sizeof(Register) : sizeof(extended));
  } else {
    Register bits{};
    __builtin_memcpy(&bits, &value, sizeof(T) < sizeof(Register) ? sizeof(T) : sizeof(Register));
    to = bits;
  }
}

// Rounding modifiers (PTX ISA 6.5.2): to nearest even, towards zero, down, up; to nearest, ties away.
// Those to an integral value have the same names with an i.
enum class Round : u8 { rn, rz, rm, rp, rna, rni = rn, rzi = rz, rmi = rm, rpi = rp };

}  // namespace emu
