// Pools of stream-ordered memory. They keep nothing back: what is freed goes to the device at once.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>

namespace emu::driver {

struct Device;

struct Pool {
  CUmemoryPool handle = nullptr;
  Device* device = nullptr;
  uint64_t used_bytes = 0, peak_bytes = 0, release_threshold = 0;
  std::map<CUmemPool_attribute, int> reuse;  // CU_MEMPOOL_ATTR_REUSE_*: kept, without an effect

  void add(uint64_t bytes) {
    used_bytes += bytes;
    peak_bytes = std::max(peak_bytes, used_bytes);
  }
  void remove(uint64_t bytes) { used_bytes -= bytes; }
};

std::shared_ptr<Pool> make_pool(Device& device);

}  // namespace emu::driver
