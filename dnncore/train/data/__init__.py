"""Images with labels: where they come from (digits, folder, list, HDF5), which are held out, in which order they are trained on."""

from dnncore.train.data.dataset import Dataset, Subset
from dnncore.train.data.loader import Batch, Loader
from dnncore.train.data.order import permutation
from dnncore.train.data.prefetcher import Prefetcher
from dnncore.train.data.sources import open_dataset, open_split
from dnncore.train.data.split import Split

__all__ = ["Batch", "Dataset", "Loader", "Prefetcher", "Split", "Subset", "open_dataset", "open_split", "permutation"]
