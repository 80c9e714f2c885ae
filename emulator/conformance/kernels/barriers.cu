// Barriers of a block: PTX ISA 9.7.13.1 to 9.7.13.3. Blocks of 128 threads unless a section says otherwise.

// ---- neighbours: each thread reads what another warp's thread wrote before bar.sync
KERNEL neighbours(const u32* in, u32* out) {
  __shared__ u32 values[128];
  u32 t = threadIdx.x;
  values[t] = in[t];
  asm volatile("bar.sync 0;" ::: "memory");
  u32 sum = values[(t + 37) % 128];
  asm volatile("barrier.sync 0;" ::: "memory");
  values[t] = sum * 3;
  asm volatile("barrier.cta.sync.aligned 5, 128;" ::: "memory");
  out[t] = values[127 - t];
}

// ---- producers: half the warps arrive, the other half wait on named barriers (two buffers, four rounds)
KERNEL producers(const u32* in, u32* out) {
  __shared__ u32 buffer[2][64];
  u32 t = threadIdx.x;
  if (t < 64) {
    for (u32 round = 0; round < 4; ++round) {
      u32 full = 1 + round % 2, empty = 3 + round % 2;
      if (round >= 2) asm volatile("bar.sync %0, 128;" ::"r"(empty) : "memory");
      buffer[round % 2][t] = in[round * 64 + t];
      asm volatile("bar.arrive %0, 128;" ::"r"(full) : "memory");
    }
  } else {
    for (u32 round = 0; round < 4; ++round) {
      u32 full = 1 + round % 2, empty = 3 + round % 2;
      asm volatile("bar.sync %0, 128;" ::"r"(full) : "memory");
      out[round * 64 + t - 64] = buffer[round % 2][127 - t];
      if (round < 2) asm volatile("barrier.cta.arrive %0, 128;" ::"r"(empty) : "memory");
    }
  }
}

// ---- reductions: bar.red over the block and over two warps
KERNEL reductions(const u32* in, u32* out) {
  u32 t = threadIdx.x, value = in[t], count, all, any, part;
  asm volatile("{ .reg .pred p; setp.gt.u32 p, %1, 99; bar.red.popc.u32 %0, 0, p; }" : "=r"(count) : "r"(value) : "memory");
  asm volatile("{ .reg .pred p, q; setp.gt.u32 p, %1, 99; bar.red.and.pred q, 0, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(all)
               : "r"(value)
               : "memory");
  asm volatile("{ .reg .pred p, q; setp.gt.u32 p, %1, 99; barrier.cta.red.or.pred q, 0, 128, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(value)
               : "memory");
  u32 id = 1 + t / 64;
  asm volatile("{ .reg .pred p; setp.gt.u32 p, %1, 99; bar.red.popc.u32 %0, %2, 64, !p; }"
               : "=r"(part)
               : "r"(value), "r"(id)
               : "memory");
  out[t] = count | all << 8 | any << 9 | part << 16;
}

// ---- warps: memory exchanged inside a warp, with bar.warp.sync of the whole warp and of halves
KERNEL warps(const u32* in, u32* out) {
  __shared__ u32 values[128];
  u32 t = threadIdx.x, lane = t % 32;
  values[t] = in[t];
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
  u32 first = values[t ^ 31];
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
  values[t] = first + lane;
  u32 mask = lane < 16 ? 0xffff : 0xffff0000;
  asm volatile("bar.warp.sync %0;" ::"r"(mask) : "memory");
  out[t] = values[t ^ 15];
}

// ---- counting: __syncthreads_count and its kin, as nvcc makes them
KERNEL counting(const u32* in, u32* out) {
  u32 value = in[threadIdx.x];
  u32 count = __syncthreads_count(value & 1);
  u32 all = __syncthreads_and(value), any = __syncthreads_or(value == 12345);
  out[threadIdx.x] = count | (all != 0) << 8 | (any != 0) << 9;
}
