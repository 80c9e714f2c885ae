// What batch, layer and group normalisation share: statistics are taken over the elements of a group, and groups tile
// the tensor. The host describes where each operand's elements lie over groups and over the elements of a group; a
// parameter has stride 0 along dimensions in which it does not change. One dimension, that in which x is contiguous, is
// cut into packs of 16 bytes. A block takes a tile of `columns` groups (or packs of groups) and a part of their
// elements; neighbouring threads work along the packed dimension, so that what a warp reads lies together in either
// layout.
//
//    packs are elements (NCHW):                        packs are groups (NHWC), with c = `columns`:
//    group 0   [pack][pack][pack][pack] ...  team 0               pack of groups 0    pack of groups 1 ...
//    group 1   [pack][pack][pack][pack] ...  team 1   element 0   thread 0            thread 1
//    ...                                              element 1   thread c            thread c + 1
//    all lanes of a pack belong to one group          each lane of a pack has a group of its own
#pragma once

#include "dnncore/common/pack.cuh"

namespace dnncore {

// Mirrored by Operand in dnncore/cuda/normalization/frame.py. Of the last four, forward takes running mean and
// variance, backward the gradients of scale and bias. kZ is what is added before the activation; backward, its gradient,
// and kY what the activation gave.
enum Operand : int {
  kX,
  kDy,
  kOutput,
  kScale,
  kBias,
  kMean,
  kInvStd,
  kFirstOld,
  kSecondOld,
  kFirstNew,
  kSecondNew,
  kY,
  kZ,
  kOperands,
};

// Mirrored by Switch in dnncore/cuda/normalization/frame.py.
enum Switch : int32 {
  kReduces = 1,             // statistics or sums are computed
  kApplies = 2,             // the output is written
  kPacksGroups = 4,         // the lanes of a pack are groups
  kVaryingParameters = 8,   // scale and bias differ from element to element of a group
  kVaryingStatistics = 16,  // mean and inv_std differ likewise
  kWeighted = 32,           // dy is multiplied by scale before it is summed
  kUncentred = 64,          // the mean is 0
  kGivesVariance = 128,     // kInvStd holds a variance
  kRectifies = 256,         // y is what ReLU gives
};

constexpr int kNormalizationThreads = 128;  // THREADS in frame.py

struct Frame {
  Divisor extents[kMaxNdim];  // in the packed frame the last one counts packs
  int64 strides[kOperands][kMaxNdim];
  int32 ndim;
};

// What walk.cuh goes by, all of it in elements and below 2^31; mirrored by WALK in dnncore/cuda/normalization/frame.py.
enum Walked : int { kWalkedX, kWalkedParameters, kWalkedStatistics, kWalkedOperands };

struct WalkParams {
  SmallDivisor inner;                 // packs in the inner dimension of a group's elements
  int32 strides[2][kWalkedOperands];  // outer, inner
  int32 inner_step;                   // from one of a thread's packs to its next
  int32 steps[2][kWalkedOperands];    // without and with a carry into the outer dimension
};

// Mirrored by PARAMS in dnncore/cuda/normalization/frame.py.
struct NormalizationParams {
  Blend blend;
  void* operands[kOperands];  // null where there is none
  void* partials;             // Moments or Sums [groups, parts]
  void* totals;               // Sums [groups]
  Frame groups;
  Frame elements;
  int64 steps[kOperands];  // from lane to lane of a pack
  int64 packed_extent;     // elements in the packed dimension
  Divisor tiles;
  int64 group_packs;
  int64 element_packs;
  int64 parts;
  int64 part;     // packs per part; the last may have fewer
  double length;  // elements per group
  double epsilon;
  double momentum;
  double parameter_alpha;
  double parameter_beta;
  int32 columns;  // a power of two up to 32, or up to the threads where packs are elements
  int32 switches;
  uint32 narrow;         // a bit for each operand: whether it is stored in fewer bits than the compute type has
  SmallDivisor sharing;  // adjacent groups that have statistics and totals in common: channels of a group
  WalkParams walk;
};

__device__ __forceinline__ bool is_on(const NormalizationParams& params, Switch what) { return (params.switches & what) != 0; }

// What no y is below: max(y, floor) is y where there is no ReLU.
template <typename C>
__device__ __forceinline__ C floor_of(const NormalizationParams& params) {
  return is_on(params, kRectifies) ? C(0) : -C(INFINITY);
}

// The maximum of both; NaN stays NaN.
template <typename C>
__device__ __forceinline__ C rectify(C value, C floor) {
  return value < floor ? floor : value;
}

// dy where ReLU gave a positive y, and 0 elsewhere.
template <typename T>
__device__ __forceinline__ void mask(Pack<T>& dy, const Pack<T>& y) {
#pragma unroll
  for (int lane = 0; lane < Pack<T>::kWidth; ++lane) dy.lanes[lane] = widen(y.lanes[lane]) > Compute<T>(0) ? dy.lanes[lane] : T{};
}

// As load_pack and store_pack, for packs that lie anywhere: elements of 16 bits in two halves where these are whole, neighbours
// and aligned, as in planes of 14 x 14, of which every other begins in the middle of a pack and all end there.
struct alignas(8) Half {
  uint32 words[2];
};

template <typename T>
__device__ __forceinline__ bool comes_in_halves(const T* place, int64 step, int64 lanes) {
  if constexpr (sizeof(T) != 2) return false;
  return step == 1 && lanes % (Pack<T>::kWidth / 2) == 0 && reinterpret_cast<uint64>(place) % sizeof(Half) == 0;
}

template <typename T>
__device__ __forceinline__ Pack<T> load_anywhere(const T* place, int64 step, int64 lanes) {
  if (!comes_in_halves(place, step, lanes)) return load_pack(place, step, lanes);
  Pack<T> pack{};
  const auto* from = reinterpret_cast<const Half*>(place);
  auto* to = reinterpret_cast<Half*>(&pack);
  if (lanes > 0) to[0] = from[0];
  if (lanes == Pack<T>::kWidth) to[1] = from[1];
  return pack;
}

template <typename T>
__device__ __forceinline__ void store_anywhere(const Pack<T>& pack, T* place, int64 step, int64 lanes) {
  if (!comes_in_halves(place, step, lanes)) return store_pack(pack, place, step, lanes);
  const auto* from = reinterpret_cast<const Half*>(&pack);
  auto* to = reinterpret_cast<Half*>(place);
  if (lanes > 0) to[0] = from[0];
  if (lanes == Pack<T>::kWidth) to[1] = from[1];
}

// The place of this thread in its block: which of the tile's groups it works for, and as which of how many threads.
struct Team {
  bool packs_groups;
  int columns;
  int lanes;
  int column;
  int lane;

