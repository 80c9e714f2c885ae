// What a translated module and the emulator agree on: the tables that a module exports and the functions that its code calls.
//
// A module is a host shared object made by emulator/ptx from PTX. It exports one symbol, `emu_module`. Scalar instructions are C++
// inside the module (emulator/scalar); everything that involves other threads, memory checks or asynchronous units is a function
// below, which libcuda.so.1 defines. Addresses of shared memory are 32-bit numbers in the cluster's window: block rank << 24 | offset;
// generic addresses are host pointers.
#pragma once

#include <cstddef>
#include <cstdint>

inline constexpr uint32_t kEmuAbi = 1;                       // changed with this file: a module of another age is refused
inline constexpr uint32_t kEmuSharedReserved = 1024;         // what sm_90 keeps at the start of a block's window for itself
inline constexpr uint32_t kEmuParamStart = 0x210;            // sm_90's place of parameters in the constant bank, where they are
                                                             // aligned: `params` is an address equal to it modulo 128
inline constexpr uint32_t kEmuBlockWindowBits = 24;          // a block's window in shared::cluster addresses

// ---- tables of a module ------------------------------------------------------------------------------------------------------

// A place in the source: .loc with its inlined_at chain. Index 0 is "unknown".
struct EmuLocation {
  const char* file;
  uint32_t line;
  uint32_t caller;  // index of the place it was inlined at; 0: none
};

struct EmuParam {
  uint32_t offset, bytes;
};

// A static __shared__ variable of a kernel: [offset, offset + bytes) behind the reserved part of the block's window.
struct EmuSharedVariable {
  const char* name;
  uint32_t offset, bytes;
};

struct EmuThread;

struct EmuKernel {
  const char* name;
  void (*run)(EmuThread*, const char* params);
  const EmuParam* params;
  uint32_t num_params, param_bytes;
  const EmuSharedVariable* shared;
  uint32_t num_shared;
  uint32_t shared_bytes;        // static shared memory as ptxas counts it
  uint32_t shared_end;          // where dynamic shared memory may begin: with a red zone behind each variable in checked modules
  uint32_t dynamic_alignment;   // of the extern array
  uint32_t max_threads;         // .maxntid or .reqntid; 0: not said
  uint32_t required_threads[3]; // .reqntid; 0: not said
  uint32_t cluster[3];          // .reqnctapercluster; 0: not said
  uint32_t max_cluster;         // .maxclusterrank; 0: not said
};

// An address inside an initialised variable: the 8 bytes at `offset` become the address of global `target` plus `addend`.
struct EmuRelocation {
  uint32_t offset, target;
  int64_t addend;
};

// A .global or .const variable: the driver gives it memory in the context that loads the module.
struct EmuGlobal {
  const char* name;
  uint64_t bytes;
  uint32_t alignment;
  bool constant;
  const void* initial;  // `bytes` of it, or null for zeros
  const EmuRelocation* relocations;
  uint32_t num_relocations;
};

struct EmuModule {
  uint32_t abi;
  bool checked;               // calls emu_access and the ordering functions
  const char* target;         // "sm_90a"
  const EmuKernel* kernels;
  uint32_t num_kernels;
  const EmuGlobal* globals;
  uint32_t num_globals;
  const EmuLocation* locations;
  uint32_t num_locations;
};

// ---- a CUDA thread, as its code sees it --------------------------------------------------------------------------------------

struct EmuDim {
  uint32_t x, y, z;
};

struct EmuThread {
  EmuDim tid, ntid, ctaid, nctaid;                                     // PTX ISA 10: special registers
  EmuDim clusterid, nclusterid, cluster_ctaid, cluster_nctaid;
  uint32_t cluster_ctarank, cluster_nctarank;
  uint32_t lane, warp, linear;                                         // linear: index in the block
  uint32_t smid, device;
  uint64_t gridid;
  char* shared;                                                        // generic address of address 0 of the cluster's window
  uint32_t shared_base;                                                // first address of this block's window: rank << 24
  uint32_t dynamic_shared, dynamic_bytes;                              // address and size of the extern array
  char* const* globals;                                                // memory of the module's globals, in table order
};

// ---- enums -------------------------------------------------------------------------------------------------------------------

// emu_access: what is done, and through which state space.
enum EmuAccess : uint32_t {
  EMU_READ = 0,
  EMU_WRITE = 1,
  EMU_ATOMIC = 2,    // atom, red: read and written at once
  EMU_STRONG = 4,    // with READ or WRITE: ld and st that are volatile, relaxed, acquire or release
  EMU_GENERIC = 0,
  EMU_GLOBAL = 16,
  EMU_SHARED = 32,   // of this block
  EMU_CLUSTER = 48,  // shared::cluster: of any block of the cluster
  EMU_CONST = 64,    // read-only
  EMU_SPACE = 0xf0,
};

enum EmuScope : uint32_t { EMU_CTA, EMU_CLUSTER_SCOPE, EMU_GPU, EMU_SYS };
enum EmuOrder : uint32_t { EMU_RELAXED, EMU_ACQUIRE, EMU_RELEASE, EMU_ACQ_REL, EMU_SC };

