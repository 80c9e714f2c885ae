// The work of matrix instructions on the registers and the shared memory of a warp, without threads, waiting or checks.
#pragma once

#include <cstdint>
#include <vector>

#include "../abi/emulator.h"
#include "dot.h"
#include "shared_operand.h"

namespace emu {

inline constexpr int kWarpLanes = 32;

// The registers of every lane for one operand.
using ConstRegisters = const uint32_t* [kWarpLanes];
using Registers = uint32_t* [kWarpLanes];

// mma.sync: d = a * b + c. An f64 is two words, the low one first.
void multiply_warp(const EmuMma&, const Registers& d, const ConstRegisters& a, const ConstRegisters& b, const ConstRegisters& c);

// The part of one wgmma that one warp does: rows 16 * part to 16 * part + 15 of D.
class WgmmaPart {
 public:
  // `part` is the warp's number in its warpgroup, `shared` the block's window of shared memory.
  WgmmaPart(const EmuWgmma& shape, int part, bool scale_d, uint64_t a_descriptor, uint64_t b_descriptor, const char* shared);

  // A comes from four registers of each lane, as they are now, instead of shared memory.
  void take_a(int lane, const uint32_t* registers);
  // Where a lane's accumulators are when the instruction runs.
  void set_accumulators(int lane, uint32_t* const* registers);

  // Null, or what is wrong with a descriptor.
  const char* problem() const;
  // Addresses in the block's window of the units of 16 bytes that the warp reads.
  std::vector<uint32_t> units_read() const;
  // Reads shared memory as it is now, and adds to the accumulators.
  void run() const;

 private:
  int registers_per_lane() const;
  void load_left(LeftFactor&) const;
  void load_right(RightFactor&, int first_column) const;
  template <typename Type>
  void run_with(Type type_of_d) const;
  template <typename Type, typename Visit>
  void each_accumulator(Type type_of_d, int first_column, Visit) const;

  EmuWgmma shape_;
  int first_row_;
  bool scale_d_;                       // false: D = A * B
  bool a_in_registers_ = false;
  uint32_t a_registers_[kWarpLanes][4];
  SharedOperand a_, b_;
  const char* shared_;
  std::vector<uint32_t*> accumulators_;  // all of lane 0, then all of lane 1, ...
};

}  // namespace emu
