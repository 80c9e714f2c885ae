// Synchronisation through memory: what strong accesses and fences make known to whom (PTX ISA 8, memory consistency model).
#pragma once

#include <unordered_map>

#include "core.h"

namespace emu {

// A location that strong accesses have used, by its address; kept for the whole grid.
struct AtomicPoint {
  uint32_t cluster = 0;                   // whose knowledge `local` is
  Knowledge local;                        // published by threads of that cluster
  std::shared_ptr<const Foreign> foreign; // ... with gpu scope, by all clusters
};

using AtomicPoints = std::unordered_map<const void*, AtomicPoint>;

}  // namespace emu
