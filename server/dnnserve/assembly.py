"""A server of what a configuration names: its devices resolved, its models read, their places in the repository remembered.

What is slow goes on side by side: the driver begins while models are read, and processes of devices load these while what takes
calls is imported, gRPC with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dnncore import devices
from dnncore.cache import cache_folder
from dnncore.errors import DnncoreError
from dnncore.nn import Package
from dnnserve.catalog import ModelSpec
from dnnserve.config import ServerConfig
from dnnserve.early import EarlyProcesses, likely_engines
from dnnserve.engine.host import labelled
from dnnserve.engine.local import LocalEngines
from dnnserve.engine.messages import Assignment
from dnnserve.engine.net import NetHost, ServedModel, Terms
from dnnserve.engine.process import EngineProcesses
from dnnserve.envelope import ModelKey
from dnnserve.errors import StartError
from dnnserve.lifecycle.control import recipe_of
from dnnserve.lifecycle.reading import read_model
from dnnserve.lifecycle.versions import Recipe
from dnnserve.processes.child import Children
from dnnserve.repository import (
    find_packages,
    import_model_file,
    load_package,
    load_package_folder,
    load_packages,
    model_file,
    see_repository,
    stamp_of,
)
from dnnserve.saved_costs import FILE_NAME, SavedCosts

if TYPE_CHECKING:
    from dnnserve.app import Server

__all__ = ["make_server"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Served:
    """Models that have been read, for devices. Immutable.

    Args:
        names: Of the devices, each as often as it is opened.
        engines: Which open them.
        recipes: What the models were made of.
        specs: What requests must know of them.
        digests: What their batches' times depend on.
    """

    names: tuple[str, ...]
    engines: EngineProcesses | LocalEngines
    recipes: Mapping[ModelKey, Recipe]
    specs: Sequence[ModelSpec]
    digests: Mapping[ModelKey, str]

    @property
    def in_processes(self) -> bool:
        """Whether each device has a process of its own."""
        return isinstance(self.engines, EngineProcesses)


def make_server(config: ServerConfig, early: EarlyProcesses | None = None) -> Server:
    """Load the packages and resolve the devices that a configuration names.

    Args:
        config: What is served, and how.
        early: Processes that were begun; the caller closes them where this raises. Engines' that are not needed are ended.

    Raises:
        StartError: a package or a port cannot be used.
        BackendUnavailableError: a device cannot.
    """
    begun = {} if early is None else early.engines
    likely = likely_engines(config) if begun else ()
    with ThreadPoolExecutor(1, "dnnserve-devices") as beside:
        found = beside.submit(devices.resolve, config.devices)  # the driver takes most of a second
        try:
            packages = _packages(config)
        except DnncoreError:
            found.result()  # what is wrong with the devices is said first, whatever is found out first
            raise
        served: _Served | None = None
        try:
            served = _served(config, packages, likely or found.result(), begun)
        except DnncoreError:
            if found.result() == likely or not likely:  # else it may be the devices that were likely, and are not there
                raise
        try:
            names = found.result()
        except BaseException:
            if served is not None:
                served.engines.close()
            raise
    if served is None or names != served.names:
        _log.warning(
            "devices are %s, and not %s as was likely: models are read for them", ", ".join(names), ", ".join(likely)
        )
        if served is not None:
            served.engines.close()
        served = _served(config, packages, names, {})
    try:
        return _server(config, served, early)
    except BaseException:
        served.engines.close()
        raise


def _served(
    config: ServerConfig,
    packages: Mapping[ModelKey, tuple[Path, Package]],
    names: tuple[str, ...],
    begun: Mapping[str, Children],
) -> _Served:
    """Read models for devices, whose processes, where they have some, begin to load them."""
    terms = Terms(config.batch_invariant, 1, config.device_memory_fraction)
    engines: EngineProcesses | LocalEngines
    if config.engines == "process" or (config.engines == "auto" and "cpu" not in names):
        engines = EngineProcesses(names, begun)  # they start while models are read
        terms = replace(terms, num_slots=3)
        store: dict[ModelKey, ServedModel] = {}
        engines.tell(
            Assignment(partial(NetHost, models=store, terms=terms), config.log_format, store, config.log_level)
        )
    else:
        for children in begun.values():
            children.close()
        engines = LocalEngines(terms)
    try:
        labels = dict(labelled(names))
        recipes, specs, digests = {}, [], {}
        for key, (path, package) in packages.items():
            recipes[key] = recipe_of(config, key.name, path, stamp_of(path), labels)
            spec, model = read_model(key, package, config.of_model(key.name), recipes[key].devices)
            specs.append(spec)
            digests[key] = model.digest
            engines.put(key, model)
        if isinstance(engines, EngineProcesses) and len(labels) == len(set(names)):
            for label in labels:  # its name, too, where no device is there twice
                engines.load_ahead(
                    label, {spec.key: spec.max_batch_rows for spec in specs if label in recipes[spec.key].devices}
                )
    except BaseException:
        engines.close()
        raise
    return _Served(names, engines, recipes, specs, digests)


def _server(config: ServerConfig, served: _Served, early: EarlyProcesses | None) -> Server:
    """The server of what was read."""
    from dnnserve.app import Origin, Server  # here: see above

    costs = _saved_costs(config, dict(labelled(served.names)), in_processes=served.in_processes)
    if costs is not None:
        for key, digest in served.digests.items():
            costs.enter(key, digest)
    engines = served.engines
    return Server(
        *(config, served.names, served.specs, engines),
        restartable=served.in_processes,
        close=engines.close,
        set_log_level=engines.set_log_level,
        origin=Origin(served.recipes, engines, partial(_read, config)),
        fronts=None if early is None else early.fronts,
        costs=costs,
    )


def _saved_costs(config: ServerConfig, labels: Mapping[str, str], *, in_processes: bool) -> SavedCosts | None:
    """What batches took at earlier starts; None: it is not kept."""
    if not config.save_costs:
        return None
    try:
        folder = cache_folder()
    except RuntimeError as error:
        _log.warning("what batches take is not saved: %s; set DNNCORE_CACHE_DIR, or --no-save-costs", error)
        return None
    terms = f"in a {'process' if in_processes else 'thread'}" + (", one by one" if config.batch_invariant else "")
    hardware = {label: devices.info(name).model for label, name in labels.items()}
    return SavedCosts(folder / FILE_NAME, hardware, terms)


def _packages(config: ServerConfig) -> Mapping[ModelKey, tuple[Path, Package]]:
    """What the server begins with."""
    if config.model_repository is None:
        assert config.model is not None
        ((key, package),) = _model_package(config).items()
        packages: Mapping[ModelKey, Package] = {key: package}
        places: Mapping[ModelKey, Path] = {key: config.model}
    else:
        places = _places(config, config.model_repository)
        packages = load_packages(places, skip_bad=config.skip_bad_models)
    if config.repository_mode == "none":
        config.check_sections(key.name for key in packages)
    return {key: (places[key], package) for key, package in packages.items()}


def _places(config: ServerConfig, root: Path) -> Mapping[ModelKey, Path]:
    """The packages of the repository to begin with."""
    if config.repository_mode == "none":
        return find_packages(root, all_versions=config.all_versions)
    sight = see_repository(root)
    seen = sight.seen
    for misfit in sight.misfits:
        _log.error("%s", misfit)
    wanted = set(seen) if config.repository_mode == "poll" or "*" in config.load_models else set(config.load_models)
    if missing := sorted(wanted - seen.keys()):
        raise StartError(
            f"--load-model {', '.join(missing)}: not in {str(root)!r}, which has {', '.join(seen) or 'none'}"
        )
    found = {
        name: seen[name] if config.all_versions else {max(seen[name]): seen[name][max(seen[name])]} for name in wanted
    }
    return {ModelKey(name, number): path for name in sorted(found) for number, (path, _) in found[name].items()}


def _read(config: ServerConfig, path: Path) -> Package:
    """The package of a path, once more."""
    if config.model_repository is not None:
        return load_package(path)
    (package,) = _model_package(config).values()
    return package


def _model_package(config: ServerConfig) -> Mapping[ModelKey, Package]:
    """What --model names."""
    assert config.model is not None
    if not config.model.exists():
        raise StartError(
            f"model {str(config.model)!r} does not exist; give a model package, an .onnx file or a .prototxt"
        )
    if config.model.is_file():
        return import_model_file(model_file(config))
    if config.file_arguments:
        raise StartError(
            f"{', '.join(config.file_arguments)}: {str(config.model)!r} is no file, and a model package has its own; "
            "import the file again to change them"
        )
    return load_package_folder(config.model)
