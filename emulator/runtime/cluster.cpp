// Addresses in a cluster (PTX ISA: mapa, getctarank), dependent grids (griddepcontrol) and setmaxnreg.
#include "async.h"

namespace emu {
namespace {

constexpr uint32_t kRegisterFile = 64 << 10;               // of a multiprocessor
constexpr uint32_t kRegisterUnit = 8, kMinRegisters = 24, kMaxRegisters = 256;
constexpr uint32_t kOffsetMask = (1u << kEmuBlockWindowBits) - 1;

// What each thread of a block may have at launch. PTX does not say what ptxas has settled on; kernels that use setmaxnreg are
// compiled to share out the whole file, which is what their arithmetic counts on: 168 registers in a block of 384 threads.
uint32_t registers_at_launch(const Block& block) {
  const uint32_t threads = (block.num_threads + 31) / 32 * 32;
  return std::min(kMaxRegisters, kRegisterFile / threads / kRegisterUnit * kRegisterUnit);
}

void check_rank(Thread& self, const char* instruction, uint32_t rank, uint32_t location) {
  const size_t blocks = self.cluster->blocks.size();
  if (rank < blocks) return;
  fail(self, location, printf_string("%s: block rank %u, the cluster has %zu blocks", instruction, rank, blocks));
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" uint32_t emu_mapa(EmuThread* t, uint32_t shared, uint32_t rank, uint32_t location) {
  check_rank(thread_of(t), "mapa", rank, location);
  return rank << kEmuBlockWindowBits | (shared & kOffsetMask);
}

extern "C" uint32_t emu_ctarank(EmuThread* t, uint32_t shared, uint32_t location) {
  const uint32_t rank = shared >> kEmuBlockWindowBits;
  check_rank(thread_of(t), "getctarank", rank, location);
  return rank;
}

// From here on the thread, and whoever it synchronises with, may use what the grids before it have written: it is visible to the whole
// grid (9.7.13.13). Grids run one after the other: nothing is waited for.
extern "C" void emu_griddep_wait(EmuThread* t) { thread_of(t).knowledge.dependencies_met = true; }

// A permission to start dependent grids, which the emulator does not use.
extern "C" void emu_griddep_launch(EmuThread*) {}

extern "C" void emu_setmaxnreg(EmuThread* t, bool increase, uint32_t registers, uint32_t location) {
  Thread& self = thread_of(t);
  const char* name = increase ? "setmaxnreg.inc" : "setmaxnreg.dec";
  if (registers % kRegisterUnit || registers < kMinRegisters || registers > kMaxRegisters) {
    fail(self, location, printf_string("%s %u: the count must be a multiple of 8 in 24..256", name, registers));
  }
  RegisterPool& pool = self.cluster->engine->registers[self.block->rank];
  const auto [entry, first] = pool.of_thread.try_emplace(self.linear, registers_at_launch(*self.block));
  uint32_t& held = entry->second;
  // The count at launch is an upper bound, so that the first change may go below what it seems to have.
  if (increase ? registers < held && !first : registers > held) {
    fail(self, location, printf_string("%s %u in a thread that has %u registers", name, registers, held));
  }
  if (registers <= held) {
    pool.free += held - registers;
    held = registers;
    wake_all(*self.cluster, pool.waiting);
    return;
  }
  const uint32_t more = registers - held;
  while (pool.free < more) {
    auto describe = [name, registers, held] {
      return printf_string("%s %u: it has %u registers, and its block has not released enough", name, registers, held);
    };
    suspend(self, pool.waiting, describe, location);
  }
  pool.free -= more;
  held = registers;
}
