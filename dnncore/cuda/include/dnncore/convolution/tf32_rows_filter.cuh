// Backward-filter convolution of fp32 planes (NCHW) of few channels, a network's first layer, by tensor cores with the precision of
// fp32: three products of tf32 (tf32_split.cuh), the same bits every time.
//
//     dw[k, (c, r, s)] = sum over outputs (p, q) of dy[k, p, q] * x[c, p * stride + r, q * stride + s]
//
// A product whose rows are filters, whose columns are taps of all channels, 147 or 363, and whose sum runs over the outputs. Nothing is
// gathered in memory: what taps meet of a row of x lies in shared memory once, and a lane reads what its column wants from there,
// wherever that begins.
//
//     producers      a unit is up to 64 outputs of a row of y: a stage of dy; before the first of a row, those rows of x that it is
//     (2 in turn)    the first to meet. Each element is split once, on its way into shared memory.
//
//     shared      +- dy: a ring of stages -------------------+  +- x: a ring of rows, nearest and, kPartWords behind, rest --+
//                 |  [8 outputs][part][16 filters][lane]     |  |  [row % ring][channel][columns, those of the padding too]  |
//                 +------------------------------------------+  +------------------------------------------------------------+
//                            | 16 bytes per lane                          | 4 bytes per lane
//     consumers      8 warps, each kM x 16 filters by kN x 8 columns. Where these are not all of a tile's, groups of warps take units in
//                    turn.
//
// Of eight outputs lane 4 g + t takes 2 t and the next: which summand is which is the same for both operands. A lane's column is
// number g of eight taps; the rows of x are as far apart as lets the lanes of two of them meet other banks. Tensor cores cut sums
// off where fp32 rounds them: those of at most 40 outputs are added up by themselves. Products of the same sums are as far from each
// other as there are sums.
//
// An output beyond the end of a row has zeros for x as for dy, so that infinity in x reaches those taps alone that meet it for an
// output. Blocks share out the rows of all images; each group of warps leaves its sums in the workspace, where a second kernel
// adds them up (sum_of_parts.cuh). It starts early, but not before all blocks have ended, as that of filter_parts.cuh.
#pragma once

#include "dnncore/convolution/sum_of_parts.cuh"
#include "dnncore/convolution/tf32_split.cuh"
#include "dnncore/ptx/early_launch.cuh"
#include "dnncore/ptx/matrix.cuh"
#include "dnncore/ptx/mbarrier.cuh"
#include "dnncore/ptx/warpgroup.cuh"

namespace dnncore::tf32_rows {

using tf32_split::Split;

inline constexpr int kGroup = 8;  // outputs of a product
inline constexpr int kStageGroups = 4;  // whose sums are added up by themselves
inline constexpr int kProducers = 2, kConsumers = 2;
inline constexpr int kWarps = kConsumers * kWarpgroup / 32, kProducerWarps = kWarpgroup / 32;
inline constexpr int kThreads = (kProducers + kConsumers) * kWarpgroup;
inline constexpr int kPad = 4;  // 16 bytes each, behind eight outputs: two neighbours are then written to different banks

// _PARAMS in convolution/tf32_rows_backward_filter.py. Offsets within an image are 32 bits: the host sees to it.
struct Params {
  const float* x;
  const float* dy;
  float4* parts;            // [tile][slice][group of warps][place]
  int64 x_image;            // elements from image to image
  int64 dy_image;
  SmallDivisor down;        // rows of y of an image
  SmallDivisor ring_rows;
  SmallDivisor channels;
  SmallDivisor taps;        // of a filter
  SmallDivisor tap_columns;
  int32 x_strides[2];       // of channels, rows
  int32 dy_strides[2];      // of filters, rows
  int32 input[2];           // rows and columns of x
  int32 padding[2];
  int32 tap_rows;
  int32 row_step;           // of x, from a row of y to the next
  int32 output_columns;
  int32 rows;               // of y, of all images
  int32 filters;
  int32 filter_tiles;
  int32 tiles;
  int32 slices;             // blocks that share out the rows for each tile
  int32 row_units;
  int32 groups;             // of eight outputs, of a unit
  int32 row_groups;
  int32 row_words;          // columns of a row of x with its padding
  int32 slot_words;         // from one row of the ring to the next
  int32 stages;
};

// One of what a block goes through: some outputs of a row of y, and where in the ring.
class Walk {
public:
  __device__ __forceinline__ Walk(const Params& params, int slice)
      : params_(params),
        row_(boundary(slice)),
        rows_(boundary(slice + 1) - row_) {
    const auto found = divide(row_, params.down);
    image_ = found.quotient, row_ = found.remainder;
  }
  __device__ __forceinline__ bool any() const { return rows_ > 0; }
  __device__ __forceinline__ int number() const { return number_; }
  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ uint32 parity() const { return parity_; }
  __device__ __forceinline__ int image() const { return image_; }
  __device__ __forceinline__ int row() const { return row_; }
  __device__ __forceinline__ bool begins_row() const { return unit_ == 0; }
  __device__ __forceinline__ bool begins_image() const { return unit_ == 0 && (row_ == 0 || number_ == 0); }
  __device__ __forceinline__ int first_group() const { return unit_ * params_.groups; }
  __device__ __forceinline__ int groups() const { return min(params_.groups, params_.row_groups - first_group()); }

