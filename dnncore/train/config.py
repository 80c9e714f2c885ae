"""The configuration of a training run: frozen dataclasses with a typed default for every value, read from TOML and overrides.

The file's tables are this module's classes, one to one. A key that is not a field, or a value of another type, is refused.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dnncore.errors import ConfigError, PreprocessingError
from dnncore.nn.zoo import ZOO
from dnncore.preprocessing import Preprocessing
from dnncore.train.caffe_solver import solver_table
from dnncore.train.schema import apply_override, build, flatten, to_toml

__all__ = [
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "NetConfig",
    "OptimizerConfig",
    "OutputConfig",
    "PreprocessingConfig",
    "ScheduleConfig",
    "TrainingConfig",
    "differences",
    "load_config",
    "parse_config",
]


_FOR_FILES = "false when net.path is empty"
_FOR_PROTOTXT = "empty unless net.path is a .prototxt; other files bring their weights"


def _require(condition: bool, key: str, value: object, rule: str) -> None:
    if not condition:
        raise ConfigError(f"{key} is {value}; it must be {rule}")


@dataclass(frozen=True, slots=True)
class NetConfig:
    """Which net. Immutable.

    Args:
        name: One of dnncore.nn.zoo; its input and number of classes follow from preprocessing and data.
        path: A net in a file in place of one of the zoo, which must fit preprocessing and data: a .prototxt, whose losses and
            lr_mult and decay_mult count; an .onnx file or a model package (a folder), whose weights training starts from. A
            relative path counts from the working directory.
        weights: The .caffemodel that a .prototxt starts from. Empty: what its fillers make.
        allow_missing: Whether layers without weights in that file begin as their fillers say, as when their names were changed to
            train them afresh.
        auxiliary_weight: Of the losses of auxiliary heads, in nets of the zoo that have some (GoogLeNet) and files with several
            outputs, of which the first is the net's own; 0 leaves them out. Losses of a .prototxt have weights of their own.
        frozen: Patterns of the names of constants that stay as they are, as "features.*" or "*.attn_mask"; of a batch normalisation
            whose statistics are among them, these stay too.
    """

    name: str = "lenet"
    path: str = ""
    weights: str = ""
    allow_missing: bool = False
    auxiliary_weight: float = 0.3
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require(self.name in ZOO, "net.name", repr(self.name), f"one of {', '.join(ZOO)}")
        if self.path and self.name != "lenet":
            raise ConfigError(f"net.name is {self.name!r} and net.path {self.path!r}; give one of them")
        _require(not self.weights or self.path.endswith(".prototxt"), "net.weights", repr(self.weights), _FOR_PROTOTXT)
        _require(not self.allow_missing or self.weights != "", "net.allow_missing", "true", "false without net.weights")
        _require(self.auxiliary_weight >= 0, "net.auxiliary_weight", self.auxiliary_weight, "0 or more")


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Where the images come from, and which part of them is held out. Immutable.

    Args:
        kind: "digits" (scikit-learn's 1,797 handwritten digits), "folder" (PATH/class/*.png, *.jpg, *.webp, ...), "list" (a text
            file, "image.png 3" in each line: Caffe's ImageData), "hdf5" (a text file that names HDF5 files: Caffe's HDF5Data),
            "arrays" (a folder with data.npy and label.npy: MemoryData) or "lmdb" (a database with Caffe's Datum: Data).
        path: The folder or the file; of no use for "digits". A relative path counts from the working directory.
        root: What is put before the paths in a list, as Caffe's root_folder.
        classes: A text file with the classes' names, a line each; without one they are numbers. For "list", "hdf5", "arrays"
            and "lmdb".
        holdout: Fraction of every class that is never trained on.
        held_out: Another folder or file of that kind, whose images are held out, and no others.
    """

    kind: Literal["digits", "folder", "list", "hdf5", "arrays", "lmdb"] = "digits"
    path: str = ""
    root: str = ""
    classes: str = ""
    holdout: float = 0.2
    held_out: str = ""

    def __post_init__(self) -> None:
        _require(0 < self.holdout < 1, "data.holdout", self.holdout, "greater than 0 and less than 1")
        of_files = self.kind != "digits"
        what = "a folder" if self.kind in ("folder", "arrays", "lmdb") else "a file"
        _require(not of_files or self.path != "", "data.path", repr(self.path), f"{what} when data.kind is {self.kind}")
        _require(self.root == "" or self.kind == "list", "data.root", repr(self.root), "empty but for lists")
        numbered = self.kind in ("list", "hdf5", "arrays", "lmdb")
        _require(
            self.classes == "" or numbered,
            "data.classes",
            repr(self.classes),
            "empty but for lists, HDF5, arrays and LMDB",
        )
        _require(self.held_out == "" or of_files, "data.held_out", repr(self.held_out), "empty for digits")


