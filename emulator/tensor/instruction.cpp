// Names of the matrix instructions and the tables of their shapes and types.
#include "instruction.h"

#include <algorithm>
#include <cstdlib>

#include "element.h"

namespace emu {
namespace {

// What the shapes are listed by: all types of a family are treated alike.
enum class Family { kF16, kTf32, kI8, kF8, kF64, kNone };

Family family_of(EmuType a, EmuType b) {
  if (is_i8(a) && is_i8(b)) return Family::kI8;
  if (is_f8(a) && is_f8(b)) return Family::kF8;
  if (a != b) return Family::kNone;
  if (a == EMU_F16 || a == EMU_BF16) return Family::kF16;
  if (a == EMU_TF32) return Family::kTf32;
  return a == EMU_F64 ? Family::kF64 : Family::kNone;
}

bool accumulates(EmuType a, EmuType d) {
  if (is_i8(a)) return d == EMU_S32;
  if (a == EMU_F64) return d == EMU_F64;
  return d == EMU_F32 || (d == EMU_F16 && (a == EMU_F16 || is_f8(a)));
}

std::string shape(int m, int n, int k) { return "m" + std::to_string(m) + "n" + std::to_string(n) + "k" + std::to_string(k); }

// PTX ISA 9.7.14.5, table of shapes and types.
struct MmaShape {
  Family family;
  int m, n, k;
};
constexpr MmaShape kMmaShapes[] = {
    {Family::kF16, 16, 8, 8}, {Family::kF16, 16, 8, 16}, {Family::kTf32, 16, 8, 4}, {Family::kTf32, 16, 8, 8},
    {Family::kI8, 8, 8, 16},  {Family::kI8, 16, 8, 16},  {Family::kI8, 16, 8, 32},  {Family::kF8, 16, 8, 16},
    {Family::kF8, 16, 8, 32}, {Family::kF64, 8, 8, 4},   {Family::kF64, 16, 8, 4},  {Family::kF64, 16, 8, 8},
    {Family::kF64, 16, 8, 16},
};

// PTX ISA 9.7.15.5, table of shapes: every multiple of 8 up to 256, but of the integers' only 24 and those of 16.
bool wgmma_has(int n, EmuType a) {
  if (n < 8 || n > 256 || n % 8) return false;
  return !is_i8(a) || n == 8 || n == 24 || n % 16 == 0;
}

}  // namespace

std::string name_of(const EmuMma& mma) {
  std::string name = "mma.sync." + shape(mma.m, mma.n, mma.k);
  for (EmuType type : {mma.d, mma.a, mma.b, mma.c}) name += std::string(".") + type_name(type);
  return name + (mma.saturate ? ".satfinite" : "");
}

std::string name_of(const EmuWgmma& wgmma) {
  std::string name = "wgmma.mma_async." + shape(64, wgmma.n, wgmma.k);
  for (EmuType type : {wgmma.d, wgmma.a, wgmma.b}) name += std::string(".") + type_name(type);
  return name + (wgmma.saturate ? ".satfinite" : "");
}

const char* problem_with(const EmuMma& mma) {
  const Family family = family_of(mma.a, mma.b);
  const bool known = std::any_of(std::begin(kMmaShapes), std::end(kMmaShapes), [&](const MmaShape& s) {
    return s.family == family && s.m == mma.m && s.n == mma.n && s.k == mma.k;
  });
  if (!known) return "this shape with these multiplicands is not emulated";
  if (!accumulates(mma.a, mma.d) || mma.c != mma.d) return "not a type of accumulator for these multiplicands";
  if (mma.saturate && family != Family::kI8) return ".satfinite is for integers";
  return nullptr;
}

const char* problem_with(const EmuWgmma& wgmma, bool a_in_registers) {
  const Family family = family_of(wgmma.a, wgmma.b);
  if (family == Family::kNone || family == Family::kF64) return "no such multiplicands";
  if (wgmma.k * element_bytes(wgmma.a) != 32 || !wgmma_has(wgmma.n, wgmma.a)) return "no such shape";
  if (!accumulates(wgmma.a, wgmma.d)) return "not a type of accumulator for these multiplicands";
  if (wgmma.saturate && family != Family::kI8) return ".satfinite is for integers";
  if (std::abs(wgmma.scale_a) != 1 || std::abs(wgmma.scale_b) != 1) return "imm-scale-a and -b are 1 or -1";
  if (family == Family::kI8 && (wgmma.scale_a < 0 || wgmma.scale_b < 0)) return "integers have no imm-scale-a and -b";
  if ((wgmma.transposed_a || wgmma.transposed_b) && family != Family::kF16) return "only f16 and bf16 may be MN-major";
  if (wgmma.transposed_a && a_in_registers) return "A in registers is not transposed";
  return nullptr;
}

}  // namespace emu
