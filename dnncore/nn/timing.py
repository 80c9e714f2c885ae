"""What each node of a net takes, forward and backward, on the device: the table for which people compared libraries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from dnncore.errors import BadParamError
from dnncore.figures import CPU
from dnncore.handle import Handle
from dnncore.nn.executor import Executor
from dnncore.nn.gradient import differentiate
from dnncore.nn.graph import Node, Value
from dnncore.nn.model import Model
from dnncore.nn.parameters import Parameters
from dnncore.nn.schedule import Computation, lower

__all__ = ["NodeTime", "Timing", "time_nodes"]


@dataclass(frozen=True)
class NodeTime:
    """What one node takes. Immutable.

    Args:
        name: The node's.
        kind: Its operator's.
        algorithms: What was chosen forward, "-" for a view, which costs nothing.
        workspace_bytes: Scratch memory, forward or backward, whichever is more.
        forward_ms: Mean over the iterations.
        roofline_ms: What its operations take at the rates of the GPU (`Plan.roofline_seconds`); None on a CPU, whose rates are not
            known.
        backward_ms: Likewise, of all nodes of its gradient; None where the net has none.
    """

    name: str
    kind: str
    algorithms: str
    workspace_bytes: int
    forward_ms: float
    roofline_ms: float | None
    backward_ms: float | None


@dataclass(frozen=True)
class Timing:
    """What the nodes of a net take, for one number of images. Immutable.

    Args:
        nodes: In their order.
        why_no_backward: Which node has no gradient, or "".
    """

    nodes: tuple[NodeTime, ...]
    why_no_backward: str

    def table(self) -> str:
        """A line for each node, and the sums."""
        width = max(len(node.name) for node in self.nodes)
        kinds = max(len(node.kind) for node in self.nodes)
        algorithms = max(len(node.algorithms) for node in self.nodes)
        lines = [
            f"{'layer':{width}}  {'operator':{kinds}}  {'algorithm':{algorithms}}  {'workspace':>11}  "
            f"{'forward ms':>10}  {'roofline ms':>11}  {'backward ms':>11}"
        ]
        for node in self.nodes:
            roofline, backward = ("-" if ms is None else f"{ms:.3f}" for ms in (node.roofline_ms, node.backward_ms))
            lines.append(
                f"{node.name:{width}}  {node.kind:{kinds}}  {node.algorithms:{algorithms}}  "
                f"{node.workspace_bytes:>11}  {node.forward_ms:>10.3f}  {roofline:>11}  {backward:>11}"
            )
        forward, backward_ms = sum(node.forward_ms for node in self.nodes), [node.backward_ms for node in self.nodes]
        total = f"forward {forward:.3f} ms"
        if all(node.roofline_ms is not None for node in self.nodes):
            total += f", roofline {sum(node.roofline_ms or 0 for node in self.nodes):.3f} ms"
        if not self.why_no_backward:
            total += f", backward {sum(ms or 0 for ms in backward_ms):.3f} ms"
        else:
            total += f"; no backward: {self.why_no_backward}"
        return "\n".join([*lines, total])


def time_nodes(model: Model, handle: Handle, batch: int, iterations: int = 50) -> Timing:
    """Run each node by itself, so often, between two events; inputs are random.

    Args:
        model: The net.
        handle: Where.
        batch: Number of images.
        iterations: How often each node runs; once more before that, which is not counted.

    Raises:
        BadParamError: as `Executor`; or there are no iterations.
    """
    if iterations < 1:
        raise BadParamError(f"iterations {iterations} must be 1 or more")
    graph, why = model.graph, ""
    seeds = {name: graph.free_name(f"{name}.seed") for name in graph.outputs}
    given = tuple(Value(seed, *graph.values[name][1:]) for name, seed in seeds.items())
    try:
        timed = differentiate(graph.rewritten(graph.nodes, inputs=(*graph.inputs, *given)), seeds).graph
    except BadParamError as error:
        timed, why = graph, str(error)
    with (
        Parameters.upload(handle, timed, {name: model.weights[name] for name in timed.constant}) as parameters,
        _NodeTimer(timed, handle, parameters, batch) as timer,
    ):
        found = timer.times(iterations)
    backward: dict[str, list[_Cost]] = {}
    owners = sorted((node.name for node in graph.nodes), key=len, reverse=True)
    for node in timed.nodes[len(graph.nodes) :]:
        owner = next((name for name in owners if node.name.startswith(f"d.{name}.")), None)
        if owner is not None:
            backward.setdefault(owner, []).append(found[node.name])
    return Timing(tuple(_row(node, found[node.name], backward.get(node.name, ()), why) for node in graph.nodes), why)


@dataclass(frozen=True)
class _Cost:
    algorithms: tuple[str, ...] = ()
    workspace_bytes: int = 0
    ms: float = 0.0
    roofline_ms: float | None = 0.0


def _row(node: Node, forward: _Cost, backward: Iterable[_Cost], why: str) -> NodeTime:
    backward = tuple(backward)
    return NodeTime(
        node.name,
        node.operator.kind,
        "+".join(dict.fromkeys(forward.algorithms)) or "-",
        max(cost.workspace_bytes for cost in (forward, *backward)),
        forward.ms,
        forward.roofline_ms,
        None if why else sum(cost.ms for cost in backward),
    )


class _NodeTimer(Executor):
    """An executor whose nodes are run one by one. Owned by one thread; checked by the handle."""

    def times(self, iterations: int) -> Mapping[str, _Cost]:
        """The cost of every node, by name."""
        rng = np.random.default_rng(0)
        self.run({name: rng.standard_normal(a.shape).astype(a.dtype) for name, a in self.inputs.items()}, wanted=())
        return {
            one.node.name: self._time(one, iterations) if one.plans else _Cost() for one in self.schedule.computations
        }

    def _time(self, computation: Computation, iterations: int) -> _Cost:
        with self._handle.record() as program:
            lower(self._handle, computation, self._tensors)
        program.run()
        before = self._handle.record_event()
        for _ in range(iterations):
            program.run()
        ms = self._handle.record_event().elapsed_ms(before) / iterations
        plans = [step.plan for step in program.steps]
        on_gpu = self._handle.device.figures is not CPU
        roofline_ms = sum(plan.roofline_seconds for plan in plans) * 1e3 if on_gpu else None
        return _Cost(tuple(plan.algorithm for plan in plans), program.workspace_bytes, ms, roofline_ms)