enum EmuType : uint8_t {
  EMU_F16, EMU_BF16, EMU_TF32, EMU_F32, EMU_F64, EMU_S8, EMU_U8, EMU_S32, EMU_E4M3, EMU_E5M2,
  EMU_U32, EMU_S64, EMU_U64, EMU_B32, EMU_B64, EMU_B16, EMU_B8,
};

enum EmuReduce : uint8_t { EMU_NONE, EMU_ADD, EMU_MIN, EMU_MAX, EMU_INC, EMU_DEC, EMU_AND, EMU_OR, EMU_XOR };
enum EmuShuffle : uint8_t { EMU_UP, EMU_DOWN, EMU_BFLY, EMU_IDX };
enum EmuVote : uint8_t { EMU_VOTE_ALL, EMU_VOTE_ANY, EMU_VOTE_UNI, EMU_VOTE_BALLOT };

// ---- descriptions of matrix and tensor instructions (constants in a module's code) -------------------------------------------

struct EmuMma {  // D = A * B + C, PTX ISA 9.7.14
  uint8_t m, n, k;
  EmuType d, a, b, c;
  bool saturate;
};

struct EmuMatrix {  // ldmatrix, stmatrix: `num` matrices 8 x 8 of b16
  uint8_t num;
  bool transposed;
};

struct EmuWgmma {  // PTX ISA 9.7.15
  uint16_t n, k;
  EmuType d, a, b;
  int8_t scale_a, scale_b;        // 1 or -1
  bool transposed_a, transposed_b;  // MN-major in shared memory
  bool saturate;
};

struct EmuTensor {  // cp.async.bulk.tensor, cp.reduce.async.bulk.tensor
  uint8_t rank;
  bool im2col;
  EmuReduce reduce;
};

