// Functions of the host that streams call (driver API: cuLaunchHostFunc, cuStreamAddCallback).
#include "capture.h"
#include "stream.h"

namespace emu::driver {
namespace {

// While it lives, the thread must not call the driver.
struct HostFunctionScope {
  HostFunctionScope() { in_host_function = true; }
  ~HostFunctionScope() { in_host_function = false; }
};

// Unlike a host function, a callback is called after errors too, with their code.
class CallbackWork : public Work {
 public:
  CallbackWork(CUstreamCallback function, void* data) : function_(function), data_(data) {}

  CUgraphNodeType type() const override { return CU_GRAPH_NODE_TYPE_HOST; }
  bool runs_after_errors() const override { return true; }

  void run(Site& site) const override {
    CUresult status = CUDA_SUCCESS;
    {
      Lock lock(state().mutex);
      status = site.context->device->gone() ? CUDA_ERROR_UNKNOWN : site.context->error;
    }
    const HostFunctionScope scope;
    function_(site.stream, status, data_);
  }

 private:
  const CUstreamCallback function_;
  void* const data_;
};

}  // namespace

void HostWork::run(Site&) const {
  const HostFunctionScope scope;
  params.fn(params.userData);
}

}  // namespace emu::driver

using namespace emu::driver;

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return entry([&] {
    require(function);
    submit(stream_of(working_context(), stream), std::make_shared<HostWork>(CUDA_HOST_NODE_PARAMS{function, data}));
  });
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback function, void* data, unsigned flags) {
  return entry([&] {
    require(function && flags == 0);
    const auto stream = stream_of(working_context(), handle);
    refuse_if_captured(*stream);
    submit(stream, std::make_shared<CallbackWork>(function, data));
  });
}
