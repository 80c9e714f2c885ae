// A multiplicand of wgmma in shared memory: its matrix descriptor, with what the instruction says about it.
#pragma once

#include "descriptor.h"
#include "fragment.h"

namespace emu {

struct SharedOperand {
  MatrixDescriptor descriptor;
  bool mn_major = false;
  EmuType type = EMU_F16;
  int depth = 0;  // its length along k

  int elements_per_unit() const { return static_cast<int>(kUnitBytes) / element_bytes(type); }

  // Where the element after the unit's first one is in the matrix, relative to that.
  Place step() const { return mn_major ? Place{1, 0} : Place{0, 1}; }

  // Calls visit(address, place) for the units of `lines` rows of A or columns of B from `first` on. The address is the unit's in
  // the block's window, the place that of its first element: lines behind the first one, and k.
  template <typename Visit>
  void each_unit(int first, int lines, Visit visit) const {
    const int per_unit = elements_per_unit();
    const int leads = (mn_major ? lines : depth) / per_unit, others = mn_major ? depth : lines;
    const int first_lead = mn_major ? first / per_unit : 0, first_other = mn_major ? 0 : first;
    for (int other = 0; other < others; ++other) {
      for (int lead = 0; lead < leads; ++lead) {
        const uint32_t address =
            descriptor.unit_address(mn_major, static_cast<uint32_t>(first_lead + lead), static_cast<uint32_t>(first_other + other));
        visit(address, mn_major ? Place{lead * per_unit, other} : Place{other, lead * per_unit});
      }
    }
  }
};

}  // namespace emu