  explicit __device__ __forceinline__ Team(const NormalizationParams& params) : Team(params, is_on(params, kPacksGroups)) {}
  __device__ __forceinline__ Team(const NormalizationParams& params, bool packs)
      : packs_groups(packs), columns(params.columns), lanes(kNormalizationThreads / params.columns) {
    const int thread = threadIdx.x;
    column = packs_groups ? thread % columns : thread / lanes;
    lane = packs_groups ? thread / columns : thread % lanes;
  }
};

// Add to `offsets` where the index-th item of a frame is, for the operands that are named; returns its index in the
// last dimension.
template <int... kNamed>
__device__ __forceinline__ int64 add_offsets(const Frame& frame, int64 index, int64 (&offsets)[kOperands]) {
  int64 last = index;
#pragma unroll 1  // most frames have one or two dimensions
  for (int axis = frame.ndim - 1; axis > 0; --axis) {
    const QuotientRemainder split = divide(index, frame.extents[axis]);
    if (axis == frame.ndim - 1) last = split.remainder;
    ((offsets[kNamed] += split.remainder * frame.strides[kNamed][axis]), ...);
    index = split.quotient;
  }
  ((offsets[kNamed] += index * frame.strides[kNamed][0]), ...);
  return last;
}

// What a thread of a block is to do: a group, or a pack of groups, and a part of their elements.
template <typename T>
struct Task {
  static constexpr int kWidth = Pack<T>::kWidth;
  int64 begin;
  int64 end;
  int64 pack;  // the pack of groups, or the group
  int group_lanes;
  bool exists;
  int64 offsets[kOperands];  // of x, dy and the output; other operands are placed where they are read

