// Kernels for the checks of the driver API.

__device__ u32 counter = 41;
__constant__ u32 factors[4] = {1, 2, 3, 4};

// ---- add: data[i] += value
KERNEL add(u32* data, u32 value) { data[(blockIdx.x * blockDim.z + threadIdx.z) * blockDim.x + threadIdx.x] += value; }

// ---- mixed: parameters of many sizes
struct Triple {
  u8 bytes[3];
};
KERNEL mixed(u8 a, double b, short c, Triple d, const __grid_constant__ TensorMap e, int f, u32* out) {
  out[0] = a + u32(b) * 10 + u32(c) * 100 + d.bytes[2] * 1000 + u32(e.words[1]) + u32(f) * 100000;
}

// ---- globals: reads a global and a constant variable, writes the global
KERNEL globals(u32* out) {
  out[threadIdx.x] = counter * factors[threadIdx.x % 4];
  __syncthreads();
  if (threadIdx.x == 0) counter += 1;
}

// ---- dynamic: uses the dynamic shared memory it is given
KERNEL dynamic(u32* out, u32 words) {
  u32* shared = reinterpret_cast<u32*>(dynamic_shared);
  for (u32 i = threadIdx.x; i < words; i += blockDim.x) shared[i] = i * i;
  __syncthreads();
  if (threadIdx.x == 0) out[0] = shared[words - 1] + shared[words / 2];
}

// ---- fixed: static shared memory of a known size, for at most 256 threads
extern "C" __global__ void __launch_bounds__(256) fixed(u32* out) {
  __shared__ u32 values[500];
  values[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

// ---- slow: takes about half a millisecond
KERNEL slow(u32* out) {
  for (u32 i = 0; i < 100; ++i) asm volatile("nanosleep.u32 5000;" ::: "memory");
  out[0] += 1;
}

// ---- illegal_address: reads where nothing is
KERNEL illegal_address(u32* out, u64 address) { out[0] = *reinterpret_cast<volatile u32*>(address); }

// ---- misaligned: reads four bytes at an odd address
KERNEL misaligned(u32* out) { out[1] = *reinterpret_cast<volatile u32*>(reinterpret_cast<u8*>(out) + 1); }

// ---- trapped: executes a trap
KERNEL trapped(u32* out) {
  out[0] = 1;
  asm volatile("trap;");
}

// ---- breakpoint: without a debugger
KERNEL breakpoint(u32* out) {
  asm volatile("brkpt;");
  out[0] = 1;
}

// ---- shared_overrun: writes beyond the window of shared memory
KERNEL shared_overrun(u32* out) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(0x00f00000), "r"(out[0]) : "memory");
}
