// A module written by hand, so that tests of the driver need neither nvcc nor the translator.
#include "abi/emulator.h"

namespace {

template <class Value>
Value param(const char* params, uint32_t offset) {
  Value value;
  __builtin_memcpy(&value, params + offset, sizeof value);
  return value;
}

uint32_t global_index(const EmuThread* t) {
  return t->ctaid.x * t->ntid.x + t->tid.x;
}

// void scale(float* x, float factor, int n)
void scale(EmuThread* t, const char* params) {
  const uint32_t i = global_index(t);
  if (i < param<uint32_t>(params, 12)) param<float*>(params, 0)[i] *= param<float>(params, 8);
}

// void shape(int* out): what the first thread of each block sees.
void shape(EmuThread* t, const char* params) {
  int* out = param<int*>(params, 0) + 4 * t->ctaid.x;
  if (t->tid.x) return;
  out[0] = static_cast<int>(t->cluster_ctarank);
  out[1] = static_cast<int>(t->cluster_nctarank);
  out[2] = static_cast<int>(t->dynamic_bytes);
  out[3] = static_cast<int>(t->device);
}

// void read_globals(int* out): counter, and table[1] through the pointer to it.
void read_globals(EmuThread* t, const char* params) {
  int* out = param<int*>(params, 0);
  out[0] = *reinterpret_cast<int*>(t->globals[0]);
  out[1] = **reinterpret_cast<int**>(t->globals[2]);
}

// void place(int* out): where the parameters lie, modulo 128.
void place(EmuThread*, const char* params) {
  *param<int*>(params, 0) = static_cast<int>(reinterpret_cast<uintptr_t>(params) % 128);
}

// void broken()
void broken(EmuThread* t, const char*) {
  emu_fail(t, 0, "this kernel always fails");
}

const EmuParam kScale[] = {{0, 8}, {8, 4}, {12, 4}};
const EmuParam kPointer[] = {{0, 8}};

constexpr EmuKernel kernel(const char* name, void (*run)(EmuThread*, const char*), const EmuParam* params, uint32_t count,
                           uint32_t bytes) {
  return {name, run, params, count, bytes, nullptr, 0, 0, kEmuSharedReserved, 16, 0, {0, 0, 0}, {0, 0, 0}, 0};
}

constexpr EmuKernel with_static_shared(EmuKernel k, uint32_t bytes) {
  k.shared_bytes = bytes;
  k.shared_end = kEmuSharedReserved + bytes;
  return k;
}

constexpr EmuKernel for_blocks_of(EmuKernel k, uint32_t threads) {
  k.max_threads = threads;
  return k;
}

constexpr EmuKernel in_clusters_of(EmuKernel k, uint32_t blocks) {
  k.cluster[0] = blocks;
  k.cluster[1] = k.cluster[2] = 1;
  return k;
}

const EmuKernel kKernels[] = {
    kernel("scale", scale, kScale, 3, 16),
    kernel("shape", shape, kPointer, 1, 8),
    kernel("read_globals", read_globals, kPointer, 1, 8),
    kernel("broken", broken, nullptr, 0, 0),
    kernel("place", place, kPointer, 1, 8),
    with_static_shared(kernel("shape_static", shape, kPointer, 1, 8), 4096),
    with_static_shared(kernel("shape_2000", shape, kPointer, 1, 8), 2000),
    for_blocks_of(kernel("shape_64", shape, kPointer, 1, 8), 64),
    in_clusters_of(kernel("shape_pair", shape, kPointer, 1, 8), 2),
};

const int kTable[] = {5, 6, 7};
const EmuRelocation kToTable[] = {{0, 1, 4}};
const EmuGlobal kGlobals[] = {
    {"counter", 4, 4, false, nullptr, nullptr, 0},
    {"table", 12, 4, true, kTable, nullptr, 0},
    {"pointer", 8, 8, false, nullptr, kToTable, 1},
};
const EmuLocation kLocations[] = {{"?", 0, 0}};

}  // namespace

#ifndef EMU_TEST_ABI
#define EMU_TEST_ABI kEmuAbi
#endif
extern "C" __attribute__((visibility("default"))) const EmuModule emu_module = {
    EMU_TEST_ABI, false, "sm_90a", kKernels, sizeof kKernels / sizeof *kKernels, kGlobals, 3, kLocations, 1};
