// What an H200 (sm_90) allows: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
#pragma once

#include <cstdint>

namespace emu::driver {

inline constexpr uint32_t kMultiprocessors = 132;
inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kMaxThreads = 1024;  // of a block
inline constexpr uint32_t kMaxBlockZ = 64;
inline constexpr uint32_t kMaxGridX = 2147483647, kMaxGridYZ = 65535;
inline constexpr uint32_t kThreadsPerMultiprocessor = 2048, kBlocksPerMultiprocessor = 32;
inline constexpr uint32_t kRegisters = 65536;        // of a multiprocessor, and of a block
inline constexpr uint32_t kRegistersPerThread = 32;  // reported for every kernel: registers are not emulated, this limits nothing
inline constexpr uint32_t kSharedPerMultiprocessor = 233472;
inline constexpr uint32_t kSharedPerBlock = 49152;  // without opting in
inline constexpr uint32_t kSharedPerBlockOptIn = 232448;
inline constexpr uint32_t kSharedReserved = 1024;  // of each block, by the system
inline constexpr uint32_t kSharedGranularity = 128;  // a guess: an H200 tells 2048 bytes of a kernel that has 2000
inline constexpr uint32_t kPortableCluster = 8, kMaxCluster = 16;
inline constexpr uint32_t kConstantMemory = 65536;
inline constexpr uint32_t kPitchAlignment = 512;

}  // namespace emu::driver
