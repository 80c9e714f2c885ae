// Tiles of a tensor to spectra and back: the first and the last step of a convolution by Fourier transforms. A block
// transforms kItems tiles of kTile x kTile real numbers, with kTile / 2 threads per tile. A thread transforms two rows
// as the real and the imaginary part of one sequence (Numerical Recipes, section 12.3), and then one column. Columns 0
// and kTile / 2 of the half spectrum come from real numbers and are such a pair too. So all threads are busy in both
// passes, and of the spectrum's kTile * kTile numbers the kTile * kTile / 2 + 2 that determine the others are kept.
//
//    real [row][column]              half [row][column]                   workspace [frequency][item]
//    +-------------------+           +---+---+-----+---------------+
//    | row p             |  one      | 0 | 1 | ... | kTile / 2 - 1 |  one      a plane per frequency, where
//    |                   |  thread   |   |   |     |               |  thread   neighbouring items lie side by side;
//    | row p + kTile / 2 |  ------>  |   |   |     |               |  ------>  a block writes 128 bytes of it, one
//    |                   |           |   |   |     |               |           number of each of its kItems tiles
//    +-------------------+           +---+---+-----+---------------+
//                                    column 0 holds the real columns 0 and kTile / 2
//
// Items are [group][slow][fast]. Products are taken frequency by frequency, hence one plane for each.
#pragma once

#include "dnncore/convolution/fft.cuh"
#include "dnncore/convolution/finish.cuh"

namespace dnncore::fft {

// Mirrored by _TILE_PARAMS in dnncore/cuda/convolution/fft_kernels.py.
struct TileParams {
  Blend blend;           // of the inverse
  Epilogue epilogue;     // of a fused convolution, likewise; without a residual
  void* tensor;          // element of group 0, image 0, channel 0, place 0
  void* spectra;
  int64 group_stride;    // elements of the tensor
  int64 image_stride;
  int64 channel_stride;
  int64 stride[2];       // rows, columns
  int64 plane;           // complex numbers from one frequency to the next
  int32 items;           // groups * slow * fast pitch
  int32 fast;            // items from there to the pitch are zeros
  int32 channel_is_fast; // whether `fast` counts channels rather than images and tiles
  int32 items_first;     // whether neighbouring items are nearer in the tensor than neighbouring columns
  SmallDivisor pitch;
  SmallDivisor slow;
  SmallDivisor tiles;    // per image
  SmallDivisor tile_columns;
  int32 first[2];        // place of tile 0's first row and column, negative in the padding
  int32 step[2];         // places from one tile to the next
  int32 used[2];         // rows and columns of a tile that are read from the tensor, or written to it
  int32 extent[2];       // of the tensor
  SmallDivisor spacing[2];  // of the tensor's elements in a tile: a filter's dilation
  int32 group_channels;  // channels of the tensor from one group to the next
};

template <typename T, int kTileSize>
struct Tiles {
  using C = Compute<T>;
  static constexpr int kTile = kTileSize;
  static constexpr int kPairs = kTile / 2;
  static constexpr int kItems = 128 / sizeof(Complex<C>);
  static constexpr int kThreads = kItems * kPairs;
  static constexpr int kFrequencies = kTile * kPairs + 2;
  static constexpr C kNorm = C(1) / (kTile * kTile);  // of a transform there and back
  // A warp reads or writes 32 / kItems neighbouring pairs of rows at a time: real numbers of an item lie an even number
  // of banks from the next item's, and those of a row an odd number from the next row's. Complex numbers move 128 bytes
  // at a time, one from each item. Neither meets a bank twice.
  static constexpr int kRowPitch = kTile + 1;
  static constexpr int kRealPitch = kTile * kRowPitch + (kTile % 32 == 0 ? 2 : 18);
  static constexpr int kComplexPitch = kTile * kPairs + 1;
  static_assert(kRealPitch % 32 == 2 && kComplexPitch % 2 == 1);

  // Where a tile lies in the tensor.
  struct alignas(16) Place {
    int64 offset;  // of its corner
    int32 first[2];
    int32 channel;  // of all groups'
  };
  // A place before every tensor, even when it is doubled or a place within a tile is added.
  static constexpr int32 kNowhere = -(1 << 30);

  struct Shared {
    Place places[kItems];
    union {
      C real[kItems * kRealPitch];
      Complex<C> half[kItems * kComplexPitch];  // [item][row][column]; column 0 holds the real 0 and kTile / 2
    };
  };

  static __device__ __forceinline__ int item() { return static_cast<int>(threadIdx.x) % kItems; }
  static __device__ __forceinline__ int pair() { return static_cast<int>(threadIdx.x) / kItems; }
  static __device__ __forceinline__ int64 global_item() { return static_cast<int64>(blockIdx.x) * kItems + item(); }

