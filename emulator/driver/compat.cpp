// Old names of functions whose parameters never changed: what dlsym finds without a version, and what old programs link to.
#include <cuda.h>

namespace {

CUresult destroy_context(CUcontext context) { return cuCtxDestroy(context); }
CUresult push_context(CUcontext context) { return cuCtxPushCurrent(context); }
CUresult pop_context(CUcontext* context) { return cuCtxPopCurrent(context); }
CUresult destroy_stream(CUstream stream) { return cuStreamDestroy(stream); }
CUresult destroy_event(CUevent event) { return cuEventDestroy(event); }
CUresult elapsed_time(float* milliseconds, CUevent start, CUevent end) { return cuEventElapsedTime(milliseconds, start, end); }
CUresult release_primary(CUdevice device) { return cuDevicePrimaryCtxRelease(device); }
CUresult reset_primary(CUdevice device) { return cuDevicePrimaryCtxReset(device); }
CUresult set_primary_flags(CUdevice device, unsigned flags) { return cuDevicePrimaryCtxSetFlags(device, flags); }
CUresult get_uuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid(uuid, device); }

}  // namespace

#undef cuCtxDestroy
#undef cuCtxPushCurrent
#undef cuCtxPopCurrent
#undef cuStreamDestroy
#undef cuEventDestroy
#undef cuEventElapsedTime
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuDevicePrimaryCtxSetFlags
#undef cuDeviceGetUuid

extern "C" {
CUresult cuCtxDestroy(CUcontext context) { return destroy_context(context); }
CUresult cuCtxPushCurrent(CUcontext context) { return push_context(context); }
CUresult cuCtxPopCurrent(CUcontext* context) { return pop_context(context); }
CUresult cuStreamDestroy(CUstream stream) { return destroy_stream(stream); }
CUresult cuEventDestroy(CUevent event) { return destroy_event(event); }
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) { return elapsed_time(milliseconds, start, end); }
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return release_primary(device); }
CUresult cuDevicePrimaryCtxReset(CUdevice device) { return reset_primary(device); }
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { return set_primary_flags(device, flags); }
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return get_uuid(uuid, device); }
}
