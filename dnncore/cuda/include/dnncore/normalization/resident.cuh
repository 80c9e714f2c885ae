// Batch normalisation in training in one launch, in which a block, or a cluster of blocks, has all elements of a channel (of
// channels-last tensors, of up to two packs of channels), in its threads' registers where they fit. x, and dy, are read once; the
// kernels of forward.cuh and backward.cuh, which read them twice in three launches or leave most multiprocessors idle, take three
// times as long where a launch is most of what there is.
//
//    block 0   vectors 0 ... p-1     of the channel --> sums, of registers --+--> parts, in both blocks' shared memory --> y, from registers
//    block 1   vectors p ... 2p-1                   --> sums               --+
//
// A thread has up to kVectors vectors of its channel, all of them under way before it looks at the first. The first threads of a block
// are `owners`, each of a channel: they put together what warps and blocks have found, and tell the others what a channel's elements are
// multiplied by. The mean is taken first and the squared distances from it in a second pass over registers. The order of all sums
// depends on the launch alone.
//
// Planes that are no whole vectors of 8 bytes are read by single elements, of which a thread has up to 16. Lanes are as many as there are
// elements in some planes (196 of 224 threads for four planes of 7 x 7), so that a thread's elements are all at the same place of their
// planes, the same distance apart: it divides once, not for each of them. Neighbouring lanes have neighbouring elements.
//
// Planes of vectors that are too large for that are read in turns by the largest clusters, of which each thread keeps one; the others are read
// again, the last ones first. Of a few channels at a time they are in the second-level cache still, where a launch of its own, over all
// channels, would find nothing. Squared distances are then from the mean of what is kept, and brought to that of all afterwards.
#pragma once

#include "dnncore/normalization/channel_params.cuh"
#include "dnncore/normalization/totals.cuh"
#include "dnncore/ptx/cluster.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/forget.cuh"

namespace dnncore {

constexpr int kResidentThreads = 512;  // most of a block; _THREADS in resident.py
constexpr int kMostBlocks = 8;         // of a cluster

// kBytes is what a thread reads at once; kLast is of channels-last tensors, whose vectors are of kWidth channels; kBlocks have a channel
// together.
template <typename T, int kBytes, bool kLast, int kBlocks>
struct Resident {
  using C = Compute<T>;
  static_assert(sizeof(C) == sizeof(uint32), "what blocks exchange");
  static constexpr int kWidth = kBytes / sizeof(T), kOwn = kLast ? kWidth : 1;  // channels of a thread
  static constexpr int kChannels = kLast ? 2 * kWidth : 1;                      // most of a block
  static constexpr int kWarps = kResidentThreads / kWarpSize, kShare = kWarpSize / kOwn;
  static constexpr bool kSingles = kWidth == 1;
  static constexpr int kVectors = kSingles ? 16 : 8;  // forward; _SINGLES and _VECTORS in resident.py
  static constexpr int kNumbers = 3;  // that an owner tells others
  static constexpr bool kStreams = !kLast && !kSingles && kBlocks == kMostBlocks;
  static constexpr int kPairs = kLast ? 4 : kSingles ? 16 : kStreams && kBytes == 16 ? 6 : 8;  // backward; _pairs there
  using Elements = Loaded<T, kWidth>;

  struct Shared {
    C of_warps[2][kWarps][kChannels];
    C lines[kNumbers + 1][kChannels];
    uint4 parts[kBlocks][kChannels];
    Mbarrier exchanged;
  };

  const ChannelParams& params;
  Shared& shared;
  int column;
  int lane;
  int lanes;
  int channels;  // of the block
  int64 first;   // channel of the block
  int32 rank;
  int32 begin;
  int32 end;
  int64 single;   // where a thread's first single element is, of all but dy
  int32 singles;  // that it has

