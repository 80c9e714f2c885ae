// The entry points of copies (driver API, "Memory Management", and "API synchronization behavior" for what waits).
#include <cstring>

#include "capture.h"
#include "copy.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {
namespace {

CUDA_MEMCPY3D line(size_t bytes) {
  CUDA_MEMCPY3D params{};
  params.WidthInBytes = bytes;
  params.Height = params.Depth = 1;
  return params;
}

CUDA_MEMCPY3D host_to_device(CUdeviceptr to, const void* from, size_t bytes) {
  CUDA_MEMCPY3D params = line(bytes);
  params.srcMemoryType = CU_MEMORYTYPE_HOST;
  params.srcHost = from;
  params.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  params.dstDevice = to;
  return params;
}

CUDA_MEMCPY3D device_to_host(void* to, CUdeviceptr from, size_t bytes) {
  CUDA_MEMCPY3D params = line(bytes);
  params.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  params.srcDevice = from;
  params.dstMemoryType = CU_MEMORYTYPE_HOST;
  params.dstHost = to;
  return params;
}

CUDA_MEMCPY3D between(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUmemorytype type) {
  CUDA_MEMCPY3D params = line(bytes);
  params.srcMemoryType = params.dstMemoryType = type;
  params.srcDevice = from;
  params.dstDevice = to;
  return params;
}

// The fields that CUDA_MEMCPY2D and CUDA_MEMCPY3D_PEER share with CUDA_MEMCPY3D.
template <class Source>
CUDA_MEMCPY3D plane(const Source& p) {
  CUDA_MEMCPY3D params{};
  params.srcXInBytes = p.srcXInBytes;
  params.srcY = p.srcY;
  params.srcMemoryType = p.srcMemoryType;
  params.srcHost = p.srcHost;
  params.srcDevice = p.srcDevice;
  params.srcPitch = p.srcPitch;
  params.dstXInBytes = p.dstXInBytes;
  params.dstY = p.dstY;
  params.dstMemoryType = p.dstMemoryType;
  params.dstHost = p.dstHost;
  params.dstDevice = p.dstDevice;
  params.dstPitch = p.dstPitch;
  params.WidthInBytes = p.WidthInBytes;
  params.Height = p.Height;
  params.Depth = 1;
  return params;
}

CUDA_MEMCPY3D box(const CUDA_MEMCPY3D_PEER& p) {
  CUDA_MEMCPY3D params = plane(p);
  params.srcZ = p.srcZ;
  params.srcLOD = p.srcLOD;
  params.srcHeight = p.srcHeight;
  params.dstZ = p.dstZ;
  params.dstLOD = p.dstLOD;
  params.dstHeight = p.dstHeight;
  params.Depth = p.Depth;
  return params;
}

// A pageable source is read before an asynchronous call returns: its rows, packed, become the source.
std::shared_ptr<std::vector<char>> stage(CUDA_MEMCPY3D& p) {
  const size_t height = p.Height, width = p.WidthInBytes;
  const char* from =
      static_cast<const char*>(p.srcMemoryType == CU_MEMORYTYPE_HOST ? p.srcHost : reinterpret_cast<void*>(p.srcDevice));
  auto staged = std::make_shared<std::vector<char>>(width * height * p.Depth);
  char* to = staged->data();
  for (size_t z = 0; z < p.Depth; ++z) {
    for (size_t y = 0; y < height; ++y, to += width) {
      const size_t row = (p.srcZ + z) * (p.srcHeight ? p.srcHeight : height) + p.srcY + y;
      memcpy(to, from + row * p.srcPitch + p.srcXInBytes, width);
    }
  }
  p.srcMemoryType = CU_MEMORYTYPE_HOST;
  p.srcHost = staged->data();
  p.srcXInBytes = p.srcY = p.srcZ = 0;
  p.srcPitch = width;
  p.srcHeight = height;
  return staged;
}

bool touches_host(const CUDA_MEMCPY3D& p) {
  return p.srcMemoryType == CU_MEMORYTYPE_HOST || p.dstMemoryType == CU_MEMORYTYPE_HOST || from_pageable(p) || to_pageable(p);
}

// On the legacy stream; waits unless both sides are on a device.
CUresult copy_now(const CUDA_MEMCPY3D& params) {
  return entry([&](Lock& lock) {
    const auto context = working_context();
    validate(params);
    const auto work = std::make_shared<CopyWork>(params, context, nullptr);
    if (touches_host(params)) {
      run_now(lock, work);
    } else {
      submit(context->null_stream, work);
    }
  });
}

CUresult copy_async(const CUDA_MEMCPY3D& wanted, CUstream handle) {
  return entry([&](Lock& lock) {
    CUDA_MEMCPY3D params = wanted;
    const auto stream = stream_of(working_context(), handle);
    validate(params);
    const bool captured = stream->capture != nullptr;  // a graph reads its sources when it runs
    std::shared_ptr<std::vector<char>> staged;
    if (!captured && from_pageable(params)) staged = stage(params);
    const auto operation = submit(stream, std::make_shared<CopyWork>(params, stream->context, staged));
    if (captured || !to_pageable(params)) return;
    wait_for_operation(lock, operation);  // a copy to pageable memory has happened when the call returns
    stream->context->check();
  });
}

// Waits for all earlier work of both contexts, and for the copy: stricter than the driver, which lets the host run on.
void copy_between_contexts(Lock& lock, const CUDA_MEMCPY3D& params, CUcontext to, CUcontext from) {
  const auto context = working_context();
  for (CUcontext handle : {to, from}) {
    const auto other = state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT);
    other->check();
    refuse_if_captured(*other);
    wait_for_context(lock, *other);
    other->check();
  }
  validate(params);
  run_now(lock, std::make_shared<CopyWork>(params, context, nullptr));
}

}  // namespace

