// From the threads' accumulators, or the parts of a reduction, straight into C, as PlainStore does, by way of those epilogues that cost next to nothing:
// a bias of the row, a residual that lies as C does, a floor and a ceiling, of which the activations with a kink are made.
// Other epilogues would need many registers, or code of their own for each of a thread's many sums; StagedStore has them.
#pragma once

#include "dnncore/gemm/params.cuh"
#include "dnncore/gemm/parts.cuh"
#include "dnncore/gemm/store.cuh"
#include "dnncore/gemm/tile.cuh"

namespace dnncore::gemm {

// Comparisons are written so that NaN stays NaN.
template <typename T>
struct Clamp {
  bool has_floor;    // 0
  bool has_ceiling;  // the activation's coefficient
  T ceiling;

  __device__ explicit Clamp(const Activation& activation)
      : has_floor(activation.mode != ActivationMode::kIdentity),
        has_ceiling(activation.mode == ActivationMode::kClippedRelu),
        ceiling(static_cast<T>(activation.coefficient)) {}
  __device__ __forceinline__ T operator()(T x) const {
    if (has_floor && x < T(0)) return T(0);
    return has_ceiling && x > ceiling ? ceiling : x;
  }
};

template <typename T, typename Tile, int kDigits>
struct ClampedStore {
  using Accumulator = typename Tile::Accumulator;

  static __device__ void store(const Accumulator& accumulator, const Place& place, const Phase& phase, const Params& params) {
    const Epilogue& epilogue = params.epilogue;
    const int64 start = phase.c_offset + place.group * params.c_group_stride;
    T* const c = static_cast<T*>(params.c) + start;
    const T* const z = epilogue.reads_z() ? static_cast<const T*>(epilogue.z) + start : nullptr;
    T biases[Tile::kRowsPerThread];
#pragma unroll
    for (int i = 0; i < Tile::kRowsPerThread; ++i) {
      const uint32 row = place.first_row + static_cast<uint32>(Tile::row(i));
      biases[i] = row < params.rows ? epilogue.template bias_of<T>(static_cast<int64>(place.group) * params.rows + row) : T(0);
    }
    const uint64 addresses = reinterpret_cast<uint64>(c) | reinterpret_cast<uint64>(z);
    if (params.store == Store::kColumns && addresses % (Tile::kVector * sizeof(T)) == 0) {
      store_vectors<Tile::kVector>(accumulator, c, z, biases, place, phase, params);
    } else {
      store_vectors<1>(accumulator, c, z, biases, place, phase, params);
    }
  }

  // Store the totals of all parts, vectors of neighbours along the columns at once or one by one.
  static __device__ void store(const Parts<Tile>& parts, const Place& place, const Phase& phase, const Params& params) {
    const Epilogue& epilogue = params.epilogue;
    const int64 start = phase.c_offset + place.group * params.c_group_stride;
    T* const c = static_cast<T*>(params.c) + start;
    const T* const z = epilogue.reads_z() ? static_cast<const T*>(epilogue.z) + start : nullptr;
    const uint64 addresses = reinterpret_cast<uint64>(c) | reinterpret_cast<uint64>(z);
    const bool at_once = params.store == Store::kColumns && addresses % (Tile::kVector * sizeof(T)) == 0;
    const Clamp<T> clamp(epilogue.activation);
    constexpr int kAtATime = Parts<Tile>::kSums < 8 ? Parts<Tile>::kSums : 8;  // each has code of its own
    parts.template for_each_group<kAtATime>([&](int n, const auto& totals, const auto& positions) {
#pragma unroll
      for (int i = 0; i < kAtATime; i += Tile::kVector) {
        const uint32 row = place.first_row + static_cast<uint32>(positions.row(n + i));
        const uint32 first = place.first_column + static_cast<uint32>(positions.column(n + i));
        if (row >= params.rows || first >= phase.columns) continue;
        const T bias = epilogue.template bias_of<T>(static_cast<int64>(place.group) * params.rows + row);
        const int64 of_row = row * params.c_row_stride;
        if (at_once) {
          const int64 offset = of_row + column_offset<kDigits>(first, phase);
          Vector<T> residuals{}, values;
          if (z != nullptr) residuals = *reinterpret_cast<const Vector<T>*>(z + offset);
          auto* const group = reinterpret_cast<Vector<T>*>(c + offset);
#pragma unroll
          for (int e = 0; e < Tile::kVector; ++e) {
            const T value = clamp(totals[i + e] + bias + residuals.at[e]);
            values.at[e] = blended(params.blend, value, &group->at[e]);
          }
          *group = values;
          continue;
        }
#pragma unroll
        for (int e = 0; e < Tile::kVector; ++e) {
          const uint32 column = first + static_cast<uint32>(e);
          if (column >= phase.columns) break;
          const int64 offset = of_row + column_offset<kDigits>(column, phase);
          blend_into(params.blend, clamp(totals[i + e] + bias + (z == nullptr ? T(0) : z[offset])), c + offset);
        }
      }
    });
  }

  // Store kWidth neighbours of a row at a time. Residuals of all rows are read before the first is needed: what is stored
  // between two reads might be, for all the compiler knows, what the second one reads.
  template <int kWidth>
  static __device__ __forceinline__ void store_vectors(
      const Accumulator& accumulator, T* c, const T* z, const T (&biases)[Tile::kRowsPerThread], const Place& place,
      const Phase& phase, const Params& params) {
    struct alignas(kWidth * sizeof(T)) Group {
      T at[kWidth];
    };
    const Clamp<T> clamp(params.epilogue.activation);
#pragma unroll
    for (int j = 0; j < Tile::kColumnsPerThread; j += kWidth) {
      const uint32 column = place.first_column + static_cast<uint32>(Tile::column(j));
      if (column >= phase.columns) continue;
      const int64 offset = column_offset<kDigits>(column, phase);
      Group residuals[Tile::kRowsPerThread] = {};
      if (z != nullptr) {
#pragma unroll
        for (int i = 0; i < Tile::kRowsPerThread; ++i) {
          const uint32 row = place.first_row + static_cast<uint32>(Tile::row(i));
          if (row < params.rows) residuals[i] = *reinterpret_cast<const Group*>(z + offset + row * params.c_row_stride);
        }
      }
#pragma unroll
      for (int i = 0; i < Tile::kRowsPerThread; ++i) {
        const uint32 row = place.first_row + static_cast<uint32>(Tile::row(i));
        if (row >= params.rows) continue;
        T* const first = c + offset + row * params.c_row_stride;
        Group group;
#pragma unroll
        for (int e = 0; e < kWidth; ++e) {
          const T value = clamp(accumulator.at[i][j + e] + biases[i] + residuals[i].at[e]);
          group.at[e] = blended(params.blend, value, first + e);
        }
        *reinterpret_cast<Group*>(first) = group;
      }
    }
  }
};

}  // namespace dnncore::gemm
