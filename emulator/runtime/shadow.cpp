// The shadow arrays: see shadow.h.
#include "shadow.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emu {
namespace {

template <typename T>
T* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    perror("emucuda: no address space for device memory");
    abort();
  }
  return static_cast<T*>(p);
}

Shadow reserve_all() {
  Shadow s;
  s.base = reserve<char>(Shadow::kBytes);
  s.valid = reserve<uint8_t>(Shadow::kBytes / 8);
  s.defined = reserve<uint8_t>(Shadow::kBytes / 4);
  s.cells = reserve<Cell>(Shadow::kBytes / 4 * sizeof(Cell));
  return s;
}

}  // namespace

Shadow reserved_shadow = reserve_all();

void Shadow::mark_valid(size_t at, size_t bytes, bool on) {
  memset(valid + at / 8, on ? 8 : 0, on ? bytes / 8 : (bytes + 7) / 8);
  if (on && bytes % 8) valid[at / 8 + bytes / 8] = static_cast<uint8_t>(bytes % 8);
}

void Shadow::mark_any_defined(size_t at, size_t bytes, bool on) {
  auto one = [&](size_t byte) {
    const auto bit = static_cast<uint8_t>(1 << byte % 4);
    defined[byte / 4] = static_cast<uint8_t>(on ? defined[byte / 4] | bit : defined[byte / 4] & ~bit);
  };
  for (; bytes && at % 4; ++at, --bytes) one(at);
  memset(defined + at / 4, on ? 15 : 0, bytes / 4);
  at += bytes / 4 * 4;
  for (bytes %= 4; bytes; ++at, --bytes) one(at);
}

bool Shadow::all_of_any_defined(size_t at, size_t bytes) const {
  for (size_t byte = at, end = at + bytes; byte < end;) {
    if (byte % 4 == 0 && byte + 4 <= end) {
      if (defined[byte / 4] != 15) return false;
      byte += 4;
    } else {
      if (!(defined[byte / 4] >> byte % 4 & 1)) return false;
      ++byte;
    }
  }
  return true;
}

}  // namespace emu
