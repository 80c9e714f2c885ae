// Backward-filter convolution of fp32 images by tensor cores, whose operands are tf32. What comes to the consumers, and
// who computes what, is drawn in filter_feed.cuh.
//
// wgmma transposes 16 bits alone, and both operands have the summands, the pixels, as rows. So warps multiply their own fragments
// (mma.sync), which they take from shared memory as they like: in which order pixels are added, and which filters are which rows, is
// the same for both operands, or for dy and the sums. Of eight pixels and 32 filters or channels lane 4 g + t reads
//
//     of dy    filters 16 u + 2 g and the next, 8 bytes, of pixels 2 t and 2 t + 1: the four registers of a, rows g and g + 8 of product u
//     of x     channel 8 j + g of the same pixels: the two of b, column g of product j
//
// into the registers where the instruction wants them. What lanes read at a time is swizzled apart, and meets all banks. A lane then
// has sums of the same two filters and of channels 8 j + 2 t and the next. Of planes (NCHW) it reads two neighbouring pixels of the
// same filters and channels, 8 bytes each: here, too, both operands have the pixels in one order, so that sums are the same.
//
// With kProducts = 3 operands are not rounded but split into two of tf32, the nearest and what is left (3xTF32). Of their four products
// the one of both rests, at most 2^-22 of the whole, is not computed. Tensor cores cut sums off where fp32 rounds them; so those of a
// stage are added up by themselves, and then to the others by the units of fp32. Elements are split as if all were ordinary; where
// sums say that some were not (infinities, NaNs), those of the stage are computed once more.
#pragma once

#include "dnncore/convolution/filter_feed.cuh"
#include "dnncore/convolution/filter_parts.cuh"
#include "dnncore/convolution/tf32_split.cuh"
#include "dnncore/ptx/matrix.cuh"

namespace dnncore::tf32_filter {

using filter::Gradient;
using filter::Params;
using filter::Piece;
using filter::SumParams;
using tf32_split::OrdinarySplit;
using tf32_split::Split;
using wgmma::Position;
using wgmma::Row;

inline constexpr int kSlab = 32;      // elements of a row of 128 bytes
inline constexpr int kPixels = 32;    // of a stage
inline constexpr int kConsumers = 2;
inline constexpr int kWarps = kConsumers * kWarpgroup / 32;
inline constexpr int kWarpFilters = 64, kWarpSlabs = kWarpFilters / kSlab;  // each warp's part of a tile
inline constexpr int kSteps = kPixels / 8;

using Columns = filter::Columns<kSlab>;

// Where lanes read in eight pixels of a slab: bytes from their beginning to a chunk of pixel 2 t + kOdd.
template <int kOdd>
__device__ __forceinline__ int chunk_of_pixel(int chunk) {
  const int pixel = static_cast<int>(threadIdx.x) % 4 * 2 + kOdd;
  return pixel * kMatrixRowBytes + (chunk ^ pixel) * 16;
}

// The same of a plane's row: two neighbouring pixels of its chunk step ^ (t / 2 * 5), which lanes of rows g, and of rows 2 g, meet in
// all banks. The plane is `beyond` another one, by a multiple of 8.
__device__ __forceinline__ uint2 pixels_of_plane(const Row* planes, int step, int plane, int beyond) {
  const int t = static_cast<int>(threadIdx.x) % 4, chunk = (t / 2 * 5) ^ plane % 8;
  const int place = plane * kMatrixRowBytes + chunk * 16 + t % 2 * 8;
  return *reinterpret_cast<const uint2*>(planes[beyond].bytes + (place ^ step * 16));
}

// A lane's elements of eight pixels of a slab of dy: a of products u.
template <bool kInPlanes>
struct Rows {
  uint32 a[2][4];

