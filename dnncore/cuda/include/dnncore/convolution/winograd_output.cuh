// What the fused kernels do with the sums of a tile: transform them back, A^T m A, apply the epilogue of a fused
// convolution, and blend the outputs that exist into the tensor, two neighbours at a time where its layout allows that.
#pragma once

#include "dnncore/convolution/winograd.cuh"

namespace dnncore::winograd {

template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T at[2];
};

// The outputs of one tile, for any filter of its group. F is F2 or F4.
template <typename T, typename F>
struct OutputTile {
  using C = Compute<T>;

  T* output;            // of the group's first filter
  int64 group_filters;  // filters of the groups before
  Blend blend;          // what is left to do: without an epilogue, the sums contain alpha
  int rows;     // of the tile, as far as they exist
  int columns;
  bool pairs;

  __device__ OutputTile(const Params& params, int group, int64 tile)
      : output(nullptr),
        group_filters(group * params.filters.value),
        blend{params.epilogue.is_present ? params.blend.alpha : 1.0, params.blend.beta},
        rows(0),
        columns(0),
        pairs(false) {
    if (tile >= params.tiles.value) return;
    const Place place = Place::of<F::kOutputs>(static_cast<int32>(tile), params);
    rows = params.output_rows - place.row;
    columns = params.output_columns - place.column;
    output = static_cast<T*>(params.output) + place.image * params.output_strides[0] +
             group_filters * params.output_strides[1] + place.row * params.output_strides[2] +
             place.column * params.output_strides[3];
    pairs = params.pairs != 0 && reinterpret_cast<uint64>(output) % sizeof(Pair<T>) == 0;
  }

  // The factor of the sums.
  static __device__ __forceinline__ C sum_factor(const Params& params) {
    return params.epilogue.is_present ? C(1) : static_cast<C>(params.blend.alpha);
  }

  __device__ bool exists() const { return rows > 0; }

  __device__ __forceinline__ void write(
      const C (&points)[F::kPoints][F::kPoints], int64 filter, const Params& params) const {
    C outputs[F::kOutputs][F::kOutputs];
    transform(points, outputs, typename F::Output{});
    if (params.epilogue.is_present) {
      finish_tile<T>(params, group_filters + filter, output + filter * params.output_strides[1], rows, columns, outputs);
    }
#pragma unroll
    for (int i = 0; i < F::kOutputs; ++i) {
      if (i >= rows) continue;
      T* const line = output + filter * params.output_strides[1] + i * params.output_strides[2];
#pragma unroll
      for (int j = 0; j < F::kOutputs; j += 2) {
        if (j > 0 && j >= columns) continue;
        if (pairs && columns > j + 1) {
          Pair<T>* const place = reinterpret_cast<Pair<T>*>(line + j);
          Pair<T> pair;
          if (blend.beta != 0.0) pair = *place;
#pragma unroll
          for (int k = 0; k < 2; ++k) pair.at[k] = blended(blend, outputs[i][j + k], &pair.at[k]);
          *place = pair;
        } else {
          blend_into(blend, outputs[i][j], line + j * params.output_strides[3]);
          if (columns > j + 1) blend_into(blend, outputs[i][j + 1], line + (j + 1) * params.output_strides[3]);
        }
      }
    }
  }
};

}  // namespace dnncore::winograd
