"""Where settings come from: flags over environment over a file over defaults.

What can be set is declared once, as a field of a configuration's dataclass and, for all but tables, as a flag of its command line.
Everything else follows: `--max-batch 8` is `max_batch = 8` in a file and `DNNSERVE_MAX_BATCH=8` in the environment. Which settings
make sense together is the dataclass's to judge.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, SettingsConfigDict, SettingsError

from dnncore.errors import ConfigError

__all__ = ["PREFIX", "Setting", "Settings", "declared_settings", "read_settings"]

PREFIX = "DNNSERVE_"
_FEW = 8  # keys that fit into a message
_CONFIG = "CONFIG"  # names the file itself

# What Kubernetes puts into the environment of every pod for a service that is called dnnserve, and deploy/compose.yaml's image.
_NOT_SETTINGS = re.compile(r"SERVICE_(HOST|PORT(_\w+)?)|PORT|PORT_\d+_\w+|IMAGE")


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that can be set. Immutable.

    Args:
        key: What it is called in a file.
        field: The dataclass's field.
        hint: Type of its values.
        default: The dataclass's; None for settings that have none.
        flag: The action that reads it from the command line; None for tables.
    """

    key: str
    field: str
    hint: Any
    default: Any
    flag: argparse.Action | None

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.key.upper()

    @property
    def option(self) -> str:
        """Its flag as it is typed; empty for tables."""
        return self.flag.option_strings[0] if self.flag else ""


def declared_settings(parser: argparse.ArgumentParser, target: type) -> tuple[Setting, ...]:
    """Return all that a command line and a dataclass declare together, in the dataclass's order."""
    flags = {action.dest: action for action in parser._actions}
    hints = get_type_hints(target)
    return tuple(
        Setting(
            _key(field.name, flags.get(field.name)),
            field.name,
            hints[field.name],
            _default(field),
            flags.get(field.name),
        )
        for field in fields(target)
    )


def _key(field: str, flag: argparse.Action | None) -> str:
    return field if flag is None else flag.option_strings[0].removeprefix("--").replace("-", "_")


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


@dataclass(frozen=True, slots=True)
class Settings:
    """What was set, and where. Immutable.

    Args:
        declared: All that there is.
        values: By key, of those that were set somewhere.
        origins: Where each of them was set: a flag, a variable or a file.
    """

    declared: tuple[Setting, ...]
    values: Mapping[str, Any]
    origins: Mapping[str, str]

    def arguments(self) -> dict[str, Any]:
        """Values by the dataclass's fields."""
        return {s.field: self.values[s.key] for s in self.declared if s.key in self.values}

    def origins_in(self, text: str) -> str:
        """Where flags that a text names were set, of those that were not given as flags; empty where there are none."""
        options = {setting.option: setting.key for setting in self.declared if setting.flag}
        named = list(dict.fromkeys(option for option in re.findall(r"--[a-z][a-z-]*", text) if option in options))
        origins = {option: self.origins.get(options[option], option) for option in named}
        elsewhere = [(option, origin) for option, origin in origins.items() if origin != option]
        who = "it" if len(named) == 1 else ""
        return ", ".join(f"{who or option} is set by {origin}" for option, origin in elsewhere)

    def to_toml(self) -> str:
        """All settings as a file that sets them, with the origin of those that are not defaults."""
        keys = {setting.field: setting.key for setting in self.declared}
        lines: list[str] = []
        tables: list[str] = []
        for setting in self.declared:
            value = self.values.get(setting.key, setting.default)
            if isinstance(value, Mapping):
                tables += _tables(setting.key, value, keys, self.origins.get(setting.key, ""))
            elif value is None or value == ():
                lines.append(f"# {setting.key} is not set")
            else:
                origin = self.origins.get(setting.key)
                lines.append(f"{setting.key} = {_toml(value)}" + (f"  # {origin}" if origin else ""))
        return "\n".join([*lines, *tables]) + "\n"


