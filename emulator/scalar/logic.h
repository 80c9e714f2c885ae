// Comparison, selection, logic and shifts: PTX ISA 9.7.6 to 9.7.8; prmt is 9.7.9.7.
#pragma once

#include "floating.h"
#include "half.h"
#include "integer.h"

namespace emu {

// Comparison operators: those of integers (lo, ls, hi and hs are the unsigned ones' names), ordered and unordered ones of numbers.
enum class Compare : u8 { eq, ne, lt, le, gt, ge, lo, ls, hi, hs, equ, neu, ltu, leu, gtu, geu, num, nan };

template <Compare C, bool kFlush = false, class T>
inline bool compare(T a, T b) {
  if constexpr (kIsHalf<T>) {
    return compare<C>(to_float(half_flush<kFlush>(a)), to_float(half_flush<kFlush>(b)));
  } else {
    if constexpr (std::is_floating_point_v<T>) {
      a = flush<kFlush>(a);
      b = flush<kFlush>(b);
      const bool unordered = is_nan(a) || is_nan(b);
      if constexpr (C == Compare::nan) return unordered;
      if constexpr (C == Compare::num) return !unordered;
      if constexpr (C == Compare::ne) return !unordered && a != b;
      if constexpr (C >= Compare::equ) {
        if (unordered) return true;
      }
    }
    switch (C) {
      case Compare::eq: case Compare::equ: return a == b;
      case Compare::ne: case Compare::neu: return a != b;
      case Compare::lt: case Compare::lo: case Compare::ltu: return a < b;
      case Compare::le: case Compare::ls: case Compare::leu: return a <= b;
      case Compare::gt: case Compare::hi: case Compare::gtu: return a > b;
      default: return a >= b;
    }
  }
}

template <Compare C, bool kFlush, class T>
inline Pair<bool> compare_pair(T a, T b) {
  return {compare<C, kFlush>(a.low, b.low), compare<C, kFlush>(a.high, b.high)};
}

// What .and, .or and .xor make of a comparison and a predicate.
inline bool combine_and(bool a, bool b) { return a && b; }
inline bool combine_or(bool a, bool b) { return a || b; }
inline bool combine_xor(bool a, bool b) { return a != b; }

// What set writes for a true comparison: all ones, or 1.0.
template <class T>
inline T truth(bool value) {
  if constexpr (std::is_same_v<T, f32>) return value ? 1.0f : 0.0f;
  else if constexpr (kIsHalf<T>) return value ? half_of<T>(1.0f) : T{0};
  else return value ? T(-1) : T(0);
}

// ... of two halves: a pair of them, or a word of two masks.
template <class T>
inline T truth(Pair<bool> value) {
  if constexpr (kIsPair<T>) return {truth<decltype(T::low)>(value.low), truth<decltype(T::low)>(value.high)};
  else return T((value.low ? 0xffffu : 0u) | (value.high ? 0xffff0000u : 0u));
}

inline Pair<bool> combine_and(Pair<bool> a, bool b) { return {a.low && b, a.high && b}; }
inline Pair<bool> combine_or(Pair<bool> a, bool b) { return {a.low || b, a.high || b}; }
inline Pair<bool> combine_xor(Pair<bool> a, bool b) { return {a.low != b, a.high != b}; }

template <class T>
inline T cnot(T a) {
  return a == 0;
}

inline u32 lop3(u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (int i = 0; i < 8; ++i) {
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  }
  return result;
}

// Funnel shift of b:a (9.7.8.7).
inline u32 shf(bool left, u32 a, u32 b, u32 c, bool wrap) {
  const u32 n = clamp_or_wrap(c, wrap);
  const u64 both = u64(b) << 32 | a;
  return left ? u32(both << n >> 32) : u32(both >> n);
}

// Shifts beyond the width are clamped to it.
template <class T>
inline T shl(T a, u32 n) {
  return n >= u32(kBits<T>) ? T(0) : T(Unsigned<T>(a) << n);
}
template <class T>
inline T shr(T a, u32 n) {
  return n >= u32(kBits<T>) ? (a < 0 ? T(-1) : T(0)) : T(a >> n);
}

enum class Permute : u8 { index, f4e, b4e, rc8, ecl, ecr, rc16 };

// 9.7.9.7: four bytes out of the eight of b:a. In the index mode bit 3 of a selector replicates the byte's sign.
template <Permute P>
inline u32 prmt(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64(b) << 32 | a;
  const u32 s = selector & 3;
  u32 result = 0;
  for (u32 i = 0; i < 4; ++i) {
    u32 from = 0;
    bool sign = false;
    switch (P) {
      case Permute::index: from = selector >> 4 * i & 7, sign = selector >> (4 * i + 3) & 1; break;
      case Permute::f4e: from = s + i; break;
      case Permute::b4e: from = (s - i) & 7; break;
      case Permute::rc8: from = s; break;
      case Permute::ecl: from = i < s ? s : i; break;
      case Permute::ecr: from = i < s ? i : s; break;
      case Permute::rc16: from = (s & 1) * 2 + (i & 1); break;
    }
    u32 byte = bytes >> 8 * from & 0xff;
    if (sign) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}

}  // namespace emu
