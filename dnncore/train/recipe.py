"""What a configuration stands for before anything is on a device: images, net and schedule."""

from __future__ import annotations

from dataclasses import dataclass

from dnncore.errors import BadParamError, CheckpointError, ConfigError
from dnncore.nn import Graph
from dnncore.nn.zoo import ZOO
from dnncore.preprocessing import Preprocessing
from dnncore.train.checkpoint import Checkpoint
from dnncore.train.config import Config, differences
from dnncore.train.data import Dataset, Loader, Split, open_dataset
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
        net: Ends in logits, one a class.
        schedule: Learning rate of every iteration.
    """

    config: Config
    preprocessing: Preprocessing
    split: Split
    loader: Loader
    net: Graph
    schedule: Schedule

    @classmethod
    def of(cls, config: Config) -> Recipe:
        """Open the data and build what the configuration describes.

        Raises:
            ConfigError: the data are not there, or data, preprocessing and net do not fit each other.
        """
        preprocessing = config.preprocessing.build()
        dataset = open_dataset(config.data, preprocessing)
        split = Split(dataset, config.seed, config.data.holdout)
        training = config.training
        loader = Loader(
            split.training, preprocessing, training.batch, config.seed, drop_last=training.last_batch == "drop"
        )
        try:
            net = ZOO[config.net.name](len(dataset.class_names), preprocessing.input_shape)
        except BadParamError as error:
            raise ConfigError(
                f"net.name {config.net.name} does not take [C, height, width] = {list(preprocessing.input_shape)}: {error}; "
                "change preprocessing.height and preprocessing.width, or preprocessing.steps"
            ) from error
        iterations = training.epochs * loader.batches_per_epoch
        schedule = make_schedule(config.schedule, config.optimizer.lr, loader.batches_per_epoch, iterations)
        return cls(config, preprocessing, split, loader, net, schedule)

    @property
    def dataset(self) -> Dataset:
        """All the images."""
        return self.split.dataset

    @property
    def iterations(self) -> int:
        """Length of the run."""
        return self.config.training.epochs * self.loader.batches_per_epoch

    def check(self, checkpoint: Checkpoint, source: str) -> None:
        """Refuse a checkpoint of another run.

        Raises:
            CheckpointError: its configuration or its data differ; the message lists the keys.
        """
        changed = differences(checkpoint.identity, self.config.identity())
        if changed:
            raise CheckpointError(
                f"{source} is of another run ({'; '.join(changed)}); use its configuration, or start again with --fresh"
            )
        if checkpoint.fingerprint != self.dataset.fingerprint:
            raise CheckpointError(
                f"{source} was trained on other images (fingerprint {checkpoint.fingerprint[:12]}, "
                f"now {self.dataset.fingerprint[:12]}); restore them, or start again with --fresh"
            )
