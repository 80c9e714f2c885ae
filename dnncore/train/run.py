"""A training run from configuration to package: what `dnntrain` does, for programs to call."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TextIO

import numpy as np

from dnncore import Handle, devices
from dnncore.errors import BadParamError, CheckpointError, ConfigError
from dnncore.nn import Package, Role
from dnncore.nn.heads import with_probabilities
from dnncore.train.checkpoint import Checkpoint, CheckpointStore, replace_file
from dnncore.train.config import Config
from dnncore.train.data import Subset, open_split
from dnncore.train.evaluate import Evaluation, Evaluator, evaluate
from dnncore.train.export import export
from dnncore.train.interruption import Interruption
from dnncore.train.journal import Journal
from dnncore.train.learner import Learner
from dnncore.train.progress import Progress
from dnncore.train.recipe import Recipe
from dnncore.train.solver import Ending, Solver

__all__ = ["Outcome", "dry_run", "evaluate_package", "train"]


@dataclass(frozen=True)
class Outcome:
    """How a run ended. Immutable.

    Args:
        ending: Why.
        iteration: Iterations done.
        checkpoint: Where its last state is.
        signal: What interrupted it, if something did.
        evaluation: Of the package, if the run was finished.
        package: Where the package is, if the run was finished.
    """

    ending: Ending
    iteration: int
    checkpoint: Path
    signal: Signals | None = None
    evaluation: Evaluation | None = None
    package: Path | None = None


def train(config: Config, stream: TextIO, *, resume: bool = False, fresh: bool = False) -> Outcome:
    """Train, checkpoint, evaluate and export.

    In the main thread SIGINT and SIGTERM end it early, after the iteration that runs and with a checkpoint.

    Args:
        config: What to train.
        stream: Where progress is shown.
        resume: Go on from the latest checkpoint of output.run.
        fresh: Remove the checkpoints that output.run holds, and start again.

    Raises:
        ConfigError: the configuration does not fit the data, or output.run holds a run and neither resume nor fresh is given.
        CheckpointError: there is none to resume from, or it is damaged or of another run.
        DivergedError: the loss is no longer finite; the message names the iteration.
        PreprocessingError: an image cannot be read; the message names its file.
    """
    run = Path(config.output.run)
    device = _device(config)
    store = CheckpointStore(run / "checkpoints", config.checkpoint.keep)
    recipe = Recipe.of(config)
    checkpoint = _starting_point(store, recipe, resume=resume, fresh=fresh)
    run.mkdir(parents=True, exist_ok=True)
    replace_file(run / "config.toml", config.to_toml().encode())
    with (
        Interruption() as interruption,
        Journal(run / "journal.jsonl", time.time) as journal,
        Handle(device) as handle,
    ):
        first = checkpoint.state.iteration if checkpoint else 0
        journal.write("start", iteration=first, iterations=recipe.iterations, device=device, config=config.to_dict())
        progress = Progress(stream, recipe.iterations, first, config.training.report_every, time.monotonic)
        progress.line(_description(recipe, handle, first))
        solver = Solver(handle, recipe, store, journal, progress, interruption, checkpoint)
        try:
            ending = solver.run()
            weights = solver.learner.weights()
        finally:
            solver.close()
            progress.close()
        journal.write("stop", iteration=solver.state.iteration, ending=ending.value)
        last = store.paths()[-1]
        if ending is not Ending.FINISHED:
            return Outcome(ending, solver.state.iteration, last, interruption.signal)
        state, path = solver.state, config.output.package_path
        if config.output.weights == "best":
            best = store.load(store.best_path)
            recipe.check(best, str(store.best_path))
            state, weights = best.state, dict(best.weights)
        evaluation = export(handle, recipe, state, weights, path)
        journal.write("export", path=str(path), **evaluation.summary())
        return Outcome(ending, state.iteration, last, None, evaluation, path)


def dry_run(config: Config, stream: TextIO) -> None:
    """Do everything that `train` does, with one batch of each kind, and write nothing.

    Raises:
        ConfigError: the configuration does not fit the data.
        DivergedError, PreprocessingError: as for `train`.
    """
    recipe = Recipe.of(config)
    with Handle(_device(config)) as handle:
        stream.write(_description(recipe, handle, 0) + "\n")
        learner = Learner(handle, recipe.net, recipe.initial_weights(), config.optimizer)
        batch = next(recipe.loader.batches(0, 0))
        loss = learner.step(batch.images, batch.labels, recipe.schedule.rate(0)) / len(batch.labels)
        held_out = recipe.split.held_out
        some = Subset(held_out, np.arange(min(config.training.batch, len(held_out.labels))))
        net = with_probabilities(recipe.net.served)
        evaluator = Evaluator(handle, net, learner.parameters, recipe.preprocessing, config.training.batch)
        top1 = evaluator.evaluate(some).top1
        stream.write(
            f"dry run: loss {loss:.4f} on {len(batch.labels)} images, then top-1 {top1:.2%} on {len(some.labels)}; "
            "nothing written\n"
        )


def evaluate_package(config: Config, path: Path, stream: TextIO) -> Evaluation:
    """Evaluate a package on the held-out images of a configuration, through the package's own preprocessing.

    Raises:
        PackageError: the package cannot be used.
        ConfigError: the data are not there, or have other classes than the package.
    """
    package = Package.load(path)
    split = open_split(config.data, package.of_images[0], config.seed)
    if package.provenance.get("split") != split.to_dict():
        stream.write(
            f"note: {path} was not trained with this split (seed {split.seed}, holdout {split.holdout}): "
            "it may have been trained on some of these images\n"
        )
    with Handle(_device(config)) as handle:
        return evaluate(handle, package, split.held_out, config.training.batch)


def _device(config: Config) -> str:
    try:
        names = devices.resolve(None if config.device == "auto" else config.device)
    except BadParamError as error:
        raise ConfigError(f'device: {error}, or "auto"') from error
    if len(names) > 1 and config.device != "auto":
        raise ConfigError(
            f"device {config.device!r} names {len(names)} devices; training uses one, for example {names[0]}"
        )
    return names[0]


def _starting_point(store: CheckpointStore, recipe: Recipe, *, resume: bool, fresh: bool) -> Checkpoint | None:
    paths, folder = store.paths(), recipe.config.output.run
    if resume and fresh:
        raise ConfigError("--resume and --fresh contradict each other; give one of them")
    if resume:
        if not paths:
            raise CheckpointError(f"{folder} holds no checkpoint to resume from; start without --resume")
        checkpoint = store.load(paths[-1])
        recipe.check(checkpoint, str(paths[-1]))
        return checkpoint
    if fresh:
        store.clear()
    elif paths:
        raise ConfigError(
            f"output.run {folder} already holds a run ({paths[-1].name}); go on with --resume, "
            "start again with --fresh, or choose another output.run"
        )
    return None


def _description(recipe: Recipe, handle: Handle, first: int) -> str:
    graph = recipe.net.graph
    parameters = sum(constant.spec.size for constant in graph.constants)
    training, held_out = len(recipe.split.training.labels), len(recipe.split.held_out.labels)
    start = f", resumed after iteration {first}" if first else ""
    frozen = recipe.net.frozen
    kept = sum(one.spec.size for one in graph.constants if one.role is Role.FIXED or one.name in frozen)
    stay = f", {kept} of which stay as they are," if kept else ""
    return (
        f"{recipe.config.name}: net {graph.name} with {parameters} parameters{stay} on {handle.info.name} ({handle.info.model}); "
        f"{recipe.dataset.name}: {training} images to train on, {held_out} held out, {len(recipe.dataset.class_names)} classes; "
        f"{recipe.iterations} iterations{start}"
    )