  __device__ __forceinline__ void next() {
    ++number_;
    if (++stage_ == params_.stages) stage_ = 0, parity_ ^= 1;
    if (++unit_ < params_.row_units) return;
    unit_ = 0, --rows_;
    if (++row_ == params_.down.value) row_ = 0, ++image_;
  }

private:
  __device__ __forceinline__ int boundary(int slice) const {
    return static_cast<int>(static_cast<int64>(params_.rows) * slice / params_.slices);
  }

  const Params& params_;
  int row_;   // of the image
  int rows_;  // that are left
  int image_;
  int unit_ = 0;
  int number_ = 0;
  int stage_ = 0;
  uint32 parity_ = 0;
};

// kM x 16 filters and kN x 8 columns of a warp, of which a tile has kWarpsDown x kWarpsAcross.
template <int kStride, int kM, int kN, int kWarpsDown, int kWarpsAcross, int kPartWords>
struct Kernel {
  static constexpr int kFilters = kWarpsDown * kM * 16, kColumns = kWarpsAcross * kN * 8;
  static constexpr int kTileWarps = kWarpsDown * kWarpsAcross, kTurns = kWarps / kTileWarps;
  static constexpr int kSixteens = kFilters / 16;
  static constexpr int kPartQuads = kSixteens * 32, kGroupQuads = 2 * kPartQuads + kPad;
  static constexpr int kTogether = kM % 3 == 0 ? 3 : 2;  // sixteens of filters in registers at a time
  static_assert(kM % kTogether == 0 && kWarps % kTileWarps == 0);

  // Where a column begins in the rows of x, and in which of those that an output's row meets.
  struct Column {
    int32 word;
    int32 row;
  };

  struct Shared {
    uint32* x;
    Column* columns;
    uint4* dy;
    Mbarrier* filled;
    Mbarrier* free;
    int stage_quads;

    __device__ __forceinline__ Shared(const Params& params, unsigned char* memory)
        : x(reinterpret_cast<uint32*>(memory)),
          columns(reinterpret_cast<Column*>(x + 2 * kPartWords)),
          dy(reinterpret_cast<uint4*>(columns + kColumns)),
          stage_quads(params.groups * kGroupQuads) {
      filled = reinterpret_cast<Mbarrier*>(dy + params.stages * stage_quads);
      free = filled + params.stages;
    }
  };

  static __device__ void run(const Params& params) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const Shared shared(params, memory);
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      for (int i = 0; i < params.stages; ++i) {
        make_barrier(shared.filled[i], kWarpgroup);
        make_barrier(shared.free[i], kWarps);
      }
    }
    const int tile = static_cast<int>(blockIdx.x) % params.tiles, slice = static_cast<int>(blockIdx.x) / params.tiles;
    find_columns(params, shared, tile / params.filter_tiles * kColumns, thread);
    __syncthreads();
    wait_for_previous();
    const int warpgroup = warpgroup_index();
    if (warpgroup >= kConsumers) {
      leave_registers<48>();
      produce(params, shared, slice, tile % params.filter_tiles * kFilters, warpgroup - kConsumers);
    } else {
      take_registers<208>();
      consume(params, shared, slice, tile);
    }
  }

