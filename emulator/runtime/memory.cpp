// Device memory: see memory.h.
#include "memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>

#include "core.h"
#include "shadow.h"

namespace emu {
namespace {

constexpr size_t kRedZone = 256;         // at least so much lies dead behind an allocation
constexpr size_t kQuarantine = 1ull << 30;  // freed memory stays dead until so much has been freed

struct Allocation {
  size_t bytes;
  int device;
};

// Addresses of one device.
struct Range {
  std::multimap<size_t, size_t> freed;   // footprint -> offset
  size_t freed_bytes = 0, used = 4096;
};

std::mutex mutex;  // guards what follows, which is never destroyed: threads of streams may outlive main
auto& live = *new std::map<size_t, Allocation>;                 // by offset
Range* const ranges = new Range[Shadow::kDevices + 1];          // the host's is the last

size_t range_index(int device) {
  return device == kHostMemory ? Shadow::kDevices : static_cast<size_t>(device);
}

size_t footprint(size_t bytes) {
  return (bytes + 255 + kRedZone) & ~size_t{255};
}

// The live allocation at or below an offset.
std::map<size_t, Allocation>::iterator below(size_t offset) {
  auto i = live.upper_bound(offset);
  return i == live.begin() ? live.end() : std::prev(i);
}

}  // namespace

void* device_malloc(int device, size_t bytes) {
  Shadow& s = shadow();
  const size_t needed = footprint(bytes), index = range_index(device);
  if (index > Shadow::kDevices) return nullptr;
  Range& range = ranges[index];
  size_t at;
  std::lock_guard lock(mutex);
  auto again = range.freed_bytes > kQuarantine ? range.freed.find(needed) : range.freed.end();
  if (again != range.freed.end()) {
    at = again->second;
    range.freed_bytes -= needed;
    range.freed.erase(again);
  } else {
    if (range.used + needed > Shadow::kBytesOfDevice) return nullptr;
    at = index * Shadow::kBytesOfDevice + range.used;
    range.used += needed;
  }
  live[at] = {bytes, device};
  s.mark_valid(at, bytes, true);
  s.mark_defined(at, bytes, false);
  return s.base + at;
}

bool device_free(void* p) {
  Shadow& s = shadow();
  const size_t at = s.offset(p);
  std::lock_guard lock(mutex);
  auto i = live.find(at);
  if (i == live.end()) return false;
  const size_t bytes = i->second.bytes, needed = footprint(bytes);
  s.mark_valid(at, bytes, false);
  constexpr size_t kPage = 4096;
  auto give_back = [](void* from, size_t size) {  // whole pages only
    auto first = (reinterpret_cast<uintptr_t>(from) + kPage - 1) & ~(kPage - 1);
    auto end = (reinterpret_cast<uintptr_t>(from) + size) & ~(kPage - 1);
    if (end > first) madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
  };
  give_back(p, bytes);
  give_back(s.cells + at / 4, bytes / 4 * sizeof(Cell));
  Range& range = ranges[range_index(i->second.device)];
  range.freed.emplace(needed, at);
  range.freed_bytes += needed;
  live.erase(i);
  return true;
}

bool device_find(const void* p, size_t bytes, void** base, size_t* size, int* device) {
  if (!is_device_memory(p)) return false;
  Shadow& s = shadow();
  const size_t at = s.offset(p);
  std::lock_guard lock(mutex);
  auto i = below(at);
  if (i == live.end() || at + bytes > i->first + i->second.bytes || (at == i->first + i->second.bytes && bytes == 0)) return false;
  if (base) *base = s.base + i->first;
  if (size) *size = i->second.bytes;
  if (device) *device = i->second.device;
  return true;
}

bool is_device_memory(const void* p) {
  return shadow().offset(p) < Shadow::kDeviceBytes;
}

int device_of(const void* p) {
  const auto index = static_cast<int>(shadow().offset(p) / Shadow::kBytesOfDevice);
  return index == Shadow::kDevices ? kHostMemory : index;
}

void define_device_bytes(const void* p, size_t bytes) {
  if (is_device_memory(p)) shadow().mark_defined(shadow().offset(p), bytes, true);
}

std::string describe_neighbourhood(const void* p) {
  if (!is_device_memory(p)) return "not device memory";
  const size_t at = shadow().offset(p);
  std::lock_guard lock(mutex);
  for (const auto& [needed, offset] : ranges[range_index(device_of(p))].freed) {
    if (at >= offset && at < offset + needed) return printf_string("%zu bytes into freed memory", at - offset);
  }
  auto i = below(at);
  if (i == live.end()) return "in front of every allocation";
  const size_t end = i->first + i->second.bytes;
  return at < end ? printf_string("%zu bytes into an allocation of %zu bytes", at - i->first, i->second.bytes)
                  : printf_string("%zu bytes behind an allocation of %zu bytes", at - end, i->second.bytes);
}

}  // namespace emu
