// cp.async.bulk.tensor, cp.reduce.async.bulk.tensor and their prefetch: PTX ISA 9.7.9.27.
#include <cstring>
#include <memory>

#include "bulk.h"
#include "memory.h"
#include "reduce.h"
#include "tensor_box.h"
#include "tensor_map.h"

namespace emu {
namespace {

constexpr uint32_t kChunk = 16;             // what swizzling moves as one
constexpr uint32_t kSharedAlignment = 128;  // 9.7.9.27: of the shared-memory side
constexpr uint32_t kMapAlignment = 64;
constexpr uint32_t kMaxRow = 256 * 8;       // bytes
constexpr int kIllegalInstruction = 715;    // CUresult

// One copy: the map as it was at the issue, and the part of the tensor.
struct TensorCopy {
  TensorMap map;
  Box box;
  uint32_t row_bytes;

  uint32_t element() const { return element_bytes(map.type); }
  uint32_t bytes() const { return row_bytes * static_cast<uint32_t>(box.rows.size()); }
  bool touches(const BoxRow& row) const { return row.inside && box.count; }

  // The part of a row that is inside the tensor.
  char* global(const BoxRow& row) const {
    return reinterpret_cast<char*>(map.address) + row.offset + (box.first + box.skip) * static_cast<int64_t>(element());
  }
  size_t global_bytes() const { return static_cast<size_t>(box.count) * element(); }

