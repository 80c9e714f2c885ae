// Memsets (driver API, "Memory Management"). None of them waits.
#include "memset.h"

#include <algorithm>
#include <cstdint>

#include "copy.h"
#include "runtime/memory.h"
#include "state.h"
#include "stream.h"

namespace emu::driver {
namespace {

size_t row_bytes(const CUDA_MEMSET_NODE_PARAMS& p) {
  return p.width * p.elementSize;
}

size_t extent(const CUDA_MEMSET_NODE_PARAMS& p) {
  return (p.height - 1) * p.pitch + row_bytes(p);
}

bool empty(const CUDA_MEMSET_NODE_PARAMS& p) {
  return p.width == 0 || p.height == 0;
}

void validate(const CUDA_MEMSET_NODE_PARAMS& p) {
  require(p.elementSize == 1 || p.elementSize == 2 || p.elementSize == 4);
  require(p.dst % p.elementSize == 0);
  require(p.height <= 1 || (p.pitch >= row_bytes(p) && p.pitch % p.elementSize == 0));
  if (!empty(p)) check_device_range(p.dst, extent(p));
}

template <class Element>
void fill_row(char* row, unsigned value, size_t width) {
  std::fill_n(reinterpret_cast<Element*>(row), width, static_cast<Element>(value));
}

CUresult fill(CUdeviceptr to, size_t pitch, unsigned value, unsigned element, size_t width, size_t height, CUstream handle) {
  return entry([&] {
    const auto stream = stream_of(working_context(), handle);
    const CUDA_MEMSET_NODE_PARAMS params{to, pitch, value, element, width, height};
    validate(params);
    submit(stream, std::make_shared<MemsetWork>(params, stream->context));
  });
}

}  // namespace

void validate_change(const MemsetWork& before, const MemsetWork& after) {
  const CUDA_MEMSET_NODE_PARAMS &old = before.params, &wanted = after.params;
  const bool same_box = old.width == wanted.width && old.elementSize == wanted.elementSize && old.pitch == wanted.pitch;
  if (old.height != wanted.height || (old.height > 1 && !same_box)) {
    refuse(CUDA_ERROR_INVALID_VALUE, "a memset in an executable graph cannot change its number of rows, or a box of several");
  }
}

void MemsetWork::run(Site&) const {
  if (empty(params)) return;
  char* first = reinterpret_cast<char*>(params.dst);
  if (is_device_memory(first) && !device_find(first, extent(params), nullptr, nullptr, nullptr)) {
    throw WorkFailure{context, CUDA_ERROR_ILLEGAL_ADDRESS, "a memset of memory that was freed while it waited"};
  }
  for (size_t y = 0; y < params.height; ++y) {
    char* row = first + y * params.pitch;
    switch (params.elementSize) {
      case 1: fill_row<uint8_t>(row, params.value, params.width); break;
      case 2: fill_row<uint16_t>(row, params.value, params.width); break;
      default: fill_row<uint32_t>(row, params.value, params.width); break;
    }
    define_device_bytes(row, row_bytes(params));
  }
}

std::shared_ptr<const MemsetWork> make_memset_node(const CUDA_MEMSET_NODE_PARAMS* params, const std::shared_ptr<Context>& context) {
  require(params && params->width && params->height);
  validate(*params);
  return std::make_shared<MemsetWork>(*params, context);
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) {
  return fill(to, 0, value, 1, count, 1, nullptr);
}

CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) {
  return fill(to, 0, value, 2, count, 1, nullptr);
}

CUresult cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) {
  return fill(to, 0, value, 4, count, 1, nullptr);
}

CUresult cuMemsetD2D8(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
  return fill(to, pitch, value, 1, width, height, nullptr);
}

CUresult cuMemsetD2D16(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
  return fill(to, pitch, value, 2, width, height, nullptr);
}

CUresult cuMemsetD2D32(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
  return fill(to, pitch, value, 4, width, height, nullptr);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fill(to, 0, value, 1, count, 1, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
  return fill(to, 0, value, 2, count, 1, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fill(to, 0, value, 4, count, 1, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream) {
  return fill(to, pitch, value, 1, width, height, stream);
}

CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream) {
  return fill(to, pitch, value, 2, width, height, stream);
}

CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height, CUstream stream) {
  return fill(to, pitch, value, 4, width, height, stream);
}