  __device__ __forceinline__ Resident(const ChannelParams& params, Shared& shared) : params(params), shared(shared), rank(0) {
    const int columns = kLast ? params.columns : 1;
    column = static_cast<int>(threadIdx.x) & (columns - 1);
    lane = static_cast<int>(threadIdx.x) / columns;
    lanes = static_cast<int>(blockDim.x) / columns;
    channels = columns * kOwn;
    first = static_cast<int64>(blockIdx.x / kBlocks) * channels;
    if constexpr (kBlocks > 1) rank = static_cast<int32>(block_rank());
    begin = min(rank * params.part, params.vectors);
    end = min(begin + params.part, params.vectors);
    if constexpr (kSingles) {  // `part` is of whole planes; lanes beyond the last of `planes` have nothing
      const SmallQuotientRemainder place = divide(lane, params.run);
      const int32 before = divide(begin, params.run).quotient, images = divide(end, params.run).quotient - before;
      const int32 rounded_up = images - place.quotient + params.planes.value - 1;
      singles = place.quotient < params.planes.value ? divide(rounded_up, params.planes).quotient : 0;
      single = single_by(params.outer);
    }
  }

  // Where a thread's first single element is, in a tensor whose planes are so far apart.
  __device__ __forceinline__ int64 single_by(int32 outer) const {
    const SmallQuotientRemainder place = divide(lane, params.run);
    const int32 before = divide(begin, params.run).quotient;
    return first * params.step + ((before + place.quotient) * outer + place.remainder);
  }

  __device__ __forceinline__ bool is_owner() const { return static_cast<int>(threadIdx.x) < channels; }
  __device__ __forceinline__ int64 owned() const { return first + threadIdx.x; }
  __device__ __forceinline__ bool has(int k) const { return kSingles ? k < singles : begin + lane + k * lanes < end; }

  // Where the k-th of a thread's vectors is.
  template <typename Element>
  __device__ __forceinline__ Element* at(Element* tensor, int k) const {
    return at(tensor, k, single, params.outer, params.inner);
  }
  template <typename Element>
  __device__ __forceinline__ Element* at(Element* tensor, int k, int64 first_single, int32 outer, int32 inner) const {
    if constexpr (kSingles) {
      const uint32 bytes = static_cast<uint32>(params.planes.value) * static_cast<uint32>(outer) * sizeof(T);  // fewer than 2^32
      using Byte = std::conditional_t<std::is_const_v<Element>, const char, char>;
      return reinterpret_cast<Element*>(reinterpret_cast<Byte*>(tensor + first_single) + k * static_cast<int64>(bytes));
    }
    const SmallQuotientRemainder split = divide(begin + lane + k * lanes, params.run);
    const int64 place = (first + column * kOwn) * params.step + (split.quotient * outer + split.remainder * inner);
    return tensor + place;
  }

  // Of a thread's vectors, kNumber from the start-th on.
  template <int kNumber>
  __device__ __forceinline__ void load(Elements (&found)[kNumber], const void* from, int start = 0) const {
#pragma unroll
    for (int k = 0; k < kNumber; ++k) found[k].load_if(has(start + k), at(static_cast<const T*>(from), start + k));
  }
  template <int kNumber>
  __device__ __forceinline__ void load_dy(Elements (&found)[kNumber], int start) const {
    const int64 first_single = kSingles ? single_by(params.dy_outer) : 0;
#pragma unroll
    for (int k = 0; k < kNumber; ++k) {
      const T* const place = at(static_cast<const T*>(params.dy), start + k, first_single, params.dy_outer, params.dy_inner);
      found[k].load_if(has(start + k), place);
    }
  }

  // Elements of each channel that the block has, and how many of them it keeps; in turns of so many vectors per thread.
  __device__ __forceinline__ int elements() const { return (end - begin) * (kWidth / kOwn); }
  template <int kNumber>
  __device__ __forceinline__ int kept() const {
    return kStreams ? min(end - begin, lanes * kNumber) * (kWidth / kOwn) : elements();
  }
  template <int kNumber>
  __device__ __forceinline__ int turns() const {
    return kStreams ? max((end - begin + lanes * kNumber - 1) / (lanes * kNumber), 1) : 1;
  }

