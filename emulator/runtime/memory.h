// Device memory: one reserved range of host addresses for all devices, with red zones between allocations and a while of death behind a
// free, so that the checker can tell.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace emu {

inline constexpr int kHostMemory = -1;           // a "device": page-locked memory of the host, which every device reaches

void* device_malloc(int device, size_t bytes);   // 256-byte aligned; null when the device's addresses are used up
bool device_free(void*);                         // false: not the start of a live allocation
// The live allocation that holds [p, p + bytes); false: none. Any of the results may be null.
bool device_find(const void* p, size_t bytes, void** base, size_t* size, int* device);
bool is_device_memory(const void* p);            // in the range at all
int device_of(const void* p);                    // whose addresses these are; p is device memory
void define_device_bytes(const void* p, size_t bytes);  // a copy or a memset wrote them
std::string describe_neighbourhood(const void* p);  // "12 bytes behind an allocation of 400 bytes"

}  // namespace emu
