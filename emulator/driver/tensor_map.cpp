// Tensor maps (driver API, "Tensor Map Object Managment"): the rules and the encoding are the runtime's, see runtime/tensor_map.h.
#include "runtime/tensor_map.h"

#include "state.h"

namespace emu::driver {
namespace {

void refuse_broken(const std::string& rule) {
  if (rule.empty()) return;
  const bool unsupported = rule.find("not emulated") != std::string::npos;
  refuse(unsupported ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE, "tensor map: %s", rule.c_str());
}

TensorLayout layout(CUtensorMapDataType type, cuuint32_t rank, const void* address, const cuuint64_t* dims,
                    const cuuint64_t* strides, const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                    CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  require(dims && element_strides && (strides || rank == 1));
  return {static_cast<uint32_t>(type),
          rank,
          address,
          dims,
          strides,
          element_strides,
          static_cast<uint32_t>(interleave),
          static_cast<uint32_t>(swizzle),
          static_cast<uint32_t>(promotion),
          static_cast<uint32_t>(fill)};
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* dims,
                                const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  return entry([&] {
    current_context();  // refuses where there is none, as an H200's driver does
    require(map && box);
    const auto wanted = layout(type, rank, address, dims, strides, element_strides, interleave, swizzle, promotion, fill);
    refuse_broken(emu::encode_tiled(wanted, box, map));
  });
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* dims,
                                 const cuuint64_t* strides, const int* lower, const int* upper, cuuint32_t channels,
                                 cuuint32_t pixels, const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return entry([&] {
    current_context();
    require(map && lower && upper);
    const auto wanted = layout(type, rank, address, dims, strides, element_strides, interleave, swizzle, promotion, fill);
    refuse_broken(emu::encode_im2col(wanted, lower, upper, channels, pixels, map));
  });
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  return entry([&] {
    require(map);
    refuse_broken(emu::replace_address(map, address));
  });
}
