"""From a configuration to the images that it names, in two parts."""

from __future__ import annotations

from pathlib import Path

from dnncore.errors import ConfigError
from dnncore.preprocessing import Preprocessing
from dnncore.train.config import DataConfig
from dnncore.train.data.arrays import ArrayImages
from dnncore.train.data.dataset import Dataset
from dnncore.train.data.digits import Digits
from dnncore.train.data.folder import Folder
from dnncore.train.data.hdf5 import HDF5Images
from dnncore.train.data.image_list import ImageList
from dnncore.train.data.joined import Joined
from dnncore.train.data.lmdb_images import LmdbImages
from dnncore.train.data.split import Split

__all__ = ["open_dataset", "open_split"]


def open_split(config: DataConfig, preprocessing: Preprocessing, seed: int) -> Split:
    """Open the images that a configuration names.

    Args:
        config: Where they are, and which are held out.
        preprocessing: Decodes and resizes them.
        seed: Of the split, where they are not held out by the configuration.

    Raises:
        ConfigError: they are not there, or are not what the preprocessing makes.
    """
    dataset = open_dataset(config, preprocessing)
    if not config.held_out:
        return Split(dataset, seed, config.holdout)
    joined = Joined(dataset, open_dataset(config, preprocessing, config.held_out))
    return Split(joined, seed, config.holdout, first_held_out=len(dataset.labels))


def open_dataset(config: DataConfig, preprocessing: Preprocessing, path: str | None = None) -> Dataset:
    """Open one folder or file.

    Args:
        config: What kind it is of.
        preprocessing: Decodes and resizes.
        path: Where it is; None for the configuration's path.

    Raises:
        ConfigError: as for `open_split`.
    """
    path = config.path if path is None else path
    match config.kind:
        case "digits":
            if preprocessing.input_shape != (1, 8, 8):
                raise ConfigError(
                    f"preprocessing gives [C, height, width] = {list(preprocessing.input_shape)}, but the digits are [1, 8, 8]; "
                    'set preprocessing.color="gray" preprocessing.height=8 preprocessing.width=8'
                )
            return Digits()
        case "folder":
            return Folder(Path(path), preprocessing)
        case "list":
            return ImageList(Path(path), config.root, preprocessing, _class_names(config))
        case "hdf5":
            return HDF5Images(Path(path), preprocessing.input_shape, _class_names(config))
        case "arrays":
            return ArrayImages(Path(path), preprocessing.input_shape, _class_names(config))
        case "lmdb":
            return LmdbImages(Path(path), preprocessing, _class_names(config))


def _class_names(config: DataConfig) -> tuple[str, ...] | None:
    if not config.classes:
        return None
    try:
        return tuple(Path(config.classes).read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.classes {config.classes}: cannot be read ({error})") from error
