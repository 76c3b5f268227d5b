"""The configuration: what an operator decides, typed and frozen; a key that is not here is an error."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from budget_exporter import config_checks, yaml_file
from budget_exporter.facts.verdict import Floors, Policy
from budget_exporter.units import MIB
from budget_exporter.yaml_file import Duration, Size

__all__ = ["Config", "ConstantsConfig", "EngineConfig", "FloorsConfig", "LogConfig", "Match", "SourceConfig", "load"]

DEFAULT_CRITICAL = Size(256 * MIB)
"""Shapes with 0 and 0.13 GiB left died under a first request (two R9700, expert offload)."""
DEFAULT_WARNING = Size(768 * MIB)
"""The tightest shape known to have held a long generation kept 0.89 GiB."""
DEFAULT_DRIFT_TOLERANCE = Size(128 * MIB)
"""Healthy boots captured up to 0.1 GiB (median) beyond the estimate; what is under this is not worth a ticket."""
Positive = Annotated[int, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Factor = Annotated[float, msgspec.Meta(gt=0, le=100)]
StartKind = Literal["unit", "quadlet", "compose", "env_file"]
START_KINDS: tuple[StartKind, ...] = ("unit", "quadlet", "compose", "env_file")


class FloorsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Smallest margins accepted; ``warning`` must not lie below ``critical``."""

    critical: Size | None = None
    warning: Size | None = None


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a configured engine is recognised: exactly one of these."""

    unit: str | None = None
    container: str | None = None
    served_model_name: str | None = None
    port: Annotated[int, msgspec.Meta(gt=0, lt=65536)] | None = None

    @property
    def given(self) -> list[str]:
        """Return the names of the criteria that were given."""
        return [name for name in self.__struct_fields__ if getattr(self, name) is not None]


class LogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Where the engine's log is: exactly one of these.

    A file, the journal (the default where the engine has a unit), a container's daemon (the default where one has told
    of it) by the container's name, or a pod's files by ``NAMESPACE/POD/CONTAINER`` (shell patterns).
    """

    file: str | None = None
    journal: bool = False
    container: str | None = None
    pods: str | None = None
    none: bool = False

    @property
    def given(self) -> list[str]:
        """Return the names of what was given."""
        return [name for name in self.__struct_fields__ if getattr(self, name)]


class ConstantsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Registry constants; in an engine's ``constants`` each overrides the registry's."""

    kv_bytes_per_token: Positive | None = None
    kv_reserve_factor: Factor | None = None
    kv_reserve_requests: Positive | None = None
    overhead_precise: Size | None = None
    overhead_default: Size | None = None
    overhead_anchor_tokens: Positive | None = None
    overhead_slope_per_1024_tokens: Size | None = None
    expert_bytes: Size | None = None
    experts_per_layer: Positive | None = None
    graph_base_mib: Count | None = None
    graph_per_graph_mib: Count | None = None
    graphs_piecewise: Count | None = None
    graphs_speculative: Count | None = None
    non_expert: Size | None = None
    mamba_pages: Size | None = None
    non_torch: Size | None = None


class PendingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where it is written how the engine starts next time: exactly one, ``service`` goes with ``compose``."""

    unit: str | None = None
    quadlet: str | None = None
    compose: str | None = None
    service: str | None = None
    env_file: str | None = None

    @property
    def given(self) -> list[tuple[StartKind, str]]:
        """Return kind and name of what was given."""
        return [(kind, name) for kind in START_KINDS if (name := getattr(self, kind)) is not None]


Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Maintenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"begin": "from"}):
    """A window in which the engine may be down: nobody is paged for it."""

    begin: Moment
    until: Moment


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one engine beforehand; without an entry an engine is found and judged by the defaults."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    match: Match | None = None
    exclude: bool = False
    """Whether what is recognised by this entry is none of ours: it is neither watched nor shown."""
    unit: str | None = None
    """The unit that supervises it, where that cannot be told from its processes."""
    log: LogConfig | None = None
    endpoint: bool | str = True
    """Whether its endpoint is asked, or the address of a peer (``http://HOST:PORT``) where it is."""
    endpoint_ca: str | None = None
    """File with the certificates that an https peer's is held against; without it those of the system."""
    contract_tokens: Positive | None = None
    expected: bool = True
    maintenance: tuple[Maintenance, ...] = ()
    floors: FloorsConfig = FloorsConfig()
    graph_drift_tolerance: Size | None = None
    constants: ConstantsConfig = ConstantsConfig()
    pending: PendingConfig | None = None
    """How it starts next time; where it has a unit, that is known without."""

    def expected_at(self, now: float) -> bool:
        """Return whether the engine is to run at Unix time ``now``."""
        return self.expected and not any(w.begin.timestamp() <= now < w.until.timestamp() for w in self.maintenance)


class SourceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a source is on, where no flag says it, how often it runs, and for some where it asks."""

    enabled: bool | None = None
    interval: Duration | None = None
    url: str | None = None


class RegistryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Registry files that are asked before the built-in ones."""

    files: tuple[str, ...] = ()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration file."""

    engines: tuple[EngineConfig, ...] = ()
    floors: FloorsConfig = FloorsConfig()
    graph_drift_tolerance: Size | None = None
    registry: RegistryConfig = RegistryConfig()
    sources: Mapping[str, SourceConfig] = msgspec.field(default_factory=dict)

    def interval(self, name: str) -> float | None:
        """Return the seconds between two runs of the source ``name``, None where it is the source's own."""
        entry = self.sources.get(name)
        return float(entry.interval) if entry and entry.interval is not None else None

    def url(self, name: str) -> str | None:
        """Return where the source ``name`` asks, None where that is not said."""
        entry = self.sources.get(name)
        return entry.url if entry else None

    def switched(self) -> dict[str, bool | None]:
        """Return what is said of each named source: on, off or, as None, nothing."""
        return {name: entry.enabled for name, entry in self.sources.items()}

    def policy(self, engine: EngineConfig | None) -> Policy:
        """Return the floors, the contract and the tolerance that hold for ``engine``."""
        own = engine.floors if engine else FloorsConfig()
        tolerance = engine.graph_drift_tolerance if engine else None
        return Policy(
            floors=Floors(
                critical=int(_first(own.critical, self.floors.critical, DEFAULT_CRITICAL)),
                warning=int(_first(own.warning, self.floors.warning, DEFAULT_WARNING)),
            ),
            contract_tokens=engine.contract_tokens if engine else None,
            graph_drift_tolerance=int(_first(tolerance, self.graph_drift_tolerance, DEFAULT_DRIFT_TOLERANCE)),
        )


def _first(*values: Size | None) -> Size:
    return next(value for value in values if value is not None)


def load(path: Path | None, sources: frozenset[str]) -> Config:
    """
    Return the configuration at ``path``, or the defaults where there is none; ``sources`` are the names there are.

    Raise ConfigError, one line naming file, line and key, for whatever is wrong in it.
    """
    if path is None:
        return Config()
    document = yaml_file.load(path, Config)
    config_checks.check(document, sources)
    return document.value
