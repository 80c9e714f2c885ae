// Page-locked host memory. What is allocated here lies in the runtime's range of device addresses, where kernels can reach it and
// the checker knows its bounds. Registered memory stays where it is: copies treat it as page-locked, checked kernels refuse to
// touch it.
#include <cstring>

#include "capture.h"
#include "memory.h"
#include "runtime/memory.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {
namespace {

std::map<char*, HostRange>& ranges() {
  static auto* const live = new std::map<char*, HostRange>;
  return *live;
}

void allocate_host(void** address, size_t bytes, unsigned flags) {
  require(address && bytes);
  require(!(flags & ~static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)));
  const auto context = working_context();
  refuse_unsafe_call();
  void* memory = device_malloc(kHostDevice, bytes);
  if (!memory) refuse(CUDA_ERROR_OUT_OF_MEMORY);
  memset(memory, 0, bytes);
  define_device_bytes(memory, bytes);  // what the host writes is not watched
  char* start = static_cast<char*>(memory);
  ranges()[start] = {start, bytes, flags, false, context, state().next_id++};
  *address = memory;
}

const HostRange& range_at(void* address, bool registered) {
  const auto found = ranges().find(static_cast<char*>(address));
  if (found == ranges().end() || found->second.registered != registered) {
    refuse(registered ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_ERROR_INVALID_VALUE);
  }
  return found->second;
}

}  // namespace

const HostRange* find_host(const void* address, size_t bytes) {
  const char* wanted = static_cast<const char*>(address);
  auto after = ranges().upper_bound(const_cast<char*>(wanted));
  if (after == ranges().begin()) return nullptr;
  const HostRange& range = std::prev(after)->second;
  const size_t offset = static_cast<size_t>(wanted - range.address);
  return offset < range.bytes && bytes <= range.bytes - offset ? &range : nullptr;
}

void release_host(const Context& context) {
  for (auto i = ranges().begin(); i != ranges().end();) {
    if (i->second.context.get() != &context) {
      ++i;
      continue;
    }
    if (!i->second.registered) device_free(i->first);
    i = ranges().erase(i);
  }
}

size_t host_ranges() {
  return ranges().size();
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  return entry([&] { allocate_host(address, bytes, flags); });
}

CUresult cuMemAllocHost(void** address, size_t bytes) {
  return entry([&] { allocate_host(address, bytes, 0); });
}

CUresult cuMemFreeHost(void* address) {
  return entry([&](Lock& lock) {
    working_context();
    refuse_unsafe_call();
    const auto owner = range_at(address, false).context;
    wait_for_context(lock, *owner);
    range_at(address, false);
    emu::device_free(address);
    ranges().erase(static_cast<char*>(address));
  });
}

CUresult cuMemHostRegister(void* address, size_t bytes, unsigned flags) {
  return entry([&] {
    require(address && bytes);
    const auto context = working_context();
    refuse_unsafe_call();
    char* start = static_cast<char*>(address);
    const auto next = ranges().lower_bound(start);
    if (find_host(address, 1) || (next != ranges().end() && next->first < start + bytes)) {
      refuse(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    ranges()[start] = {start, bytes, flags, true, context, state().next_id++};
  });
}

CUresult cuMemHostUnregister(void* address) {
  return entry([&](Lock& lock) {
    working_context();
    refuse_unsafe_call();
    const auto owner = range_at(address, true).context;
    wait_for_context(lock, *owner);
    range_at(address, true);
    ranges().erase(static_cast<char*>(address));
  });
}

// Unified addressing: the same address on both sides.
CUresult cuMemHostGetDevicePointer(CUdeviceptr* device_address, void* address, unsigned flags) {
  return entry([&] {
    require(device_address && flags == 0);
    working_context();
    require(find_host(address, 1));
    *device_address = reinterpret_cast<CUdeviceptr>(address);
  });
}

CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
  return entry([&] {
    require(flags);
    working_context();
    const HostRange* range = find_host(address, 1);
    require(range);
    *flags = range->flags;
  });
}
