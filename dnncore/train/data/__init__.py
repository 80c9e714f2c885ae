"""Labelled images: where they are from (digits, folder, list, HDF5, arrays, LMDB), which are held out, in which order they come."""

from dnncore.train.data.dataset import Dataset, Subset
from dnncore.train.data.lmdb_images import stored_shape
from dnncore.train.data.loader import Batch, Loader
from dnncore.train.data.middle import Middle
from dnncore.train.data.order import permutation
from dnncore.train.data.prefetcher import Prefetcher
from dnncore.train.data.sources import open_dataset, open_split
from dnncore.train.data.split import Split

__all__ = [
    "Batch",
    "Dataset",
    "Loader",
    "Middle",
    "Prefetcher",
    "Split",
    "Subset",
    "open_dataset",
    "open_split",
    "permutation",
    "stored_shape",
]
