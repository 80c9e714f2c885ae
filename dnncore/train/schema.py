"""Reading TOML tables into frozen dataclasses, and writing them back: what is generic about a configuration.

A dataclass is a table, a field a key; field types are str, int, float, bool, Literal of strings, tuple of numbers or of strings,
tuple of tables whose keys are somebody else's (`dict[str, object]`), or a dataclass.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
from collections.abc import Mapping
from typing import Literal, TypeVar, get_args, get_origin, get_type_hints

from dnncore.errors import ConfigError

__all__ = ["apply_override", "build", "flatten", "to_toml"]

_T = TypeVar("_T")


def flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested tables as one, with dotted keys."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def to_toml(tables: Mapping[str, object]) -> str:
    """TOML text of a dataclass turned into dicts, one level of tables deep."""
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        # A JSON string is a TOML string but for DEL, which TOML wants escaped, and surrogates, which it has no way to write.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml(item)}' for key, item in value.items())}}}"
    return repr(value)


def _field_types(cls: type, key: str, prefix: str) -> object:
    hints = get_type_hints(cls)
    if key not in hints:
        where = f"in [{prefix.rstrip('.')}]" if prefix else "at the top"
        raise ConfigError(f"unknown key {prefix}{key}; legal {where}: {', '.join(hints)}")
    return hints[key]


def apply_override(cls: type, table: dict[str, object], override: str) -> None:
    """Write "key.path=value" into the table that `cls` will be built from.

    Raises:
        ConfigError: it has no "=", its key is not a field, or its text is not TOML.
    """
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"override {override!r} has no '='; write key.path=value, for example optimizer.lr=0.1")
    hint: object = cls
    target, prefix, parts = table, "", key.strip().split(".")
    for index, part in enumerate(parts):
        if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
            raise ConfigError(f"unknown key {key.strip()}; {prefix.rstrip('.')} is a value, not a table")
        hint = _field_types(hint, part, prefix)
        if index < len(parts) - 1:
            inner = target.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{prefix}{part} is {inner!r}; it must be a table")
            target, prefix = inner, f"{prefix}{part}."
    target[parts[-1]] = _override_value(text.strip(), hint, key.strip())


def _override_value(text: str, hint: object, key: str) -> object:
    is_string = hint is str or get_origin(hint) is Literal
    if is_string and text[:1] not in ('"', "'"):
        return text  # so that a shell needs no quotes within quotes: output.run=runs/a
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"override of {key}: {text!r} is not a TOML value; expected {_describe(hint)}") from error


def build(cls: type[_T], table: Mapping[str, object], prefix: str = "") -> _T:
    """Make a dataclass from a table; what the table leaves out has its default.

    Raises:
        ConfigError: keys are not fields (the message lists those that are) or values have the wrong type; it says so of each.
    """
    values, mistakes = {}, []
    for key, value in table.items():
        try:
            values[key] = _convert(value, _field_types(cls, key, prefix), prefix + key)
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("; ".join(mistakes))
    return cls(**values)


def _convert(value: object, hint: object, key: str) -> object:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return build(hint, value, f"{key}.")
    elif get_origin(hint) is Literal:
        if value in get_args(hint):
            return value
    elif get_origin(hint) is dict:
        if isinstance(value, dict):
            return value
    elif isinstance(hint, types.GenericAlias):
        if isinstance(value, list):
            return tuple(_convert(item, get_args(hint)[0], f"{key}[{index}]") for index, item in enumerate(value))
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif isinstance(hint, type) and type(value) is hint:  # type(): True is an int to isinstance
        return value
    raise ConfigError(f"{key} is {value!r}; it must be {_describe(hint)}")


def _describe(hint: object) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(f'"{choice}"' for choice in get_args(hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"a table with the keys {', '.join(get_type_hints(hint))}"
    if get_origin(hint) is dict:
        return "a table"
    if isinstance(hint, types.GenericAlias):
        (item,) = get_args(hint)[:1]
        return f"an array of {'tables' if get_origin(item) is dict else 'strings' if item is str else 'numbers'}"
    names = {str: "a string", int: "an integer", float: "a finite number", bool: "true or false"}
    return next(text for kind, text in names.items() if hint is kind)