  // An H200 writes all of the last 16 bytes that a row of the tensor has a part of; here no more than the allocation has.
  size_t stored_bytes(const BoxRow& row) const {
    const size_t whole = (global_bytes() + kChunk - 1) / kChunk * kChunk;
    if (whole == global_bytes()) return whole;
    return device_find(global(row), whole, nullptr, nullptr, nullptr) ? whole : global_bytes();
  }
};

using CopyPointer = std::shared_ptr<const TensorCopy>;

// The object that an instruction was given: 5.5.8, in .param, .const or .global space.
TensorMap read_map(Thread& self, const char* name, const void* map, uint32_t location) {
  const LaunchConfig& launch = *self.cluster->launch;
  const char* at = static_cast<const char*>(map);
  // Parameters lie at a host address that is as aligned as the device's.
  const bool is_param = at >= launch.params && at + sizeof(TensorMap) <= launch.params + launch.kernel->param_bytes;
  const char* window = self.cluster->window;
  if (self.fiber.contains(map) || (at >= window && at < window + (self.cluster->blocks.size() << kEmuBlockWindowBits))) {
    fail(self, location, std::string(name) + ": the tensor map must be in .param, .const or .global memory");
  }
  if (reinterpret_cast<uintptr_t>(map) % kMapAlignment) {
    fail(self, location, std::string(name) + ": the tensor map is not 64-byte aligned", kMisalignedAddress);
  }
  if (!is_param) check_access(self, accessor(self), map, sizeof(TensorMap), Kind::kRead, EMU_GENERIC, location);
  if (!is_tensor_map(map)) fail(self, location, std::string(name) + ": the 128 bytes of the tensor map were never encoded");
  TensorMap copy;
  memcpy(&copy, map, sizeof copy);
  return copy;
}

CopyPointer make_copy(Thread& self, const char* name, TensorUse use, const EmuTensor& shape, const void* map,
                      const int32_t* coordinates, const uint16_t* offsets, uint32_t location) {
  auto copy = std::make_shared<TensorCopy>();
  copy->map = read_map(self, name, map, location);
  if (copy->map.rank != shape.rank) {
    fail(self, location, printf_string("%s.%ud with a tensor map of rank %u", name, shape.rank, copy->map.rank));
  }
  if ((copy->map.mode == TensorMode::kIm2col) != shape.im2col) {
    const char* mode = shape.im2col ? "im2col" : "tiled";
    fail(self, location, printf_string("%s in %s mode with a tensor map of the other mode", name, mode));
  }
  const std::string refused = refused_place(copy->map, coordinates, use);
  if (!refused.empty()) fail(self, location, std::string(name) + ": " + refused, kIllegalInstruction);
  const std::string problem =
      shape.im2col ? im2col_box(copy->map, coordinates, offsets, copy->box) : tiled_box(copy->map, coordinates, copy->box);
  if (!problem.empty()) fail(self, location, std::string(name) + ": " + problem);
  copy->row_bytes = copy->box.row_elements * copy->element();
  if (!fills_swizzle(copy->row_bytes, copy->map.swizzle)) {
    fail(self, location, printf_string("%s: not emulated: rows of %u bytes under a swizzle of %u bytes", name, copy->row_bytes,
                                       kChunk << static_cast<uint32_t>(copy->map.swizzle)));
  }
  return copy;
}

// Bounds, lifetime and races of the tensor's side, row by row; what lies outside of the tensor is not touched. A map that describes
// more than there is must not reach the next allocation either.
void check_global(Thread& self, const Accessor& unit, const TensorCopy& copy, Kind kind, uint32_t location) {
  if (!self.cluster->checked()) return;
  void* base = nullptr;
  size_t size = 0;
  const bool alive = device_find(reinterpret_cast<const void*>(copy.map.address), 1, &base, &size, nullptr);
  for (const BoxRow& row : copy.box.rows) {
    if (!copy.touches(row)) continue;
    const char* from = copy.global(row);
    const ptrdiff_t start = from - static_cast<const char*>(base), end = start + static_cast<ptrdiff_t>(copy.global_bytes());
    if (alive && (start < 0 || end > static_cast<ptrdiff_t>(size))) {
      fail(self, location,
           printf_string("out-of-bounds tensor copy: its map takes it to bytes %td..%td of an allocation of %zu bytes", start,
                         end - 1, size),
           kIllegalAddress);
    }
    const size_t bytes = kind == Kind::kWriting ? copy.stored_bytes(row) : copy.global_bytes();
    check_copy(self, unit, from, bytes, kind, EMU_GLOBAL, location);
  }
}

// Calls visit(shared address, bytes in the row, size) for the chunks of row `index`.
template <class Visit>
void for_chunks(const TensorCopy& copy, uint32_t shared, size_t index, const Visit& visit) {
  const uint32_t start = shared + static_cast<uint32_t>(index) * copy.row_bytes;
  for (uint32_t at = 0; at < copy.row_bytes; at += kChunk) visit(swizzled(start + at, copy.map.swizzle), at);
}

// Only what goes into the tensor is read.
void check_source(Thread& self, const Accessor& unit, const TensorCopy& copy, uint32_t shared, uint32_t location) {
  const uint32_t first = copy.box.skip * copy.element(), end = first + static_cast<uint32_t>(copy.global_bytes());
  for (size_t i = 0; i < copy.box.rows.size(); ++i) {
    if (!copy.touches(copy.box.rows[i])) continue;
    for_chunks(copy, shared, i, [&](uint32_t address, uint32_t at) {
      const uint32_t from = std::max(at, first), to = std::min(at + kChunk, end);
      const char* source = shared_pointer(self, address + from - at);
      if (from < to) check_copy(self, unit, source, to - from, Kind::kRead, EMU_SHARED, location);
    });
  }
}

void land_load(const TensorCopy& copy, char* window, uint32_t shared) {
  alignas(kChunk) char row[kMaxRow];
  const Box& box = copy.box;
  for (size_t i = 0; i < box.rows.size(); ++i) {
    fill_outside(row, box.row_elements, copy.map.type, copy.map.fill);
    if (copy.touches(box.rows[i])) {
      char* inside = row + static_cast<size_t>(box.skip) * copy.element();
      memcpy(inside, copy.global(box.rows[i]), copy.global_bytes());
      convert_loaded(inside, box.count, copy.map.type);
    }
    for_chunks(copy, shared, i, [&](uint32_t address, uint32_t at) { memcpy(window + address, row + at, kChunk); });
  }
}

void land_store(const TensorCopy& copy, const char* window, uint32_t shared, EmuReduce op, EmuType type, bool checked) {
  alignas(kChunk) char row[kMaxRow];
  const Box& box = copy.box;
  for (size_t i = 0; i < box.rows.size(); ++i) {
    if (!copy.touches(box.rows[i])) continue;
    for_chunks(copy, shared, i, [&](uint32_t address, uint32_t at) { memcpy(row + at, window + address, kChunk); });
    char* to = copy.global(box.rows[i]);
    const char* from = row + static_cast<size_t>(box.skip) * copy.element();
    if (op != EMU_NONE) {
      reduce_elements(to, from, copy.global_bytes(), op, type);
    } else {
      const size_t bytes = copy.stored_bytes(box.rows[i]);
      memcpy(to, from, bytes);
      if (checked) define_bytes(to, bytes);
    }
  }
}

// The type that a reduction works in; and, or and xor take the integers of a map as bits.
EmuType reduced_type(TensorType type, EmuReduce op) {
  const bool bitwise = op == EMU_AND || op == EMU_OR || op == EMU_XOR;
  switch (type) {
    case TensorType::kU32: return bitwise ? EMU_B32 : EMU_U32;
    case TensorType::kS32: return bitwise ? EMU_B32 : EMU_S32;
    case TensorType::kU64: return bitwise ? EMU_B64 : EMU_U64;
    case TensorType::kS64: return bitwise ? EMU_B64 : EMU_S64;
    case TensorType::kF16: return EMU_F16;
    case TensorType::kBF16: return EMU_BF16;
    case TensorType::kF32:
    case TensorType::kF32Ftz: return EMU_F32;
    case TensorType::kF64: return EMU_F64;
    case TensorType::kU8: return EMU_U8;
    case TensorType::kU16: return EMU_B16;
    case TensorType::kTF32:
    case TensorType::kTF32Ftz: return EMU_TF32;
  }
  return EMU_B8;
}

bool converts(TensorType type) { return type >= TensorType::kF32Ftz; }

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" void emu_tensor_load(EmuThread* t, const EmuTensor* shape, uint32_t shared, const void* map, const int32_t* coordinates,
                                const uint16_t* offsets, uint32_t mbarrier, uint16_t multicast, uint32_t location) {
  static constexpr char kName[] = "cp.async.bulk.tensor.shared.global";
  Thread& self = thread_of(t);
  const CopyPointer copy = make_copy(self, kName, TensorUse::kLoad, *shape, map, coordinates, offsets, location);
  check_shared_place(self, kName, shared, kSharedAlignment, location);
  const std::vector<Delivery> all = deliveries(self, kName, shared, mbarrier, multicast, location);
  check_global(self, mbarrier_accessor(self, *all[0].mbarrier, Proxy::kAsync), *copy, Kind::kRead, location);
  for (const Delivery& to : all) {
    const Accessor unit = mbarrier_accessor(self, *to.mbarrier, Proxy::kAsync);
    check_copy(self, unit, shared_pointer(self, to.shared), copy->bytes(), Kind::kWriting, EMU_CLUSTER, location);
    complete_on_mbarrier(self, *to.mbarrier, copy->bytes(), location, [&self, copy, shared = to.shared] {
      land_load(*copy, self.shared, shared);
      if (self.cluster->checked()) define_bytes(shared_pointer(self, shared), copy->bytes());
    });
  }
}

extern "C" void emu_tensor_store(EmuThread* t, const EmuTensor* shape, const void* map, const int32_t* coordinates, uint32_t shared,
                                 uint32_t location) {
  Thread& self = thread_of(t);
  const EmuReduce op = shape->reduce;
  const char* name = op == EMU_NONE ? "cp.async.bulk.tensor.global.shared::cta" : "cp.reduce.async.bulk.tensor.global.shared::cta";
  const CopyPointer copy = make_copy(self, name, TensorUse::kStore, *shape, map, coordinates, nullptr, location);
  check_shared_place(self, name, shared, kSharedAlignment, location);
  if (converts(copy->map.type)) {
    fail(self, location, std::string(name) + ": not emulated: a store through a map of type FLOAT32_FTZ, TFLOAT32 or TFLOAT32_FTZ");
  }
  const EmuType type = reduced_type(copy->map.type, op);
  if (op != EMU_NONE) {
    const std::string problem = check_reduction(op, type, ReduceInto::kGlobal);
    if (!problem.empty()) fail(self, location, std::string(name) + ": " + problem);
    if (copy->map.type == TensorType::kS64 && type == EMU_B64) {
      fail(self, location, std::string(name) + ": and, or, xor of a map of type INT64: an H200 refuses it (of UINT64 and INT32 it does not)",
           kIllegalInstruction);
    }
  }
  AsyncGroups& stores = bulk_stores_of(self);
  check_source(self, stores.reader(self), *copy, shared, location);
  check_global(self, stores.accessor(self), *copy, op == EMU_NONE ? Kind::kWriting : Kind::kAtomic, location);
  stores.issue([&self, copy, shared, op, type] { land_store(*copy, self.shared, shared, op, type, self.cluster->checked()); });
}

// A hint: only the map and the coordinates are looked at.
extern "C" void emu_tensor_prefetch(EmuThread* t, const EmuTensor* shape, const void* map, const int32_t* coordinates,
                                    uint32_t location) {
  make_copy(thread_of(t), "cp.async.bulk.prefetch.tensor", TensorUse::kPrefetch, *shape, map, coordinates, nullptr, location);
}