private:
  // Beyond the last column there is the first once more, whose sums are not stored.
  static __device__ __forceinline__ void find_columns(const Params& params, const Shared& shared, int first, int thread) {
    for (int i = thread; i < kColumns; i += kThreads) {
      const int column = first + i < params.channels.value * params.taps.value ? first + i : 0;
      const auto channel = divide(column, params.taps), tap = divide(channel.remainder, params.tap_columns);
      shared.columns[i] = {channel.quotient * params.row_words + tap.remainder, tap.quotient};
    }
  }

  // Before an image whose rows of x take the place of those of the one before: all of this are multiplied.
  static __device__ __forceinline__ void end_image(const Walk& walk) {
    if (walk.begins_image() && walk.number() > 0) synchronize<kThreads>(1);
  }

  static __device__ __forceinline__ void produce(
      const Params& params, const Shared& shared, int slice, int first_filter, int producer) {
    for (Walk walk(params, slice); walk.any(); walk.next()) {
      end_image(walk);
      if (walk.number() % kProducers != producer) continue;
      wait(shared.free[walk.stage()], walk.parity() ^ 1);
      if (walk.begins_row()) load_rows(params, shared, walk);
      load_outputs(params, shared, walk, first_filter);
      arrive(shared.filled[walk.stage()]);
    }
  }

  // Of two filters, eight apart, and two neighbouring outputs, in the order of a product's registers. A lane has the same outputs of
  // every fourth filter, and a warp so all outputs of these.
  static __device__ __forceinline__ void load_outputs(
      const Params& params, const Shared& shared, const Walk& walk, int first_filter) {
    constexpr int kCount = 2;  // sixteens of filters, of which each warp has four, on their way
    static_assert(kSixteens % kCount == 0);
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (lane / 4 >= walk.groups()) return;
    const int output = walk.first_group() * kGroup + lane * 2;
    const bool exists[2] = {output < params.output_columns, output + 1 < params.output_columns};
    int filter = first_filter + warp;
    const auto* from = reinterpret_cast<const uint32*>(
        params.dy + (walk.image() * params.dy_image + (walk.row() * params.dy_strides[1] + output + filter * params.dy_strides[0])));
    const int64 step = 4 * params.dy_strides[0];
    uint4* to = shared.dy + (walk.stage() * shared.stage_quads + lane / 4 * kGroupQuads + warp * 4 + lane % 4);
#pragma unroll 1
    for (int first = 0; first < kSixteens; first += kCount) {
      uint32 found[kCount * 4][2];
#pragma unroll
      for (int i = 0; i < kCount * 4; ++i) {
        const bool is_filter = filter < params.filters;
        found[i][0] = is_filter && exists[0] ? __ldg(from) : 0U;
        found[i][1] = is_filter && exists[1] ? __ldg(from + 1) : 0U;
        filter += 4, from += step;
      }
#pragma unroll
      for (int i = 0; i < kCount * 4; ++i) {
        if (i % 4 >= 2) continue;
        const Split a(found[i][0]), b(found[i + 2][0]), c(found[i][1]), d(found[i + 2][1]);
        uint4* const quad = to + (i / 4 * 32 + i % 4 * 16);
        quad[0] = {a.nearest, b.nearest, c.nearest, d.nearest};
        quad[kPartQuads] = {a.rest, b.rest, c.rest, d.rest};
      }
      to += kCount * 32;
    }
  }

  // The rows of x that a row of y is the first to meet. A warp has a row of a channel.
  static __device__ __forceinline__ void load_rows(const Params& params, const Shared& shared, const Walk& walk) {
    constexpr int kCount = 8;  // times 32 columns, on their way
    const int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int count = walk.begins_image() ? params.tap_rows : min(params.tap_rows, params.row_step);
    const int first_row = walk.row() * params.row_step + params.tap_rows - count;
#pragma unroll 1
    for (int line = warp; line < count * params.channels.value; line += kProducerWarps) {
      const auto rows = divide(line, params.channels);
      const int row = first_row + rows.quotient, h = row - params.padding[0];
      const uint32 columns = h >= 0 && h < params.input[0] ? params.input[1] : 0;
      const auto* const from = reinterpret_cast<const uint32*>(
          params.x + (walk.image() * params.x_image + (rows.remainder * params.x_strides[0] + h * params.x_strides[1])));
      uint32* const to =
          shared.x + (divide(row, params.ring_rows).remainder * params.slot_words + rows.remainder * params.row_words);
#pragma unroll 1
      for (int first = lane; first < params.row_words; first += kCount * 32) {
        const int w = first - params.padding[1];
        const uint32* const next = from + w;
        uint32 found[kCount];
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          found[i] = static_cast<uint32>(w + i * 32) < columns ? __ldg(next + i * 32) : 0U;
        }
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if (first + i * 32 >= params.row_words) continue;
          const Split split(found[i]);
          to[first + i * 32] = split.nearest, to[kPartWords + first + i * 32] = split.rest;
        }
      }
    }
  }

  using Sums = float[kM][kN][4];

  // What a lane reads next of a unit.
  struct Operands {
    const uint4* dy;
    const uint32* x[kN];  // of each of its columns
    bool exists[2];       // whether its outputs do, of the last eight
  };

  static __device__ __forceinline__ void consume(const Params& params, const Shared& shared, int slice, int tile) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int down = warp % kTileWarps / kWarpsAcross, across = warp % kTileWarps % kWarpsAcross, turn = warp / kTileWarps;
    Sums sums{};
    for (Walk walk(params, slice); walk.any(); walk.next()) {
      end_image(walk);
      wait(shared.filled[walk.stage()], walk.parity());
      if (walk.number() % kTurns == turn) {
        Operands operands;
        operands.dy = shared.dy + (walk.stage() * shared.stage_quads + down * kM * 32 + lane);
        const int ring_rows = params.ring_rows.value;
        const int first_slot = divide(walk.row() * params.row_step, params.ring_rows).remainder;
        const int output = walk.first_group() * kGroup + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const Column column = shared.columns[(across * kN + n) * 8 + lane / 4];
          const int slot = first_slot + column.row;
          operands.x[n] = shared.x + ((slot < ring_rows ? slot : slot - ring_rows) * params.slot_words + column.word + output * kStride);
        }
        const int last = output + (walk.groups() - 1) * kGroup;
        operands.exists[0] = last < params.output_columns, operands.exists[1] = last + 1 < params.output_columns;
        const bool is_cut = (walk.first_group() + walk.groups()) * kGroup > params.output_columns;
        multiply(sums, operands, walk.groups(), is_cut);
      }
      __syncwarp();  // all lanes have read it
      if (lane == 0) arrive(shared.free[walk.stage()]);
    }
    const int64 part = (static_cast<int64>(tile) * params.slices + slice) * kTurns + turn;
    float4* const to = params.parts + (part * (kTileWarps * kM * kN) + warp % kTileWarps * (kM * kN)) * 32 + lane;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) to[(m * kN + n) * 32] = {sums[m][n][0], sums[m][n][1], sums[m][n][2], sums[m][n][3]};
    }
  }

  // Of the last of the groups some outputs do not exist where the unit is cut.
  static __device__ __forceinline__ void multiply(Sums& sums, Operands& operands, int groups, bool is_cut) {
    int whole = is_cut ? groups - 1 : groups;
    if (whole == 0) {
      Sums of_stage{};
      multiply_group<true>(of_stage, operands);
      add(sums, of_stage);
    }
#pragma unroll 1
    while (whole > 0) {
      Sums of_stage{};
      multiply_group<false>(of_stage, operands);
#pragma unroll 1
      for (int i = min(whole, kStageGroups); i > 1; --i) multiply_group<false>(of_stage, operands);
      whole -= kStageGroups;
      if (whole <= 0 && is_cut) multiply_group<true>(of_stage, operands);
      add(sums, of_stage);
    }
  }

  static __device__ __forceinline__ void add(Sums& sums, const Sums& others) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int i = 0; i < kN * 4; ++i) (&sums[m][0][0])[i] += (&others[m][0][0])[i];
    }
  }

  // Eight outputs, and on to the next.
  template <bool kIsCut>
  static __device__ __forceinline__ void multiply_group(Sums& sums, Operands& operands) {
    uint32 nearest[kN][2], rest[kN][2];
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        nearest[n][i] = operands.x[n][i * kStride], rest[n][i] = operands.x[n][kPartWords + i * kStride];
        if (kIsCut && !operands.exists[i]) nearest[n][i] = 0U, rest[n][i] = 0U;
      }
      operands.x[n] += kGroup * kStride;
    }