def _tables(key: str, entries: Mapping[str, Any], keys: Mapping[str, str], origin: str) -> Iterator[str]:
    for name, entry in entries.items():
        yield ""
        yield f"[{key}.{json.dumps(name, ensure_ascii=False)}]  # {origin}"
        for field in fields(entry):
            value = getattr(entry, field.name)
            if value != field.default:
                yield f"{keys.get(field.name, field.name)} = {_toml(value)}"


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case (str(name), tuple(extents)):  # --shape
            return _toml(f"{name}={','.join(map(str, extents))}")
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return f"[{', '.join(map(_toml, value))}]"


def read_settings(
    parser: argparse.ArgumentParser,
    target: type,
    flags: Mapping[str, Any],
    file: Path | None,
    alternatives: Sequence[tuple[str, str]] = (),
) -> Settings:
    """Read the three places.

    Args:
        parser: Declares the flags.
        target: The configuration's dataclass.
        flags: Values by field, of the flags that were given.
        file: In TOML; None: the one that DNNSERVE_CONFIG names, if it does.
        alternatives: Pairs of keys that exclude each other: to set one takes the other back where a lower place has set it.

    Raises:
        ConfigError: a key is unknown (with the nearest that there is), or a value is not one of its key.
        OSError: the file cannot be read.
    """
    declared = declared_settings(parser, target)
    if file is None and os.environ.get(PREFIX + _CONFIG):
        file = Path(os.environ[PREFIX + _CONFIG])
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer, named in (
        ({} if file is None else _file(declared, file), {s.key: str(file) for s in declared}),
        (_environment(declared), {s.key: s.variable for s in declared}),
        ({s.key: flags[s.field] for s in declared if s.field in flags}, {s.key: s.option for s in declared}),
    ):
        for pair in alternatives:
            for key, other in (pair, reversed(pair)):
                if key in layer and other not in layer:
                    values.pop(other, None)
                    origins.pop(other, None)
        for key, value in layer.items():
            values[key] = _merged(values.get(key), value)
            origins[key] = named[key]
    for setting in declared:
        if setting.flag is None and setting.key in values:
            values[setting.key] = _entries(setting, values[setting.key], {s.key: s.field for s in declared})
    return Settings(declared, values, origins)


def _entries(table: Setting, values: Mapping[str, Any], fields_of: Mapping[str, str]) -> dict[str, Any]:
    """The entries of a table as dataclasses."""
    entry, made = _entry_type(table.hint), {}
    for name, value in values.items():
        try:
            made[name] = entry(**{fields_of.get(key, key): value for key, value in value.items()})
        except ConfigError as error:
            raise ConfigError(f"{table.key}.{name}: {error}") from error
    return made


def _merged(lower: Any, higher: Any) -> Any:
    """The higher value; of tables, the keys of both."""
    if not isinstance(lower, Mapping) or not isinstance(higher, Mapping):
        return higher
    return {key: _merged(lower.get(key), higher.get(key, lower.get(key))) for key in {**lower, **higher}}


_TOLERANT = ConfigDict(extra="forbid", protected_namespaces=())


def _validated(
    declared: Sequence[Setting], layer: Mapping[str, Any], origins: Mapping[str, str], mistakes: Sequence[str]
) -> dict[str, Any]:
    """The values of a place, converted to the types of their fields.

    Raises:
        ConfigError: one cannot be, an entry of a table has a key that is unknown, or there are other mistakes; it lists them all.
    """
    schema, values, cause = create_model("Schema", __config__=_TOLERANT, **_columns(declared)), {}, None
    try:
        values = schema.model_validate(layer).model_dump(exclude_unset=True)
    except ValidationError as error:
        mistakes, cause = [*mistakes, *(_reason(schema, found, origins) for found in error.errors())], error
    if mistakes:
        raise ConfigError("; ".join(mistakes)) from cause
    return values


def _columns(declared: Sequence[Setting]) -> Any:
    keys = {setting.field: setting.key for setting in declared}
    return {setting.key: (_annotation(setting, keys), None) for setting in declared}