  static __device__ void locate(const TileParams& params, Shared& shared) {
    if (threadIdx.x < kItems) {
      const int32 index = static_cast<int32>(global_item());
      const auto [row, fast] = divide(index, params.pitch);
      const auto [group, slow] = divide(row, params.slow);
      const int32 channel = params.channel_is_fast ? fast : slow;
      const auto [image, tile] = divide(params.channel_is_fast ? slow : fast, params.tiles);
      const auto [tile_row, tile_column] = divide(tile, params.tile_columns);
      Place& place = shared.places[threadIdx.x];
      const bool exists = index < params.items && fast < params.fast;
      place.first[0] = exists ? params.first[0] + tile_row * params.step[0] : kNowhere;
      place.first[1] = params.first[1] + tile_column * params.step[1];
      place.channel = group * params.group_channels + channel;
      place.offset = group * params.group_stride + image * params.image_stride + channel * params.channel_stride +
                     place.first[0] * params.stride[0] + place.first[1] * params.stride[1];
    }
    __syncthreads();
  }

  // Places of the tensor between a tile's first one and a row (axis 0) or column (axis 1) of the tile; kNowhere where
  // the tensor has none for it.
  static __device__ __forceinline__ int32 places_to(const TileParams& params, int axis, int32 position) {
    const auto [places, rest] = divide(position, params.spacing[axis]);
    return rest == 0 && position < params.used[axis] ? places : kNowhere;
  }

  // visit(element of the tensor, its place in `real`, whether it exists) for every place of every tile.
  template <typename Visit>
  static __device__ __forceinline__ void for_each_element(const TileParams& params, const Shared& shared, const Visit& visit) {
    if (params.items_first) {
      for_each_item_first(params, shared, visit);
    } else {
      for_each_column_first(params, shared, visit);
    }
  }

  // Neighbouring threads take neighbouring items, such as channels of a channels-last tensor.
  template <typename Visit>
  static __device__ __forceinline__ void for_each_item_first(const TileParams& params, const Shared& shared, const Visit& visit) {
    const Place& place = shared.places[item()];
    T* const start = static_cast<T*>(params.tensor) + place.offset;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = pair() + half * kPairs;
      const int32 x = places_to(params, 1, column);
      const bool column_exists = static_cast<uint32>(place.first[1] + x) < static_cast<uint32>(params.extent[1]);
#pragma unroll 4
      for (int row = 0; row < kTile; ++row) {
        const int32 y = places_to(params, 0, row);
        const bool row_exists = static_cast<uint32>(place.first[0] + y) < static_cast<uint32>(params.extent[0]);
        const int64 offset = y * params.stride[0] + x * params.stride[1];
        visit(start + offset, item() * kRealPitch + row * kRowPitch + column, row_exists && column_exists);
      }
    }
  }

