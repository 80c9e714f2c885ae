"""What a configuration stands for before anything is on a device: images, net and schedule."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dnncore.errors import CheckpointError
from dnncore.nn.trainable import Trainable
from dnncore.preprocessing import Preprocessing
from dnncore.train.checkpoint import Checkpoint
from dnncore.train.config import Config, differences
from dnncore.train.cropping import middle_of, uncropped
from dnncore.train.data import Dataset, Loader, Middle, Split, open_split, stored_shape
from dnncore.train.nets import StartingNet, open_net, preprocessing_of
from dnncore.train.schedule import Schedule, make_schedule

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """The parts of a run that its configuration decides. Immutable.

    Args:
        config: The configuration.
        preprocessing: What becomes of an image.
        split: The images, in two parts.
        loader: Batches of the part that is trained on.
        start: The net, and what it starts from.
        schedule: Learning rate of every iteration.
    """

    config: Config
    preprocessing: Preprocessing
    split: Split
    loader: Loader
    start: StartingNet
    schedule: Schedule

    @classmethod
    def of(cls, config: Config) -> Recipe:
        """Open the data and build what the configuration describes.

        Raises:
            ConfigError: data or net are not there, or data, preprocessing and net do not fit each other.
        """
        of_net = config.preprocessing.of_net
        stored = stored_shape(Path(config.data.path)) if of_net and config.data.kind == "lmdb" else None
        preprocessing = preprocessing_of(config.net, stored) if of_net else config.preprocessing.build()
        training = config.training
        whole = uncropped(config, preprocessing, stored) if training.crop == "random" else preprocessing
        split = open_split(config.data, whole, config.seed)
        images = split.training
        if whole is not preprocessing:  # of which all but training sees the middle
            split = replace(split, dataset=Middle(split.dataset, *middle_of(preprocessing, whole)))
        loader = Loader(
            images,
            whole,
            training.batch,
            config.seed,
            drop_last=training.last_batch == "drop",
            mirror=training.mirror,
            crop=None if whole is preprocessing else preprocessing.input_shape[1:],
        )
        start = open_net(config.net, len(split.dataset.class_names), preprocessing.input_shape)
        iterations = training.iterations or training.epochs * loader.batches_per_epoch
        schedule = make_schedule(config.schedule, config.optimizer.lr, loader.batches_per_epoch, iterations)
        return cls(config, preprocessing, split, loader, start, schedule)

    @property
    def dataset(self) -> Dataset:
        """All the images."""
        return self.split.dataset

    @property
    def net(self) -> Trainable:
        """What is trained."""
        return self.start.net

    @cached_property
    def identity(self) -> dict[str, object]:
        """What decides which weights come out, the data aside: the configuration's identity, and that of the net's file."""
        found = self.config.identity()
        if self.start.digest:
            found["net.sha256"] = self.start.digest
        if self.config.preprocessing.of_net:
            found["preprocessing"] = self.preprocessing.to_dict()
        return found

    def initial_weights(self) -> dict[str, np.ndarray]:
        """What training starts from."""
        return self.start.initialize(self.config.seed)

    @property
    def iterations(self) -> int:
        """Length of the run."""
        training = self.config.training
        return training.iterations or training.epochs * self.loader.batches_per_epoch

    def check(self, checkpoint: Checkpoint, source: str) -> None:
        """Refuse a checkpoint of another run.

        Raises:
            CheckpointError: its configuration or its data differ; the message lists the keys.
        """
        changed = differences(checkpoint.identity, self.identity)
        if changed:
            raise CheckpointError(
                f"{source} is of another run ({'; '.join(changed)}); use its configuration, or start again with --fresh"
            )
        if checkpoint.fingerprint != self.dataset.fingerprint:
            raise CheckpointError(
                f"{source} was trained on other images (fingerprint {checkpoint.fingerprint[:12]}, "
                f"now {self.dataset.fingerprint[:12]}); restore them, or start again with --fresh"
            )