@dataclass(frozen=True, slots=True)
class PreprocessingConfig:
    """How an image becomes the net's input; goes into the package as it is. Immutable. See dnncore.preprocessing.

    Args:
        color: Of `Preprocessing.squash`, as all keys but the last.
        height: Rows of the net's input.
        width: Columns of the net's input.
        scale: Factor on the 0..255 pixel values.
        mean: Subtracted, one per channel.
        std: Divided by, one per channel.
        steps: A whole pipeline in place of all that: tables such as {step = "resize", height = 256, width = 256}, in the order of
            `dnncore.preprocessing.STEPS`.
        of_net: Take what the file of net.path says in place of all that: a package its preprocessing, a .prototxt what its data
            layer does.
    """

    color: Literal["gray", "rgb", "bgr"] = "gray"
    height: int = 8
    width: int = 8
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    steps: tuple[dict[str, object], ...] = ()
    of_net: bool = False

    def __post_init__(self) -> None:
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        for whole in ("of_net", "steps"):
            if whole in given and len(given) > 1:
                others = ", ".join(name for name in given if name != whole)
                raise ConfigError(f"preprocessing.{whole} takes the place of preprocessing.{others}; give one of them")
        if not self.of_net:
            self.build()

    def build(self) -> Preprocessing:
        """The preprocessing that these values describe.

        Raises:
            ConfigError: they describe none.
        """
        try:
            if self.steps:
                return Preprocessing.from_dict({"steps": self.steps})
            return Preprocessing.squash(self.color, self.height, self.width, self.scale, self.mean, self.std)
        except PreprocessingError as error:
            raise ConfigError(f"[preprocessing] {error}") from error


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How long, and in which portions. Immutable.

    Args:
        epochs: Passes over the training images.
        iterations: Length of the run in place of `epochs`; 0 for that.
        batch: Images an iteration.
        last_batch: What becomes of the images left over at an epoch's end: "keep" trains on the smaller batch, "drop" does not.
        mirror: Whether each image is mirrored left to right with probability 1/2 before it is trained on.
        crop: Where images are cropped that are trained on, if preprocessing crops: in the "center", as all others are, or at a
            "random" place, another one in each epoch.
        evaluate_every: Epochs between evaluations on the held-out images; the end of the run is always evaluated.
        evaluate_iterations: Iterations between them, in place of `evaluate_every`; 0 for that.
        report_every: Iterations between lines in the journal, and on an output that is no terminal.
        prefetch: Batches that are made ready ahead of time.
        stop_after: Stop and checkpoint at this iteration, as a signal would; 0 runs to the end.
    """

    epochs: int = 10
    iterations: int = 0
    batch: int = 32
    last_batch: Literal["keep", "drop"] = "keep"
    mirror: bool = False
    crop: Literal["center", "random"] = "center"
    evaluate_every: int = 1
    evaluate_iterations: int = 0
    report_every: int = 50
    prefetch: int = 2
    stop_after: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "evaluate_every", "report_every", "prefetch"):
            _require(getattr(self, name) >= 1, f"training.{name}", getattr(self, name), "1 or more")
        for name in ("iterations", "evaluate_iterations", "stop_after"):
            _require(getattr(self, name) >= 0, f"training.{name}", getattr(self, name), "0 or more")


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """The optimizer (dnncore/train/optimizers.py). Immutable.

    Args:
        lr: Learning rate that the schedule starts from.
        momentum: Of sgd, where 0 is none; of adam and adadelta how much of an average is kept. Others have none: 0.
        momentum_style: Whether a gradient is multiplied with the learning rate when the weights move ("torch"), or when it goes
            into the momentum ("caffe"), where it stays as it is when the rate changes. At a constant rate both are the same.
        nesterov: Look ahead; needs sgd with momentum.
        weight_decay: Factor of the penalty, which is added to the gradient.
        decay_biases: Whether biases are decayed too. By default they are not: a bias does not make a net steeper.
        kind: The method.
        momentum2: Of adam: how much of the average of squares is kept.
        rms_decay: Of rmsprop: the same.
        epsilon: What divisors of all but sgd have at least; Caffe's delta.
        penalty: "l2", whose gradient is the weight, or "l1", whose gradient is its sign.
        clip_norm: The norm of all gradients together is made no larger than this before the penalty; 0 leaves them.
    """

    lr: float = 0.05
    momentum: float = 0.9
    momentum_style: Literal["torch", "caffe"] = "torch"
    nesterov: bool = False
    weight_decay: float = 0.0005
    decay_biases: bool = False
    kind: Literal["sgd", "adam", "adagrad", "rmsprop", "adadelta"] = "sgd"
    momentum2: float = 0.999
    rms_decay: float = 0.99
    epsilon: float = 1e-8
    penalty: Literal["l2", "l1"] = "l2"
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        _require(self.lr > 0, "optimizer.lr", self.lr, "greater than 0")
        _require(0 <= self.momentum < 1, "optimizer.momentum", self.momentum, "0 or more and less than 1")
        _require(self.weight_decay >= 0, "optimizer.weight_decay", self.weight_decay, "0 or more")
        _require(
            not self.nesterov or self.momentum > 0, "optimizer.nesterov", "true", "false when optimizer.momentum is 0"
        )
        for name in ("momentum2", "rms_decay"):
            _require(
                0 <= getattr(self, name) < 1, f"optimizer.{name}", getattr(self, name), "0 or more and less than 1"
            )
        _require(self.epsilon > 0, "optimizer.epsilon", self.epsilon, "greater than 0")
        _require(self.clip_norm >= 0, "optimizer.clip_norm", self.clip_norm, "0 or more")
        if self.kind != "sgd":
            _require(not self.nesterov, "optimizer.nesterov", "true", f"false for {self.kind}")
            _require(self.momentum_style == "torch", "optimizer.momentum_style", "caffe", f"left out for {self.kind}")
        if self.kind in ("adagrad", "rmsprop"):
            _require(self.momentum == 0, "optimizer.momentum", self.momentum, f"0 for {self.kind}, which has none")


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """How the learning rate changes. Lengths in epochs keep their meaning for any batch. Immutable.

    Args:
        kind: "constant"; "step" (times gamma every step_epochs); "multistep" (times gamma at each of milestones);
            "cosine" (from lr to final_lr over what warm-up leaves of the run); and, of the iteration i from 0, "exp" (lr gamma^i),
            "inv" (lr (1 + gamma i)^-power), "poly" (lr (1 - i / iterations of the run)^power), and "sigmoid"
            (lr / (1 + exp(-gamma (i - step_iterations)))).
        warmup_epochs: Linear rise to the schedule's rate at the start; 0 is none.
        step_epochs: For "step".
        step_iterations: In place of step_epochs, where it is not 0.
        milestones: For "multistep", ascending, in epochs.
        milestone_iterations: In place of milestones, where there are some.
        gamma: For all but "constant", "cosine" and "poly".
        power: For "inv" and "poly".
        final_lr: For "cosine".
    """

    kind: Literal["constant", "step", "multistep", "cosine", "exp", "inv", "poly", "sigmoid"] = "cosine"
    warmup_epochs: float = 0.0
    step_epochs: float = 10.0
    step_iterations: int = 0
    milestones: tuple[float, ...] = ()
    milestone_iterations: tuple[int, ...] = ()
    gamma: float = 0.1
    power: float = 1.0
    final_lr: float = 0.0

    def __post_init__(self) -> None:
        _require(self.warmup_epochs >= 0, "schedule.warmup_epochs", self.warmup_epochs, "0 or more")
        _require(self.step_epochs > 0, "schedule.step_epochs", self.step_epochs, "greater than 0")
        _require(self.step_iterations >= 0, "schedule.step_iterations", self.step_iterations, "0 or more")
        least = min(self.milestone_iterations, default=0)
        _require(least >= 0, "schedule.milestone_iterations", list(self.milestone_iterations), "0 or more")
        _require(
            self.gamma > 0 or self.kind == "sigmoid", "schedule.gamma", self.gamma, "greater than 0, but for a sigmoid"
        )
        _require(self.final_lr >= 0, "schedule.final_lr", self.final_lr, "0 or more")
        ascending = list(self.milestones) == sorted(set(self.milestones)) and min(self.milestones, default=1) > 0
        _require(ascending, "schedule.milestones", list(self.milestones), "ascending and greater than 0")
        if self.kind == "multistep":
            given = self.milestones + self.milestone_iterations
            _require(given != (), "schedule.milestones", "[]", "given when schedule.kind is multistep")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When the run is saved, besides at its end and when a signal stops it. Immutable.

    Args:
        every: Iterations between checkpoints.
        keep: How many of the latest stay; the best one stays besides them.
    """

    every: int = 200
    keep: int = 3

    def __post_init__(self) -> None:
        _require(self.every >= 1, "checkpoint.every", self.every, "1 or more")
        _require(self.keep >= 1, "checkpoint.keep", self.keep, "1 or more")


