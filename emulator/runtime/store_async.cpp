// st.async and red.async: PTX ISA 9.7.9.12 and 9.7.13.7. Values from registers into shared memory of a block of the cluster,
// complete on an mbarrier of that block; they go through the generic proxy.
#include <cstring>

#include "bulk.h"
#include "reduce.h"

namespace emu {
namespace {

struct Target {
  Mbarrier& mbarrier;
  char* address;
  Accessor unit;
};

Target target_of(Thread& self, const char* instruction, uint32_t cluster, uint32_t bytes, uint32_t mbarrier, uint32_t location) {
  check_shared_place(self, instruction, cluster, bytes, location);
  const Delivery to = deliveries(self, instruction, cluster, mbarrier, 0, location)[0];
  return {*to.mbarrier, shared_pointer(self, cluster), mbarrier_accessor(self, *to.mbarrier, Proxy::kGeneric)};
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" void emu_store_async(EmuThread* t, uint32_t cluster, const void* value, uint32_t bytes, uint32_t mbarrier,
                                uint32_t location) {
  struct Value {
    unsigned char bytes[16];
  };
  Thread& self = thread_of(t);
  if (bytes != 4 && bytes != 8 && bytes != 16) {
    fail(self, location, printf_string("st.async of %u bytes: 4, 8 or 16 are possible", bytes));
  }
  const Target to = target_of(self, "st.async", cluster, bytes, mbarrier, location);
  check_access(self, to.unit, to.address, bytes, Kind::kWriting, EMU_CLUSTER, location);
  Value copy{};
  memcpy(copy.bytes, value, bytes);
  complete_on_mbarrier(self, to.mbarrier, bytes, location, [&self, address = to.address, copy, bytes] {
    memcpy(address, copy.bytes, bytes);
    if (self.cluster->checked()) define_bytes(address, bytes);
  });
}

extern "C" void emu_reduce_async(EmuThread* t, uint32_t cluster, EmuReduce op, EmuType type, uint64_t value, uint32_t mbarrier,
                                 uint32_t location) {
  Thread& self = thread_of(t);
  const std::string problem = check_reduction(op, type, ReduceInto::kShared);
  if (!problem.empty()) fail(self, location, "red.async: " + problem);
  const uint32_t bytes = element_bytes(type);
  const Target to = target_of(self, "red.async", cluster, bytes, mbarrier, location);
  check_access(self, to.unit, to.address, bytes, Kind::kAtomic, EMU_CLUSTER, location);
  complete_on_mbarrier(self, to.mbarrier, bytes, location,
                       [address = to.address, value, bytes, op, type] { reduce_elements(address, &value, bytes, op, type); });
}
