// Loads, stores and atomics (PTX ISA 9.7.9.8 to 9.7.9.11, 9.7.13.5, 9.7.13.6) and what checked modules report of them.
#pragma once

#include "half.h"
#include "integer.h"

namespace emu {

inline void access(EmuThread* thread, const void* address, u32 bytes, u32 kind, u32 location) {
  if constexpr (kChecked) emu_access(thread, address, bytes, kind, location);
}
inline void acquire(EmuThread* thread, const void* address, EmuScope scope, EmuOrder order) {
  if constexpr (kChecked) emu_acquire(thread, address, scope, order);
}
inline void release(EmuThread* thread, const void* address, EmuScope scope, EmuOrder order) {
  if constexpr (kChecked) emu_release(thread, address, scope, order);
}
inline void fence(EmuThread* thread, EmuOrder order, EmuScope scope) {
  if constexpr (kChecked) emu_fence(thread, order, scope);
}
inline void fence_proxy_async(EmuThread* thread, u32 location) {
  if constexpr (kChecked) emu_fence_proxy_async(thread, location);
}

// Scopes and orders by their names in opcodes; membar's .gl is .gpu, and .volatile is relaxed (8.5, 9.7.9.8).
namespace scope {
inline constexpr EmuScope cta = EMU_CTA, cluster = EMU_CLUSTER_SCOPE, gpu = EMU_GPU, gl = EMU_GPU, sys = EMU_SYS;
}
namespace order {
inline constexpr EmuOrder relaxed = EMU_RELAXED, acquire = EMU_ACQUIRE, release = EMU_RELEASE, acq_rel = EMU_ACQ_REL, sc = EMU_SC;
}

inline char* pointer(u64 address) { return reinterpret_cast<char*>(address); }
inline char* shared_pointer(EmuThread* thread, u32 address) { return thread->shared + address; }
inline u32 shared_address(EmuThread* thread, const char* pointer) { return u32(pointer - thread->shared); }

// isspacep (9.7.9.19). A thread's local memory is its host stack.
inline bool is_shared_cluster(EmuThread* thread, u64 pointer) {
  return pointer - u64(thread->shared) < u64(thread->cluster_nctarank) << kEmuBlockWindowBits;
}
inline bool is_shared_cta(EmuThread* thread, u64 pointer) {
  return pointer - u64(thread->shared) - thread->shared_base < u64(1) << kEmuBlockWindowBits;
}
inline bool is_local(u64 pointer) {
  constexpr u64 kStack = 256 << 10;
  return pointer - u64(__builtin_frame_address(0)) + kStack < 2 * kStack;
}

// What %total_smem_size says: static and dynamic memory in the unit of allocation.
inline u32 total_shared_bytes(EmuThread* thread, u32 static_bytes) {
  return (static_bytes + thread->dynamic_bytes + 127) / 128 * 128;
}

template <class T>
inline T load(const char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline void store(char* to, T value) {
  __builtin_memcpy(to, &value, sizeof value);
}

template <int kBytes>
struct Bits;
template <>
struct Bits<1> { using type = u8; };
template <>
struct Bits<2> { using type = u16; };
template <>
struct Bits<4> { using type = u32; };
template <>
struct Bits<8> { using type = u64; };
template <int kBytes>
using BitsOf = typename Bits<kBytes>::type;

// Other devices' and streams' kernels run on other host threads: strong accesses are the host's too, up to 8 bytes.
template <class T>
inline T load_strong(const char* from) {
  if constexpr (sizeof(T) > 8) return load<T>(from);
  else return get<T>(__atomic_load_n(reinterpret_cast<const BitsOf<sizeof(T)>*>(from), __ATOMIC_ACQUIRE));
}

template <class T>
inline void store_strong(char* to, T value) {
  if constexpr (sizeof(T) > 8) store(to, value);
  else __atomic_store_n(reinterpret_cast<BitsOf<sizeof(T)>*>(to), get<BitsOf<sizeof(T)>>(value), __ATOMIC_RELEASE);
}

// Replaces the value at `at` by operation(value); returns the one before.
template <class T, class Operation>
inline T atomic(char* at, Operation operation) {
  if constexpr (sizeof(T) > 8) {
    const T before = load<T>(at);
    store<T>(at, operation(before));
    return before;
  } else {
    using Cell = BitsOf<sizeof(T)>;
    Cell* cell = reinterpret_cast<Cell*>(at);
    Cell before = __atomic_load_n(cell, __ATOMIC_RELAXED), after;
    do after = get<Cell>(T(operation(get<T>(before))));
    while (!__atomic_compare_exchange_n(cell, &before, after, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return get<T>(before);
  }
}

// atom.add. Of f32 in global memory it flushes subnormal numbers, in shared memory it does not (9.7.13.5).
template <class T>
inline T atomic_sum(EmuThread* thread, const char* at, T a, T b) {
  if constexpr (std::is_same_v<T, f32>) {
    return canonical(is_shared_cluster(thread, u64(at)) ? a + b : flush<true>(flush<true>(a) + flush<true>(b)));
  } else if constexpr (std::is_same_v<T, f64>) {
    return a + b;
  } else if constexpr (std::is_integral_v<T>) {
    return integer_add(a, b);
  } else {
    return half_add<false, false>(a, b);
  }
}

template <bool kGreater, class T>
inline T atomic_extreme(T a, T b) {
  if constexpr (std::is_integral_v<T>) return (b < a) != kGreater ? b : a;
  else return half_extreme<kGreater, false, false, false>(a, b);
}

template <class T>
inline T atomic_inc(T a, T limit) {
  return a >= limit ? T(0) : T(a + 1);
}
template <class T>
inline T atomic_dec(T a, T limit) {
  return a == 0 || a > limit ? limit : T(a - 1);
}

}  // namespace emu