  __device__ __forceinline__ Task(const NormalizationParams& params, const Team& team, int64 item) : group_lanes(kWidth), offsets{} {
    const QuotientRemainder split = divide(item, params.tiles);
    pack = split.remainder * team.columns + team.column;
    exists = pack < params.group_packs;
    begin = split.quotient * params.part;
    end = exists ? min(begin + params.part, params.element_packs) : begin;
    if (!exists) return;
    const int64 last = add_offsets<kX, kDy, kOutput>(params.groups, pack, offsets);
    if (team.packs_groups) group_lanes = lanes_of(params, last);
  }

  static __device__ __forceinline__ int lanes_of(const NormalizationParams& params, int64 last) {
    return static_cast<int>(min(params.packed_extent - last * kWidth, static_cast<int64>(kWidth)));
  }

  // The group of the first lane, counted in groups even where packs are groups.
  __device__ __forceinline__ int64 group(const NormalizationParams& params) const {
    if (!is_on(params, kPacksGroups)) return pack;
    const QuotientRemainder split = divide(pack, params.groups.extents[params.groups.ndim - 1]);
    return split.quotient * params.packed_extent + split.remainder * kWidth;
  }

  // Offsets of x, dy and the output at an element, for those that are named; returns how many lanes of the pack exist.
  template <int... kNamed>
  __device__ __forceinline__ int place(const NormalizationParams& params, int64 element, int64 (&at)[kOperands]) const {
    ((at[kNamed] = offsets[kNamed]), ...);
    const int64 last = add_offsets<kNamed...>(params.elements, element, at);
    return is_on(params, kPacksGroups) ? group_lanes : lanes_of(params, last);
  }

  // Offsets of parameters and statistics: of the group, returning its index in the last dimension, and at an element.
  template <int... kNamed>
  __device__ __forceinline__ int64 place_group(const NormalizationParams& params, int64 (&at)[kOperands]) const {
    ((at[kNamed] = 0), ...);
    return add_offsets<kNamed...>(params.groups, pack, at);
  }
  template <int... kNamed>
  __device__ __forceinline__ void place_parameters(const NormalizationParams& params, int64 element, int64 (&at)[kOperands]) const {
    place_group<kNamed...>(params, at);
    add_offsets<kNamed...>(params.elements, element, at);
  }
};

// Scale, bias, their gradients, and statistics that are running or given may be stored as x is, in type T, rather than in
// its compute type, each by itself: it is widened when it is loaded, and rounded when it is stored. Kernels that allow for
// it are 10 to 30 % larger, so every kernel <T, P> exists twice for a T of 16 bits. With P = T each operand is asked whether
// it is narrow; with P = Compute<T> none is, and there is nothing to ask. The launcher takes that one where it can.
template <typename P>
__device__ __forceinline__ bool is_narrow(const NormalizationParams& params, Operand operand) {
  return sizeof(P) < sizeof(Compute<P>) && (params.narrow >> operand & 1) != 0;
}

// One value of such an operand.
template <typename P>
__device__ __forceinline__ Compute<P> load_value(const NormalizationParams& params, Operand operand, int64 offset) {
  const void* values = params.operands[operand];
  return is_narrow<P>(params, operand) ? widen(static_cast<const P*>(values)[offset]) : static_cast<const Compute<P>*>(values)[offset];
}

template <typename P>
__device__ __forceinline__ void store_value(const NormalizationParams& params, Operand operand, int64 offset, Compute<P> value) {
  void* values = params.operands[operand];
  if (is_narrow<P>(params, operand)) {
    static_cast<P*>(values)[offset] = narrow<P>(value);
  } else {
    static_cast<Compute<P>*>(values)[offset] = value;
  }
}

// Load the lanes of a parameter or statistic, stored in type S, that exist, each `step` elements behind the one before,
// with zeros behind them: at once where they are aligned neighbours.
template <typename S, int kWidth>
__device__ __forceinline__ void load_lanes(Compute<S> (&values)[kWidth], const S* place, int64 step, int lanes) {
  using C = Compute<S>;
  constexpr int kPack = Pack<S>::kWidth;
  static_assert(kWidth % kPack == 0);
  if (step == 0) {
    const C value = widen(*place);
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) values[lane] = value;
  } else if (step == 1 && is_whole(place, lanes) && lanes == kWidth) {
#pragma unroll
    for (int pack = 0; pack < kWidth / kPack; ++pack) {
      const Pack<S> found = reinterpret_cast<const Pack<S>*>(place)[pack];
#pragma unroll
      for (int lane = 0; lane < kPack; ++lane) values[pack * kPack + lane] = widen(found.lanes[lane]);
    }
  } else {
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) values[lane] = lane < lanes ? widen(place[lane * step]) : C(0);
  }
}

