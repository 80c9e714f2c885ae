// cp.async: PTX ISA 9.7.9.25.3. 4, 8 or 16 bytes from global to shared memory, through the generic proxy, complete in groups of a
// thread or on an mbarrier (mbarrier.cpp: cp.async.mbarrier.arrive).
#include <cstring>

#include "async.h"

namespace emu {
namespace {

AsyncGroups& copies_of(Thread& self) {
  if (!self.cp_async) {
    const Describe name = [&self] { return printf_string("cp.async of thread %u", self.linear) + rank_of(*self.block); };
    self.cp_async = std::make_unique<AsyncGroups>(*self.cluster, name, Proxy::kGeneric);
  }
  return *self.cp_async;
}

}  // namespace
}  // namespace emu

using namespace emu;

// What lies behind source_bytes is zeros, and is not read.
extern "C" void emu_cp_async(EmuThread* t, uint32_t shared, const void* global, uint32_t bytes, uint32_t source_bytes,
                             uint32_t location) {
  Thread& self = thread_of(t);
  if (bytes != 4 && bytes != 8 && bytes != 16) {
    fail(self, location, printf_string("cp.async of %u bytes: 4, 8 or 16 are possible", bytes));
  }
  if (source_bytes > bytes) fail(self, location, printf_string("cp.async of %u bytes with a src-size of %u", bytes, source_bytes));
  if (shared % bytes || reinterpret_cast<uintptr_t>(global) % bytes) {
    fail(self, location,
         printf_string("cp.async of %u bytes from %p to shared address 0x%x: both must be aligned to the size", bytes, global,
                       shared),
         kMisalignedAddress);
  }
  AsyncGroups& copies = copies_of(self);
  const Accessor unit = copies.accessor(self);
  char* destination = shared_pointer(self, shared);
  if (source_bytes) check_copy(self, unit, global, source_bytes, Kind::kRead, EMU_GLOBAL, location);
  check_access(self, unit, destination, bytes, Kind::kWriting, EMU_SHARED, location);
  const bool checked = self.cluster->checked();
  copies.issue([destination, global, bytes, source_bytes, checked] {
    memcpy(destination, global, source_bytes);
    memset(destination + source_bytes, 0, bytes - source_bytes);
    if (checked) define_bytes(destination, bytes);
  });
}

extern "C" void emu_cp_async_commit(EmuThread* t, uint32_t) { copies_of(thread_of(t)).commit(); }

extern "C" void emu_cp_async_wait(EmuThread* t, uint32_t pending, uint32_t) {
  Thread& self = thread_of(t);
  copies_of(self).wait(self, pending);
}

extern "C" void emu_cp_async_wait_all(EmuThread* t, uint32_t) {
  Thread& self = thread_of(t);
  AsyncGroups& copies = copies_of(self);
  copies.commit();
  copies.wait(self, 0);
}
