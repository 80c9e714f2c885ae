// ldmatrix, stmatrix, movmatrix: 8 x 8 matrices between shared memory and the registers of a warp (PTX ISA 9.7.14.5.15 to 17).
//
// A lane reads or writes the row that its own address names, in its own name: the meeting only exchanges rows and registers.
#include <cstring>

#include "collective.h"
#include "matrix8x8.h"

using namespace emu;

namespace {

constexpr uint32_t kRowBytes = sizeof(Matrix8x8::element[0]);

void check_shape(Thread& self, const char* what, const EmuMatrix& matrix, uint32_t location) {
  if (matrix.num == 1 || matrix.num == 2 || matrix.num == 4) return;
  fail(self, location, printf_string("%s.x%u: there are only .x1, .x2 and .x4", what, matrix.num));
}

// The row of shared memory that a lane names.
char* checked_row(Thread& self, const char* what, uint32_t address, Kind kind, uint32_t location) {
  if (address % kRowBytes) {
    std::string message = printf_string("%s: the address 0x%x of lane %u is not a multiple of 16", what, address, self.lane);
    fail(self, location, std::move(message), kMisalignedAddress);
  }
  char* row = shared_pointer(self, address);
  check_access(self, accessor(self), row, kRowBytes, kind, EMU_SHARED, location);
  return row;
}

// Lanes 0 to 7 name the rows of the first matrix, the next eight those of the second one, ...
struct RowLane {
  uint16_t row[8];
  uint32_t registers[4];
};

}  // namespace

extern "C" {

void emu_ldmatrix(EmuThread* t, const EmuMatrix* matrix, uint32_t* d, uint32_t address, uint32_t location) {
  constexpr const char* what = "ldmatrix";
  Thread& self = thread_of(t);
  check_shape(self, what, *matrix, location);
  RowLane mine{};
  if (self.lane < 8u * matrix->num) memcpy(mine.row, checked_row(self, what, address, Kind::kRead, location), kRowBytes);
  meet_in_full(self, what, location, mine, [&](const Lanes<RowLane>& lanes) {
    for (size_t i = 0; i < matrix->num; ++i) {
      Matrix8x8 loaded;
      for (size_t row = 0; row < 8; ++row) memcpy(loaded.element[row], lanes[8 * i + row]->row, kRowBytes);
      for (size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane]->registers[i] = loaded.fragment(lane, matrix->transposed);
    }
  });
  std::copy_n(mine.registers, matrix->num, d);
}

void emu_stmatrix(EmuThread* t, const EmuMatrix* matrix, uint32_t address, const uint32_t* s, uint32_t location) {
  constexpr const char* what = "stmatrix";
  Thread& self = thread_of(t);
  check_shape(self, what, *matrix, location);
  RowLane mine{};
  std::copy_n(s, matrix->num, mine.registers);
  meet_in_full(self, what, location, mine, [&](const Lanes<RowLane>& lanes) {
    for (size_t i = 0; i < matrix->num; ++i) {
      Matrix8x8 stored;
      for (size_t lane = 0; lane < lanes.size(); ++lane) stored.put_fragment(lane, matrix->transposed, lanes[lane]->registers[i]);
      for (size_t row = 0; row < 8; ++row) memcpy(lanes[8 * i + row]->row, stored.element[row], kRowBytes);
    }
  });
  if (self.lane < 8u * matrix->num) memcpy(checked_row(self, what, address, Kind::kWrite, location), mine.row, kRowBytes);
}

uint32_t emu_movmatrix(EmuThread* t, uint32_t value, uint32_t location) {
  meet_in_full(thread_of(t), "movmatrix", location, value, [](const Lanes<uint32_t>& lanes) {
    Matrix8x8 moved;
    for (size_t lane = 0; lane < lanes.size(); ++lane) moved.put_fragment(lane, false, *lanes[lane]);
    for (size_t lane = 0; lane < lanes.size(); ++lane) *lanes[lane] = moved.fragment(lane, true);
  });
  return value;
}

}