def _annotation(setting: Setting, keys: Mapping[str, str]) -> Any:
    """The type of a setting as pydantic reads it."""
    flag = setting.flag
    if flag is None:
        entry = _entry_type(setting.hint)
        hints = get_type_hints(entry)
        named: Any = {keys.get(f.name, f.name): (hints[f.name], f.default) for f in fields(entry)}
        return dict[str, create_model(entry.__name__, __config__=ConfigDict(extra="forbid"), **named)]  # type: ignore[misc]
    if flag.choices is not None:
        return Literal[tuple(flag.choices)]
    if flag.type in (None, int, float, Path):
        return setting.hint
    return Annotated[Any, NoDecode, BeforeValidator(partial(_parsed, flag))]


def _entry_type(hint: Any) -> type:
    """The dataclass of a table's entries."""
    assert issubclass(get_origin(hint), Mapping)
    entry = get_args(hint)[1]
    assert is_dataclass(entry)
    return entry  # type: ignore[return-value]


def _parsed(flag: argparse.Action, value: Any) -> Any:
    """A value in a type that is the flag's own: its texts are read as the command line reads them."""
    assert callable(flag.type)
    several = isinstance(flag, argparse._AppendAction)
    texts = value.split() if isinstance(value, str) and several else value if isinstance(value, list) else [value]
    try:
        read = [flag.type(text) if isinstance(text, str) else text for text in texts]
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from error
    return read if several else read[0]


def _environment(declared: Sequence[Setting]) -> dict[str, Any]:
    names = {setting.key: setting.variable for setting in declared}
    keys = {name: name.removeprefix(PREFIX) for name in sorted(os.environ)}
    mistakes = [
        f"environment variable {name} is unknown{_nearest(key.lower(), names, PREFIX)}"
        for name, key in keys.items()
        if key not in (name, _CONFIG) and name not in names.values() and not _NOT_SETTINGS.fullmatch(key)
    ]
    schema = create_model("Environment", __base__=_Environment, **_columns(declared))
    try:
        return _validated(declared, EnvSettingsSource(schema)(), names, mistakes)
    except SettingsError as error:
        tables = [name for key, name in names.items() if f'"{key}"' in str(error)]  # its text is all that says which
        mistakes.append(f"{', '.join(tables)} is no JSON, which a table is in the environment: {error.__cause__}")
        raise ConfigError("; ".join(mistakes)) from error


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, protected_namespaces=())


def _file(declared: Sequence[Setting], file: Path) -> dict[str, Any]:
    if not file.exists():
        raise ConfigError(f"configuration file {str(file)!r} does not exist; give another with --config")
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # malformed, or not UTF-8
        raise ConfigError(f"configuration file {file} is not TOML: {error}") from error
    known = [setting.key for setting in declared]
    mistakes = [f"{file}: {key} is unknown{_nearest(key, known)}" for key in values if key not in known]
    own = {key: value for key, value in values.items() if key in known}
    return _validated(declared, own, dict.fromkeys(known, str(file)), mistakes)


def _reason(schema: type[BaseModel], error: Any, origins: Mapping[str, str]) -> str:
    place = [str(part) for part in error["loc"]]
    where, key = origins[place[0]], ".".join(place)
    if error["type"] == "extra_forbidden":
        entry = get_args(schema.model_fields[place[0]].annotation)[1]
        return f"{where}: {key} is unknown{_nearest(place[-1], entry.model_fields)}"
    return f"{where}: {key} cannot be {error['input']!r}: {error['msg'].removeprefix('Value error, ')}"


def _nearest(key: str, known: Iterable[str], prefix: str = "") -> str:
    """What to say of an unknown key; with a prefix, in the environment's spelling."""
    names = sorted(known)
    found = get_close_matches(key, names, 1, 0.5)
    if found:
        return f"; did you mean {prefix + found[0].upper() if prefix else found[0]}?"
    return f"; there are {', '.join(names)}" if len(names) <= _FEW else "; --help lists all that there are"
