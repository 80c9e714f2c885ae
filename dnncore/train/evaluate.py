"""How well a net does on labelled images, computed the way it is served: same preprocessing, same probabilities."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from dnncore import Handle
from dnncore.errors import ConfigError, DivergedError
from dnncore.nn import Executor, Graph, Package, Parameters, SharedMemory
from dnncore.preprocessing import Preprocessing
from dnncore.train.data import Dataset
from dnncore.train.metrics import confusion_matrix, per_class, ranks

__all__ = ["Evaluation", "Evaluator", "evaluate"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Predictions for N images of K classes, and what follows from them. Immutable.

    Args:
        class_names: Name of each class, 0 to K-1.
        labels: The right classes: int32 [N].
        predictions: The likeliest classes: int64 [N]; of equal probabilities the lower class.
        ranks: How many classes came before the right one: int64 [N].
        loss: Mean of -log(probability of the right class).
    """

    class_names: tuple[str, ...]
    labels: np.ndarray
    predictions: np.ndarray
    ranks: np.ndarray
    loss: float

    @property
    def num_images(self) -> int:
        """N."""
        return len(self.labels)

    @property
    def top1(self) -> float:
        """Fraction of the images whose likeliest class is right."""
        return float(np.mean(self.ranks < 1))

    @property
    def top5(self) -> float:
        """Fraction of the images whose right class is among the five likeliest."""
        return float(np.mean(self.ranks < 5))

    @property
    def confusion(self) -> np.ndarray:
        """Images by true class (rows) and predicted class (columns): int64 [K, K]."""
        return confusion_matrix(self.labels, self.predictions, len(self.class_names))

    def summary(self) -> dict[str, object]:
        """The figures alone, for journals and provenance."""
        return {"num_images": self.num_images, "top1": self.top1, "top5": self.top5, "loss": self.loss}

    def to_dict(self) -> dict[str, object]:
        """Everything, as plain values for JSON."""
        return self.summary() | {
            "class_names": list(self.class_names),
            "per_class": [dataclasses.asdict(metrics) for metrics in per_class(self.confusion, self.class_names)],
            "confusion": self.confusion.tolist(),
            "labels": self.labels.tolist(),
            "predictions": self.predictions.tolist(),
        }

    def table(self) -> str:
        """Precision, recall and mistakes of every class, for people."""
        width = max(5, *(len(name) for name in self.class_names))
        lines = [f"{'class':<{width}}  images  precision  recall  taken for"]
        for index, metrics in enumerate(per_class(self.confusion, self.class_names)):
            row = self.confusion[index]
            wrong = [
                f"{self.class_names[k]} x{row[k]}" for k in np.argsort(-row, kind="stable") if row[k] and k != index
            ]
            precision = "-" if metrics.precision is None else f"{metrics.precision:.1%}"
            recall = "-" if metrics.recall is None else f"{metrics.recall:.1%}"
            lines.append(
                f"{metrics.label:<{width}}  {metrics.num_images:>6}  {precision:>9}  {recall:>6}  {', '.join(wrong[:5])}".rstrip()
            )
        return "\n".join(lines)


class Evaluator:
    """Evaluates a net whose parameters may change between two evaluations. Owned by one thread; checked by the handle.

    Args:
        handle: Where it runs.
        net: Gives probabilities [N, K].
        parameters: Its parameters, on that handle.
        preprocessing: Turns pixels into its input.
        batch: Images a pass; the last pass takes what is left, so every image counts once.
    """

    def __init__(
        self, handle: Handle, net: Graph, parameters: Parameters, preprocessing: Preprocessing, batch: int
    ) -> None:
        self._handle = handle
        self._net = net
        self._parameters = parameters
        self._preprocessing = preprocessing
        self._batch = batch
        self._executors: dict[int, Executor] = {}
        self._memory = SharedMemory(handle)  # whole batches come first, and what is left over fits into their place

    def evaluate(self, dataset: Dataset) -> Evaluation:
        """Classify every image of a dataset.

        Raises:
            DivergedError: the net gives something that is not a finite number.
            PreprocessingError: an image cannot be read; the message names its file.
        """
        count = len(dataset.labels)
        probabilities = np.concatenate(
            [
                self._classify(dataset, np.arange(start, min(start + self._batch, count)))
                for start in range(0, count, self._batch)
            ]
        )
        if not np.isfinite(probabilities).all():
            raise DivergedError("the net's probabilities are not finite; train with a lower optimizer.lr")
        own = probabilities[np.arange(count), dataset.labels].astype(np.float64)
        loss = -np.log(np.maximum(own, np.finfo(np.float32).tiny))  # a probability may round to 0
        return Evaluation(
            dataset.class_names,
            dataset.labels,
            probabilities.argmax(axis=1),
            ranks(probabilities, dataset.labels),
            float(loss.mean()),
        )

    def _classify(self, dataset: Dataset, indices: np.ndarray) -> np.ndarray:
        batch = len(indices)
        if batch not in self._executors:
            self._executors[batch] = Executor(self._net, self._handle, self._parameters, batch, memory=self._memory)
        (data,), (probabilities,) = ([value.name for value in self._net.inputs], self._net.outputs)
        images = self._preprocessing.normalize(dataset.read(indices))
        return self._executors[batch].run({data: images})[probabilities].reshape(batch, -1).copy()

    def close(self) -> None:
        """Give the executors back; a second call does nothing."""
        for executor in self._executors.values():
            executor.close()
        self._executors.clear()
        self._memory.close()


def evaluate(handle: Handle, package: Package, dataset: Dataset, batch: int = 64) -> Evaluation:
    """Evaluate a model package, as it would be served.

    Args:
        handle: Where it runs.
        package: Its own preprocessing and labels count.
        dataset: Its class names must be the package's labels, in the same order.
        batch: Images a pass.

    Raises:
        ConfigError: the classes differ.
        PackageError: it is no classifier of images.
    """
    preprocessing, labels = package.of_images
    if dataset.class_names != labels:
        raise ConfigError(
            f"package {package.name} has the classes {list(labels)}, the data have {list(dataset.class_names)}; "
            "evaluate with the data that it was trained on"
        )
    net = package.serving_graph
    parameters = Parameters.upload(handle, net, package.weights)
    evaluator = Evaluator(handle, net, parameters, preprocessing, batch)
    try:
        return evaluator.evaluate(dataset)
    finally:
        evaluator.close()
        parameters.close()
