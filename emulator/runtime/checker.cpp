// The checks of one access: where it goes, whether that is alive, aligned and initialised, and what it races with.
#include "settings.h"
#include "memory.h"
#include "scheduler.h"
#include "shadow.h"

namespace emu {
namespace {

struct Target {
  size_t offset;       // in the shadowed range
  bool shared;
};

const char* verb(Kind kind) {
  switch (kind) {
    case Kind::kRead:
    case Kind::kStrongRead: return "read";
    case Kind::kAtomic: return "atomic access";
    default: return "write";
  }
}

bool writes(Kind kind) { return kind != Kind::kRead && kind != Kind::kStrongRead; }
bool reads(Kind kind) { return kind == Kind::kRead || kind == Kind::kStrongRead || kind == Kind::kAtomic; }
bool strong(Kind kind) { return kind == Kind::kAtomic || kind == Kind::kStrongRead || kind == Kind::kStrongWrite; }

// "thread 5 of block 1", "cp.async of thread 3".
std::string accessor_name(const Cluster& cluster, uint32_t slot) {
  if (slot >= cluster.threads.size()) return cluster.unit_names[slot - cluster.threads.size()]();
  const Thread& t = *cluster.threads[slot];
  return printf_string("thread %u", t.linear) + rank_of(*t.block);
}

std::string where(const Cluster& cluster, const Access& a) {
  return (a.cluster == cluster.number ? accessor_name(cluster, a.slot) : printf_string("block #%u of the grid", a.cluster - cluster.first_number)) +
         " at " + place(*cluster.launch->module, a.location);
}

class Check {
 public:
  Check(Thread& by, const Accessor& as, const void* address, size_t bytes, Kind kind, uint32_t space, uint32_t location)
      : by_(by), cluster_(*by.cluster), as_(as), address_(address), bytes_(bytes), kind_(kind), space_(space), location_(location) {}

  void run() {
    if (!bytes_ || is_local()) return;
    find_target();
    if (settings().check_memory) {
      check_space();
      check_device();
      check_alignment();
      check_bounds();
    }
    if (settings().check_races) check_races();  // first: bytes on their way are also not initialised, and "race" says more
    if (settings().check_initialised && reads(kind_)) check_initialised();
    if (writes(kind_) && kind_ != Kind::kWriting) shadow().mark_defined(target_.offset, bytes_, true);
  }

 private:
  [[noreturn]] void complain(const std::string& what, int error = kLaunchFailed) {
    std::string who = as_.slot == by_.slot ? "" : " (by " + accessor_name(cluster_, as_.slot) + ")";
    fail(by_, location_, what + who, error);
  }

  std::string access() const { return printf_string("%s of %zu bytes at %p", verb(kind_), bytes_, address_); }

  // Local memory and parameters are the thread's own: host memory that no other thread knows.
  bool is_local() const {
    if (shadow().holds(address_)) return false;
    const char* params = cluster_.launch->params;
    if (by_.fiber.contains(address_)) return true;
    return address_ >= params && address_ < params + 4096 + 64 && !writes(kind_);
  }

  void find_target() {
    if (!shadow().holds(address_)) complain("invalid " + access() + ": not device memory", kIllegalAddress);
    const size_t window = shadow().offset(cluster_.window), at = shadow().offset(address_);
    target_ = {at, at >= window && at < window + Shadow::kWindowBytes};
    if (!target_.shared && at >= Shadow::kDeviceBytes) complain("invalid " + access() + ": shared memory of another cluster", kIllegalAddress);
    const Cell* cells = shadow().cells + at / 4;  // a line of cache each, seldom a near one: they come while other things are checked
    for (size_t word = 0; word < std::min<size_t>(bytes_, 16); word += 4) __builtin_prefetch(cells + word / 4, 1);
  }

  // Another device's memory is reached after cuCtxEnablePeerAccess alone.
  void check_device() {
    if (target_.shared) return;
    const int device = device_of(address_);
    if (device == kHostMemory || device == cluster_.launch->device || cluster_.launch->reachable_devices >> device & 1) return;
    complain("invalid " + access() + printf_string(": memory of device %d, to which this context has no peer access", device),
             kIllegalAddress);
  }

  uint32_t rank() const {
    return static_cast<uint32_t>((target_.offset - shadow().offset(cluster_.window)) >> kEmuBlockWindowBits);
  }