  __device__ __forceinline__ Rows(const Row* slab, int step) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      if constexpr (kInPlanes) {
        const uint2 first = pixels_of_plane(slab, step, 2 * g, 16 * u), next = pixels_of_plane(slab, step, 2 * g + 1, 16 * u);
        a[u][0] = first.x, a[u][1] = next.x, a[u][2] = first.y, a[u][3] = next.y;
      } else {
        const unsigned char* const pixels = slab[step * 8].bytes + g % 2 * 8;
        const uint2 first = *reinterpret_cast<const uint2*>(pixels + chunk_of_pixel<0>(4 * u + g / 2));
        const uint2 next = *reinterpret_cast<const uint2*>(pixels + chunk_of_pixel<1>(4 * u + g / 2));
        a[u][0] = first.x, a[u][1] = first.y, a[u][2] = next.x, a[u][3] = next.y;
      }
    }
  }
};

// And of x: b of products j.
template <bool kInPlanes>
struct ColumnsOfX {
  uint32 b[4][2];

  __device__ __forceinline__ ColumnsOfX(const Row* slab, int step) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kInPlanes) {
        const uint2 both = pixels_of_plane(slab, step, g, 8 * j);
        b[j][0] = both.x, b[j][1] = both.y;
      } else {
        const unsigned char* const pixels = slab[step * 8].bytes + g % 4 * 4;
        b[j][0] = *reinterpret_cast<const uint32*>(pixels + chunk_of_pixel<0>(2 * j + g / 4));
        b[j][1] = *reinterpret_cast<const uint32*>(pixels + chunk_of_pixel<1>(2 * j + g / 4));
      }
    }
  }
};

// What a thread's sums are, of tiles that warps share out as rows of 64 filters and, along these, equal runs of slabs.
struct Share {
  int32 k;        // of a lane's first filter, in the tile
  int32 slab;     // the warp's first slab of columns
  int32 channel;  // of a lane's first column, in a slab

  __device__ __forceinline__ Share(int32 thread, int32 filters, int32 slabs) {
    const int32 warp = thread / 32, lane = thread % 32, along = kWarps * kWarpFilters / filters;
    k = warp / along * kWarpFilters + lane / 4 * 2;
    slab = warp % along * slabs;
    channel = lane % 4 * 2;
  }

  // The four sums of a number, counted from the innermost: j, slab of columns, u, slab of filters.
  __device__ __forceinline__ void store(
      const Blend& blend, const Gradient& gradient, int32 tile, int32 filters, int32 slabs, int number,
      const float4& sums) const {
    const int column = number / 4 % slabs, u = number / 4 / slabs;
    const Columns columns(gradient, tile, slab + column);
    const int32 first = tile % gradient.filter_tiles * filters + k + u * 16, at = columns.channel + channel + number % 4 * 8;
    float* const dw = static_cast<float*>(gradient.dw) + (first * gradient.strides[0] + at * gradient.strides[1] +
                                                          columns.r * gradient.strides[2] + columns.s * gradient.strides[3]);
    const auto alpha = static_cast<float>(blend.alpha), beta = static_cast<float>(blend.beta);
    if (gradient.in_vectors != 0 && beta == 0.0F) {
      if (at >= gradient.channels) return;
      if (first < gradient.filters) *reinterpret_cast<float2*>(dw) = {alpha * sums.x, alpha * sums.y};
      if (first + 1 < gradient.filters) {
        *reinterpret_cast<float2*>(dw + gradient.strides[0]) = {alpha * sums.z, alpha * sums.w};
      }
      return;
    }
    const float values[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i / 2 >= gradient.filters || at + i % 2 >= gradient.channels) continue;
      float& to = dw[i / 2 * gradient.strides[0] + i % 2 * gradient.strides[1]];
      to = alpha * values[i] + (beta == 0.0F ? 0.0F : beta * to);
    }
  }
};

