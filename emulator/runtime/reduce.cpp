// Reductions of asynchronous copies: see reduce.h.
#include "reduce.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace emu {
namespace {

const char* name_of(EmuReduce op) {
  static const char* const names[] = {"none", "add", "min", "max", "inc", "dec", "and", "or", "xor"};
  return op < std::size(names) ? names[op] : "?";
}

const char* name_of(EmuType type) {
  static const char* const names[] = {"f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s32", "e4m3", "e5m2",
                                      "u32", "s64",  "u64",  "b32", "b64", "b16", "b8"};
  return type < std::size(names) ? names[type] : "?";
}

bool one_of(EmuType type, std::initializer_list<EmuType> types) {
  return std::find(types.begin(), types.end(), type) != types.end();
}

struct BFloat16 {
  uint16_t bits;

  operator float() const {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }

  // To nearest even. A sum of two bf16 rounded to f32 and then to bf16 is the sum rounded once: f32 has more than twice the bits.
  static BFloat16 from(float value) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if (std::isnan(value)) return {0x7fff};
    return {static_cast<uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16)};
  }
};

float flush(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

template <class T>
T add(T a, T b) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16::from(static_cast<float>(a) + static_cast<float>(b));
  } else if constexpr (std::is_same_v<T, float>) {
    return flush(flush(a) + flush(b));
  } else {
    return static_cast<T>(a + b);
  }
}

// Of a number and a NaN it is the number (PTX ISA 9.7.4: min, max without .NaN); -0 is below +0.
template <class T>
T extreme(T a, T b, bool smallest) {
  if constexpr (!std::is_integral_v<T>) {
    const float x = static_cast<float>(a), y = static_cast<float>(b);
    if (std::isnan(x) && std::isnan(y)) {
      const uint16_t canonical = 0x7fff;
      memcpy(&a, &canonical, sizeof canonical);
      return a;
    }
    if (std::isnan(x)) return b;
    if (std::isnan(y)) return a;
    if (x == y) return std::signbit(x) == smallest ? a : b;
    return (x < y) == smallest ? a : b;
  } else {
    return (a < b) == smallest ? a : b;
  }
}

template <class T>
T combine(T a, T b, EmuReduce op) {
  switch (op) {
    case EMU_ADD: return add(a, b);
    case EMU_MIN: return extreme(a, b, true);
    case EMU_MAX: return extreme(a, b, false);
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case EMU_INC: return a >= b ? 0 : a + 1;
      case EMU_DEC: return a == 0 || a > b ? b : a - 1;
      case EMU_AND: return a & b;
      case EMU_OR: return a | b;
      case EMU_XOR: return a ^ b;
      default: break;
    }
  }
  return a;
}

template <class T>
void reduce_all(void* destination, const void* source, size_t bytes, EmuReduce op) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    memcpy(&a, static_cast<char*>(destination) + at, sizeof(T));
    memcpy(&b, static_cast<const char*>(source) + at, sizeof(T));
    a = combine(a, b, op);
    memcpy(static_cast<char*>(destination) + at, &a, sizeof(T));
  }
}

}  // namespace

std::string check_reduction(EmuReduce op, EmuType type, ReduceInto into) {
  const bool global = into == ReduceInto::kGlobal;
  bool possible = false;
  switch (op) {
    case EMU_ADD:
      possible = one_of(type, {EMU_U32, EMU_S32, EMU_U64}) || (global && one_of(type, {EMU_F32, EMU_F64, EMU_F16, EMU_BF16}));
      break;
    case EMU_MIN:
    case EMU_MAX:
      possible = one_of(type, {EMU_U32, EMU_S32}) || (global && one_of(type, {EMU_U64, EMU_S64, EMU_F16, EMU_BF16}));
      break;
    case EMU_INC:
    case EMU_DEC: possible = type == EMU_U32; break;
    case EMU_AND:
    case EMU_OR:
    case EMU_XOR: possible = type == EMU_B32 || (global && type == EMU_B64); break;
    case EMU_NONE: break;
  }
  if (possible) return "";
  return std::string("there is no asynchronous reduction .") + name_of(op) + "." + name_of(type) + " into " +
         (global ? "global" : "shared") + " memory";
}

uint32_t element_bytes(EmuType type) {
  switch (type) {
    case EMU_F64:
    case EMU_S64:
    case EMU_U64:
    case EMU_B64: return 8;
    case EMU_TF32:
    case EMU_F32:
    case EMU_S32:
    case EMU_U32:
    case EMU_B32: return 4;
    case EMU_F16:
    case EMU_BF16:
    case EMU_B16: return 2;
    case EMU_S8:
    case EMU_U8:
    case EMU_E4M3:
    case EMU_E5M2:
    case EMU_B8: return 1;
  }
  return 0;
}

void reduce_elements(void* destination, const void* source, size_t bytes, EmuReduce op, EmuType type) {
  switch (type) {
    case EMU_F16: return reduce_all<_Float16>(destination, source, bytes, op);
    case EMU_BF16: return reduce_all<BFloat16>(destination, source, bytes, op);
    case EMU_F32: return reduce_all<float>(destination, source, bytes, op);
    case EMU_F64: return reduce_all<double>(destination, source, bytes, op);
    case EMU_S32: return reduce_all<int32_t>(destination, source, bytes, op);
    case EMU_S64: return reduce_all<int64_t>(destination, source, bytes, op);
    case EMU_U64:
    case EMU_B64: return reduce_all<uint64_t>(destination, source, bytes, op);
    default: return reduce_all<uint32_t>(destination, source, bytes, op);  // U32, B32: check_reduction knows no others
  }
}

}  // namespace emu
