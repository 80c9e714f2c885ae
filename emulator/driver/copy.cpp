// What a copy may touch, and doing it: see copy.h.
#include "copy.h"

#include <cstring>

#include "memory.h"
#include "runtime/memory.h"
#include "state.h"

namespace emu::driver {
namespace {

// One end of a copy.
struct Side {
  CUmemorytype type;
  char* first;          // the box's first byte
  size_t pitch, slice;  // bytes from row to row, and from slice to slice

  bool device() const { return type == CU_MEMORYTYPE_DEVICE; }
};

Side make_side(CUmemorytype type, const void* host, CUdeviceptr device, size_t pitch, size_t height, size_t x, size_t y, size_t z,
               const CUDA_MEMCPY3D& box) {
  const CUdeviceptr start = type == CU_MEMORYTYPE_HOST ? reinterpret_cast<CUdeviceptr>(host) : device;
  if (box.Height <= 1 && box.Depth <= 1 && pitch == 0) pitch = x + box.WidthInBytes;
  const size_t slice = pitch * (height ? height : box.Height);
  if (type == CU_MEMORYTYPE_UNIFIED) {
    type = is_device_memory(reinterpret_cast<void*>(start)) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
  }
  return {type, reinterpret_cast<char*>(start) + z * slice + y * pitch + x, pitch, slice};
}

Side source(const CUDA_MEMCPY3D& p) {
  return make_side(p.srcMemoryType, p.srcHost, p.srcDevice, p.srcPitch, p.srcHeight, p.srcXInBytes, p.srcY, p.srcZ, p);
}

Side destination(const CUDA_MEMCPY3D& p) {
  return make_side(p.dstMemoryType, p.dstHost, p.dstDevice, p.dstPitch, p.dstHeight, p.dstXInBytes, p.dstY, p.dstZ, p);
}

bool empty(const CUDA_MEMCPY3D& p) {
  return p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0;
}

// From the box's first byte to behind its last one.
size_t extent(const Side& side, const CUDA_MEMCPY3D& p) {
  return (p.Depth - 1) * side.slice + (p.Height - 1) * side.pitch + p.WidthInBytes;
}

void validate_side(CUmemorytype type, const Side& side, size_t x, const CUDA_MEMCPY3D& p) {
  if (type == CU_MEMORYTYPE_ARRAY) refuse(CUDA_ERROR_NOT_SUPPORTED, "copies of CUDA arrays are not emulated");
  require(type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED);
  require(p.Height <= 1 || side.pitch >= x + p.WidthInBytes);
  require(side.first);
  if (side.device()) check_device_range(reinterpret_cast<CUdeviceptr>(side.first), extent(side, p));
}

bool pageable(const Side& side, const CUDA_MEMCPY3D& p) {
  return !side.device() && !find_host(side.first, extent(side, p));
}

// Memory may have been freed, in stream order, since the copy was enqueued.
void check_alive(const Side& side, const CUDA_MEMCPY3D& p, const std::shared_ptr<Context>& context) {
  if (!is_device_memory(side.first) || device_find(side.first, extent(side, p), nullptr, nullptr, nullptr)) return;
  throw WorkFailure{context, CUDA_ERROR_ILLEGAL_ADDRESS,
                    "a copy touches memory that was freed while it waited: " + describe_neighbourhood(side.first)};
}

}  // namespace

void check_device_range(CUdeviceptr address, size_t bytes) {
  const void* start = reinterpret_cast<const void*>(address);
  int device = kHostDevice;
  if (device_find(start, bytes, nullptr, nullptr, &device)) {
    if (device != kHostDevice && state().device(device).gone()) refuse(CUDA_ERROR_UNKNOWN);
    return;
  }
  if (find_host(start, bytes)) return;
  refuse(CUDA_ERROR_INVALID_VALUE, "%zu bytes at 0x%llx are not in one allocation: %s", bytes, address,
         describe_neighbourhood(start).c_str());
}

CopyWork::CopyWork(const CUDA_MEMCPY3D& params, std::shared_ptr<Context> context, std::shared_ptr<std::vector<char>> staged)
    : params(params),
      context(std::move(context)),
      from(owner_of(source(params).first)),
      to(owner_of(destination(params).first)),
      staged_(std::move(staged)) {}

void validate(const CUDA_MEMCPY3D& params) {
  if (params.srcLOD || params.dstLOD) refuse(CUDA_ERROR_INVALID_VALUE);
  if (empty(params)) return;
  validate_side(params.srcMemoryType, source(params), params.srcXInBytes, params);
  validate_side(params.dstMemoryType, destination(params), params.dstXInBytes, params);
}

Owner owner_of(const void* address) {
  if (const Allocation* allocation = find_allocation(reinterpret_cast<CUdeviceptr>(address))) {
    return {allocation->device->index, allocation->context.get()};
  }
  if (const HostRange* range = find_host(address, 1)) return {range->context->device->index, range->context.get()};
  return {kHostDevice, nullptr};
}

void validate_change(const CopyWork& before, const CopyWork& after) {
  for (const CUDA_MEMCPY3D* p : {&before.params, &after.params}) {
    if (p->Height == 1 && p->Depth == 1) continue;
    refuse(CUDA_ERROR_INVALID_VALUE, "a copy of several rows in an executable graph cannot change");
  }
  if (before.from != after.from || before.to != after.to) {
    refuse(CUDA_ERROR_INVALID_VALUE,
           "a copy in an executable graph cannot change to memory of another context, or between pools and cuMemAlloc");
  }
}

bool from_pageable(const CUDA_MEMCPY3D& params) {
  return !empty(params) && pageable(source(params), params);
}

bool to_pageable(const CUDA_MEMCPY3D& params) {
  return !empty(params) && pageable(destination(params), params);
}

void CopyWork::run(Site&) const {
  if (empty(params)) return;
  const Side from = source(params), to = destination(params);
  check_alive(from, params, context);
  check_alive(to, params, context);
  const size_t width = params.WidthInBytes;
  for (size_t z = 0; z < params.Depth; ++z) {
    for (size_t y = 0; y < params.Height; ++y) {
      char* row = to.first + z * to.slice + y * to.pitch;
      memmove(row, from.first + z * from.slice + y * from.pitch, width);
      define_device_bytes(row, width);
    }
  }
}

}  // namespace emu::driver