@dataclass(frozen=True, slots=True)
class OutputConfig:
    """Where the results go. Immutable.

    Args:
        run: Folder of the run: resolved configuration, journal, checkpoints.
        package: Folder of the exported model package; evaluation.json is written beside it. Empty: RUN/package.
        weights: "last" exports the weights at the end. "best" exports those with the best top-1 on the held-out images,
            whose accuracy is then an optimistic estimate, because those images chose it.
    """

    run: str = "runs/train"
    package: str = ""
    weights: Literal["last", "best"] = "last"

    def __post_init__(self) -> None:
        _require(self.run != "", "output.run", repr(self.run), "a folder")

    @property
    def package_path(self) -> Path:
        """Folder of the package, the default resolved."""
        return Path(self.package) if self.package else Path(self.run) / "package"


# Keys that do not decide which weights come out, so that a run may be resumed with other values for them.
_FREE = (
    "name",
    "device",
    "data.path",
    "data.held_out",
    "data.root",
    "net.path",  # what is in the files counts: Recipe.identity
    "net.weights",
    "training.report_every",
    "training.prefetch",
    "training.stop_after",
    "checkpoint",
    "output",
)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole training run. Immutable.

    Args:
        name: Name of the model in its package: letters, digits, "_", "-" and ".".
        seed: Seed of the initial weights, of the split and of the order of the images.
        device: "cpu", "cuda:0", ...; "auto" is the first CUDA device, or the CPU where there is none.
    """

    name: str = "model"
    seed: int = 0
    device: str = "auto"
    net: NetConfig = field(default_factory=NetConfig)
    data: DataConfig = field(default_factory=DataConfig)
    preprocessing: PreprocessingConfig = field(default_factory=PreprocessingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def __post_init__(self) -> None:
        plain = self.name.replace("_", "").replace("-", "").replace(".", "")
        legal = plain.isascii() and plain.isalnum()
        _require(legal, "name", repr(self.name), 'made of ASCII letters, digits, "_", "-" and ".", not of signs alone')
        _require(self.seed >= 0, "seed", self.seed, "0 or more")
        _require(not self.preprocessing.of_net or self.net.path != "", "preprocessing.of_net", "true", _FOR_FILES)

    def to_dict(self) -> dict[str, object]:
        """Every value, as nested dicts."""
        return dataclasses.asdict(self)

    def identity(self) -> dict[str, object]:
        """Dotted keys and values of everything that decides which weights come out, as JSON would give them back."""
        flat = flatten(self.to_dict())
        kept = {
            key: value for key, value in flat.items() if not any(key == f or key.startswith(f"{f}.") for f in _FREE)
        }
        result: dict[str, object] = json.loads(json.dumps(kept))
        return result

    def to_toml(self) -> str:
        """The resolved configuration as a file that `load_config` reads back to an equal value."""
        return to_toml(self.to_dict())


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a file and apply overrides "key.path=value", the later ones over the earlier.

    Args:
        path: A TOML file, or a solver of Caffe, solver.prototxt.
        overrides: What to change.

    Raises:
        ConfigError: the file cannot be read or is not TOML, a key is unknown, or a value has the wrong type or range; or a solver
            has settings that cannot be mapped.
    """
    if path.suffix == ".prototxt":
        try:
            return _built(solver_table(path, [override.partition("=")[0].strip() for override in overrides]), overrides)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the path of a TOML file") from error
    try:
        return parse_config(text, overrides)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(text: str, overrides: Sequence[str] = ()) -> Config:
    """What `load_config` does, from TOML text.

    Raises:
        ConfigError: as for `load_config`; the message does not know the file.
    """
    try:
        table: dict[str, object] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}") from error
    return _built(table, overrides)


def _built(table: dict[str, object], overrides: Sequence[str]) -> Config:
    for override in overrides:
        apply_override(Config, table, override)
    return build(Config, table)


def differences(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Lines "key: a's value, b's value" for every key in which two identities differ."""
    keys = sorted(a.keys() | b.keys())
    return [f"{key}: {a.get(key)}, now {b.get(key)}" for key in keys if a.get(key) != b.get(key)]
