"""A CUDA graph as the driver has it: put together node by node, then changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dnncore.cuda.runtime.driver import bindings, call
from dnncore.cuda.runtime.driver_launch import DriverFunction, Parameters

__all__ = ["DriverGraph"]


class DriverGraph:
    """A CUDA graph whose nodes run one after the other, put together node by node. Owned by one thread.

    Nodes are added, then `instantiate` makes it launchable; from then on nodes can be given other parameters.
    """

    def __init__(self) -> None:
        self._graph = call("cuGraphCreate", 0)
        self._nodes: list[Any] = []
        self._ends_with_kernel = False
        self._executable: Any = None

    def _after(self) -> tuple[Any, list[Any] | None, int]:
        last = self._nodes[-1:]
        return self._graph, last or None, len(last)

    def add_kernel(
        self,
        function: DriverFunction,
        grid: Sequence[int],
        block: Sequence[int],
        params: bytes,
        shared_bytes: int,
        *,
        starts_early: bool = False,
    ) -> None:
        """Add the launch of a kernel whose one parameter is `params`, bit by bit.

        With `starts_early` its blocks may begin while a kernel right before it still runs.
        """
        parameters, node = self._kernel(function, grid, block, params, shared_bytes)
        if starts_early and self._ends_with_kernel:
            self._nodes.append(call("cuGraphAddKernelNode", self._graph, None, 0, node))
            call("cuGraphAddDependencies", self._graph, self._nodes[-2:-1], self._nodes[-1:], [_early_edge()], 1)
        else:
            self._nodes.append(call("cuGraphAddKernelNode", *self._after(), node))
        self._ends_with_kernel = True
        del parameters  # the driver has copied it

    def set_kernel(
        self,
        node: int,
        function: DriverFunction,
        grid: Sequence[int],
        block: Sequence[int],
        params: bytes,
        shared_bytes: int,
    ) -> None:
        """Let the launches from now on have another kernel, configuration or parameters at a place among the nodes."""
        parameters, changed = self._kernel(function, grid, block, params, shared_bytes)
        call("cuGraphExecKernelNodeSetParams", self._executable, self._nodes[node], changed)
        del parameters

    @staticmethod
    def _kernel(
        function: DriverFunction, grid: Sequence[int], block: Sequence[int], params: bytes, shared_bytes: int
    ) -> tuple[Parameters, Any]:
        parameters, node = Parameters(params), bindings().CUDA_KERNEL_NODE_PARAMS()
        node.func = function
        node.gridDimX, node.gridDimY, node.gridDimZ = grid
        node.blockDimX, node.blockDimY, node.blockDimZ = block
        node.sharedMemBytes, node.kernelParams = shared_bytes, parameters.pointers
        return parameters, node

    def add_memset(self, address: int, value: int, nbytes: int) -> None:
        """Add the filling of memory with one byte."""
        self._nodes.append(
            call("cuGraphAddMemsetNode", *self._after(), self._memset(address, value, nbytes), self._context())
        )
        self._ends_with_kernel = False

    def set_memset(self, node: int, address: int, value: int, nbytes: int) -> None:
        """Let the launches from now on fill other memory."""
        changed = self._memset(address, value, nbytes)
        call("cuGraphExecMemsetNodeSetParams", self._executable, self._nodes[node], changed, self._context())

    @staticmethod
    def _memset(address: int, value: int, nbytes: int) -> Any:
        node = bindings().CUDA_MEMSET_NODE_PARAMS()
        node.dst, node.value, node.elementSize, node.width, node.height, node.pitch = (
            address,
            value,
            1,
            nbytes,
            1,
            nbytes,
        )
        return node

    def add_copy(self, destination: int, source: int, nbytes: int) -> None:
        """Add a copy within the device."""
        self._nodes.append(
            call("cuGraphAddMemcpyNode", *self._after(), self._copy(destination, source, nbytes), self._context())
        )
        self._ends_with_kernel = False

    def set_copy(self, node: int, destination: int, source: int, nbytes: int) -> None:
        """Let the launches from now on copy something else."""
        changed = self._copy(destination, source, nbytes)
        call("cuGraphExecMemcpyNodeSetParams", self._executable, self._nodes[node], changed, self._context())

    @staticmethod
    def _copy(destination: int, source: int, nbytes: int) -> Any:
        driver = bindings()
        node = driver.CUDA_MEMCPY3D()
        node.srcMemoryType = node.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        node.dstDevice, node.srcDevice, node.WidthInBytes, node.Height, node.Depth = destination, source, nbytes, 1, 1
        return node

    @staticmethod
    def _context() -> Any:
        return call("cuCtxGetCurrent")

    def instantiate(self) -> None:
        """Make it launchable."""
        self._executable = call("cuGraphInstantiate", self._graph, 0)

    def launch(self, stream: int) -> None:
        """Enqueue all nodes on a CUstream."""
        call("cuGraphLaunch", self._executable, stream)

    def destroy(self) -> None:
        """Give it back; launches that are under way end first."""
        executable, graph, self._executable, self._graph = self._executable, self._graph, None, None
        if executable is not None:
            call("cuGraphExecDestroy", executable)
        if graph is not None:
            call("cuGraphDestroy", graph)


def _early_edge() -> Any:
    """From a kernel to the next one, whose blocks begin once all of the first one's allow it or have ended.

    Source: CUDA Programming Guide, "Programmatic Dependent Launch", use in CUDA graphs.
    """
    driver, edge = bindings(), bindings().CUgraphEdgeData()
    edge.from_port = int(driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
    edge.type = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    return edge
