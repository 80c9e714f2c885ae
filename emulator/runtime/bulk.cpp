// cp.async.bulk and cp.reduce.async.bulk without tensors: PTX ISA 9.7.9.25.4.
#include "bulk.h"

#include <cstring>

#include "reduce.h"

namespace emu {
namespace {

constexpr uint32_t kUnit = 16;  // addresses and sizes are multiples of it
constexpr uint32_t kOffsetMask = (1u << kEmuBlockWindowBits) - 1;

void check_bytes(Thread& self, const char* instruction, uint32_t bytes, uint32_t location) {
  if (bytes % kUnit) fail(self, location, printf_string("%s of %u bytes: the size must be a multiple of 16", instruction, bytes));
}

void check_global_place(Thread& self, const char* instruction, const void* address, uint32_t location) {
  if (reinterpret_cast<uintptr_t>(address) % kUnit) {
    fail(self, location, printf_string("%s: global address %p must be 16-byte aligned", instruction, address), kMisalignedAddress);
  }
}

void check_element_type(Thread& self, const char* instruction, EmuReduce op, EmuType type, ReduceInto into, uint32_t location) {
  const std::string problem = check_reduction(op, type, into);
  if (!problem.empty()) fail(self, location, std::string(instruction) + ": " + problem);
}

Mbarrier& mbarrier_beside(Thread& self, const char* instruction, uint32_t shared, uint32_t mbarrier, uint32_t location) {
  if (mbarrier >> kEmuBlockWindowBits != shared >> kEmuBlockWindowBits) {
    fail(self, location,
         printf_string("%s: the destination is in block rank %u and its mbarrier in block rank %u, not in one block", instruction,
                       shared >> kEmuBlockWindowBits, mbarrier >> kEmuBlockWindowBits));
  }
  return find_mbarrier(self, mbarrier, Kind::kAtomic, location);
}

}  // namespace

AsyncGroups& bulk_stores_of(Thread& self) {
  if (!self.bulk) {
    const Describe name = [&self] { return printf_string("a bulk store of thread %u", self.linear) + rank_of(*self.block); };
    self.bulk = std::make_unique<AsyncGroups>(*self.cluster, name, Proxy::kAsync, Reads::kApart);
  }
  return *self.bulk;
}

void check_shared_place(Thread& self, const char* instruction, uint32_t address, uint32_t alignment, uint32_t location) {
  const Block* block = self.cluster->block_of(address);
  if (!block) {
    fail(self, location,
         printf_string("%s: shared address 0x%x is in block rank %u, the cluster has %zu blocks", instruction, address,
                       address >> kEmuBlockWindowBits, self.cluster->blocks.size()),
         kIllegalAddress);
  }
  if (!block->live) {
    fail(self, location, printf_string("%s: shared memory of block rank %u, which has exited", instruction, block->rank));
  }
  if (address % alignment) {
    fail(self, location,
         printf_string("%s: shared address 0x%x must be %u-byte aligned", instruction, address & kOffsetMask, alignment),
         kMisalignedAddress);
  }
}

std::vector<Delivery> deliveries(Thread& self, const char* instruction, uint32_t shared, uint32_t mbarrier, uint16_t multicast,
                                 uint32_t location) {
  if (!multicast) return {{shared, &mbarrier_beside(self, instruction, shared, mbarrier, location)}};
  std::vector<Delivery> all;
  for (uint32_t rank = 0; multicast >> rank; ++rank) {
    if (!(multicast >> rank & 1)) continue;
    if (rank >= self.cluster->blocks.size()) {
      fail(self, location,
           printf_string("%s.multicast::cluster: mask 0x%x names block rank %u, the cluster has %zu blocks", instruction, multicast,
                         rank, self.cluster->blocks.size()));
    }
    const uint32_t window = rank << kEmuBlockWindowBits;
    const uint32_t destination = window | (shared & kOffsetMask);
    check_shared_place(self, instruction, destination, kUnit, location);
    all.push_back({destination, &find_mbarrier(self, window | (mbarrier & kOffsetMask), Kind::kAtomic, location)});
  }
  return all;
}

}  // namespace emu

using namespace emu;

extern "C" void emu_bulk_load(EmuThread* t, uint32_t shared, const void* global, uint32_t bytes, uint32_t mbarrier,
                              uint16_t multicast, uint32_t location) {
  static constexpr char kName[] = "cp.async.bulk.shared.global";
  Thread& self = thread_of(t);
  check_bytes(self, kName, bytes, location);
  check_global_place(self, kName, global, location);
  check_shared_place(self, kName, shared, kUnit, location);
  const std::vector<Delivery> all = deliveries(self, kName, shared, mbarrier, multicast, location);
  check_copy(self, mbarrier_accessor(self, *all[0].mbarrier, Proxy::kAsync), global, bytes, Kind::kRead, EMU_GLOBAL, location);
  for (const Delivery& to : all) {
    const Accessor unit = mbarrier_accessor(self, *to.mbarrier, Proxy::kAsync);
    char* destination = shared_pointer(self, to.shared);
    check_copy(self, unit, destination, bytes, Kind::kWriting, EMU_CLUSTER, location);
    complete_on_mbarrier(self, *to.mbarrier, bytes, location, [&self, destination, global, bytes] {
      memcpy(destination, global, bytes);
      if (self.cluster->checked()) define_bytes(destination, bytes);
    });
  }
}

