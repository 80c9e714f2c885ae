// What is known of an address (driver API, "Unified Addressing").
#include <cstring>

#include "memory.h"
#include "pool.h"
#include "state.h"

namespace emu::driver {
namespace {

// The facts about an address, of whichever kind it is.
struct Facts {
  const Allocation* allocation;
  const HostRange* host;

  bool known() const { return allocation || host; }
  std::shared_ptr<Context> context() const { return allocation ? allocation->context : host->context; }
  int device() const { return allocation ? allocation->device->index : host->context->device->index; }
  CUdeviceptr start() const { return allocation ? allocation->address : reinterpret_cast<CUdeviceptr>(host->address); }
  size_t bytes() const { return allocation ? allocation->bytes : host->bytes; }
  unsigned long long id() const { return allocation ? allocation->id : host->id; }
};

Facts facts_about(CUdeviceptr address) {
  return {find_allocation(address), find_host(reinterpret_cast<void*>(address), 1)};
}

template <class Value>
void write(void* data, Value value) {
  memcpy(data, &value, sizeof value);
}

// False: the address has no such attribute.
bool write_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  const Facts facts = facts_about(address);
  if (!facts.known()) return false;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: write(data, facts.context() ? facts.context()->handle : nullptr); return true;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      write<unsigned>(data, facts.allocation ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
      return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: write(data, address); return true;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!facts.host) return false;
      write(data, reinterpret_cast<void*>(address));
      return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: write<unsigned>(data, 0); return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: write(data, facts.id()); return true;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: write<unsigned>(data, 0); return true;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: write<int>(data, facts.device()); return true;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: write(data, facts.start()); return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: write(data, facts.bytes()); return true;
    case CU_POINTER_ATTRIBUTE_MAPPED: write<unsigned>(data, 1); return true;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: write<unsigned>(data, 0); return true;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: {
      const bool pooled = facts.allocation && facts.allocation->pool;
      write<CUmemoryPool>(data, pooled ? facts.allocation->pool->handle : nullptr);
      return true;
    }
    default: refuse(CUDA_ERROR_NOT_SUPPORTED, "pointer attribute %d is not emulated", static_cast<int>(attribute));
  }
}

size_t attribute_bytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: return 4;
    default: return 8;
  }
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return entry([&] { require(data && write_attribute(data, attribute, address)); });
}

// Unknown addresses are no error here: their attributes are zero.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  return entry([&] {
    require(attributes && data);
    for (unsigned i = 0; i < count; ++i) {
      if (write_attribute(data[i], attributes[i], address)) continue;
      memset(data[i], 0, attribute_bytes(attributes[i]));
      if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *static_cast<int*>(data[i]) = CU_DEVICE_INVALID;
    }
  });
}
