"""The registries of fitted constants: YAML files by (architecture, release, tensor parallelism), read into facts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec

from budget_exporter import yaml_file
from budget_exporter.config import Config, ConstantsConfig, Positive
from budget_exporter.facts.ledger import Constants, RegistryEntry

__all__ = ["BUILTIN", "load", "override"]

BUILTIN = Path(__file__).parent / "registry"


class _Entry(ConstantsConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    models: tuple[str, ...]
    releases: tuple[str, ...] = ("*",)
    architecture: str
    tensor_parallel_size: Positive
    source: str
    note: str = ""


class _Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    entries: tuple[_Entry, ...] = ()


def load(config: Config, builtin: Path = BUILTIN) -> tuple[RegistryEntry, ...]:
    """
    Return the registry's entries, the configured files first, so that they win over the built-in ones.

    Raise ConfigError, one line naming file, line and key, for whatever is wrong in one of them.
    """
    paths = [Path(name) for name in config.registry.files] + sorted(builtin.glob("*.yaml"))
    return tuple(_entry(raw) for path in paths for raw in yaml_file.load(path, _Registry).value.entries)


def _entry(raw: _Entry) -> RegistryEntry:
    constants = Constants(
        architecture=raw.architecture,
        release=", ".join(raw.releases),
        tensor_parallel_size=raw.tensor_parallel_size,
        source=raw.source,
        **_given(raw),  # type: ignore[arg-type]  # field by field the same names and types
    )
    return RegistryEntry(models=raw.models, releases=raw.releases, constants=constants)


def _given(raw: ConstantsConfig) -> dict[str, float]:
    """Return the constants that were written, sizes as plain ints."""
    values = {name: getattr(raw, name) for name in ConstantsConfig.__struct_fields__}
    return {name: int(v) if isinstance(v, int) else v for name, v in values.items() if v is not None}


def override(constants: Constants | None, own: ConstantsConfig) -> Constants | None:
    """Return ``constants`` with what an engine's configuration says instead; None stays None."""
    values = _given(own)
    if constants is None or not values:
        return constants
    return dataclasses.replace(constants, **values)  # type: ignore[arg-type]  # the same names and types
