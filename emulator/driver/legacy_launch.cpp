// Launches in the manner of CUDA 3 (driver API, "Execution Control [DEPRECATED]"): the block's shape and the parameters are set one
// by one. PyCUDA sets the shape of a block before each launch of the newer kind.
#include <cstring>

#include "launch.h"
#include "module.h"
#include "stream.h"

namespace emu::driver {
namespace {

CUresult set_param(CUfunction handle, int offset, const void* value, size_t bytes) {
  return entry([&] {
    require(offset >= 0 && value);
    std::vector<char>& params = function_of(handle)->legacy.params;
    const size_t start = static_cast<size_t>(offset);
    if (params.size() < start + bytes) params.resize(start + bytes);
    memcpy(params.data() + start, value, bytes);
  });
}

CUresult launch_grid(CUfunction handle, int width, int height, CUstream stream) {
  return entry([&] {
    require(width > 0 && height > 0);
    working_context();
    const auto function = function_of(handle);
    LegacyLaunch& legacy = function->legacy;
    LaunchShape shape;
    shape.grid = {static_cast<uint32_t>(width), static_cast<uint32_t>(height), 1};
    shape.block = legacy.block;
    shape.dynamic_shared = legacy.dynamic_shared;
    size_t bytes = legacy.params.size();
    void* buffer[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, legacy.params.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                      CU_LAUNCH_PARAM_END};
    launch(function, shape, stream, nullptr, buffer);
  });
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuFuncSetBlockShape(CUfunction handle, int x, int y, int z) {
  return entry([&] {
    const auto function = function_of(handle);
    require(x > 0 && y > 0 && z > 0);
    const EmuDim block{static_cast<uint32_t>(x), static_cast<uint32_t>(y), static_cast<uint32_t>(z)};
    validate_block(*function->kernel, block);
    function->legacy.block = block;
  });
}

CUresult cuFuncSetSharedSize(CUfunction handle, unsigned bytes) {
  return entry([&] { function_of(handle)->legacy.dynamic_shared = bytes; });
}

CUresult cuParamSetSize(CUfunction handle, unsigned bytes) {
  return entry([&] { function_of(handle)->legacy.params.resize(bytes); });
}

CUresult cuParamSeti(CUfunction handle, int offset, unsigned value) {
  return set_param(handle, offset, &value, sizeof value);
}

CUresult cuParamSetf(CUfunction handle, int offset, float value) {
  return set_param(handle, offset, &value, sizeof value);
}

CUresult cuParamSetv(CUfunction handle, int offset, void* value, unsigned bytes) {
  return set_param(handle, offset, value, bytes);
}

CUresult cuLaunch(CUfunction handle) {
  return launch_grid(handle, 1, 1, nullptr);
}

CUresult cuLaunchGrid(CUfunction handle, int width, int height) {
  return launch_grid(handle, width, height, nullptr);
}

CUresult cuLaunchGridAsync(CUfunction handle, int width, int height, CUstream stream) {
  return launch_grid(handle, width, height, stream);
}