  void check_space() {
    if (space_ == EMU_GENERIC) return;
    const bool wants_shared = space_ == EMU_SHARED || space_ == EMU_CLUSTER;
    if (wants_shared != target_.shared) {
      complain("invalid " + access() + (wants_shared ? ": a shared-memory instruction, the address is global memory's"
                                                     : ": a global-memory instruction, the address is shared memory's"),
               kIllegalAddress);
    }
    if (space_ == EMU_SHARED && rank() != by_.block->rank) {
      complain("invalid " + access() + printf_string(": shared memory of block rank %u through .shared::cta", rank()), kIllegalAddress);
    }
  }

  void check_alignment() {
    if (bytes_ > 32 || bytes_ & (bytes_ - 1)) return;
    if (target_.offset % bytes_) complain("misaligned " + access(), kMisalignedAddress);
  }

  void check_bounds() {
    const uint8_t* valid = shadow().valid;
    const size_t end = target_.offset + bytes_;
    for (size_t at = target_.offset; at < end; at = (at | 7) + 1) {
      const size_t last = std::min(end - 1, at | 7) & 7;
      if (valid[at / 8] > last) continue;
      complain("out-of-bounds " + access() + ": " + (target_.shared ? describe_shared() : describe_neighbourhood(address_)), kIllegalAddress);
    }
  }

  std::string describe_shared() const {
    const uint32_t r = rank();
    if (r >= cluster_.blocks.size()) return printf_string("shared memory of block rank %u, the cluster has %zu blocks", r, cluster_.blocks.size());
    if (!cluster_.blocks[r].live) return printf_string("shared memory of block rank %u, which has exited", r);
    const EmuKernel& kernel = *cluster_.launch->kernel;
    const uint32_t offset = static_cast<uint32_t>(target_.offset - shadow().offset(cluster_.window)) & ((1u << kEmuBlockWindowBits) - 1);
    for (uint32_t i = 0; i < kernel.num_shared; ++i) {
      const EmuSharedVariable& v = kernel.shared[i];
      if (offset + bytes_ > v.offset && offset <= v.offset + v.bytes + 32) {
        return printf_string("byte %d of shared variable %s of %u bytes", static_cast<int>(offset) - static_cast<int>(v.offset), v.name, v.bytes);
      }
    }
    return printf_string("shared memory address 0x%x; %u bytes of dynamic shared memory begin at 0x%x", offset, by_.dynamic_bytes,
                         by_.dynamic_shared & ((1u << kEmuBlockWindowBits) - 1));
  }

  void check_initialised() {
    if (shadow().all_defined(target_.offset, bytes_)) return;
    complain(printf_string("read of uninitialised %s memory: %zu bytes at %p", target_.shared ? "shared" : "global", bytes_, address_));
  }

  // Whether an earlier access happened before this one.
  bool before(const Access& a) const {
    if (a.cluster == cluster_.number) {
      // A thread is in order with itself; two operations of an asynchronous unit are not, unless they are one.
      const bool own = a.slot == as_.slot && (a.slot < cluster_.threads.size() || a.tick == as_.tick);
      return own || as_.after->seen[a.slot] >= a.tick;
    }
    if (!as_.after->foreign) return false;
    auto known = as_.after->foreign->find(a.cluster);
    return known != as_.after->foreign->end() && (*known->second)[a.slot] >= a.tick;
  }

  // What most earlier accesses are passed over by at a glance. It is kept beside the loops over words, whose stores might change anything
  // that they read through a pointer.
  struct Glance {
    const uint32_t* seen;
    size_t num_seen;
    uint32_t cluster, first_number;
    bool generic_proxy, shared, programmatic;

    bool settled(const Access& a, uint8_t mask) const {
      if (!(a.mask & mask) || !a.cluster) return true;
      if (a.cluster == cluster) return generic_proxy && knows(a);
      if (shared) return true;  // left by a block that had this window before
      return a.cluster < first_number && !programmatic;
    }

    // Of an access by this cluster.
    bool knows(const Access& a) const { return (a.slot < num_seen ? seen[a.slot] : 0) >= a.tick; }
  };

  Glance glance() const {
    const Ticks& seen = as_.after->seen;
    return {seen.data(), seen.size(), cluster_.number, cluster_.first_number, !as_.async_proxy, target_.shared, cluster_.launch->programmatic};
  }

