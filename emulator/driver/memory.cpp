// Linear device memory (driver API, "Memory Management").
#include "memory.h"

#include "capture.h"
#include "limits.h"
#include "pool.h"
#include "runtime/memory.h"
#include "runtime/settings.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {
namespace {

constexpr size_t kGranularity = 512;  // what an allocation takes from the device is a multiple of it

size_t taken(size_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

std::map<CUdeviceptr, Allocation>& allocations() {
  static auto* const live = new std::map<CUdeviceptr, Allocation>;
  return *live;
}

}  // namespace

CUdeviceptr allocate(Device& device, size_t bytes, const std::shared_ptr<Context>& context, const std::shared_ptr<Pool>& pool) {
  require(bytes > 0);
  if (device.faults.allocation_fails(++device.allocations)) refuse(CUDA_ERROR_OUT_OF_MEMORY);
  const uint64_t total = settings().memory_bytes;
  if (bytes > total || taken(bytes) > total - device.used_bytes) refuse(CUDA_ERROR_OUT_OF_MEMORY);
  void* memory = device_malloc(device.index, bytes);
  if (!memory) refuse(CUDA_ERROR_OUT_OF_MEMORY, "the emulator has no addresses left for %zu bytes", bytes);
  device.used_bytes += taken(bytes);
  device.peak_bytes = std::max(device.peak_bytes, device.used_bytes);
  if (pool) pool->add(taken(bytes));
  const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(memory);
  allocations()[address] = {address, bytes, &device, context, pool, state().next_id++};
  return address;
}

void release(CUdeviceptr address) {
  const auto found = allocations().find(address);
  const Allocation& allocation = found->second;
  allocation.device->used_bytes -= taken(allocation.bytes);
  if (allocation.pool) allocation.pool->remove(taken(allocation.bytes));
  device_free(reinterpret_cast<void*>(address));
  allocations().erase(found);
}

const Allocation* find_allocation(CUdeviceptr address) {
  auto after = allocations().upper_bound(address);
  if (after == allocations().begin()) return nullptr;
  const Allocation& allocation = std::prev(after)->second;
  return address - allocation.address < allocation.bytes ? &allocation : nullptr;
}

const Allocation* allocation_at(CUdeviceptr address) {
  const auto found = allocations().find(address);
  return found == allocations().end() ? nullptr : &found->second;
}

void leave(CUdeviceptr address) {
  allocations().find(address)->second.leaving = true;
}

void release_all(const Context& context) {
  std::vector<CUdeviceptr> owned;
  for (const auto& [address, allocation] : allocations()) {
    if (allocation.context.get() == &context) owned.push_back(address);
  }
  for (CUdeviceptr address : owned) release(address);
}

size_t count_allocations(const Device& device) {
  size_t count = 0;
  for (const auto& [address, allocation] : allocations()) count += allocation.device == &device;
  return count;
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return entry([&] {
    const auto context = working_context();
    const uint64_t total = emu::settings().memory_bytes;
    put(total_bytes, total);
    put(free_bytes, total - std::min(total, context->device->used_bytes));
  });
}

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  return entry([&] {
    require(address);
    const auto context = working_context();
    refuse_unsafe_call();
    *address = allocate(*context->device, bytes, context, nullptr);
  });
}

CUresult cuMemAllocPitch(CUdeviceptr* address, size_t* pitch, size_t width, size_t height, unsigned element_bytes) {
  return entry([&] {
    require(address && pitch && width && height && (element_bytes == 4 || element_bytes == 8 || element_bytes == 16));
    const auto context = working_context();
    refuse_unsafe_call();
    *pitch = (width + kPitchAlignment - 1) / kPitchAlignment * kPitchAlignment;
    require(height <= SIZE_MAX / *pitch);
    *address = allocate(*context->device, *pitch * height, context, nullptr);
  });
}

// Waits for all work of the context that owns the memory, as the driver does.
CUresult cuMemFree(CUdeviceptr address) {
  return entry([&](Lock& lock) {
    const auto context = working_context();
    if (!address) return;
    refuse_unsafe_call();
    const Allocation* allocation = allocation_at(address);
    if (!allocation || allocation->leaving) {
      refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFree of 0x%llx, which is not the start of an allocation (freed twice?)", address);
    }
    const auto owner = allocation->context ? allocation->context : context;
    wait_for_context(lock, *owner);
    owner->check();
    if (allocation_at(address)) release(address);
  });
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return entry([&] {
    working_context();
    const Allocation* allocation = find_allocation(address);
    if (!allocation) refuse(CUDA_ERROR_NOT_FOUND);
    put(base, allocation->address);
    put(bytes, allocation->bytes);
  });
}