extern "C" void emu_bulk_copy_shared(EmuThread* t, uint32_t cluster, uint32_t shared, uint32_t bytes, uint32_t mbarrier,
                                     uint32_t location) {
  static constexpr char kName[] = "cp.async.bulk.shared::cluster.shared::cta";
  Thread& self = thread_of(t);
  check_bytes(self, kName, bytes, location);
  check_shared_place(self, kName, cluster, kUnit, location);
  check_shared_place(self, kName, shared, kUnit, location);
  Mbarrier& m = mbarrier_beside(self, kName, cluster, mbarrier, location);
  const Accessor unit = mbarrier_accessor(self, m, Proxy::kAsync);
  char* destination = shared_pointer(self, cluster);
  const char* source = shared_pointer(self, shared);
  check_copy(self, unit, source, bytes, Kind::kRead, EMU_SHARED, location);
  check_copy(self, unit, destination, bytes, Kind::kWriting, EMU_CLUSTER, location);
  complete_on_mbarrier(self, m, bytes, location, [&self, destination, source, bytes] {
    memmove(destination, source, bytes);
    if (self.cluster->checked()) define_bytes(destination, bytes);
  });
}

extern "C" void emu_bulk_reduce_shared(EmuThread* t, uint32_t cluster, uint32_t shared, uint32_t bytes, EmuReduce op, EmuType type,
                                       uint32_t mbarrier, uint32_t location) {
  static constexpr char kName[] = "cp.reduce.async.bulk.shared::cluster.shared::cta";
  Thread& self = thread_of(t);
  check_bytes(self, kName, bytes, location);
  check_element_type(self, kName, op, type, ReduceInto::kShared, location);
  check_shared_place(self, kName, cluster, kUnit, location);
  check_shared_place(self, kName, shared, kUnit, location);
  Mbarrier& m = mbarrier_beside(self, kName, cluster, mbarrier, location);
  const Accessor unit = mbarrier_accessor(self, m, Proxy::kAsync);
  char* destination = shared_pointer(self, cluster);
  const char* source = shared_pointer(self, shared);
  check_copy(self, unit, source, bytes, Kind::kRead, EMU_SHARED, location);
  check_copy(self, unit, destination, bytes, Kind::kAtomic, EMU_CLUSTER, location);
  complete_on_mbarrier(self, m, bytes, location, [destination, source, bytes, op, type] {
    reduce_elements(destination, source, bytes, op, type);
  });
}

extern "C" void emu_bulk_store(EmuThread* t, void* global, uint32_t shared, uint32_t bytes, EmuReduce op, EmuType type,
                               uint32_t location) {
  Thread& self = thread_of(t);
  const char* name = op == EMU_NONE ? "cp.async.bulk.global.shared::cta" : "cp.reduce.async.bulk.global.shared::cta";
  check_bytes(self, name, bytes, location);
  if (op != EMU_NONE) check_element_type(self, name, op, type, ReduceInto::kGlobal, location);
  check_global_place(self, name, global, location);
  check_shared_place(self, name, shared, kUnit, location);
  AsyncGroups& stores = bulk_stores_of(self);
  const char* source = shared_pointer(self, shared);
  check_copy(self, stores.reader(self), source, bytes, Kind::kRead, EMU_SHARED, location);
  check_copy(self, stores.accessor(self), global, bytes, op == EMU_NONE ? Kind::kWriting : Kind::kAtomic, EMU_GLOBAL, location);
  stores.issue([&self, global, source, bytes, op, type] {
    if (op != EMU_NONE) {
      reduce_elements(global, source, bytes, op, type);
      return;
    }
    memcpy(global, source, bytes);
    if (self.cluster->checked()) define_bytes(global, bytes);
  });
}

extern "C" void emu_bulk_commit(EmuThread* t, uint32_t) { bulk_stores_of(thread_of(t)).commit(); }

extern "C" void emu_bulk_wait(EmuThread* t, uint32_t pending, bool only_read, uint32_t) {
  Thread& self = thread_of(t);
  AsyncGroups& stores = bulk_stores_of(self);
  if (only_read) {
    stores.wait_read(self, pending);
  } else {
    stores.wait(self, pending);
  }
}