extern "C" {

// ---- checks ------------------------------------------------------------------------------------------------------------------
[[noreturn]] void emu_fail(EmuThread*, uint32_t location, const char* format, ...) __attribute__((format(printf, 3, 4)));
void emu_access(EmuThread*, const void* address, uint32_t bytes, uint32_t kind, uint32_t location);  // before the access
void emu_yield(EmuThread*);  // a polling thread lets others run: strong loads, atomics, nanosleep, failed test_wait

// ---- memory order (checked modules only) ---------------------------------------------------------------------------------------
void emu_acquire(EmuThread*, const void* address, EmuScope, EmuOrder);  // after a strong read or atomic of that order
void emu_release(EmuThread*, const void* address, EmuScope, EmuOrder);  // before a strong write or atomic of that order
void emu_fence(EmuThread*, EmuOrder, EmuScope);                         // fence.sc, fence.acq_rel, membar
void emu_fence_proxy_async(EmuThread*, uint32_t location);              // fence.proxy.async[.space]

// ---- barriers ------------------------------------------------------------------------------------------------------------------
// count 0: all threads of the block. aligned: all threads of a warp are at the same instruction.
void emu_bar_sync(EmuThread*, uint32_t id, uint32_t count, bool aligned, uint32_t location);
void emu_bar_arrive(EmuThread*, uint32_t id, uint32_t count, bool aligned, uint32_t location);
uint32_t emu_bar_red(EmuThread*, uint32_t id, uint32_t count, EmuReduce op /* AND, OR, ADD: popc */, bool predicate, bool aligned,
                     uint32_t location);
void emu_cluster_arrive(EmuThread*, EmuOrder, bool aligned, uint32_t location);
void emu_cluster_wait(EmuThread*, bool aligned, uint32_t location);

// ---- warps ---------------------------------------------------------------------------------------------------------------------
uint32_t emu_shfl(EmuThread*, EmuShuffle, uint32_t value, uint32_t b, uint32_t c, uint32_t mask, bool* in_range, uint32_t location);
uint32_t emu_vote(EmuThread*, EmuVote, bool predicate, uint32_t mask, uint32_t location);  // a mask for BALLOT, else 0 or 1
uint32_t emu_match(EmuThread*, bool all, uint64_t value, uint32_t mask, bool* same, uint32_t location);
uint32_t emu_redux(EmuThread*, EmuReduce, EmuType /* S32, U32, B32 */, uint32_t value, uint32_t mask, uint32_t location);
uint32_t emu_elect(EmuThread*, uint32_t mask, bool* elected, uint32_t location);
void emu_syncwarp(EmuThread*, uint32_t mask, uint32_t location);
uint32_t emu_activemask(EmuThread*);

// ---- matrices of a warp --------------------------------------------------------------------------------------------------------
void emu_ldmatrix(EmuThread*, const EmuMatrix*, uint32_t* d, uint32_t address, uint32_t location);
void emu_stmatrix(EmuThread*, const EmuMatrix*, uint32_t address, const uint32_t* s, uint32_t location);
uint32_t emu_movmatrix(EmuThread*, uint32_t value, uint32_t location);
void emu_mma(EmuThread*, const EmuMma*, uint32_t* d, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t location);

// ---- wgmma: d points at the accumulators, which are written by the time of the wait -----------------------------------------------
void emu_wgmma(EmuThread*, const EmuWgmma*, uint32_t* const* d, const uint32_t* a /* four registers, or null */, uint64_t a_descriptor,
               uint64_t b_descriptor, bool scale_d, uint32_t location);
void emu_wgmma_fence(EmuThread*, uint32_t location);
void emu_wgmma_commit(EmuThread*, uint32_t location);
void emu_wgmma_wait(EmuThread*, uint32_t pending, uint32_t location);

// ---- cp.async ------------------------------------------------------------------------------------------------------------------
void emu_cp_async(EmuThread*, uint32_t shared, const void* global, uint32_t bytes, uint32_t source_bytes, uint32_t location);
void emu_cp_async_commit(EmuThread*, uint32_t location);
void emu_cp_async_wait(EmuThread*, uint32_t pending, uint32_t location);
void emu_cp_async_wait_all(EmuThread*, uint32_t location);
void emu_cp_async_mbarrier_arrive(EmuThread*, uint32_t mbarrier, bool noinc, uint32_t location);

// ---- mbarrier ------------------------------------------------------------------------------------------------------------------
void emu_mbarrier_init(EmuThread*, uint32_t mbarrier, uint32_t count, uint32_t location);
void emu_mbarrier_inval(EmuThread*, uint32_t mbarrier, uint32_t location);
// Expects `expect_bytes` more, then arrives `count` times; drop: takes them off the later phases too. Returns the state before.
uint64_t emu_mbarrier_arrive(EmuThread*, uint32_t mbarrier, uint32_t count, uint32_t expect_bytes, bool drop, EmuOrder, EmuScope,
                             uint32_t location);
void emu_mbarrier_expect(EmuThread*, uint32_t mbarrier, uint32_t bytes, uint32_t location);
void emu_mbarrier_complete(EmuThread*, uint32_t mbarrier, uint32_t bytes, uint32_t location);
// blocking: try_wait, which here suspends the thread until the phase is over.
bool emu_mbarrier_test(EmuThread*, uint32_t mbarrier, uint64_t state, bool blocking, EmuOrder, uint32_t location);
bool emu_mbarrier_test_parity(EmuThread*, uint32_t mbarrier, uint32_t parity, bool blocking, EmuOrder, uint32_t location);
uint32_t emu_mbarrier_pending(uint64_t state);

// ---- bulk copies and tensors ---------------------------------------------------------------------------------------------------
void emu_bulk_load(EmuThread*, uint32_t shared, const void* global, uint32_t bytes, uint32_t mbarrier, uint16_t multicast /* 0: none */,
                   uint32_t location);
void emu_bulk_copy_shared(EmuThread*, uint32_t cluster, uint32_t shared, uint32_t bytes, uint32_t mbarrier, uint32_t location);
void emu_bulk_store(EmuThread*, void* global, uint32_t shared, uint32_t bytes, EmuReduce, EmuType, uint32_t location);
void emu_bulk_reduce_shared(EmuThread*, uint32_t cluster, uint32_t shared, uint32_t bytes, EmuReduce, EmuType, uint32_t mbarrier,
                            uint32_t location);
void emu_bulk_commit(EmuThread*, uint32_t location);
void emu_bulk_wait(EmuThread*, uint32_t pending, bool only_read, uint32_t location);
void emu_tensor_load(EmuThread*, const EmuTensor*, uint32_t shared, const void* map, const int32_t* coordinates, const uint16_t* offsets,
                     uint32_t mbarrier, uint16_t multicast, uint32_t location);
void emu_tensor_store(EmuThread*, const EmuTensor*, const void* map, const int32_t* coordinates, uint32_t shared, uint32_t location);
void emu_tensor_prefetch(EmuThread*, const EmuTensor*, const void* map, const int32_t* coordinates, uint32_t location);
void emu_store_async(EmuThread*, uint32_t cluster, const void* value, uint32_t bytes, uint32_t mbarrier, uint32_t location);
void emu_reduce_async(EmuThread*, uint32_t cluster, EmuReduce, EmuType, uint64_t value, uint32_t mbarrier, uint32_t location);

// ---- clusters and grids --------------------------------------------------------------------------------------------------------
uint32_t emu_mapa(EmuThread*, uint32_t shared, uint32_t rank, uint32_t location);
uint32_t emu_ctarank(EmuThread*, uint32_t shared, uint32_t location);
void emu_griddep_wait(EmuThread*);
void emu_griddep_launch(EmuThread*);
void emu_setmaxnreg(EmuThread*, bool increase, uint32_t registers, uint32_t location);

// ---- the rest ------------------------------------------------------------------------------------------------------------------
uint64_t emu_clock(void);        // %clock64, %clock
uint64_t emu_globaltimer(void);  // nanoseconds
int emu_vprintf(const char* format, const char* arguments);
}