#pragma unroll
    for (int first = 0; first < kM; first += kTogether) {
      uint32 a_nearest[kTogether][4], a_rest[kTogether][4];
#pragma unroll
      for (int m = 0; m < kTogether; ++m) {
        load(a_nearest[m], operands.dy + (first + m) * 32);
        load(a_rest[m], operands.dy + (kPartQuads + (first + m) * 32));
      }
      multiply_all(sums, first, a_rest, nearest);
      multiply_all(sums, first, a_nearest, rest);
      multiply_all(sums, first, a_nearest, nearest);
    }
    operands.dy += kGroupQuads;
  }

  static __device__ __forceinline__ void load(uint32 (&a)[4], const uint4* from) {
    const uint4 found = *from;
    a[0] = found.x, a[1] = found.y, a[2] = found.z, a[3] = found.w;
  }

  static __device__ __forceinline__ void multiply_all(
      Sums& sums, int first, const uint32 (&a)[kTogether][4], const uint32 (&b)[kN][2]) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int m = 0; m < kTogether; ++m) multiply_add_tf32(sums[first + m][n], a[m], b[n][0], b[n][1]);
    }
  }
};

// _SUM_PARAMS in convolution/tf32_rows_backward_filter.py.
struct SumParams {
  Blend blend;
  const float4* parts;
  float* dw;
  int64 strides[4];
  SmallDivisor taps;         // of a filter
  SmallDivisor tap_columns;
  int32 filters;
  int32 columns;             // taps of all channels
  int32 filter_tiles;
  int32 tile_filters;
  int32 tile_columns;
  int32 warp_filters;        // in sixteens
  int32 warp_columns;        // in eights
  int32 parts_of_tile;
  int32 tile_places;
  int32 log2_ways;
};

