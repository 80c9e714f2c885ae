// Tensor maps: what cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col write into the 128 opaque bytes of a CUtensorMap, and the
// rules of the driver API for their arguments.
#pragma once

#include <cstdint>
#include <string>

namespace emu {

enum class TensorType : uint8_t {  // numbered as CUtensorMapDataType
  kU8,
  kU16,
  kU32,
  kS32,
  kU64,
  kS64,
  kF16,
  kF32,
  kF64,
  kBF16,
  kF32Ftz,
  kTF32,
  kTF32Ftz,
};

enum class Swizzle : uint8_t { kNone, k32, k64, k128 };  // numbered as CUtensorMapSwizzle
enum class OutOfBounds : uint8_t { kZero, kNan };        // numbered as CUtensorMapFloatOOBfill
enum class TensorMode : uint8_t { kTiled, kIm2col };

inline constexpr uint32_t kMaxTensorRank = 5;
inline constexpr uint32_t kMaxImageRank = 3;   // of im2col's bounding box: W, H, D

// Dimension 0 is the innermost one; im2col: C, W, H, D, N, or fewer of W, H, D.
struct alignas(64) TensorMap {
  uint64_t magic;                              // tells an encoded map from other bytes
  uint64_t address;
  uint64_t dims[kMaxTensorRank];
  uint64_t strides[kMaxTensorRank - 1];        // of dimensions 1..., in bytes
  uint16_t box[kMaxTensorRank];                // tiled
  uint8_t element_strides[kMaxTensorRank];
  uint8_t rank;
  TensorType type;
  Swizzle swizzle;
  OutOfBounds fill;
  TensorMode mode;
  int16_t lower[kMaxImageRank], upper[kMaxImageRank];  // im2col: corners of the bounding box, in W, H, D
  uint16_t channels, pixels;                   // im2col: per pixel, per column
  uint32_t unused;
};
static_assert(sizeof(TensorMap) == 128);

// The arguments that both functions of the driver API have, in its order and with its enums' values.
struct TensorLayout {
  uint32_t type, rank;
  const void* address;
  const uint64_t* dims;
  const uint64_t* strides;
  const uint32_t* element_strides;
  uint32_t interleave, swizzle, promotion, fill;
};

// Write a CUtensorMap, or say which rule the arguments break (CUDA_ERROR_INVALID_VALUE) or what is not emulated.
std::string encode_tiled(const TensorLayout&, const uint32_t* box, void* map);
std::string encode_im2col(const TensorLayout&, const int* lower_corner, const int* upper_corner, uint32_t channels_per_pixel,
                          uint32_t pixels_per_column, void* map);
std::string replace_address(void* map, const void* address);   // cuTensorMapReplaceAddress

bool is_tensor_map(const void* map);
uint32_t element_bytes(TensorType);

}  // namespace emu