// The same for an operand that may be missing.
template <typename P, int kWidth>
__device__ __forceinline__ void load_parameter(
    Compute<P> (&values)[kWidth],
    const NormalizationParams& params,
    Operand operand,
    const int64 (&offsets)[kOperands],
    int lanes,
    Compute<P> otherwise
) {
  const void* found = params.operands[operand];
  if (found == nullptr) {
#pragma unroll
    for (int lane = 0; lane < kWidth; ++lane) values[lane] = otherwise;
  } else if (is_narrow<P>(params, operand)) {
    load_lanes(values, static_cast<const P*>(found) + offsets[operand], params.steps[operand], lanes);
  } else {
    load_lanes(values, static_cast<const Compute<P>*>(found) + offsets[operand], params.steps[operand], lanes);
  }
}

// Mean and inverse standard deviation of the task's groups, as far as they are given.
template <typename P, typename T, typename C, int kWidth>
__device__ __forceinline__ void load_group_statistics(
    const NormalizationParams& params, const Task<T>& task, C (&mean)[kWidth], C (&inv_std)[kWidth]
) {
  int64 at[kOperands];
  const int64 last = task.template place_group<kMean, kInvStd>(params, at);
  if (!is_on(params, kPacksGroups) || params.sharing.value == 1) {
    load_parameter<P>(mean, params, kMean, at, task.group_lanes, C(0));
    load_parameter<P>(inv_std, params, kInvStd, at, task.group_lanes, C(1));
    return;
  }
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) {
    const int64 place = divide(static_cast<int32>(last) * kWidth + min(lane, task.group_lanes - 1), params.sharing).quotient;
    mean[lane] = static_cast<const C*>(params.operands[kMean])[at[kMean] + place * params.steps[kMean]];
    inv_std[lane] = static_cast<const C*>(params.operands[kInvStd])[at[kInvStd] + place * params.steps[kInvStd]];
  }
}

// Blend values into the lanes that exist of a pack of the output.
template <typename T, int kWidth>
__device__ __forceinline__ void store_lanes(
    const NormalizationParams& params, const Compute<T> (&values)[kWidth], int64 offset, int lanes
) {
  T* place = static_cast<T*>(params.operands[kOutput]) + offset;
  const int64 step = params.steps[kOutput];
  Pack<T> pack{};
  if (params.blend.beta != 0.0) pack = load_anywhere(place, step, lanes);
#pragma unroll
  for (int lane = 0; lane < kWidth; ++lane) blend_into(params.blend, values[lane], &pack.lanes[lane]);
  store_anywhere(pack, place, step, lanes);
}

}  // namespace dnncore
