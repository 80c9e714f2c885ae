// Opaque handles: numbers that are never used twice, so that a handle of something destroyed is always recognised as such.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "error.h"

namespace emu::driver {

uintptr_t next_handle();  // state.cpp

template <class Handle, class Object>
class Handles {
 public:
  Handle add(std::shared_ptr<Object> object) {
    const uintptr_t number = next_handle();
    const Handle handle = reinterpret_cast<Handle>(number);
    object->handle = handle;
    live_.emplace(number, std::move(object));
    return handle;
  }

  std::shared_ptr<Object> find(Handle handle) const {
    auto i = live_.find(reinterpret_cast<uintptr_t>(handle));
    return i == live_.end() ? nullptr : i->second;
  }

  std::shared_ptr<Object> get(Handle handle, CUresult otherwise = CUDA_ERROR_INVALID_HANDLE) const {
    auto object = find(handle);
    if (!object) refuse(otherwise);
    return object;
  }

  // A copy of what lives and satisfies `wanted`.
  template <class Wanted>
  std::vector<std::shared_ptr<Object>> select(Wanted wanted) const {
    std::vector<std::shared_ptr<Object>> found;
    for (const auto& [number, object] : live_) {
      if (wanted(*object)) found.push_back(object);
    }
    return found;
  }

  void remove(Handle handle) { live_.erase(reinterpret_cast<uintptr_t>(handle)); }

 private:
  std::unordered_map<uintptr_t, std::shared_ptr<Object>> live_;
};

}  // namespace emu::driver
