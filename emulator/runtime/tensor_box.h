// Which elements of a tensor a copy touches, and where they lie in shared memory: PTX ISA 5.5, tiled mode, im2col mode and
// swizzling modes. Arithmetic only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor_map.h"

namespace emu {

// A row of the box: the elements that lie side by side along dimension 0.
struct BoxRow {
  int64_t offset;   // in bytes from the tensor's address to its element 0 of dimension 0
  bool inside;      // the other coordinates are inside the tensor
};

// The rows in the order in which shared memory holds them, one behind the other.
struct Box {
  std::vector<BoxRow> rows;
  uint32_t row_elements = 0;
  int64_t first = 0;                // coordinate of each row's first element along dimension 0
  uint32_t skip = 0, count = 0;     // elements [skip, skip + count) of a row are inside the tensor along dimension 0
};

// Say what is wrong, or nothing. `offsets` may be null: zeros.
std::string tiled_box(const TensorMap&, const int32_t* coordinates, Box&);
std::string im2col_box(const TensorMap&, const int32_t* coordinates, const uint16_t* offsets, Box&);

enum class TensorUse : uint8_t { kLoad, kPrefetch, kStore };  // kStore: reductions too

// Coordinates that an H200 refuses as an illegal instruction although the ISA does not say so: which rule they break, or nothing.
std::string refused_place(const TensorMap&, const int32_t* coordinates, TensorUse);

// Where the byte lies that an unswizzled copy would put at `address`.
uint32_t swizzled(uint32_t address, Swizzle);

// Bytes of a row under which the swizzle's pattern is known to fit: rows as long as its span.
bool fills_swizzle(uint32_t row_bytes, Swizzle);

// What a copy into shared memory makes of elements, in place: f32 flushed, or rounded to tf32.
void convert_loaded(void* elements, uint32_t count, TensorType);

// `count` elements of what stands for elements outside of the tensor.
void fill_outside(void* elements, uint32_t count, TensorType, OutOfBounds);

}  // namespace emu
