// Stream-ordered memory (driver API, "Stream Ordered Memory Allocator").
//
// An allocation has its address at once; the runtime cannot tell when another stream uses it before its stream has got there. A
// free takes effect in stream order, and the checker sees uses after it.
#include "pool.h"

#include "capture.h"
#include "memory.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {

std::shared_ptr<Pool> make_pool(Device& device) {
  auto pool = std::make_shared<Pool>();
  pool->device = &device;
  state().pools.add(pool);
  return pool;
}

namespace {

class FreeWork : public Work {
 public:
  explicit FreeWork(CUdeviceptr address) : address_(address) {}
  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_MEM_FREE; }
  bool runs_after_errors() const override { return true; }
  void run(Site& site) const override {
    Lock lock(state().mutex);
    if (allocation_at(address_)) {
      release(address_);
      return;
    }
    lock.unlock();
    throw WorkFailure{site.context, CUDA_ERROR_ILLEGAL_ADDRESS, "cuMemFreeAsync of memory that has been freed already"};
  }

 private:
  const CUdeviceptr address_;
};

void refuse_captured(const Stream& stream, const char* name) {
  if (stream.capture) refuse(CUDA_ERROR_NOT_SUPPORTED, "%s in a captured stream (memory nodes of graphs) is not emulated", name);
}

CUresult allocate_async(CUdeviceptr* address, size_t bytes, CUmemoryPool from, CUstream handle) {
  return entry([&] {
    require(address);
    const auto stream = stream_of(working_context(), handle);
    refuse_captured(*stream, "cuMemAllocAsync");
    const auto pool = from ? state().pools.get(from) : stream->context->device->pool;
    *address = allocate(*pool->device, bytes, nullptr, pool);
  });
}

Device& device_at(const CUmemLocation* location) {
  require(location);
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) refuse(CUDA_ERROR_NOT_SUPPORTED, "memory pools of the host are not emulated");
  return state().device(location->id);
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate_async(address, bytes, nullptr, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream) {
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  return allocate_async(address, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  return entry([&] {
    const auto stream = stream_of(working_context(), handle);
    if (!address) return;
    refuse_captured(*stream, "cuMemFreeAsync");
    const Allocation* allocation = allocation_at(address);
    if (!allocation || allocation->leaving) {
      refuse(CUDA_ERROR_INVALID_VALUE, "cuMemFreeAsync of 0x%llx, which is not the start of an allocation (freed twice?)", address);
    }
    submit(stream, std::make_shared<FreeWork>(address));
    leave(address);
  });
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return entry([&] {
    require(pool);
    *pool = state().device(device).default_pool->handle;
  });
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  return entry([&] {
    require(pool);
    *pool = state().device(device).pool->handle;
  });
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
  return entry([&] {
    const auto pool = state().pools.get(handle);
    require(pool->device == &state().device(device));
    pool->device->pool = pool;
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  return entry([&] {
    require(pool && properties && properties->allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
      refuse(CUDA_ERROR_NOT_SUPPORTED, "sharing memory pools is not emulated");
    }
    *pool = make_pool(device_at(&properties->location))->handle;
  });
}

CUresult cuMemPoolDestroy(CUmemoryPool handle) {
  return entry([&] {
    const auto pool = state().pools.get(handle);
    if (pool == pool->device->default_pool) refuse(CUDA_ERROR_INVALID_VALUE, "the default memory pool cannot be destroyed");
    if (pool == pool->device->pool) pool->device->pool = pool->device->default_pool;
    state().pools.remove(handle);
  });
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  return entry([&] { state().pools.get(pool); });
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return entry([&] {
    require(value);
    const auto pool = state().pools.get(handle);
    cuuint64_t* number = static_cast<cuuint64_t*>(value);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: {
        const auto set = pool->reuse.find(attribute);
        *static_cast<int*>(value) = set == pool->reuse.end() ? 1 : set->second;
        return;
      }
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *number = pool->release_threshold; return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *number = pool->used_bytes; return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *number = pool->peak_bytes; return;
      default: refuse(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
  return entry([&] {
    require(value);
    const auto pool = state().pools.get(handle);
    switch (attribute) {
      case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: pool->reuse[attribute] = *static_cast<int*>(value); return;
      case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->release_threshold = *static_cast<cuuint64_t*>(value); return;
      case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        require(*static_cast<cuuint64_t*>(value) == 0);  // the only value the driver takes: start again
        pool->peak_bytes = pool->used_bytes;
        return;
      default: refuse(CUDA_ERROR_INVALID_VALUE);
    }
  });
}