  template <int kNumber>
  __device__ __forceinline__ static void keep_narrow(Elements (&kept)[kNumber]) {
    if constexpr (sizeof(T) == 2 && !kSingles) {  // as it is stored, a single element has a register to itself too
#pragma unroll
      for (int k = 0; k < kNumber; ++k) forget_widened(kept[k].word);
    }
  }

  // All threads: which single elements there are is found out again. The compiler would keep the answers, one for each, and spill them;
  // from another lane, for all that it knows, comes another number.
  __device__ __forceinline__ void compare_anew() {
    if constexpr (kSingles) singles = __shfl_sync(0xffffffffu, singles, threadIdx.x % kWarpSize);
  }

  // See channel_params.cuh.
  __device__ __forceinline__ C parameter(ChannelParameter which, int64 channel, C otherwise) const {
    return read_parameter<T>(params, which, channel, otherwise);
  }
  // The sum over a block, for the owners of channels. A warp's lanes give away half of their channels until each has one.
  __device__ __forceinline__ void put_together(C (&values)[kOwn], C (&of_warps)[kWarps][kChannels]) const {
    const int mine = threadIdx.x % kWarpSize, columns = channels / kOwn;
    int distance = kWarpSize / 2;
#pragma unroll
    for (int half = kOwn / 2; half > 0; half /= 2) {
      const bool is_upper = (mine & distance) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const C given = is_upper ? values[i] : values[i + half], kept = is_upper ? values[i + half] : values[i];
        values[i] = kept + __shfl_xor_sync(0xffffffffu, given, distance);
      }
      distance /= 2;
    }
#pragma unroll
    for (int left = kShare / 2; left > 0; left /= 2) {
      if (left >= columns) values[0] += __shfl_xor_sync(0xffffffffu, values[0], left);
    }
    if (mine % kShare < columns) of_warps[threadIdx.x / kWarpSize][mine % kShare * kOwn + mine / kShare] = values[0];
  }
  __device__ __forceinline__ C total(const C (&of_warps)[kWarps][kChannels]) const {
    C sum = C(0);
    for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarpSize; ++warp) sum += of_warps[warp][threadIdx.x];
    return sum;
  }

  // What an owner has found, to the owners of its channel in all blocks; then visit(what) for that of each block, in their order.
  template <typename Visit>
  __device__ __forceinline__ void exchange(const C (&found)[kNumbers], const Visit& visit) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint4 bits{__float_as_uint(found[0]), __float_as_uint(found[1]), __float_as_uint(found[2]), 0};
      store_in_block(block, shared.parts[rank][threadIdx.x], bits, shared.exchanged);
    }
    wait(shared.exchanged, 0);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint4 bits = shared.parts[block][threadIdx.x];
      visit({__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z)});
    }
  }
  __device__ __forceinline__ void begin_to_exchange() const {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x == 0) {
        make_barrier(shared.exchanged, 1);
        arrive_expecting(shared.exchanged, static_cast<uint32>(kBlocks * channels * sizeof(uint4)));
        publish_barriers();
      }
      __syncthreads();
      arrive_in_cluster();
    }
  }
  // All threads: what others write into this block's memory may come, and what this one writes into theirs.
  __device__ __forceinline__ void meet_cluster() const {
    if constexpr (kBlocks > 1) wait_for_cluster();
  }

  // What an owner leaves for the threads of its channel. Of planes the compiler reads all of it by one instruction, which is four numbers.
  __device__ __forceinline__ void leave(C one, C two, C three) const {
    shared.lines[0][threadIdx.x] = one;
    shared.lines[1][threadIdx.x] = two;
    shared.lines[2][threadIdx.x] = three;
    if (!kLast) shared.lines[3][threadIdx.x] = C(0);
  }
  __device__ __forceinline__ void read_line(int line, C (&values)[kOwn]) const {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) values[i] = shared.lines[line][column * kOwn + i];
  }
};

}  // namespace dnncore
