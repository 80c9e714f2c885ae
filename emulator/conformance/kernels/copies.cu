// cp.async: PTX ISA 9.7.9.25.2. Blocks of 128 threads, 16 bytes of input and of output a thread.

__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// ---- sizes: copies of 4, 8 and 16 bytes, through either cache
KERNEL sizes(const u8* in, u8* out) {
  __shared__ __align__(16) u8 tile[3][128 * 16];
  u32 t = threadIdx.x, lane = t * 16;
  for (u32 i = 0; i < 4; ++i)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&tile[0][lane + i * 4])), "l"(in + lane + i * 4)
                 : "memory");
  for (u32 i = 0; i < 2; ++i)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(&tile[1][lane + i * 8])), "l"(in + lane + i * 8)
                 : "memory");
  asm volatile("cp.async.cg.shared::cta.global [%0], [%1], 16;" ::"r"(shared_address(&tile[2][lane])), "l"(in + lane) : "memory");
  commit();
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  u32 other = (127 - t) * 16;
  for (u32 i = 0; i < 16; ++i) out[lane + i] = u8(tile[0][other + i] + 3 * tile[1][other + i] + 5 * tile[2][other + i]);
}

// ---- partial: bytes beyond src-size become zeros
KERNEL partial(const u8* in, u8* out) {
  __shared__ __align__(16) u8 tile[128 * 16];
  u32 t = threadIdx.x, lane = t * 16, bytes = t % 17;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&tile[lane])), "l"(in + lane), "r"(bytes)
               : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (u32 i = 0; i < 16; ++i) out[lane + i] = tile[lane + i];
}

// ---- partial4: the same in fours, with hints for the caches
KERNEL partial4(const u8* in, u8* out) {
  __shared__ __align__(16) u8 tile[128 * 16];
  u32 t = threadIdx.x, lane = t * 16;
  for (u32 i = 0; i < 4; ++i)
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;" ::"r"(shared_address(&tile[lane + i * 4])),
                 "l"(in + lane + i * 4), "r"((t + i) % 5)
                 : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (u32 i = 0; i < 16; ++i) out[lane + i] = tile[lane + i];
}

// ---- ignored: ignore-src skips the source and writes zeros
KERNEL ignored(const u8* in, u8* out) {
  __shared__ __align__(16) u8 tile[128 * 16];
  u32 t = threadIdx.x, lane = t * 16;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p; }" ::"r"(
                   shared_address(&tile[lane])),
               "l"(in + lane), "r"(u32(t % 3 == 0))
               : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  for (u32 i = 0; i < 16; ++i) out[lane + i] = tile[lane + i];
}

// ---- groups: a ring of three slabs, with two groups in flight
KERNEL groups(const u8* in, u8* out) {
  __shared__ __align__(16) u8 ring[3][128 * 16];
  u32 t = threadIdx.x, lane = t * 16;
  auto fetch = [&](u32 step) {
    if (step < 6) {
      const u8* from = in + (lane + step * 272) % 2048;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&ring[step % 3][lane])), "l"(from) : "memory");
    }
    commit();
  };
  fetch(0);
  fetch(1);
  u32 sums[4] = {0, 0, 0, 0};
  for (u32 step = 0; step < 6; ++step) {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    fetch(step + 2);
    const u32* slab = reinterpret_cast<const u32*>(&ring[step % 3][(127 - t) * 16]);
    for (u32 i = 0; i < 4; ++i) sums[i] = sums[i] * 5 + slab[i];
  }
  for (u32 i = 0; i < 4; ++i) reinterpret_cast<u32*>(out + lane)[i] = sums[i];
}

// ---- arrivals: cp.async.mbarrier.arrive tells an mbarrier, counted beforehand (noinc) or not
KERNEL arrivals(const u8* in, u8* out) {
  __shared__ __align__(16) u8 tile[2][128 * 16];
  __shared__ u64 barriers[2];
  u32 t = threadIdx.x, lane = t * 16;
  if (t == 0) {
    mbarrier_init(&barriers[0], 128);
    mbarrier_init(&barriers[1], 128);
  }
  __syncthreads();
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[0][lane])), "l"(in + lane) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barriers[0])) : "memory");
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(&tile[1][lane])), "l"(in + lane) : "memory");
  asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" ::"r"(shared_address(&barriers[1])) : "memory");
  mbarrier_arrive(&barriers[1]);
  mbarrier_wait(&barriers[0], 0);
  mbarrier_wait(&barriers[1], 0);
  u32 other = (t ^ 64) * 16;
  for (u32 i = 0; i < 16; ++i) out[lane + i] = u8(tile[0][other + i] + 3 * tile[1][other + i]);
}
