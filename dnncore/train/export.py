"""From a trained run to the model package that serving reads, and the evaluation that goes with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dnncore import Handle, __version__
from dnncore.nn import Package
from dnncore.train.checkpoint import TrainingState, replace_file
from dnncore.train.evaluate import Evaluation, evaluate
from dnncore.train.recipe import Recipe

__all__ = ["export"]


def export(
    handle: Handle, recipe: Recipe, state: TrainingState, weights: Mapping[str, np.ndarray], path: Path
) -> Evaluation:
    """Write a package to `path`, and evaluation.json beside it.

    What is written depends on the run alone: no date, no path, no host name. The same run gives the same bytes.

    Args:
        handle: Where the net is evaluated.
        recipe: What was trained.
        state: How far the weights are trained.
        weights: By parameter name; those of auxiliary heads are left out.
        path: Folder of the package.

    Returns:
        The package's evaluation on the held-out images, whose figures are in its provenance.
    """
    net = recipe.net.served
    provenance: dict[str, object] = {
        "tool": "dnntrain",
        "version": __version__,
        "seed": recipe.config.seed,
        "config": recipe.identity,
        "dataset": {
            "name": recipe.dataset.name,
            "num_images": len(recipe.dataset.labels),
            "fingerprint": recipe.dataset.fingerprint,
        },
        "split": recipe.split.to_dict(),
        "iterations": state.iteration,
        "weights": recipe.config.output.weights,
        "device": handle.info.model,
    }

    def package() -> Package:
        return Package(
            name=recipe.config.name,
            graph=net,
            weights={name: weights[name] for name in net.constant},
            preprocessing=recipe.preprocessing,
            labels=recipe.dataset.class_names,
            provenance=provenance,
        )

    evaluation = evaluate(handle, package(), recipe.split.held_out, recipe.config.training.batch)
    provenance["metrics"] = evaluation.summary()
    path.parent.mkdir(parents=True, exist_ok=True)
    package().save(path)
    text = json.dumps(evaluation.to_dict(), indent=1, allow_nan=False) + "\n"
    replace_file(path.parent / "evaluation.json", text.encode())
    return evaluation
