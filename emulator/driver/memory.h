// Which memory is whose: allocations on devices, and host memory that devices know.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

namespace emu::driver {

struct Context;
struct Device;
struct Pool;

struct Allocation {
  CUdeviceptr address;
  size_t bytes;
  Device* device;
  std::shared_ptr<Context> context;  // that made it, and takes it along when it is destroyed; null: of a pool
  std::shared_ptr<Pool> pool;        // null: of cuMemAlloc
  unsigned long long id;             // CU_POINTER_ATTRIBUTE_BUFFER_ID
  bool leaving = false;              // a stream is going to free it
};

// Page-locked memory: allocated here, or registered.
struct HostRange {
  char* address;
  size_t bytes;
  unsigned flags;
  bool registered;
  std::shared_ptr<Context> context;
  unsigned long long id;
};

inline constexpr int kHostDevice = -1;  // the "device" of page-locked memory in runtime/memory.h: kernels can reach it too

// ---- memory.cpp, under the lock -----------------------------------------------------------------------------------------------
CUdeviceptr allocate(Device& device, size_t bytes, const std::shared_ptr<Context>& context, const std::shared_ptr<Pool>& pool);
void release(CUdeviceptr address);                       // of a live allocation
const Allocation* find_allocation(CUdeviceptr address);  // that holds this byte; null: none
const Allocation* allocation_at(CUdeviceptr address);    // that begins there; null: none
void leave(CUdeviceptr address);                         // of a live allocation, which a stream is going to free
void release_all(const Context& context);
size_t count_allocations(const Device& device);

// ---- host_memory.cpp, under the lock ------------------------------------------------------------------------------------------
const HostRange* find_host(const void* address, size_t bytes);  // the page-locked range that holds it; null: none
void release_host(const Context& context);
size_t host_ranges();

}  // namespace emu::driver
