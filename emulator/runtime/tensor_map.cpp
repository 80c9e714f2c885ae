// Encoding of tensor maps; the rules are those of the driver API, section "Tensor Map Object Management".
#include "tensor_map.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace emu {
namespace {

constexpr uint64_t kMagic = 0x5450414d55434445;          // no valid map of a real driver begins like this
constexpr uint64_t kMaxDim = 1ull << 32, kMaxStride = 1ull << 40;
constexpr uint32_t kMaxBox = 256, kMaxElementStride = 8, kMaxChannels = 256, kMaxPixels = 1024;
constexpr uint32_t kUnit = 16;                           // bytes: of addresses, strides and rows of a box

std::string numbered(const char* name, uint32_t index) { return std::string(name) + "[" + std::to_string(index) + "]"; }

bool aligned(const void* p, uintptr_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; }

bool is_float(TensorType type) { return type >= TensorType::kF16; }

uint32_t swizzle_bytes(Swizzle swizzle) { return kUnit << static_cast<uint32_t>(swizzle); }

std::string check_enums(const TensorLayout& layout) {
  if (layout.type > 15) return "tensorDataType " + std::to_string(layout.type) + " is no CUtensorMapDataType";
  if (layout.type > static_cast<uint32_t>(TensorType::kTF32Ftz)) {
    return "not emulated: the packed 4-bit and 6-bit tensorDataType (compute capability 10.0)";
  }
  if (layout.interleave > 2) return "interleave " + std::to_string(layout.interleave) + " is no CUtensorMapInterleave";
  if (layout.interleave && layout.rank < 3) return "interleave needs a tensorRank of 3 or more";
  if (layout.interleave) return "not emulated: CU_TENSOR_MAP_INTERLEAVE_16B and _32B";
  if (layout.swizzle > 6) return "swizzle " + std::to_string(layout.swizzle) + " is no CUtensorMapSwizzle";
  if (layout.swizzle > static_cast<uint32_t>(Swizzle::k128)) {
    return "not emulated: CU_TENSOR_MAP_SWIZZLE_128B_ATOM_* (compute capability 10.0)";
  }
  if (layout.promotion > 3) return "l2Promotion " + std::to_string(layout.promotion) + " is no CUtensorMapL2promotion";
  if (layout.fill > 1) return "oobFill " + std::to_string(layout.fill) + " is no CUtensorMapFloatOOBfill";
  if (layout.fill && !is_float(static_cast<TensorType>(layout.type))) {
    return "CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA needs a floating-point tensorDataType";
  }
  return "";
}

std::string check_layout(const TensorLayout& layout, uint32_t min_rank, const void* map) {
  if (!map) return "tensorMap is null";  // wherever it lies: an H200's driver does not ask for the alignment that cuda.h gives it
  if (std::string problem = check_enums(layout); !problem.empty()) return problem;
  if (layout.rank < min_rank || layout.rank > kMaxTensorRank) {
    return "tensorRank " + std::to_string(layout.rank) + " is not in " + std::to_string(min_rank) + "..5";
  }
  if (!layout.address || !aligned(layout.address, kUnit)) return "globalAddress must be 16-byte aligned and not null";
  if (!layout.dims || !layout.element_strides || (layout.rank > 1 && !layout.strides)) return "a null array";
  for (uint32_t i = 0; i < layout.rank; ++i) {
    if (layout.dims[i] == 0 || layout.dims[i] > kMaxDim) return numbered("globalDim", i) + " is not in 1..2^32";
    const uint32_t step = layout.element_strides[i];
    if (step == 0 || step > kMaxElementStride) return numbered("elementStrides", i) + " is not in 1..8";
  }
  for (uint32_t i = 0; i + 1 < layout.rank; ++i) {
    if (layout.strides[i] % kUnit) return numbered("globalStrides", i) + " is not a multiple of 16";
    if (layout.strides[i] >= kMaxStride) return numbered("globalStrides", i) + " is not below 2^40";
  }
  return "";
}

// `row`: bytes of the box along dimension 0, by the name of the argument that says so.
std::string check_row(const char* name, uint64_t row, uint32_t swizzle) {
  if (row % kUnit) return std::string(name) + " times the element size is " + std::to_string(row) + ", not a multiple of 16 bytes";
  if (swizzle && row > swizzle_bytes(static_cast<Swizzle>(swizzle))) {
    return std::string(name) + " times the element size is " + std::to_string(row) + ", more than the " +
           std::to_string(swizzle_bytes(static_cast<Swizzle>(swizzle))) + " bytes of the swizzle";
  }
  return "";
}

TensorMap map_of(const TensorLayout& layout, TensorMode mode) {
  TensorMap map{};
  map.magic = kMagic;
  map.address = reinterpret_cast<uintptr_t>(layout.address);
  for (uint32_t i = 0; i < layout.rank; ++i) {
    map.dims[i] = layout.dims[i];
    map.element_strides[i] = static_cast<uint8_t>(layout.element_strides[i]);
    if (i) map.strides[i - 1] = layout.strides[i - 1];
  }
  map.rank = static_cast<uint8_t>(layout.rank);
  map.type = static_cast<TensorType>(layout.type);
  map.swizzle = static_cast<Swizzle>(layout.swizzle);
  map.fill = static_cast<OutOfBounds>(layout.fill);
  map.mode = mode;
  return map;
}

// Corners are 16 bits in all three dimensions together, fewer for each with every one more.
std::string check_corners(const TensorLayout& layout, const int* lower, const int* upper) {
  const uint32_t images = layout.rank - 2;
  const int bits = images == 1 ? 16 : images == 2 ? 8 : 5, limit = 1 << (bits - 1);
  for (uint32_t i = 0; i < images; ++i) {
    const std::string range = " is not in " + std::to_string(-limit) + ".." + std::to_string(limit - 1);
    if (lower[i] < -limit || lower[i] >= limit) return numbered("pixelBoxLowerCorner", i) + range;
    if (upper[i] < -limit || upper[i] >= limit) return numbered("pixelBoxUpperCorner", i) + range;
    if (static_cast<int64_t>(layout.dims[1 + i]) + upper[i] - lower[i] <= 0) {
      return "the bounding box is empty: " + numbered("pixelBoxUpperCorner", i) + " lies below " +
             numbered("pixelBoxLowerCorner", i);
    }
  }
  return "";
}

}  // namespace

