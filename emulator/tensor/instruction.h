// mma.sync and wgmma as instructions: their names, and which of them sm_90a has and the emulator does.
#pragma once

#include <string>

#include "../abi/emulator.h"

namespace emu {

std::string name_of(const EmuMma&);    // "mma.sync.m16n8k16.f32.bf16.bf16.f32"
std::string name_of(const EmuWgmma&);  // "wgmma.mma_async.m64n128k16.f32.f16.f16"

// Null, or what is wrong with it.
const char* problem_with(const EmuMma&);
const char* problem_with(const EmuWgmma&, bool a_in_registers);

}  // namespace emu
