"""What an engine is called: by its configuration, else by what runs it, and the same name for as long as it can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from budget_exporter.config import EngineConfig
from budget_exporter.engines.address import UNSEEN, Address
from budget_exporter.facts.engine import EngineSighting, Shape

__all__ = ["Running", "automatic_name", "configured_name", "describes", "named"]

DEFAULT_PORT = 8000
"""vLLM's port where no flag gives one (entrypoints/openai/cli_args.py)."""
SUFFIX = ".service"


@dataclass(frozen=True, slots=True)
class Running:
    """An engine as it was found, and its flags."""

    sighting: EngineSighting
    shape: Shape
    address: Address = UNSEEN
    """Where its endpoint is, by its flags."""

    @property
    def port(self) -> int:
        """Return the port it serves on."""
        return self.shape.port or DEFAULT_PORT


def named(
    fresh: Sequence[Running],
    taken: Mapping[str, Running],
    ports: Mapping[str, int | None],
    config: Mapping[str, EngineConfig],
) -> dict[str, Running]:
    """
    Return names for what runs and has none yet, the oldest first.

    ``taken`` are the names of what runs and has one; ``ports`` are all names that are remembered, each with the port
    its holder had last. A second holder of a name gets ``@port``, and keeps that when both start again.
    """
    result: dict[str, Running] = {}

    def order(running: Running) -> tuple[bool, float, int]:
        stranger = ports.get(automatic_name(running)) not in (None, running.port)
        return stranger, running.sighting.started_at, running.sighting.main.pid

    for running in sorted(fresh, key=order):
        candidates = _candidates(running, ports, config)
        result[next(name for name in candidates if name not in taken and name not in result)] = running
    return result


def _candidates(running: Running, ports: Mapping[str, int | None], config: Mapping[str, EngineConfig]) -> Iterator[str]:
    own = configured_name(running, config)
    name = own or automatic_name(running)
    second = f"{name}@{running.port}"
    if own is None and second in ports:
        yield second
    # A configured name belongs to what its entry describes, whether or not that runs now.
    if own is not None or name not in config or config[name].match is None:
        yield name
    yield second
    yield from (f"{second}.{n}" for n in count(2))


def configured_name(running: Running, config: Mapping[str, EngineConfig]) -> str | None:
    """Return the name of the first entry of ``config`` that describes ``running``."""
    return next((name for name, entry in config.items() if describes(entry, running)), None)


def describes(entry: EngineConfig, running: Running) -> bool:
    """Return whether ``running`` is what the entry is for."""
    match = entry.match
    if match is None:
        return False
    sighting, shape = running.sighting, running.shape
    return (
        (match.unit is not None and match.unit == sighting.unit)
        or (match.container is not None and match.container == sighting.container)
        or (match.served_model_name is not None and match.served_model_name == (shape.served_model_name or shape.model))
        or (match.port is not None and match.port == running.port)
    )


def automatic_name(running: Running) -> str:
    """Return the name of an engine without configuration: unit, container, served model name, port."""
    sighting, shape = running.sighting, running.shape
    return (
        (sighting.unit or "").removesuffix(SUFFIX)
        or sighting.container
        or shape.served_model_name
        or _model_name(shape.model)
        or str(running.port)
    )


def _model_name(model: str | None) -> str | None:
    """Return a hub's name as it is, and only the last part of a path: paths are no names."""
    return model.rstrip("/").rpartition("/")[2] if model and model.startswith(("/", ".", "~")) else model