std::shared_ptr<const CopyWork> make_copy_node(const CUDA_MEMCPY3D* params, const std::shared_ptr<Context>& context) {
  require(params && params->WidthInBytes && params->Height && params->Depth);
  validate(*params);
  return std::make_shared<CopyWork>(*params, context, nullptr);
}

CUDA_MEMCPY3D copy_node_params(const CopyWork& work) {
  return work.params;
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  return copy_now(host_to_device(to, from, bytes));
}

CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  return copy_now(device_to_host(to, from, bytes));
}

CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now(between(to, from, bytes, CU_MEMORYTYPE_DEVICE));
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  return copy_now(between(to, from, bytes, CU_MEMORYTYPE_UNIFIED));
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copy_async(host_to_device(to, from, bytes), stream);
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(device_to_host(to, from, bytes), stream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(between(to, from, bytes, CU_MEMORYTYPE_DEVICE), stream);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy_async(between(to, from, bytes, CU_MEMORYTYPE_UNIFIED), stream);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D* params) {
  return params ? copy_now(plane(*params)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* params) {
  return params ? copy_now(plane(*params)) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* params, CUstream stream) {
  return params ? copy_async(plane(*params), stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D* params) {
  return params ? copy_now(*params) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D* params, CUstream stream) {
  return params ? copy_async(*params, stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes) {
  return entry(
      [&](Lock& lock) { copy_between_contexts(lock, between(to, from, bytes, CU_MEMORYTYPE_DEVICE), to_context, from_context); });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes, CUstream stream) {
  return copy_async(between(to, from, bytes, CU_MEMORYTYPE_DEVICE), stream);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* params) {
  return entry([&](Lock& lock) {
    require(params);
    copy_between_contexts(lock, box(*params), params->dstContext, params->srcContext);
  });
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* params, CUstream stream) {
  return params ? copy_async(box(*params), stream) : CUDA_ERROR_INVALID_VALUE;
}