// Blocks along x share out the sums of tile y.
inline __device__ void add_parts(const SumParams& params) {
  const SumOfParts sum_of_parts(params.log2_ways);
  const int32 place = sum_of_parts.place(), tile = static_cast<int32>(blockIdx.y);
  wait_for_previous();
  float4 sum;
  const float4* const parts = params.parts + (static_cast<int64>(tile) * params.parts_of_tile * params.tile_places + place);
  if (!sum_of_parts.add(parts, params.parts_of_tile, params.tile_places, sum)) return;
  const int32 lane = place % 32, eight = place / 32 % params.warp_columns, sixteen = place / 32 / params.warp_columns;
  const int32 warp = sixteen / params.warp_filters, across = params.tile_columns / 8 / params.warp_columns;
  const int32 row = (warp / across * params.warp_filters + sixteen % params.warp_filters) * 16 + lane / 4;
  const int32 column = (warp % across * params.warp_columns + eight) * 8 + lane % 4 * 2;
  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32 k = tile % params.filter_tiles * params.tile_filters + row + i / 2 * 8;
    const int32 j = tile / params.filter_tiles * params.tile_columns + column + i % 2;
    if (k >= params.filters || j >= params.columns) continue;
    const auto channel = divide(j, params.taps), tap = divide(channel.remainder, params.tap_columns);
    const int64 offset = k * params.strides[0] + channel.quotient * params.strides[1] + tap.quotient * params.strides[2] +
                         tap.remainder * params.strides[3];
    blend_into(params.blend, sums[i], params.dw + offset);
  }
}

}  // namespace dnncore::tf32_rows
