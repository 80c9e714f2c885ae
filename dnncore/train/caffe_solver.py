"""Caffe's solver.prototxt as a configuration: what maps is mapped exactly, what does not is refused, all at once."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING

from dnncore.errors import BackendUnavailableError, ConfigError, ModelImportError
from dnncore.importers.loading import protobuf_for

if TYPE_CHECKING:
    from dnncore.importers.caffe.dnncore_caffe_pb2 import SolverParameter
    from dnncore.importers.caffe.solver import DataLayer

__all__ = ["solver_table"]

_Table = dict[str, dict[str, object]]

_POLICIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "fixed": ("constant", ()),
    "step": ("step", ("gamma", "stepsize")),
    "exp": ("exp", ("gamma",)),
    "inv": ("inv", ("gamma", "power")),
    "multistep": ("multistep", ("gamma", "stepvalue")),
    "poly": ("poly", ("power",)),
    "sigmoid": ("sigmoid", ("gamma", "stepsize")),
}
"""Each lr_policy: the kind of our schedule, and the fields that it needs."""

_METHODS = {
    "SGD": "sgd",
    "Nesterov": "sgd",
    "AdaGrad": "adagrad",
    "RMSProp": "rmsprop",
    "AdaDelta": "adadelta",
    "Adam": "adam",
}
"""Each type: the kind of our optimizer."""

_IN_EPOCHS = {"stepsize": "schedule.step_epochs", "stepvalue": "schedule.milestones"}
"""Keys that say in epochs what a field says in iterations, which would win over them."""

_KINDS = {("ImageData", ""): "list", ("HDF5Data", ""): "hdf5", ("Data", "LMDB"): "lmdb"}
"""Sources of images that dnntrain reads too: by a layer's type and its database's."""

_ARRAYS = "data.kind=arrays data.path=FOLDER, of data.npy and label.npy"

_UNREAD = {
    "DummyData": f"its fillers make no images that a net could be tested on and served with: give some, {_ARRAYS}",
    "MemoryData": f"a program gives the images: {_ARRAYS}, as numpy.save writes them",
}
"""What is to be given for layers that name no source."""


def solver_table(path: Path, overridden: Collection[str] = ()) -> dict[str, object]:
    """The tables of a configuration that a solver describes.

    The order of the images and the initial weights are ours, from the seed; what only concerns Caffe's output (average_loss,
    debug_info, test_iter, test_initialization, snapshot_format, snapshot_diff, layer_wise_reduce, ...) is passed over: all the
    held-out images are evaluated, and the end of a run is always saved.

    Args:
        path: Of the solver. Paths in it count from the working directory, as in Caffe, or from its own folder.
        overridden: Dotted keys that the caller gives besides: what they decide is not asked of the file.

    Raises:
        ConfigError: it cannot be read, or has what cannot be mapped; the message lists it all.
    """
    try:
        with protobuf_for(path):
            from dnncore.importers.caffe.solver import read_solver
        reading = _Reading(path, read_solver(path), overridden)
        table = reading.table()
    except (BackendUnavailableError, ModelImportError, OSError) as error:
        raise ConfigError(str(error)) from error
    if reading.problems:
        problems = "".join(f"\n  {problem}" for problem in reading.problems)
        raise ConfigError(f"{len(reading.problems)} settings that dnntrain does not have{problems}")
    return table


class _Reading:
    """One solver while its settings are collected. Owned by one thread."""

    def __init__(self, path: Path, solver: SolverParameter, overridden: Collection[str]) -> None:
        self.problems: list[str] = []
        self._path = path
        self._solver = solver
        self._overridden = frozenset(overridden)

    def table(self) -> dict[str, object]:
        """All of it."""
        solver = self._solver
        table: dict[str, object] = {"name": "".join(c if c.isascii() and c.isalnum() else "-" for c in self._path.stem)}
        if solver.random_seed >= 0:
            table["seed"] = solver.random_seed
        if solver.HasField("solver_mode"):
            table["device"] = "cpu" if solver.solver_mode == solver.CPU else f"cuda:{solver.device_id}"
        tables: _Table = {
            "training": self._training(),
            "optimizer": self._optimizer(),
            "schedule": self._schedule(),
            "checkpoint": {"every": solver.snapshot or max(solver.max_iter, 1)},
            "output": {"run": self._run()},
        }
        if solver.snapshot:
            tables["checkpoint"]["keep"] = solver.max_iter // solver.snapshot + 1
        self._net(tables)
        return table | tables

    def _refuse(self, problem: str, *keys: str) -> None:
        """Note what cannot be mapped, unless the caller decides one of the keys that would."""
        if not any(given == key or given.startswith(f"{key}.") for given in self._overridden for key in keys):
            self.problems.append(problem)

    def _needs(self, *names: str) -> None:
        for name in names:
            given = len(self._solver.stepvalue) > 0 if name == "stepvalue" else self._solver.HasField(name)
            if not given:
                self.problems.append(f"{name} is not given")

    def _training(self) -> dict[str, object]:
        solver = self._solver
        self._needs("max_iter")
        length = max(solver.max_iter, 1)
        values: dict[str, object] = {"report_every": solver.display or length}
        if "training.epochs" not in self._overridden:
            values["iterations"] = length
        if "training.evaluate_every" not in self._overridden:
            values["evaluate_iterations"] = solver.test_interval or length
        return values

    def _optimizer(self) -> dict[str, object]:
        from dnncore.importers.caffe.solver import solver_type

        solver, kind = self._solver, solver_type(self._solver)
        self._needs("base_lr")
        if solver.regularization_type not in ("L1", "L2") and solver.weight_decay:
            problem = f"regularization_type {solver.regularization_type!r} with a weight_decay: L1 and L2 are there"
            self._refuse(problem, "optimizer.penalty")
        if kind not in _METHODS:
            self._refuse(f"type {kind!r}: there are {', '.join(_METHODS)}", "optimizer.kind")
            return {}
        if kind in ("AdaGrad", "RMSProp") and solver.momentum:
            self._refuse(f"momentum {_decimal(solver.momentum)} with type {kind}, which has none", "optimizer.momentum")
        values: dict[str, object] = {
            "lr": _decimal(solver.base_lr),
            "momentum": _decimal(solver.momentum),
            "weight_decay": _decimal(solver.weight_decay),
            "decay_biases": True,
            "kind": _METHODS[kind],
            "penalty": "l1" if solver.regularization_type == "L1" else "l2",
            # Caffe's limit is for the sum of the parts' gradients, ours for their mean.
            "clip_norm": max(_decimal(solver.clip_gradients), 0.0) / max(solver.iter_size, 1),
        }
        if _METHODS[kind] == "sgd":
            return values | {"momentum_style": "caffe", "nesterov": kind == "Nesterov" and solver.momentum > 0}
        averages = {"momentum2": _decimal(solver.momentum2), "rms_decay": _decimal(solver.rms_decay)}
        return values | averages | {"epsilon": _decimal(solver.delta)}

    def _schedule(self) -> dict[str, object]:
        solver = self._solver
        if solver.lr_policy not in _POLICIES:
            self._refuse(f"lr_policy {solver.lr_policy!r}: there are {', '.join(_POLICIES)}")
            return {}
        kind, fields = _POLICIES[solver.lr_policy]
        needed = [name for name in fields if _IN_EPOCHS.get(name) not in self._overridden]
        self._needs(*needed)
        if "stepsize" in needed and solver.HasField("stepsize") and solver.stepsize < 1:
            self._refuse(f"stepsize {solver.stepsize}: it must be 1 or more", "schedule.step_iterations")
        values: dict[str, Callable[[], object]] = {
            "gamma": lambda: _decimal(solver.gamma),
            "power": lambda: _decimal(solver.power),
            "stepsize": lambda: solver.stepsize,
            "stepvalue": lambda: list(_steps(solver)),
        }
        keys = {"stepsize": "step_iterations", "stepvalue": "milestone_iterations"}
        return {"kind": kind} | {keys.get(name, name): values[name]() for name in needed}

    def _run(self) -> str:
        prefix = self._solver.snapshot_prefix
        if not prefix:
            return str(self._path.with_suffix(""))
        return f"{prefix}{self._path.stem}" if prefix.endswith("/") else prefix

    def _net(self, tables: _Table) -> None:
        """The net, and what its data layers say."""
        from dnncore.importers.caffe.solver import data_layer, has_batch_norm, losses_of_parts

        solver = self._solver
        name = solver.train_net or solver.net
        if not name and not {"net.path", "net.name"} & self._overridden:
            inline = solver.HasField("net_param") or solver.HasField("train_net_param")
            self._refuse("a net within the solver: write it to a file of its own" if inline else "net is not given")
        if solver.train_state.stage or solver.train_state.level:
            self._refuse("train_state with a level or stages: write the net without rules for them")
        if len(solver.weights) > 1:
            self._refuse(f"{len(solver.weights)} files of weights: net.weights is one")
        if not name or {"net.path", "net.name"} & self._overridden:
            return
        path = self._found(name)
        tables["net"] = {"path": str(path)}
        if solver.weights:
            tables["net"]["weights"] = str(self._found(solver.weights[0]))
        if solver.iter_size > 1 and has_batch_norm(path):
            self._refuse(f"iter_size {solver.iter_size} for a net with BatchNorm, whose statistics are those of a part")
        if solver.iter_size > 1 and (losses := losses_of_parts(path)):
            named = ", ".join(map(repr, losses))
            self._refuse(
                f"iter_size {solver.iter_size} for the losses {named}, of which a batch's is no mean of its parts'"
            )
        layer = data_layer(path, "train")
        if layer is not None:
            self._data(layer, tables)
            held_out = data_layer(path if not solver.test_net else self._found(solver.test_net[0]), "test")
            if held_out is not None and tables.get("data", {}).get("path"):
                self._held_out(layer, held_out, tables)
        else:
            self._refuse("the net has no data layer: give data.kind and data.path", "data.kind", "data.path")

    def _data(self, layer: DataLayer, tables: _Table) -> None:
        where = f"layer {layer.name!r} ({layer.type}): "
        tables["training"]["batch"] = max(layer.batch, 1) * self._solver.iter_size
        tables["training"]["mirror"] = layer.mirror
        if not layer.batch:
            self._refuse(f"{where}batch_size is not given", "training.batch")
        if not any(key.startswith("preprocessing.") for key in self._overridden):
            if layer.transforms:
                tables["preprocessing"] = {"of_net": True}
                tables["training"]["crop"] = "random" if layer.crop_size else "center"
            else:
                self._refuse(f"{where}no transform_param: give preprocessing", "preprocessing")
        if {"data.kind", "data.path"} & self._overridden:
            return
        source = (layer.type, layer.backend)
        if source in _KINDS:
            tables["data"] = {"kind": _KINDS[source], "path": str(self._found(layer.source))}
            if layer.root:
                tables["data"]["root"] = layer.root
        else:
            what = f"{layer.backend or 'source'} {layer.source!r}"
            problem = _UNREAD.get(
                layer.type, f"{what} is none that dnntrain reads: give data.kind=folder data.path=FOLDER"
            )
            self._refuse(f"{where}{problem}", "data.kind", "data.path")

    def _held_out(self, layer: DataLayer, held_out: DataLayer, tables: _Table) -> None:
        where = f"layer {held_out.name!r} ({held_out.type}) of phase TEST: "
        if (held_out.type, held_out.backend) != (layer.type, layer.backend):
            trained = f"{layer.name!r}, which is trained on, is of type {layer.type} {layer.backend}".rstrip()
            self._refuse(f"{where}{trained}", "data.held_out")
        elif held_out.root != layer.root:
            problem = (
                f"root_folder {held_out.root!r} is not the {layer.root!r} of {layer.name!r}: there is one data.root"
            )
            self._refuse(f"{where}{problem}", "data.held_out")
        elif held_out.source:
            tables["data"]["held_out"] = str(self._found(held_out.source))

    def _found(self, name: str) -> Path:
        places = (Path(name), self._path.parent / name)
        for place in places:
            if place.exists():
                return place
        self._refuse(f"{name!r} is not there; looked at {', '.join(map(str, dict.fromkeys(places)))}")
        return places[0]


def _steps(solver: SolverParameter) -> list[int]:
    """The first iteration of each new rate: Caffe goes one step further in an iteration, whatever the list says."""
    found: list[int] = []
    for value in solver.stepvalue:
        found.append(max(value, found[-1] + 1) if found else max(value, 0))
    return found


def _decimal(value: float) -> float:
    """The shortest decimal that a float of a file may have been written as."""
    from dnncore.importers.caffe.net import decimal

    return decimal(value)