  // Neighbouring threads take neighbouring columns.
  template <typename Visit>
  static __device__ __forceinline__ void for_each_column_first(const TileParams& params, const Shared& shared, const Visit& visit) {
    constexpr int kRowsAtOnce = kThreads / kTile, kSteps = kTile / kRowsAtOnce;
    const int column = static_cast<int>(threadIdx.x) % kTile, first_row = static_cast<int>(threadIdx.x) / kTile;
    const int32 x = places_to(params, 1, column);
    int32 y[kSteps];
    int64 offsets[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      y[step] = places_to(params, 0, first_row + step * kRowsAtOnce);
      offsets[step] = y[step] * params.stride[0] + x * params.stride[1];
    }
#pragma unroll 4
    for (int item = 0; item < kItems; ++item) {
      const Place& place = shared.places[item];
      const bool column_exists = static_cast<uint32>(place.first[1] + x) < static_cast<uint32>(params.extent[1]);
      T* const start = static_cast<T*>(params.tensor) + place.offset;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const bool row_exists = static_cast<uint32>(place.first[0] + y[step]) < static_cast<uint32>(params.extent[0]);
        const int to = item * kRealPitch + (first_row + step * kRowsAtOnce) * kRowPitch + column;
        visit(start + offsets[step], to, row_exists && column_exists);
      }
    }
  }

  // tensor -> spectra.
  static __device__ void forward(const TileParams& params, Shared& shared) {
    locate(params, shared);
    for_each_element(params, shared, [&](const T* element, int to, bool exists) {
      shared.real[to] = exists ? widen(*element) : C(0);
    });
    __syncthreads();

    Complex<C> values[kTile];
    const C* const rows = shared.real + item() * kRealPitch + pair() * kRowPitch;
#pragma unroll
    for (int i = 0; i < kTile; ++i) values[i] = {rows[i], rows[kPairs * kRowPitch + i]};
    transform<false>(values);
    __syncthreads();  // all threads have read their rows
    Complex<C>* const top = shared.half + item() * kComplexPitch + pair() * kPairs;
    Complex<C>* const bottom = top + kPairs * kPairs;
    top[0] = {values[0].re, values[reversed<kTile>(kPairs)].re};
    bottom[0] = {values[0].im, values[reversed<kTile>(kPairs)].im};
#pragma unroll
    for (int k = 1; k < kPairs; ++k) {
      split(values[reversed<kTile>(k)], values[reversed<kTile>(kTile - k)], top[k], bottom[k]);
    }
    __syncthreads();

    const Complex<C>* const column = shared.half + item() * kComplexPitch + pair();
#pragma unroll
    for (int i = 0; i < kTile; ++i) values[i] = column[i * kPairs];
    transform<false>(values);
    if (global_item() >= params.items) return;
    Complex<C>* const spectra = static_cast<Complex<C>*>(params.spectra) + global_item();
    if (pair() > 0) {
      Complex<C>* const to = spectra + (pair() - 1) * kTile * params.plane;
#pragma unroll
      for (int k = 0; k < kTile; ++k) to[k * params.plane] = values[reversed<kTile>(k)];
    } else {
      Complex<C>* const to = spectra + (kPairs - 1) * kTile * params.plane;
      const auto write = [&](int k, Complex<C> first, Complex<C> second) {
        to[k * params.plane] = first;
        to[(kPairs + 1 + k) * params.plane] = second;
      };
      write(0, {values[0].re, C(0)}, {values[0].im, C(0)});
      const Complex<C> middle = values[reversed<kTile>(kPairs)];
      write(kPairs, {middle.re, C(0)}, {middle.im, C(0)});
#pragma unroll
      for (int k = 1; k < kPairs; ++k) {
        Complex<C> first, second;
        split(values[reversed<kTile>(k)], values[reversed<kTile>(kTile - k)], first, second);
        write(k, first, second);
      }
    }
  }

  // The epilogue of the two rows that a thread transformed back. They lie in shared memory, so that its code exists once.
  static __device__ void finish_rows(const Epilogue& epilogue, const Place& place, C* rows) {
    if (place.first[0] == kNowhere) return;
    const C scale = epilogue.template scale_of<T>(place.channel), bias = epilogue.template bias_of<T>(place.channel);
#pragma unroll 1
    for (int i = 0; i < kTile; ++i) {
      C pair[] = {rows[i], rows[kPairs * kRowPitch + i]};
#pragma unroll
      for (C& value : pair) value = epilogue.affine(value * kNorm, scale, bias, C(0));
      activate_all(epilogue.activation, pair);
      rows[i] = pair[0];
      rows[kPairs * kRowPitch + i] = pair[1];
    }
  }

  // spectra -> tensor, through the epilogue, blended.
  static __device__ void inverse(const TileParams& params, Shared& shared) {
    locate(params, shared);
    Complex<C> values[kTile];
    if (global_item() < params.items) {
      const Complex<C>* const spectra = static_cast<const Complex<C>*>(params.spectra) + global_item();
      if (pair() > 0) {
        const Complex<C>* const from = spectra + (pair() - 1) * kTile * params.plane;
#pragma unroll
        for (int k = 0; k < kTile; ++k) values[k] = from[k * params.plane];
      } else {
        const Complex<C>* const from = spectra + (kPairs - 1) * kTile * params.plane;
        const Complex<C>* const second = from + (kPairs + 1) * params.plane;
        values[0] = {from[0].re, second[0].re};
        values[kPairs] = {from[kPairs * params.plane].re, second[kPairs * params.plane].re};
#pragma unroll
        for (int k = 1; k < kPairs; ++k) {
          join(from[k * params.plane], second[k * params.plane], values[k], values[kTile - k]);
        }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kTile; ++k) values[k] = {C(0), C(0)};
    }
    transform<true>(values);
    Complex<C>* const column = shared.half + item() * kComplexPitch + pair();
#pragma unroll
    for (int i = 0; i < kTile; ++i) column[i * kPairs] = values[reversed<kTile>(i)];
    __syncthreads();

    const Complex<C>* const top = shared.half + item() * kComplexPitch + pair() * kPairs;
    const Complex<C>* const bottom = top + kPairs * kPairs;
    values[0] = {top[0].re, bottom[0].re};
    values[kPairs] = {top[0].im, bottom[0].im};
#pragma unroll
    for (int k = 1; k < kPairs; ++k) join(top[k], bottom[k], values[k], values[kTile - k]);
    transform<true>(values);
    __syncthreads();  // all threads have read their rows
    C* const rows = shared.real + item() * kRealPitch + pair() * kRowPitch;
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      rows[i] = values[reversed<kTile>(i)].re;
      rows[kPairs * kRowPitch + i] = values[reversed<kTile>(i)].im;
    }
    const bool is_finished = params.epilogue.is_present;
    if (is_finished) finish_rows(params.epilogue, shared.places[item()], rows);
    __syncthreads();
    const C factor = is_finished ? C(1) : kNorm;
    for_each_element(params, shared, [&](T* element, int from, bool exists) {
      if (exists) blend_into(params.blend, shared.real[from] * factor, element);
    });
  }
};

}  // namespace dnncore::fft
