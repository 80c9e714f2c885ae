// Special registers (PTX ISA 10), programmatic launches, setmaxnreg, clocks and other odds and ends.
#include <cstdio>

// ---- places: every thread of a grid of 3 dimensions says where it is
KERNEL places(const u32* in, u32* out) {
  u32 x, y, z, bx, by, bz, nx, ny, nz, gx, gy, gz;
  asm volatile("mov.u32 %0, %%tid.x; mov.u32 %1, %%tid.y; mov.u32 %2, %%tid.z;" : "=r"(x), "=r"(y), "=r"(z));
  asm volatile("mov.u32 %0, %%ctaid.x; mov.u32 %1, %%ctaid.y; mov.u32 %2, %%ctaid.z;" : "=r"(bx), "=r"(by), "=r"(bz));
  asm volatile("mov.u32 %0, %%ntid.x; mov.u32 %1, %%ntid.y; mov.u32 %2, %%ntid.z;" : "=r"(nx), "=r"(ny), "=r"(nz));
  asm volatile("mov.u32 %0, %%nctaid.x; mov.u32 %1, %%nctaid.y; mov.u32 %2, %%nctaid.z;" : "=r"(gx), "=r"(gy), "=r"(gz));
  u32 block = (bz * gy + by) * gx + bx, thread = (z * ny + y) * nx + x;
  out[block * nx * ny * nz + thread] = x + 16 * y + 256 * z + 4096 * bx + 65536 * by + 1048576 * bz + in[0];
}

// ---- machine: facts about the warp, the multiprocessor and shared memory that hold on every machine
KERNEL machine(const u32* in, u32* out) {
  volatile __shared__ u32 fixed[100];  // volatile: nvcc keeps it
  u32 warp_size, lane, warps, sm, sms, dynamic, total, aligned;
  u64 grid;
  asm volatile("mov.u32 %0, WARP_SZ;" : "=r"(warp_size));
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm volatile("mov.u32 %0, %%nwarpid;" : "=r"(warps));
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u32 %0, %%nsmid;" : "=r"(sms));
  asm volatile("mov.u64 %0, %%gridid;" : "=l"(grid));
  asm volatile("mov.u32 %0, %%dynamic_smem_size;" : "=r"(dynamic));
  asm volatile("mov.u32 %0, %%total_smem_size;" : "=r"(total));
  fixed[threadIdx.x] = in[0];
  aligned = shared_address(dynamic_shared) % 1024;
  if (threadIdx.x == 33) {
    out[0] = warp_size;
    out[1] = lane;
    out[2] = warps > 0;
    out[3] = sm < sms;
    out[4] = dynamic;
    out[5] = total >= dynamic + 400;
    out[6] = aligned;
  }
}

// ---- clocks: they do not run backwards, and nanosleep passes time
KERNEL clocks(const u32* in, u32* out) {
  u64 start, end, first, last;
  u32 low, high;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start)::"memory");
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(first)::"memory");
  asm volatile("mov.u32 %0, %%clock;" : "=r"(low)::"memory");
  for (u32 i = 0; i < 50; ++i) asm volatile("nanosleep.u32 %0;" ::"r"(1000u) : "memory");
  asm volatile("nanosleep.u32 20;" ::: "memory");
  asm volatile("mov.u32 %0, %%clock_hi;" : "=r"(high)::"memory");
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(last)::"memory");
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end)::"memory");
  out[0] = end >= start;
  out[1] = last > first;
  out[2] = high == u32(last >> 32) || high + 1 == u32(last >> 32);
  out[3] = in[0] + (low == 0x12345678 ? 0 : 0);
}

// ---- early_exit: some threads leave before the others meet at a barrier
KERNEL early_exit(const u32* in, u32* out) {
  __shared__ u32 values[128];
  u32 t = threadIdx.x;
  values[t] = in[t];
  __syncthreads();
  if (t >= 96) {
    out[t] = 5;
    asm volatile("exit;");
  }
  asm volatile("pmevent 3;");
  u32 found = values[127 - t];
  __syncthreads();
  values[t] = found;
  __syncthreads();
  out[t] = values[(t + 1) % 96];
}

// ---- register_counts: one warpgroup gives registers to two others
extern "C" __global__ void __launch_bounds__(384, 1) register_counts(const u32* in, u32* out) {
  u32 t = threadIdx.x;
  if (t < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    out[t] = in[t] + 1;
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    out[t] = in[t] * 3;
  }
}

// ---- primary: lets its dependent start before it writes
KERNEL primary(const u32* in, u32* out) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  asm volatile("nanosleep.u32 2000;" ::: "memory");
  out[i] = in[i] * 7;
}

// ---- secondary: waits for the primary's memory
KERNEL secondary(const u32* in, u32* out) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  out[i] = in[255 - i] + 1;
}

// ---- printing: printf returns the number of its arguments
KERNEL printing(const u32* in, u32* out) {
  if (threadIdx.x == 0) out[0] = u32(printf("conformance: %u and %s\n", in[0], "text"));
}

// ---- local_arrays: an array of a thread, indexed by what it holds
KERNEL local_arrays(const u32* in, u32* out) {
  u32 values[16], t = threadIdx.x;
  for (u32 i = 0; i < 16; ++i) values[i] = in[(t + i) % 128];
  u32 at = t;
  for (u32 i = 0; i < 40; ++i) {
    at = values[at % 16] + i;
    values[(at >> 7) % 16] ^= at;
  }
  u32 sum = 0;
  for (u32 i = 0; i < 16; ++i) sum = sum * 33 + values[i];
  out[t] = sum;
}

// ---- recursion: calls that nvcc cannot inline
__device__ __noinline__ u32 ackermann_like(u32 m, u32 n) {
  if (m == 0) return n + 1;
  if (n == 0) return ackermann_like(m - 1, 1);
  return ackermann_like(m - 1, ackermann_like(m, n - 1));
}
KERNEL recursion(const u32* in, u32* out) { out[threadIdx.x] = ackermann_like(2, in[threadIdx.x] % 4); }

// ---- pointers: calls through a table of functions
__device__ __noinline__ u32 doubled(u32 x) { return x * 2; }
__device__ __noinline__ u32 squared(u32 x) { return x * x; }
__device__ __noinline__ u32 inverted(u32 x) { return ~x; }
KERNEL pointers(const u32* in, u32* out) {
  u32 (*functions[3])(u32) = {doubled, squared, inverted};
  u32 x = in[threadIdx.x];
  out[threadIdx.x] = functions[x % 3](x);
}
