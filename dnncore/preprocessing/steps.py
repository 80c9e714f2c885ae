"""The steps by name, and how they are written in JSON and TOML: {"step": "center_crop", "height": 224, "width": 224}.

A field that has a default may be left out; one that is unknown, or a value of another type, is refused.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args, get_origin, get_type_hints

from dnncore.errors import PreprocessingError
from dnncore.preprocessing.decoding import Background, Color, DecodingStep, ExifOrientation
from dnncore.preprocessing.geometry import CenterCrop, CentralFraction, GeometricStep, Resize
from dnncore.preprocessing.normalization import ArithmeticStep, Divide, Scale, SubtractMean, SubtractMeanImage

__all__ = ["STEPS", "Step", "step_from_dict", "step_to_dict"]

Step = DecodingStep | GeometricStep | ArithmeticStep
"""One of `STEPS`."""

STEPS: Mapping[str, type[Step]] = {
    step.name: step
    for step in (
        *(ExifOrientation, Background, Color),
        *(Resize, CenterCrop, CentralFraction),
        *(Scale, Divide, SubtractMean, SubtractMeanImage),
    )
}
"""Every kind of step by its name in JSON, in the order in which they may follow each other."""


def step_to_dict(step: Step) -> dict[str, Any]:
    """Plain values for JSON."""
    return {"step": step.name} | {field.name: _plain(getattr(step, field.name)) for field in fields(step)}


def step_from_dict(values: object) -> Step:
    """Rebuild from `step_to_dict`.

    Raises:
        PreprocessingError: it is not a table, its kind or a key is unknown, one is missing, or a value has the wrong type or range.
    """
    if not isinstance(values, Mapping) or values.get("step") not in list(STEPS):
        raise PreprocessingError(
            f"{_shown(values)} is no step; a table whose step is one of {', '.join(STEPS)} is needed"
        )
    kind = STEPS[values["step"]]
    known = {field.name: field.default is MISSING for field in fields(kind)}
    unknown = sorted(str(key) for key in values if key != "step" and key not in known)
    missing = sorted(name for name, needed in known.items() if needed and name not in values)
    if unknown or missing:
        raise PreprocessingError(f"step {kind.name} has unknown keys {unknown} and lacks {missing}")
    hints = get_type_hints(kind)
    return kind(**{name: _typed(values[name], hints[name], f"{kind.name} {name}") for name in known if name in values})


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return list(value) if isinstance(value, tuple) else value


def _typed(value: object, hint: Any, where: str) -> Any:
    """A value of JSON as the type of a field; the field's owner checks its range."""
    if get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            return tuple(_typed(item, get_args(hint)[0], where) for item in value)
    elif hint is bytes:
        if isinstance(value, str):
            try:
                return base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError) as error:
                raise PreprocessingError(f"{where} is not base64: {error}") from error
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _as_float(value)
    elif type(value) is (hint if hint in (int, bool) else str):  # type(): True is an int to isinstance
        return value
    names = {int: "an integer", float: "a number", bool: "true or false", bytes: "a string of base64"}
    kind = "an array" if get_origin(hint) is tuple else names.get(hint, "a string")
    raise PreprocessingError(f"{where} is {_shown(value)}; it must be {kind}")


def _shown(value: object) -> str:
    """For a message: a mean image would fill screens."""
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf
