// Devices: their number, names, identities and attributes (driver API, "Device Management").
#include <cstdio>
#include <cstring>

#include "limits.h"
#include "runtime/settings.h"
#include "state.h"

namespace emu::driver {
namespace {

constexpr char kName[] = "Emulated H200 (CPU)";
constexpr int kFirstBus = 1;  // device n lies on PCI bus n + 1

struct Attribute {
  CUdevice_attribute which;
  int value;
};

// An H200; what is not in the list is 0, as it is for features that the emulator does not have.
constexpr Attribute kAttributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kMaxThreads},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, kMaxThreads},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, kMaxThreads},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, kMaxBlockZ},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, kMaxGridX},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, kMaxGridYZ},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, kMaxGridYZ},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, kSharedPerBlock},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, kSharedPerBlockOptIn},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, kSharedPerMultiprocessor},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, kSharedReserved},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, kConstantMemory},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, kWarp},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, kRegisters},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, kRegisters},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, kMultiprocessors},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
    {CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, 39321600},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, kThreadsPerMultiprocessor},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, kBlocksPerMultiprocessor},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS, 0},
};

int attribute_of(const Device& device, CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return device.index + kFirstBus;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return emu::settings().capability_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return emu::settings().capability_minor;
    default: break;
  }
  for (const Attribute& known : kAttributes) {
    if (known.which == attribute) return known.value;
  }
  return 0;
}

// Version 4 in form; the same on every run.
CUuuid uuid_of(const Device& device) {
  CUuuid uuid{};
  memcpy(uuid.bytes, "emulated", 8);
  uuid.bytes[6] = 0x4d;
  uuid.bytes[8] = static_cast<char>(0x80);
  uuid.bytes[15] = static_cast<char>(device.index);
  return uuid;
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuDeviceGetCount(int* count) {
  return entry([&] {
    require(count);
    *count = static_cast<int>(state().devices.size());
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return entry([&] {
    require(device);
    *device = state().device(ordinal).index;
  });
}

CUresult cuDeviceGetName(char* name, int capacity, CUdevice device) {
  return entry([&] {
    require(name && capacity > 0);
    state().device(device);
    memset(name, 0, static_cast<size_t>(capacity));  // some callers look at every byte
    snprintf(name, static_cast<size_t>(capacity), "%s", kName);
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return entry([&] {
    require(uuid);
    *uuid = uuid_of(state().device(device));
  });
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  return entry([&] {
    require(bytes);
    state().device(device);
    *bytes = emu::settings().memory_bytes;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice index) {
  return entry([&] {
    require(value && attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX);
    *value = attribute_of(state().device(index), attribute);
  });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  return entry([&] {
    require(major && minor);
    state().device(device);
    *major = emu::settings().capability_major;
    *minor = emu::settings().capability_minor;
  });
}

CUresult cuDeviceGetPCIBusId(char* text, int capacity, CUdevice device) {
  return entry([&] {
    require(text && capacity > 0);
    snprintf(text, static_cast<size_t>(capacity), "0000:%02X:00.0",
             static_cast<unsigned>(state().device(device).index + kFirstBus));
  });
}

// "domain:bus:device.function", "domain:bus:device" or "bus:device.function".
CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  return entry([&] {
    require(device && text);
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    const bool full = sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) >= 3;
    const bool brief = !full && sscanf(text, "%x:%x.%x", &bus, &slot, &function) == 3;
    require((full || brief) && domain == 0 && slot == 0 && function == 0);
    *device = state().device(static_cast<int>(bus) - kFirstBus).index;
  });
}

CUresult cuDeviceGetExecAffinitySupport(int* value, CUexecAffinityType, CUdevice device) {
  return entry([&] {
    require(value);
    state().device(device);
    *value = 0;
  });
}

CUresult cuProfilerStart() {
  return entry([] {});
}

CUresult cuProfilerStop() {
  return entry([] {});
}