  [[gnu::noinline]] void check_closely(const Access& a, const char* what) {
    const LaunchConfig& launch = *cluster_.launch;
    if (launch.programmatic && !by_.knowledge.dependencies_met && a.cluster >= launch.previous_first && a.cluster < launch.previous_end) {
      complain(access() + " that the previous grid has " + (*what == 'w' ? "written" : "read") + ", before griddepcontrol.wait");
    }
    if (a.cluster < cluster_.first_number) return;
    const bool race = !(strong(kind_) && a.flags & kStrongAccess) && !before(a);
    if (race) {
      complain(printf_string("data race%s on %s memory %p: %s by ", a.cluster == cluster_.number ? "" : " between blocks",
                             target_.shared ? "shared" : "global", address_, what) +
               where(cluster_, a) + ", and " + verb(kind_) + " with nothing that orders them");
    }
    if (as_.async_proxy && *what == 'w' && kind_ == Kind::kRead && !(a.flags & kAsyncAccess) && a.cluster == cluster_.number &&
        as_.after->flushed[a.slot] < a.tick) {
      complain(printf_string("an asynchronous unit reads %s memory %p that ", target_.shared ? "shared" : "global", address_) +
               where(cluster_, a) + " wrote through the generic proxy: fence.proxy.async is missing");
    }
  }

  void check_races() {
    if (!writes(kind_)) {
      check_races_of<false>();
    } else {
      check_races_of<true>();
    }
  }

  template <bool kWrites>
  void check_races_of() {
    const Glance glance = this->glance();
    const size_t begin = target_.offset, end = begin + bytes_;
    const auto flags = static_cast<uint8_t>((strong(kind_) ? kStrongAccess : 0) | (as_.async_proxy ? kAsyncAccess : 0));
    Access now{cluster_.number, as_.tick, location_, static_cast<uint16_t>(as_.slot), 0, flags};
    Cell* cell = shadow().cells + begin / 4;
    for (size_t at = begin & ~size_t{3}; at < end; at += 4, ++cell) {
      const size_t first = at < begin ? begin - at : 0, last = std::min<size_t>(4, end - at);
      const auto mask = static_cast<uint8_t>((0xf << first) & (0xf >> (4 - last)));
      if (!glance.settled(cell->write, mask)) check_closely(cell->write, "write");
      now.mask = mask;
      if constexpr (kWrites) {
        for (const Access& read : cell->reads) {
          if (!glance.settled(read, mask)) check_closely(read, "read");
        }
        add_bytes_of(cell->write, now);
        cell->write = now;
      } else {
        remember_read(*cell, now, glance);
      }
    }
  }

  static bool of_the_same(const Access& a, const Access& b) { return a.cluster == b.cluster && a.slot == b.slot; }

  // Two halves of a word, written or read one after the other, are remembered together.
  static void add_bytes_of(const Access& old, Access& now) {
    if (of_the_same(old, now) && old.tick == now.tick && old.flags == now.flags) now.mask |= old.mask;
  }

  // Three reads are kept: the last one, and of the others those that this one does not follow.
  void remember_read(Cell& cell, Access now, const Glance& glance) {
    if (of_the_same(cell.reads[0], now)) {
      add_bytes_of(cell.reads[0], now);
    } else {
      if (now.mask != 0xf) {
        for (const Access& read : cell.reads) add_bytes_of(read, now);
      }
      auto goes = [&](const Access& old) {
        if (old.cluster == glance.cluster) return old.slot == now.slot || glance.knows(old);
        return old.cluster < glance.first_number || before(old);
      };
      const size_t victim = goes(cell.reads[1]) ? 1 : goes(cell.reads[2]) ? 2 : 1 + (worker().next_random() & 1);
      cell.reads[victim] = cell.reads[0];
    }
    cell.reads[0] = now;
  }

  Thread& by_;
  Cluster& cluster_;
  const Accessor& as_;
  const void* address_;
  size_t bytes_;
  Kind kind_;
  uint32_t space_, location_;
  Target target_{};
};

Kind kind_of(uint32_t flags) {
  if (flags & EMU_ATOMIC) return Kind::kAtomic;
  if (flags & EMU_STRONG) return flags & EMU_WRITE ? Kind::kStrongWrite : Kind::kStrongRead;
  return flags & EMU_WRITE ? Kind::kWrite : Kind::kRead;
}

}  // namespace

Accessor accessor(const Thread& t) {
  return {&t.knowledge, t.slot, t.tick(), false};
}

void check_access(Thread& by, const Accessor& as, const void* address, size_t bytes, Kind kind, uint32_t space, uint32_t location) {
  if (by.cluster->checked()) Check(by, as, address, bytes, kind, space, location).run();
}

void define_bytes(const void* address, size_t bytes) {
  if (shadow().holds(address)) shadow().mark_defined(shadow().offset(address), bytes, true);
}

}  // namespace emu

extern "C" void emu_access(EmuThread* t, const void* address, uint32_t bytes, uint32_t kind, uint32_t location) {
  using namespace emu;
  Thread& self = thread_of(t);
  const Accessor as = accessor(self);
  check_access(self, as, address, bytes, kind_of(kind), kind & EMU_SPACE, location);
}
