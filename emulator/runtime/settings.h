// How to run: read from the environment when the library is loaded.
#pragma once

#include <cstdint>
#include <string>

namespace emu {

enum class Landing : uint8_t { kLazy, kEager, kRandom };  // when asynchronous units do their work: at the last moment, at once, or either
enum class Schedule : uint8_t { kForward, kReverse, kRandom };

struct Settings {
  int devices = 1;                   // EMU_DEVICES
  uint64_t memory_bytes = 1ull << 30;  // EMU_MEM_MB, of each device
  int capability_major = 9, capability_minor = 0;  // EMU_COMPUTE_CAPABILITY: what devices say that they are
  Landing landing = Landing::kLazy;    // EMU_ASYNC: lazy, eager or random
  Schedule schedule = Schedule::kForward;  // EMU_SCHED: fwd, rev or a seed
  uint64_t seed = 1;
  Schedule block_schedule = Schedule::kForward;  // EMU_BLOCKS: the same for the clusters of a grid
  uint64_t block_seed = 1;
  bool check_memory = true, check_races = true, check_initialised = true;  // EMU_CHECK: any of mem race init
};

[[gnu::visibility("hidden")]] extern const Settings loaded_settings;
inline const Settings& settings() { return loaded_settings; }

}  // namespace emu