// Stage is filter::Pixels or filter::Planes.
template <int kFilters, int kColumns, int kStages, int kProducts, template <int, int> class Stage = filter::Pixels>
struct Kernel {
  using Feed = filter::Feed<float, kFilters, kColumns, kStages, Stage<kPixels, kColumns / kSlab>>;
  using Shared = typename Feed::Shared;
  static constexpr int kAlong = kWarps * kWarpFilters / kFilters;      // warps along the columns
  static constexpr int kSlabs = kColumns / kSlab / kAlong;             // of columns, of a warp
  static constexpr int kFragments = kWarpSlabs * 2 * kSlabs * 4;       // of four sums, of a thread
  static_assert(kFilters % kWarpFilters == 0 && kColumns % (kSlab * kAlong) == 0);

  static __device__ void run(const Params& params) {
    Feed::run(params, [&](Shared& shared, int consumer) {
      consume(params, shared, consumer * kWarpgroup + static_cast<int>(threadIdx.x) % kWarpgroup);
    });
  }

private:
  // In the order of `Share`: [slab of filters and u][slab of columns][j].
  using Sums = float[kWarpSlabs * 2][kSlabs][4][4];

  static __device__ __forceinline__ void consume(const Params& params, Shared& shared, int thread) {
    Position<kStages> at;
    filter::for_each_piece(params.gradient, [&](const Piece& piece) {
      Sums sums{};
      for (int32 step = 0; step < piece.steps; ++step) {
        wait(shared.ring.filled[at.stage], at.parity);
        if constexpr (kProducts == 1) {
          multiply(sums, shared, at.stage, thread);
        } else {
          Sums of_stage;
          multiply_split<OrdinarySplit, kSteps>(of_stage, shared, at.stage, thread);
          if (__any_sync(~0U, has_nan(of_stage))) multiply_split<Split, 1>(of_stage, shared, at.stage, thread);
          add(sums, of_stage);
        }
        __syncwarp();  // all lanes have read it
        shared.ring.release(at.stage);
        at.advance();
      }
      if (piece.steps == params.gradient.steps) {
        store(params, piece.tile, sums, thread);
      } else {
        leave(params.gradient, piece, sums, thread);
      }
    });
  }

  static __device__ __forceinline__ void add(Sums& sums, const Sums& others) {
#pragma unroll
    for (int u = 0; u < kWarpSlabs * 2; ++u) {
#pragma unroll
      for (int i = 0; i < kSlabs * 16; ++i) (&sums[u][0][0][0])[i] += (&others[u][0][0][0])[i];
    }
  }

