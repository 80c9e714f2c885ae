// The matrix units without a runtime, for tests to call through ctypes: see tensor_units.py.
#include <cstring>

#include "tensor/instruction.h"
#include "tensor/matrix8x8.h"
#include "tensor/warp_tile.h"

using namespace emu;

namespace {

FloatFormat format(int index) {
  constexpr FloatFormat formats[] = {kF16, kBf16, kF32, kE4m3, kE5m2};
  return formats[index];
}

void split(const uint32_t* registers, int per_lane, ConstRegisters& lanes) {
  for (int lane = 0; lane < kWarpLanes; ++lane) lanes[lane] = registers + lane * per_lane;
}

}  // namespace

extern "C" {

void decode_all(int which, const uint32_t* bits, double* values, int count) {
  for (int i = 0; i < count; ++i) values[i] = decode(format(which), bits[i]);
}

void encode_all(int which, const double* values, bool toward_zero, uint32_t* bits, int count) {
  const Rounding rounding = toward_zero ? Rounding::kTowardZero : Rounding::kNearestEven;
  for (int i = 0; i < count; ++i) bits[i] = encode(format(which), values[i], rounding);
}

// Of operand 'a', 'b' or 'c': how many elements a lane holds, and where they are, as pairs by lane and element.
int fragment(char operand, int m, int n, int k, EmuType type, int32_t* places) {
  const Fragment f = operand == 'a'   ? Fragment::a(m, k, type)
                     : operand == 'b' ? Fragment::b(k, n, type)
                                      : Fragment::accumulator(m, n);
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int i = 0; i < f.elements(); ++i) {
      const Place at = f.place(lane, i);
      *places++ = at.row;
      *places++ = at.column;
    }
  }
  return f.elements();
}

const char* mma_problem(const EmuMma* mma) { return problem_with(*mma); }
const char* wgmma_problem(const EmuWgmma* wgmma, bool a_in_registers) { return problem_with(*wgmma, a_in_registers); }

void mma_name(const EmuMma* mma, char* name) { strcpy(name, name_of(*mma).c_str()); }
void wgmma_name(const EmuWgmma* wgmma, char* name) { strcpy(name, name_of(*wgmma).c_str()); }

// Registers of lane 0, then of lane 1, ...; `words` of each operand in a lane.
void mma(const EmuMma* shape, uint32_t* d, const uint32_t* a, int a_words, const uint32_t* b, int b_words, const uint32_t* c,
         int c_words) {
  Registers all_d;
  ConstRegisters all_a, all_b, all_c;
  split(a, a_words, all_a);
  split(b, b_words, all_b);
  split(c, c_words, all_c);
  for (int lane = 0; lane < kWarpLanes; ++lane) all_d[lane] = d + lane * c_words;
  multiply_warp(*shape, all_d, all_a, all_b, all_c);
}

// All four warps: registers of thread 0, then of thread 1, ... `a` is null when A is in shared memory. Null, or what is wrong.
const char* wgmma(const EmuWgmma* shape, uint32_t* d, int d_words, const uint32_t* a, uint64_t a_descriptor, uint64_t b_descriptor,
                  bool scale_d, const char* shared) {
  for (int warp = 0; warp < 4; ++warp) {
    WgmmaPart part(*shape, warp, scale_d, a_descriptor, b_descriptor, shared);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int thread = warp * kWarpLanes + lane;
      if (a) part.take_a(lane, a + thread * 4);
      std::vector<uint32_t*> registers;
      for (int i = 0; i < d_words; ++i) registers.push_back(d + thread * d_words + i);
      part.set_accumulators(lane, registers.data());
    }
    if (const char* problem = part.problem()) return problem;
    part.run();
  }
  return nullptr;
}

// Addresses of all units that a warp reads; returns their number.
int units_read(const EmuWgmma* shape, int warp, bool a_in_registers, uint64_t a_descriptor, uint64_t b_descriptor,
               uint32_t* units) {
  WgmmaPart part(*shape, warp, true, a_descriptor, b_descriptor, nullptr);
  const uint32_t registers[4] = {};
  if (a_in_registers) part.take_a(0, registers);
  const std::vector<uint32_t> read = part.units_read();
  memcpy(units, read.data(), read.size() * sizeof *units);
  return static_cast<int>(read.size());
}

const char* descriptor_problem(uint64_t descriptor) { return MatrixDescriptor(descriptor).problem(); }

// Addresses of an operand's elements by line of M or N, then k.
void element_addresses(uint64_t descriptor, bool mn_major, EmuType type, int first, int lines, int depth, uint32_t* addresses) {
  const SharedOperand operand{MatrixDescriptor(descriptor), mn_major, type, depth};
  operand.each_unit(first, lines, [&](uint32_t address, Place at) {
    for (int i = 0; i < operand.elements_per_unit(); ++i, at.row += operand.step().row, at.column += operand.step().column) {
      addresses[at.row * depth + at.column] = address + static_cast<uint32_t>(i * element_bytes(type));
    }
  });
}

// Registers of the lanes from the matrix's 64 elements, and back.
void matrix_fragments(const uint16_t* elements, bool transposed, uint32_t* registers) {
  Matrix8x8 matrix;
  memcpy(matrix.element, elements, sizeof matrix.element);
  for (int lane = 0; lane < kWarpLanes; ++lane) registers[lane] = matrix.fragment(lane, transposed);
}

void matrix_of_fragments(const uint32_t* registers, bool transposed, uint16_t* elements) {
  Matrix8x8 matrix{};
  for (int lane = 0; lane < kWarpLanes; ++lane) matrix.put_fragment(lane, transposed, registers[lane]);
  memcpy(elements, matrix.element, sizeof matrix.element);
}

}
