// Boxes of tensors: see tensor_box.h.
#include "tensor_box.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace emu {
namespace {

void clip_rows(const TensorMap& map, int64_t first, uint32_t elements, Box& box) {
  const int64_t from = std::max<int64_t>(first, 0), to = std::min<int64_t>(first + elements, static_cast<int64_t>(map.dims[0]));
  box.first = first;
  box.row_elements = elements;
  box.skip = to > from ? static_cast<uint32_t>(from - first) : 0;
  box.count = to > from ? static_cast<uint32_t>(to - from) : 0;
}

bool inside(const TensorMap& map, uint32_t dim, int64_t coordinate) {
  return coordinate >= 0 && coordinate < static_cast<int64_t>(map.dims[dim]);
}

float round_to_tf32(float value) {  // to nearest even in 10 bits of mantissa; infinities and NaNs stay
  if (!std::isfinite(value)) return value;
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

// Found by probing an H200 (driver 580.159.04), where each of these ends in CUDA_ERROR_ILLEGAL_INSTRUCTION. Neither 5.5 nor
// 9.7.9.27 of the PTX ISA knows them. Boxes that begin before the tensor are fine for loads, and those beyond its end for stores as
// well. Prefetches were not probed: they are held to the rule of the loads that they announce.
std::string refused_place(const TensorMap& map, const int32_t* coordinates, TensorUse use) {
  constexpr int64_t kUnit = 16;  // bytes
  const auto named = [&](uint32_t dim) { return "coordinate " + std::to_string(dim) + " is " + std::to_string(coordinates[dim]); };
  const int64_t inner = coordinates[0] * static_cast<int64_t>(element_bytes(map.type));
  if (inner % kUnit) {
    return named(0) + ", which is " + std::to_string(inner) + " bytes: an H200 refuses what is not a multiple of 16";
  }
  if (use != TensorUse::kStore) return "";
  for (uint32_t dim = 0; dim < map.rank; ++dim) {
    if (coordinates[dim] < 0) return named(dim) + ": an H200 refuses stores and reductions before the start of the tensor";
  }
  if (map.mode == TensorMode::kTiled) return "";
  for (uint32_t i = 0; i + 2 < map.rank; ++i) {
    if (map.lower[i] < 0) {
      return "pixelBoxLowerCorner[" + std::to_string(i) + "] is " + std::to_string(map.lower[i]) +
             ": an H200 refuses im2col stores through a map with a negative one";
    }
  }
  return "";
}

// 5.5.3.2: a box of b elements with a traversal stride of s has ceil(b / s) of them. Dimension 0 has no stride.
std::string tiled_box(const TensorMap& map, const int32_t* coordinates, Box& box) {
  clip_rows(map, coordinates[0], map.box[0], box);
  uint32_t size[kMaxTensorRank] = {1, 1, 1, 1, 1}, index[kMaxTensorRank] = {};
  size_t rows = 1;
  for (uint32_t dim = 1; dim < map.rank; ++dim) {
    size[dim] = (map.box[dim] + map.element_strides[dim] - 1u) / map.element_strides[dim];
    rows *= size[dim];
  }
  box.rows.clear();
  box.rows.reserve(rows);
  for (size_t row = 0; row < rows; ++row) {
    BoxRow at{0, true};
    for (uint32_t dim = 1; dim < map.rank; ++dim) {
      const int64_t coordinate = coordinates[dim] + static_cast<int64_t>(index[dim]) * map.element_strides[dim];
      at.inside &= inside(map, dim, coordinate);
      at.offset += coordinate * static_cast<int64_t>(map.strides[dim - 1]);
    }
    box.rows.push_back(at);
    for (uint32_t dim = 1; dim < map.rank && ++index[dim] == size[dim]; ++dim) index[dim] = 0;
  }
  return "";
}

// 5.5.4: the filter's base walks through the bounding box, W first, then H, D and the next image; each pixel of the column lies at
// the base plus the offsets of the filter's position. The number of pixels does not depend on the traversal strides.
std::string im2col_box(const TensorMap& map, const int32_t* coordinates, const uint16_t* offsets, Box& box) {
  const uint32_t images = map.rank - 2u, batch = map.rank - 1u;
  const uint32_t offset_limit = images == 1 ? 1u << 16 : images == 2 ? 1u << 8 : 1u << 5;
  int64_t base[kMaxImageRank], lower[kMaxImageRank], upper[kMaxImageRank], offset[kMaxImageRank] = {};
  for (uint32_t i = 0; i < images; ++i) {
    base[i] = coordinates[1 + i];
    lower[i] = map.lower[i];
    upper[i] = static_cast<int64_t>(map.dims[1 + i]) - 1 + map.upper[i];
    if (offsets) offset[i] = offsets[i];
    if (offset[i] >= offset_limit) {
      return "im2col offset " + std::to_string(offset[i]) + " is not below " + std::to_string(offset_limit) +
             " in a tensor of rank " + std::to_string(map.rank);
    }
    if (base[i] < lower[i] || base[i] > upper[i]) {
      return "coordinate " + std::to_string(1 + i) + " is " + std::to_string(base[i]) + ", outside of the bounding box " +
             std::to_string(lower[i]) + ".." + std::to_string(upper[i]);
    }
  }
  if (map.element_strides[batch] != 1) return "not emulated: im2col with a traversal stride between images";
  clip_rows(map, coordinates[0], map.channels, box);
  int64_t image = coordinates[batch];
  box.rows.clear();
  box.rows.reserve(map.pixels);
  for (uint32_t pixel = 0; pixel < map.pixels; ++pixel) {
    BoxRow at{image * static_cast<int64_t>(map.strides[batch - 1]), inside(map, batch, image)};
    for (uint32_t i = 0; i < images; ++i) {
      at.inside &= inside(map, 1 + i, base[i] + offset[i]);
      at.offset += (base[i] + offset[i]) * static_cast<int64_t>(map.strides[i]);
    }
    box.rows.push_back(at);
    uint32_t i = 0;
    for (; i < images; ++i) {
      base[i] += map.element_strides[1 + i];
      if (base[i] <= upper[i]) break;
      base[i] = lower[i];
    }
    if (i == images) ++image;
  }
  return "";
}

// Bits 4.. of an address, the 16-byte chunk, are exclusive-ored with bits 7.., the 128-byte line.
uint32_t swizzled(uint32_t address, Swizzle swizzle) {
  const uint32_t lines = (1u << static_cast<uint32_t>(swizzle)) - 1;  // 0, 1, 3, 7
  return address ^ (address >> 7 & lines) << 4;
}

bool fills_swizzle(uint32_t row_bytes, Swizzle swizzle) {
  return swizzle == Swizzle::kNone || row_bytes == 16u << static_cast<uint32_t>(swizzle);
}

void convert_loaded(void* elements, uint32_t count, TensorType type) {
  const bool flushes = type == TensorType::kF32Ftz || type == TensorType::kTF32Ftz;
  const bool rounds = type == TensorType::kTF32 || type == TensorType::kTF32Ftz;
  if (!flushes && !rounds) return;
  for (uint32_t i = 0; i < count; ++i) {
    char* at = static_cast<char*>(elements) + i * sizeof(float);
    float value;
    memcpy(&value, at, sizeof value);
    if (flushes && std::fpclassify(value) == FP_SUBNORMAL) value = std::copysign(0.0f, value);
    if (rounds) value = round_to_tf32(value);
    memcpy(at, &value, sizeof value);
  }
}

void fill_outside(void* elements, uint32_t count, TensorType type, OutOfBounds fill) {
  const size_t size = element_bytes(type);
  if (fill == OutOfBounds::kZero) {
    memset(elements, 0, count * size);
    return;
  }
  // The special NaN: a quiet one with every bit of the mantissa set.
  memset(elements, 0xff, count * size);
  for (uint32_t i = 0; i < count; ++i) static_cast<unsigned char*>(elements)[(i + 1) * size - 1] = 0x7f;
}

}  // namespace emu
