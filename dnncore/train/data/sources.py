"""From a configuration to the dataset that it names."""

from __future__ import annotations

from pathlib import Path

from dnncore.errors import ConfigError
from dnncore.preprocessing import Preprocessing
from dnncore.train.config import DataConfig
from dnncore.train.data.dataset import Dataset
from dnncore.train.data.digits import Digits
from dnncore.train.data.folder import Folder

__all__ = ["open_dataset"]


def open_dataset(config: DataConfig, preprocessing: Preprocessing) -> Dataset:
    """Open the images that a configuration names.

    Raises:
        ConfigError: they are not there, or are not what the preprocessing makes.
    """
    match config.kind:
        case "digits":
            if preprocessing.input_shape != (1, 8, 8):
                raise ConfigError(
                    f"preprocessing gives [C, height, width] = {list(preprocessing.input_shape)}, but the digits are [1, 8, 8]; "
                    'set preprocessing.color="gray" preprocessing.height=8 preprocessing.width=8'
                )
            return Digits()
        case "folder":
            return Folder(Path(config.path), preprocessing)
