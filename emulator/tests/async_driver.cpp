// The arithmetic of asynchronous units without a runtime, for tests to call through ctypes: see async_units.py.
#include <cstring>

#include "runtime/mbarrier_state.h"
#include "runtime/reduce.h"
#include "runtime/tensor_box.h"
#include "runtime/tensor_map.h"

using namespace emu;

namespace {

// What the last function said; empty: it was content.
std::string said;

const char* say(std::string text) {
  said = std::move(text);
  return said.c_str();
}

const TensorMap& map_at(const void* map) { return *static_cast<const TensorMap*>(map); }

}  // namespace

extern "C" {

const char* encode_tiled_map(const TensorLayout* layout, const uint32_t* box, void* map) {
  return say(encode_tiled(*layout, box, map));
}

const char* encode_im2col_map(const TensorLayout* layout, const int* lower, const int* upper, uint32_t channels, uint32_t pixels,
                              void* map) {
  return say(encode_im2col(*layout, lower, upper, channels, pixels, map));
}

const char* replace_map_address(void* map, const void* address) { return say(replace_address(map, address)); }

bool encoded(const void* map) { return is_tensor_map(map); }

// Fills `offsets` and `inside` with at most `capacity` rows, `row` with {rows, first, elements, skip, count}.
const char* box_of(const void* map, const int32_t* coordinates, const uint16_t* offsets_of_filter, int64_t* offsets,
                   uint8_t* inside, int64_t capacity, int64_t* row) {
  Box box;
  const bool im2col = map_at(map).mode == TensorMode::kIm2col;
  const std::string problem =
      im2col ? im2col_box(map_at(map), coordinates, offsets_of_filter, box) : tiled_box(map_at(map), coordinates, box);
  if (!problem.empty()) return say(problem);
  for (size_t i = 0; i < box.rows.size() && static_cast<int64_t>(i) < capacity; ++i) {
    offsets[i] = box.rows[i].offset;
    inside[i] = box.rows[i].inside;
  }
  const int64_t summary[] = {static_cast<int64_t>(box.rows.size()), box.first, box.row_elements, box.skip, box.count};
  memcpy(row, summary, sizeof summary);
  return say("");
}

const char* place_problem(const void* map, const int32_t* coordinates, uint32_t use) {
  return say(refused_place(map_at(map), coordinates, static_cast<TensorUse>(use)));
}

uint32_t swizzle(uint32_t address, uint32_t mode) { return swizzled(address, static_cast<Swizzle>(mode)); }
bool row_fills_swizzle(uint32_t bytes, uint32_t mode) { return fills_swizzle(bytes, static_cast<Swizzle>(mode)); }
void convert(void* elements, uint32_t count, uint32_t type) { convert_loaded(elements, count, static_cast<TensorType>(type)); }

void fill(void* elements, uint32_t count, uint32_t type, uint32_t with) {
  fill_outside(elements, count, static_cast<TensorType>(type), static_cast<OutOfBounds>(with));
}

const char* reduction_problem(uint32_t op, uint32_t type, bool shared) {
  const ReduceInto into = shared ? ReduceInto::kShared : ReduceInto::kGlobal;
  return say(check_reduction(static_cast<EmuReduce>(op), static_cast<EmuType>(type), into));
}

void reduce(void* destination, const void* source, uint64_t bytes, uint32_t op, uint32_t type) {
  reduce_elements(destination, source, bytes, static_cast<EmuReduce>(op), static_cast<EmuType>(type));
}

uint64_t mbarrier_init(uint32_t count) { return MbarrierState::with_count(count).pack(); }

// One transition of the packed state, and the end of the phase if nothing is missing after it.
const char* mbarrier_step(uint64_t* word, uint32_t what, uint32_t amount) {
  MbarrierState state = MbarrierState::unpack(*word);
  std::string problem;
  switch (what) {
    case 0: problem = state.arrive(amount); break;
    case 1: problem = state.drop(amount); break;
    case 2: problem = state.announce_arrival(); break;
    case 3: problem = state.expect_bytes(amount); break;
    default: problem = state.complete_bytes(amount); break;
  }
  if (problem.empty() && state.over()) state.advance();
  *word = state.pack();
  return say(problem);
}

// {phase, expected, pending, tx}
void mbarrier_fields(uint64_t word, int32_t* fields) {
  const MbarrierState state = MbarrierState::unpack(word);
  const int32_t all[] = {static_cast<int32_t>(state.phase), static_cast<int32_t>(state.expected),
                         static_cast<int32_t>(state.pending), state.tx};
  memcpy(fields, all, sizeof all);
}
}
