// Access of one device to another's memory (driver API, "Peer Context Memory Access").
//
// Copies reach every device. Kernels reach those in Context::peers: LaunchConfig::reachable_devices carries them to the checker.
#include "state.h"

using namespace emu::driver;

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return entry([&] {
    require(can);
    *can = &state().device(device) != &state().device(peer);
  });
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
  return entry([&] {
    require(value && &state().device(from) != &state().device(to));
    switch (attribute) {
      case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = 0; return;
      case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
      case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 1; return;
      case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED: *value = 0; return;
      default: refuse(CUDA_ERROR_INVALID_VALUE);
    }
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
  return entry([&] {
    require(flags == 0);
    const auto context = working_context();
    const auto peer = state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT);
    peer->check();
    if (peer->device == context->device) refuse(CUDA_ERROR_INVALID_CONTEXT, "peer access of a device to itself");
    if (!context->peers.insert(peer->device->index).second) refuse(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  });
}

CUresult cuCtxDisablePeerAccess(CUcontext handle) {
  return entry([&] {
    const auto context = working_context();
    const auto peer = state().contexts.get(handle, CUDA_ERROR_INVALID_CONTEXT);
    if (!context->peers.erase(peer->device->index)) refuse(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  });
}
