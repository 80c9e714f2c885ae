// Copies of windows of a tensor by the copy engine of sm_90 (TMA; PTX ISA, 9.7.9.27.1). One thread begins a copy, and
// no thread takes part in it. A tensor map, which the host encodes, says where the tensor is, how it is laid out and
// how large a window is; the copy says where the window begins, innermost dimension first. What lies outside of the
// tensor is read as zeros and not written.
//
// In shared memory a window is rows of 128 bytes, whose 16-byte chunks are exchanged (128-byte swizzle): chunk c of a
// row at address a is at place c ^ (a / 128 % 8). Or its rows are 64 bytes, and the place is c ^ (a / 128 % 4). It begins
// at a multiple of 1024 bytes. Or nothing is exchanged, its rows are any multiple of 16 bytes, and it begins at one of 128.
#pragma once

#include "dnncore/ptx/mbarrier.cuh"

namespace dnncore {

// A CUtensorMap, in the parameter struct; mirrored by TENSOR_MAP in dnncore/cuda/tensor_map.py.
struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

__device__ __forceinline__ void prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Begin to load a window of a matrix; its bytes arrive at the barrier.
__device__ __forceinline__ void load_window(void* shared, const TensorMap& map, Mbarrier& barrier, int32 column, int32 row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row)
      : "memory");
}

// The same of a tensor of three dimensions: values, rows and images.
__device__ __forceinline__ void load_window(
    void* shared, const TensorMap& map, Mbarrier& barrier, int32 value, int32 row, int32 image) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(value), "r"(row), "r"(image)
      : "memory");
}

// And of four: channels, columns, rows, and filters or images.
__device__ __forceinline__ void load_window(
    void* shared, const TensorMap& map, Mbarrier& barrier, int32 channel, int32 column, int32 row, int32 filter) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(channel), "r"(column), "r"(row), "r"(filter)
      : "memory");
}

// And of five: filters in groups of sixteen, of which the even ones come first, as channels, pairs, filters of a pair,
// groups and taps. A window begins with a group.
__device__ __forceinline__ void load_groups(
    void* shared, const TensorMap& map, Mbarrier& barrier, int32 channel, int32 group, int32 tap) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(channel), "r"(0), "r"(group), "r"(tap)
      : "memory");
}

// Begin to load a run of pixels of images, as a tap of a filter meets them (im2col): from the first tap's pixel at
// (column, row) of an image on, moved by the tap's offsets.
__device__ __forceinline__ void load_pixels(
    void* shared, const TensorMap& map, Mbarrier& barrier, int32 channel, int32 column, int32 row, int32 image,
    int32 column_offset, int32 row_offset) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], {%7, %8};" ::"r"(shared_address(shared)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(channel), "r"(column), "r"(row), "r"(image),
      "h"(static_cast<std::uint16_t>(column_offset)), "h"(static_cast<std::uint16_t>(row_offset))
      : "memory");
}

// Begin to store a window of a matrix, as a group of stores of its own. What lies in a row of the tensor is a multiple of 16 bytes: of
// the last ones that it begins an H200 writes all.
__device__ __forceinline__ void store_window(const TensorMap& map, const void* shared, int32 column, int32 row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(shared_address(shared)), "r"(column), "r"(row)
      : "memory");
}

// The same of a tensor of four dimensions.
__device__ __forceinline__ void store_window(
    const TensorMap& map, const void* shared, int32 channel, int32 column, int32 row, int32 image) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(shared_address(shared)), "r"(channel), "r"(column), "r"(row), "r"(image)
      : "memory");
}

// Begin to store a run of pixels of images, from one at (column, row) of an image on, through a map that has no pixels before
// the first ones: as a group of its own, too.
__device__ __forceinline__ void store_pixels(
    const TensorMap& map, const void* shared, int32 channel, int32 column, int32 row, int32 image) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n"
      "cp.async.bulk.commit_group;" ::"l"(&map),
      "r"(shared_address(shared)), "r"(channel), "r"(column), "r"(row), "r"(image)
      : "memory");
}

// Wait until the engine has read what this thread's stores take from shared memory, but for the last kPending groups.
template <int kPending>
__device__ __forceinline__ void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Let the copy engine see what this thread has written to shared memory.
__device__ __forceinline__ void publish_to_engine() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace dnncore
