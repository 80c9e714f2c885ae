// Operands from registers and shared memory to arrays, the products of dot.h, and the results back into registers.
#include "warp_tile.h"

#include <algorithm>

namespace emu {
namespace {

// How an operand in registers is to be read: its elements' type, the one whose exponents they are aligned by, and a sign.
struct Reading {
  EmuType type, aligned_as;
  double sign = 1;
};

template <typename AnyFactor>
void load_from_registers(AnyFactor& factor, const Fragment& fragment, const Reading& how, const ConstRegisters& registers) {
  with_type(how.type, [&](auto type) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < fragment.elements(); ++i) {
        const Place at = fragment.place(lane, i);
        factor.set(at.row, at.column, how.aligned_as, how.sign * decode_element(type, get_element(registers[lane], i, type)));
      }
    }
  });
}

// Calls each(place, value) for the elements of some lines of an operand in shared memory.
template <typename Each>
void each_element(const SharedOperand& operand, const char* shared, int first, int lines, Each each) {
  const Place step = operand.step();
  with_type(operand.type, [&](auto type) {
    constexpr int kCount = static_cast<int>(kUnitBytes) / element_bytes(type);
    operand.each_unit(first, lines, [&](uint32_t address, Place at) {
      for (int i = 0; i < kCount; ++i) {
        const uint64_t bits = get_element(shared + address, i, type);
        each(Place{at.row + i * step.row, at.column + i * step.column}, decode_element(type, bits));
      }
    });
  });
}

}  // namespace

void multiply_warp(const EmuMma& mma, const Registers& d, const ConstRegisters& a, const ConstRegisters& b,
                   const ConstRegisters& c) {
  LeftFactor left;
  RightFactor right;
  Accumulators sums{};
  const auto read = [](EmuType type) { return Reading{type, is_f8(type) ? EMU_F16 : type}; };  // f8 becomes f16, see dot.h
  load_from_registers(left, Fragment::a(mma.m, mma.k, mma.a), read(mma.a), a);
  load_from_registers(right, Fragment::b(mma.k, mma.n, mma.b), read(mma.b), b);
  const Fragment fragment = Fragment::accumulator(mma.m, mma.n);
  const auto each_element = [&](auto each) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < fragment.elements(); ++i) {
        const Place at = fragment.place(lane, i);
        each(lane, i, sums.value[at.row][at.column]);
      }
    }
  };
  with_type(mma.c, [&](auto type) {
    each_element([&](int lane, int i, double& sum) { sum = decode_element(type, get_element(c[lane], i, type)); });
  });
  multiply_add(arithmetic_of(mma), mma.m, mma.k, left, right, sums);
  with_type(mma.d, [&](auto type) {
    each_element([&](int lane, int i, double sum) { put_element(d[lane], i, type, encode_element(type, sum)); });
  });
}

WgmmaPart::WgmmaPart(const EmuWgmma& shape, int part, bool scale_d, uint64_t a_descriptor, uint64_t b_descriptor,
                     const char* shared)
    : shape_(shape),
      first_row_(part * kTileRows),
      scale_d_(scale_d),
      a_{MatrixDescriptor(a_descriptor), shape.transposed_a, shape.a, shape.k},
      b_{MatrixDescriptor(b_descriptor), shape.transposed_b, shape.b, shape.k},
      shared_(shared),
      accumulators_(static_cast<size_t>(kWarpLanes * registers_per_lane())) {}

int WgmmaPart::registers_per_lane() const { return kTileRows * shape_.n / kWarpLanes * element_bytes(shape_.d) / 4; }

void WgmmaPart::take_a(int lane, const uint32_t* registers) {
  a_in_registers_ = true;
  std::copy_n(registers, 4, a_registers_[lane]);
}

void WgmmaPart::set_accumulators(int lane, uint32_t* const* registers) {
  std::copy_n(registers, registers_per_lane(), &accumulators_[static_cast<size_t>(lane * registers_per_lane())]);
}

const char* WgmmaPart::problem() const {
  const char* of_a = a_in_registers_ ? nullptr : a_.descriptor.problem();
  return of_a ? of_a : b_.descriptor.problem();
}

std::vector<uint32_t> WgmmaPart::units_read() const {
  std::vector<uint32_t> units;
  const auto add = [&](uint32_t address, Place) { units.push_back(address); };
  if (!a_in_registers_) a_.each_unit(first_row_, kTileRows, add);
  b_.each_unit(0, shape_.n, add);
  return units;
}

void WgmmaPart::load_left(LeftFactor& a) const {
  if (a_in_registers_) {
    ConstRegisters registers;
    for (int lane = 0; lane < kWarpLanes; ++lane) registers[lane] = a_registers_[lane];
    const Reading how{shape_.a, shape_.a, static_cast<double>(shape_.scale_a)};
    load_from_registers(a, Fragment::a(kTileRows, shape_.k, shape_.a), how, registers);
    return;
  }
  each_element(a_, shared_, first_row_, kTileRows, [&](Place at, double value) {
    a.set(at.row, at.column, shape_.a, shape_.scale_a * value);
  });
}

void WgmmaPart::load_right(RightFactor& b, int first_column) const {
  b.finite = true;
  each_element(b_, shared_, first_column, kTileColumns, [&](Place at, double value) {
    b.set(at.column, at.row, shape_.b, shape_.scale_b * value);
  });
}

// Calls visit(place in the tile of eight columns, register that holds the element, its number in the register). D is
// as many accumulators of m16n8 side by side as there are eights of columns (PTX ISA 9.7.15.5.1, "Register fragments").
template <typename Type, typename Visit>
void WgmmaPart::each_accumulator(Type type, int first_column, Visit visit) const {
  constexpr Fragment kFragment = Fragment::accumulator(kTileRows, kTileColumns);
  constexpr int kPerRegister = std::max(1, 4 / element_bytes(type)), kRegisters = kFragment.elements() / kPerRegister;
  const int first_register = first_column / kTileColumns * kRegisters, per_lane = registers_per_lane();
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    uint32_t* const* holders = &accumulators_[static_cast<size_t>(lane * per_lane + first_register)];
    for (int i = 0; i < kFragment.elements(); ++i) {
      visit(kFragment.place(lane, i), holders[i / kPerRegister], i % kPerRegister);
    }
  }
}

void WgmmaPart::run() const {
  with_type(shape_.d, [&](auto type) { run_with(type); });
}

template <typename Type>
void WgmmaPart::run_with(Type type) const {
  const Arithmetic arithmetic = arithmetic_of(shape_);
  LeftFactor a;
  RightFactor b;
  load_left(a);
  for (int column = 0; column < shape_.n; column += kTileColumns) {
    load_right(b, column);
    Accumulators sums{};
    if (scale_d_) {
      each_accumulator(type, column, [&](Place at, const uint32_t* holder, int i) {
        sums.value[at.row][at.column] = decode_element(type, get_element(holder, i, type));
      });
    }
    multiply_add(arithmetic, kTileRows, shape_.k, a, b, sums);
    each_accumulator(type, column, [&](Place at, uint32_t* holder, int i) {
      put_element(holder, i, type, encode_element(type, sums.value[at.row][at.column]));
    });
  }
}

}  // namespace emu