  static __device__ __forceinline__ void multiply(Sums& sums, Shared& shared, int stage, int thread) {
    const int warp = thread / 32;
    const auto* const dy = &shared.dy[stage][warp / kAlong * kWarpSlabs];
    const auto* const x = &shared.x[stage][warp % kAlong * kSlabs];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Rows<Feed::kInPlanes> rows[kWarpSlabs] = {{dy[0], step}, {dy[1], step}};
#pragma unroll
      for (int column = 0; column < kSlabs; ++column) {
        const ColumnsOfX<Feed::kInPlanes> columns(x[column], step);
#pragma unroll
        for (int u = 0; u < kWarpSlabs * 2; ++u) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            multiply_add_tf32(sums[u][column][j], rows[u / 2].a[u % 2], columns.b[j][0], columns.b[j][1]);
          }
        }
      }
    }
  }

  // Of a lane's fragments of an operand, both parts.
  template <typename SplitElement, int kProductsOfIt, int kRegisters>
  struct Parts {
    uint32 nearest[kProductsOfIt][kRegisters], rest[kProductsOfIt][kRegisters];

    __device__ __forceinline__ void set(int product, const uint32 (&elements)[kRegisters]) {
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) {
        const SplitElement split(elements[i]);
        nearest[product][i] = split.nearest, rest[product][i] = split.rest;
      }
    }
  };

  // The sums of a stage, of three products each. Those of the same sums wait for each other: here all others of the warp are between
  // two, and most of them where the compiler is done.
  template <typename SplitElement, int kUnrolled>
  static __device__ __forceinline__ void multiply_split(Sums& sums, Shared& shared, int stage, int thread) {
    const int warp = thread / 32;
    const auto* const dy = &shared.dy[stage][warp / kAlong * kWarpSlabs];
    const auto* const x = &shared.x[stage][warp % kAlong * kSlabs];
#pragma unroll
    for (int u = 0; u < kWarpSlabs * 2; ++u) {
#pragma unroll
      for (int i = 0; i < kSlabs * 16; ++i) (&sums[u][0][0][0])[i] = 0.0F;
    }
#pragma unroll kUnrolled
    for (int step = 0; step < kSteps; ++step) {
      Parts<SplitElement, kWarpSlabs * 2, 4> a;
#pragma unroll
      for (int slab = 0; slab < kWarpSlabs; ++slab) {
        const Rows<Feed::kInPlanes> rows(dy[slab], step);
#pragma unroll
        for (int u = 0; u < 2; ++u) a.set(slab * 2 + u, rows.a[u]);
      }
#pragma unroll
      for (int column = 0; column < kSlabs; ++column) {
        const ColumnsOfX<Feed::kInPlanes> columns(x[column], step);
        Parts<SplitElement, 4, 2> b;
#pragma unroll
        for (int j = 0; j < 4; ++j) b.set(j, columns.b[j]);
        multiply(sums, column, a.rest, b.nearest);
        multiply(sums, column, a.nearest, b.rest);
        multiply(sums, column, a.nearest, b.nearest);
      }
    }
  }

  static __device__ __forceinline__ void multiply(
      Sums& sums, int column, const uint32 (&a)[kWarpSlabs * 2][4], const uint32 (&b)[4][2]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int u = 0; u < kWarpSlabs * 2; ++u) multiply_add_tf32(sums[u][column][j], a[u], b[j][0], b[j][1]);
    }
  }

  // Whether an element was not ordinary. One of dy has made NaN of all sums of its filter, one of x of all of its column: those of one
  // column and of one filter tell.
  static __device__ __forceinline__ bool has_nan(const Sums& sums) {
    float total = 0.0F;
#pragma unroll
    for (int u = 0; u < kWarpSlabs * 2; ++u) total += sums[u][0][0][0] + sums[u][0][0][2];
#pragma unroll
    for (int i = 0; i < kSlabs * 4; ++i) total += sums[0][i / 4][i % 4][0] + sums[0][i / 4][i % 4][1];
    return isnan(total);
  }

  static __device__ __forceinline__ float4 fragment(const Sums& sums, int number) {
    const auto& four = sums[number / 4 / kSlabs][number / 4 % kSlabs][number % 4];
    return {four[0], four[1], four[2], four[3]};
  }

  static __device__ __forceinline__ void leave(const Gradient& gradient, const Piece& piece, const Sums& sums, int thread) {
    constexpr int kThreads = kConsumers * kWarpgroup;
    float4* const to = gradient.parts + static_cast<int64>(piece.slot()) * (kFragments * kThreads) + thread;
#pragma unroll
    for (int i = 0; i < kFragments; ++i) to[i * kThreads] = fragment(sums, i);
  }

  static __device__ __forceinline__ void store(const Params& params, int32 tile, const Sums& sums, int thread) {
    const Share share(thread, kFilters, kSlabs);
#pragma unroll
    for (int i = 0; i < kFragments; ++i) {
      share.store(params.blend, params.gradient, tile, kFilters, kSlabs, i, fragment(sums, i));
    }
  }
};

// Add up what these kernels have left.
inline __device__ void add_parts(const SumParams& params) {
  constexpr int kThreads = kConsumers * kWarpgroup;
  filter::add_parts(params, [&](int32 tile, int32 place, const float4& sums) {
    const int32 slabs = params.fragments / (kWarpSlabs * 2 * 4);
    const Share share(place % kThreads, params.rows, slabs);
    share.store(params.blend, params.gradient, tile, params.rows, slabs, place / kThreads, sums);
  });
}

}  // namespace dnncore::tf32_filter
