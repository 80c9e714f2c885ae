"""Layers in a row as one operation forward and one backward, with one node of autograd's graph.

What the host pays for an operation (a node, look-ups, a tensor for each result) it pays once for all of them, and each of their
launches is a few lines of one function. Forward, all that the backward will read lies in one tensor, the kept one. What it will not
read lies in another, the passing one, where those whose turn is over make room; so do gradients on their way from layer to layer.

    values      0 .. num_inputs - 1 are what the chain is given; behind these, each layer's result has a number
    forward     (inputs, parameters, what is read or updated beside them) -> y, the kept tensor, a passing one
    backward    (dy, the kept tensor, what was saved beside it) -> a passing tensor, gradients
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any

from torch import Tensor

from dnncore.descriptors import TensorDescriptor
from dnncore.dtypes import DType
from dnncore.problems import AddProblem, ConvolutionProblem
from dnncore.torch.bridge import operate
from dnncore.torch.functions.gradients import Function, first_derivative
from dnncore.torch.functions.link import DY, Settings, View
from dnncore.torch.operation import Behind, Composite, Operation, Place, Scratch, Step, Way

__all__ = ["Call", "Chain", "Wiring"]

_ALIGNMENT_BYTES = 256
"""Of tensors in another one, as of memory that is allocated."""

_Choose = Callable[[Operation], Way]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Which layer reads what. Immutable.

    Args:
        num_inputs: Of the chain.
        reads: For each layer the values that it reads, x first.
    """

    num_inputs: int
    reads: tuple[tuple[int, ...], ...]


_Counts = tuple[tuple[int, int], ...]
"""For each layer, how many parameters it has, and how many tensors that it reads or updates beside them."""

_ForwardSettings = tuple[Wiring, _Counts, bool, tuple[Settings, ...]]
"""The wiring, counts, whether parameters are cast, and each layer's settings."""

Call = tuple[_ForwardSettings, tuple[Tensor, ...], int]
"""Settings, what is read or updated beside the parameters, and who calls (`operate`)."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """What a layer's backward has to know. Immutable.

    Args:
        settings: Of the layer.
        given: What its forward was given.
        values: Of which values those are, by their numbers; None for parameters and what is beside them.
        numbers: Of the parameters among what the chain is given; None for the others.
        read: What its backward reads, each with its place among the tensors of the chain's forward, nothing where there is none;
            None for its dy.
        view: Its kind, where its result is its x, seen otherwise.
    """

    settings: Settings
    given: tuple[TensorDescriptor, ...]
    values: tuple[int | None, ...]
    numbers: tuple[int | None, ...]
    read: tuple[tuple[Place, TensorDescriptor] | None, ...]
    view: View | None


@dataclass(frozen=True, slots=True, eq=False)
class _Record:
    """How a chain's forward was composed. Immutable; compared by identity.

    Args:
        num_inputs: Of the chain.
        layers: In their order.
        saved: Places of what is saved beside the kept tensor: numbers of what the forward is given, and behind those y's.
    """

    num_inputs: int
    layers: tuple[_Layer, ...]
    saved: tuple[int, ...]


_record = lru_cache(maxsize=4096)(_Record)
"""The same one for the same forward, whichever thread composes it: it is the key by which the thread of a backward knows what that
comes to, and threads that call a forward may come and go while that one stays.
"""


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _bytes(count: int) -> TensorDescriptor:
    return TensorDescriptor.packed((max(count, _ALIGNMENT_BYTES),), DType.UINT8)


def _moved(steps: Sequence[Step], places: Sequence[Place]) -> list[Step]:
    """An operation's steps, whose tensors have these places now."""

    def move(place: Place) -> Place:
        if isinstance(place, Scratch):
            return place
        if not isinstance(place, Behind):
            return places[place]
        new = places[place.place]
        if isinstance(new, int):
            return Behind(new, place.offset)
        return replace(new, offset=new.offset + place.offset)

    return [replace(step, operands=tuple(map(move, step.operands))) for step in steps]


def _forward(
    wiring: Wiring,
    counts: _Counts,
    casts: bool,
    settings: tuple[Settings, ...],
    wanted: tuple[bool, ...],
    *given: TensorDescriptor,
) -> Composite:
    """(inputs, parameters, what is read or updated beside them) -> y, the kept tensor, perhaps a passing one, and how it was
    composed.

    Args:
        wanted: Of the inputs and the parameters, of which there may be a gradient.
    """
    return Composite(lambda choose: _Composition(wiring, casts, wanted, given).compose(choose, counts, settings))


