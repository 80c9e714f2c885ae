// Finding entry points at run time (driver API, "Driver Entry Point Access").
#include <cstring>

#include "state.h"
#include "tables.h"

namespace emu::driver {
namespace {

// The newest function of this name that a program made for `version` knows.
const EntryPoint* find_entry_point(const char* name, int version, bool& known) {
  const EntryPoint* best = nullptr;
  for (unsigned i = 0; i < kNumEntryPoints; ++i) {
    if (strcmp(kEntryPoints[i].name, name) != 0) continue;
    known = true;
    if (kEntryPoints[i].version <= version) best = &kEntryPoints[i];
  }
  return best;
}

CUresult get_proc_address(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) {
  return entry(
      [&] {
        require(symbol && function && version <= CUDA_VERSION);
        if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
          refuse(CUDA_ERROR_NOT_SUPPORTED,
                 "entry points with a default stream per thread are not emulated; CU_STREAM_PER_THREAD is");
        }
        bool known = false;
        const EntryPoint* found = find_entry_point(symbol, version, known);
        *function = found ? found->function : nullptr;
        put(status, found   ? CU_GET_PROC_ADDRESS_SUCCESS
                    : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
        if (!found && !status) refuse(CUDA_ERROR_NOT_FOUND);
      },
      false);
}

}  // namespace
}  // namespace emu::driver

using namespace emu::driver;

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  return get_proc_address(symbol, function, version, flags, status);
}

#undef cuGetProcAddress
extern "C" CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  return get_proc_address(symbol, function, version, flags, nullptr);
}

// Private tables of NVIDIA's own libraries.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
  return entry(
      [&] {
        put(table, static_cast<const void*>(nullptr));
        refuse(CUDA_ERROR_NOT_SUPPORTED, "cuGetExportTable is not emulated: the CUDA runtime library cannot run on the emulator");
      },
      false);
}