std::string encode_tiled(const TensorLayout& layout, const uint32_t* box, void* map) {
  if (std::string problem = check_layout(layout, 1, map); !problem.empty()) return problem;
  if (!box) return "a null array";
  for (uint32_t i = 0; i < layout.rank; ++i) {
    if (box[i] == 0 || box[i] > kMaxBox) return numbered("boxDim", i) + " is not in 1..256";
  }
  TensorMap made = map_of(layout, TensorMode::kTiled);
  const uint32_t row = box[0] * element_bytes(made.type);
  if (std::string problem = check_row("boxDim[0]", row, layout.swizzle); !problem.empty()) return problem;
  std::copy_n(box, layout.rank, made.box);
  memcpy(map, &made, sizeof made);
  return "";
}

std::string encode_im2col(const TensorLayout& layout, const int* lower_corner, const int* upper_corner, uint32_t channels_per_pixel,
                          uint32_t pixels_per_column, void* map) {
  if (std::string problem = check_layout(layout, 3, map); !problem.empty()) return problem;
  if (!lower_corner || !upper_corner) return "a null array";
  if (std::string problem = check_corners(layout, lower_corner, upper_corner); !problem.empty()) return problem;
  if (channels_per_pixel == 0 || channels_per_pixel > kMaxChannels) return "channelsPerPixel is not in 1..256";
  if (pixels_per_column == 0 || pixels_per_column > kMaxPixels) return "pixelsPerColumn is not in 1..1024";
  TensorMap made = map_of(layout, TensorMode::kIm2col);
  const uint32_t row = channels_per_pixel * element_bytes(made.type);
  if (std::string problem = check_row("channelsPerPixel", row, layout.swizzle); !problem.empty()) return problem;
  std::copy_n(lower_corner, layout.rank - 2, made.lower);
  std::copy_n(upper_corner, layout.rank - 2, made.upper);
  made.channels = static_cast<uint16_t>(channels_per_pixel);
  made.pixels = static_cast<uint16_t>(pixels_per_column);
  memcpy(map, &made, sizeof made);
  return "";
}

std::string replace_address(void* map, const void* address) {
  if (!map) return "tensorMap is null";
  if (!is_tensor_map(map)) return "tensorMap was never encoded";
  if (!address || !aligned(address, kUnit)) return "globalAddress must be 16-byte aligned and not null";
  memcpy(static_cast<char*>(map) + offsetof(TensorMap, address), &address, sizeof address);
  return "";
}

bool is_tensor_map(const void* map) {
  uint64_t magic;
  memcpy(&magic, map, sizeof magic);
  return magic == kMagic;
}

uint32_t element_bytes(TensorType type) {
  static constexpr uint8_t kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return kBytes[static_cast<size_t>(type)];
}

}  // namespace emu