class _Passing:
    """Places in a tensor that are taken and given back. Mutable.

    Attributes:
        nbytes: Of the tensor.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[int, int]] = []
        self.nbytes = 0

    def take(self, tensor: TensorDescriptor) -> int:
        """Where the tensor lies: in the first gap that is large enough."""
        start, nbytes = 0, _rounded(tensor.nbytes)
        for begin, end in self._taken:
            if begin - start >= nbytes:
                break
            start = end
        self._taken = sorted((*self._taken, (start, start + nbytes)))
        self.nbytes = max(self.nbytes, start + nbytes)
        return start

    def give_back(self, start: int, tensor: TensorDescriptor) -> None:
        """Make room for others."""
        self._taken.remove((start, start + _rounded(tensor.nbytes)))


class _Composition:
    """The forward of a chain, while it is put together. Mutable.

    A tensor is known by its key: the number of one that is given; of one that is made, the layer's and its number among what that
    makes. Views have keys of their own, and the place of what they are views of.
    """

    def __init__(self, wiring: Wiring, casts: bool, wanted: Sequence[bool], given: Sequence[TensorDescriptor]) -> None:
        self._wiring, self._casts, self._given = wiring, casts, given
        self._wanted: set[_Key] = {(None, number) for number, is_wanted in enumerate(wanted) if is_wanted}
        self._tensors: dict[_Key, TensorDescriptor] = {(None, at): tensor for at, tensor in enumerate(given)}
        self._values: list[_Key] = [(None, number) for number in range(wiring.num_inputs)]
        self._parts: list[_Part] = []
        self._viewed: dict[_Key, _Key] = {}
        self._readers = Counter(value for of in wiring.reads for value in of)

    def compose(self, choose: _Choose, counts: _Counts, settings: tuple[Settings, ...]) -> Way:
        parameter = self._wiring.num_inputs
        beside = parameter + sum(num_parameters for num_parameters, _ in counts)
        for of, (num_parameters, num_beside), its in zip(self._wiring.reads, counts, settings, strict=True):
            own = (*range(parameter, parameter + num_parameters), *range(beside, beside + num_beside))
            self._add(choose, its, of, [(None, at) for at in own])
            parameter, beside = parameter + num_parameters, beside + num_beside
        places, kept_bytes, passing_bytes = self._places()
        layers = [self._layer(part, places, parameter) for part in self._parts]
        read = [each for layer in layers for each in layer.read if each is not None]
        saved = tuple(sorted({place for place, _ in read if isinstance(place, int)}))
        record = _record(self._wiring.num_inputs, tuple(layers), saved)
        results = [self._tensors[self._values[-1]], _bytes(kept_bytes)]
        if passing_bytes:
            results.append(_bytes(passing_bytes))
        steps = [step for part in self._parts for step in _moved(part.way.steps, [places[key] for key in part.tensors])]
        scratch_bytes = max(part.way.scratch_bytes for part in self._parts)
        return Way(tuple(results), tuple(steps), scratch_bytes, (record,))

    def _add(self, choose: _Choose, settings: Settings, of: tuple[int, ...], own: Sequence[_Key]) -> None:
        kind, number = settings[0], len(self._parts)
        values = [self._values[value] for value in of]
        if isinstance(kind, View) and (view := self._view(kind, settings, of[0])) is not None:
            self._add_view(kind, settings, of, values[0], view)
            return
        given = [values[0], *own, *values[1:]]
        descriptors = [self._tensors[key] for key in given]
        way = choose(kind.forward(settings, self._casts, descriptors))
        made = [(number, place) for place in range(len(way.results))]
        self._tensors |= zip(made, way.results, strict=True)
        self._values.append(made[0])
        reads: tuple[int, ...] = ()
        if not self._wanted.isdisjoint(given):
            self._wanted.add(made[0])
            reads = kind.reads(settings, self._casts, descriptors)
        tensors = [*given, *made]
        self._parts.append(
            _Part(settings, of, way, tensors, len(given), [None if at == DY else tensors[at] for at in reads])
        )

    def _view(self, kind: View, settings: Settings, value: int) -> TensorDescriptor | None:
        """How a layer's result is seen where it need not be computed: of a value of the chain's own that nobody else reads, for a
        value of the chain's own.
        """
        is_inside = value >= self._wiring.num_inputs and len(self._parts) + 1 < len(self._wiring.reads)
        return (
            kind.view(settings, self._tensors[self._values[value]]) if is_inside and self._readers[value] == 1 else None
        )

    def _add_view(self, kind: View, settings: Settings, of: tuple[int, ...], x: _Key, view: TensorDescriptor) -> None:
        key = len(self._parts), 0
        self._tensors[key], self._viewed[key] = view, self._base(x)
        self._values.append(key)
        if x in self._wanted:
            self._wanted.add(key)
        self._parts.append(_Part(settings, of, Way((), ()), [x], 1, [], kind))

    def _base(self, key: _Key) -> _Key:
        """Of a view what it is one of; else what it is given."""
        return self._viewed.get(key, key)

    def _places(self) -> tuple[dict[_Key, Place], int, int]:
        """Where everything lies, and the bytes of the kept tensor and of the passing one, for what no backward reads."""
        y_at = len(self._given)
        places: dict[_Key, Place] = {key: key[1] for key in self._tensors if key[0] is None}
        places[self._values[-1]] = y_at
        kept = {self._base(key) for part in self._parts for key in part.reads if key is not None}
        last = {self._base(key): number for number, part in enumerate(self._parts) for key in part.tensors}
        kept_bytes, passing = 0, _Passing()
        for number, part in enumerate(self._parts):
            made = [key for key in part.tensors[part.num_given :] if key not in places]
            for key in made:
                if key in kept:
                    places[key] = Behind(y_at + 1, kept_bytes)
                    kept_bytes += _rounded(self._tensors[key].nbytes)
                else:
                    places[key] = Behind(y_at + 2, passing.take(self._tensors[key]))
            for key in dict.fromkeys(map(self._base, part.tensors)):
                place = places[key]
                if last[key] == number and isinstance(place, Behind) and place.place == y_at + 2:
                    passing.give_back(place.offset, self._tensors[key])
        return places | {view: places[base] for view, base in self._viewed.items()}, kept_bytes, passing.nbytes

    def _layer(self, part: _Part, places: dict[_Key, Place], first_beside: int) -> _Layer:
        """What the backward of a layer has to know.

        Args:
            part: The layer.
            places: Where everything lies.
            first_beside: The first of what is given that is neither an input nor a parameter.
        """
        num_own = part.num_given - len(part.of)
        own = [key[1] for key in part.tensors[1 : 1 + num_own]]
        return _Layer(
            part.settings,
            tuple(self._tensors[key] for key in part.tensors[: part.num_given]),
            (part.of[0], *(None,) * num_own, *part.of[1:]),
            (None, *(at if at < first_beside else None for at in own), *(None,) * (len(part.of) - 1)),
            tuple(None if key is None else (places[key], self._tensors[key]) for key in part.reads),
            part.view,
        )


_Key = tuple[int | None, int]


@dataclass(frozen=True, slots=True)
class _Part:
    """A layer of a forward. Immutable.

    Args:
        settings: Of the layer.
        of: The values that it reads.
        way: That was chosen.
        tensors: What it is given and what it makes.
        num_given: Of these.
        reads: What its backward reads, nothing where there is none; None for its dy.
        view: Its kind, where its result is its x, seen otherwise.
    """

    settings: Settings
    of: tuple[int, ...]
    way: Way
    tensors: Sequence[_Key]
    num_given: int
    reads: Sequence[_Key | None]
    view: View | None = None


def _backward(record: _Record, wanted: tuple[bool, ...], *given: TensorDescriptor) -> Composite:
    """(dy, the kept tensor, what was saved) -> a passing tensor, the gradients that are wanted, what puts them into their places
    among the arguments of `Chain`, and the None that it puts into the others.

    Args:
        record: Of the forward.
        wanted: Of the chain's inputs and of its parameters.
        given: Their forms.
    """
    return Composite(lambda choose: _Reversal(record, wanted, given).compose(choose))


class _Reversal:
    """The backward of a chain, while it is put together. Mutable."""

    def __init__(self, record: _Record, wanted: tuple[bool, ...], given: Sequence[TensorDescriptor]) -> None:
        self._record = record
        self._wanted = wanted
        self._given = given
        self._passing, self._passing_at = _Passing(), len(given)
        self._results: list[TensorDescriptor] = []
        self._numbers: dict[int, int] = {}
        self._steps: list[Step] = []
        self._scratch_bytes = 0
        self._gradients: dict[int, tuple[Place, TensorDescriptor]] = {}
        self._gradients[record.num_inputs + len(record.layers) - 1] = 0, given[0]

    def compose(self, choose: _Choose) -> Way:
        record, wanted = self._record, self._wanted
        needed = list(wanted[: record.num_inputs])
        for layer in record.layers:
            needed.append(any(self._wanted_of(layer, needed)))
        for value, layer in reversed(list(enumerate(record.layers, start=record.num_inputs))):
            if needed[value]:
                self._reverse(choose, layer, value, self._wanted_of(layer, needed))
        last = len(self._results) + 2  # behind the passing tensor, the gradients, and what puts them into their places
        places = [self._numbers[number] if is_wanted else last for number, is_wanted in enumerate(wanted)]
        results = (_bytes(self._passing.nbytes), *self._results)
        return Way(results, tuple(self._steps), self._scratch_bytes, (itemgetter(last, *places), None))

    def _wanted_of(self, layer: _Layer, needed: Sequence[bool]) -> list[bool]:
        """Of what a layer's forward was given, what has a gradient that is wanted."""
        return [
            needed[value] if value is not None else number is not None and self._wanted[number]
            for value, number in zip(layer.values, layer.numbers, strict=True)
        ]

    def _reverse(self, choose: _Choose, layer: _Layer, value: int, wanted: Sequence[bool]) -> None:
        dy_at, dy = self._gradients.pop(value)
        if layer.view is not None:
            source = layer.values[0]
            assert source is not None
            self._gradients[source] = dy_at, layer.view.gradient(layer.settings, layer.given[0], dy)
            return
        reads = [(dy_at, dy) if each is None else self._of_forward(*each) for each in layer.read]
        kind, read = layer.settings[0], [descriptor for _, descriptor in reads]
        operation, gradients = kind.backward(layer.settings, layer.given, read, wanted)
        way = choose(operation)
        steps, places = list(way.steps), [place for place, _ in reads]
        passing = [(dy_at, dy)]
        sums: list[Step] = []
        for place, result in enumerate(way.results, start=len(reads)):
            given = gradients[place - len(reads)] if place - len(reads) < len(gradients) else None
            if given is None or not wanted[given]:
                places.append(self._pass(result))
                passing.append((places[-1], result))
                continue
            number, source = layer.numbers[given], layer.values[given]
            if number is not None:
                places.append(self._result(number, result))
                continue
            assert source is not None
            known = self._gradients.get(source)
            if known is None:
                places.append(self._result(source, result) if source < self._record.num_inputs else self._pass(result))
                self._gradients[source] = places[-1], result
            elif (added := _adding(steps, place)) is not None and known[1] == result:
                steps = added
                places.append(known[0])
            else:
                places.append(self._pass(result))
                passing.append((places[-1], result))
                sums.append(Step(AddProblem(result, known[1]), (places[-1], known[0]), beta=1.0))
        self._steps += [*_moved(steps, places), *sums]
        self._scratch_bytes = max(self._scratch_bytes, way.scratch_bytes)
        for at, tensor in passing:
            if isinstance(at, Behind):
                self._passing.give_back(at.offset, tensor)

    def _of_forward(self, place: Place, tensor: TensorDescriptor) -> tuple[Place, TensorDescriptor]:
        """A tensor of the forward: where it is now, and its form, which is another where hooks have brought it back otherwise."""
        if isinstance(place, Behind):
            return Behind(1, place.offset), tensor
        assert isinstance(place, int)
        now = 2 + self._record.saved.index(place)
        return now, self._given[now]

    def _pass(self, tensor: TensorDescriptor) -> Behind:
        return Behind(self._passing_at, self._passing.take(tensor))

    def _result(self, number: int, tensor: TensorDescriptor) -> int:
        """Let it be returned as the gradient of what was given."""
        self._results.append(tensor)
        self._numbers[number] = len(self._results)
        return self._passing_at + len(self._results)


def _adding(steps: Sequence[Step], place: int) -> list[Step] | None:
    """Steps that add to a tensor what these write into it; None where the last one's kernels cannot."""
    found = [number for number, step in enumerate(steps) if place in step.operands]
    if len(found) != 1:
        return None
    step = steps[found[0]]
    if not isinstance(step.problem, ConvolutionProblem | AddProblem) or step.beta or step.operands[-1] != place:
        return None
    return [replace(each, beta=1.0) if each is step else each for each in steps]


class Chain(Function):
    """`Chain.apply(call, *inputs, *parameters)`."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> Tensor:
        """The last layer's result."""
        settings, beside, caller = call
        given = (*tensors, *beside)
        found = operate(_forward, (*settings, ctx.needs_input_grad[1:]), given, caller)
        y: Tensor = found[0]
        record = found[-1]
        given = (*given, y)
        ctx.save_for_backward(found[1], *[given[place] for place in record.saved])
        ctx.settings = record, caller
        return y

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs and of the parameters."""
        record, caller = ctx.settings
        wanted = ctx.needs_input_grad[1:]
        found = operate(_backward, (record, wanted), (dy, *ctx.saved_tensors), caller)
        gradients: tuple[Tensor | None, ...] = found[-2](found)
        return gradients
