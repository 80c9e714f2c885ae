// Element-wise reductions of asynchronous copies: which there are, and what they compute. PTX ISA 9.7.9.25.4.2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "../abi/emulator.h"

namespace emu {

enum class ReduceInto : uint8_t { kGlobal, kShared };

// What the ISA has no instruction for, in words; empty: it has one.
std::string check_reduction(EmuReduce, EmuType, ReduceInto);

uint32_t element_bytes(EmuType);

// destination[i] = destination[i] op source[i], over `bytes` of elements. Additions round to nearest even, those of f32 flush
// subnormals.
void reduce_elements(void* destination, const void* source, size_t bytes, EmuReduce, EmuType);

}  // namespace emu
