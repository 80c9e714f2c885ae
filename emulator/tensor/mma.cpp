// mma.sync (PTX ISA 9.7.14.5).
#include "collective.h"
#include "instruction.h"
#include "warp_tile.h"

using namespace emu;

namespace {

struct MmaLane {
  uint32_t* d;
  const uint32_t *a, *b, *c;
};

}  // namespace

extern "C" void emu_mma(EmuThread* t, const EmuMma* mma, uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c,
                        uint32_t location) {
  Thread& self = thread_of(t);
  MmaLane mine{d, a, b, c};
  meet_in_full(self, "mma.sync", location, mine, [&](const Lanes<MmaLane>& lanes) {
    if (const char* problem = problem_with(*mma)) fail(self, location, name_of(*mma) + ": " + problem);
    Registers all_d;
    ConstRegisters all_a, all_b, all_c;
    for (size_t i = 0; i < lanes.size(); ++i) {
      all_d[i] = lanes[i]->d;
      all_a[i] = lanes[i]->a;
      all_b[i] = lanes[i]->b;
      all_c[i] = lanes[i]->c;
    }
    multiply_warp(*mma, all_d, all_a, all_b, all_c);
  });
}
