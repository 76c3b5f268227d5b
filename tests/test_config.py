"""The configuration: what is wrong in it is said in one line with file, line and key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from budget_exporter import config, registries
from budget_exporter.errors import ConfigError
from budget_exporter.facts.verdict import Floors
from budget_exporter.sources import switched_off
from budget_exporter.units import MIB

SOURCES = frozenset({"amdgpu", "procfs", "file"})

GOOD = """\
engines:
  - name: qwen
    match: {unit: vllm-qwen.service}
    log: {file: /var/log/vllm.log}
    contract_tokens: 401408
    floors: {critical: 128MiB}
    constants: {kv_bytes_per_token: 7892, overhead_precise: 5.25GiB}
floors: {warning: 1GiB}
sources:
  amdgpu: {interval: 200ms}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("{container: vllm-qwen}", None),
        ("{pods: serving/vllm-*/vllm}", None),
        ("{}", "engines[0].log: give exactly one of file, journal, container, pods, none"),
        ("{container: a, journal: true}", "engines[0].log: give exactly one of"),
        ("{pods: vllm}", "engines[0].log.pods: not NAMESPACE/POD/CONTAINER: 'vllm'"),
        ("{pods: a//b}", "engines[0].log.pods: not NAMESPACE/POD/CONTAINER: 'a//b'"),
        ("{file: vllm.log}", "engines[0].log.file: must be an absolute path, not 'vllm.log'"),
    ],
)
def test_a_log_is_one_thing(tmp_path: Path, log: str, why: str | None) -> None:
    path = write(tmp_path, f"engines:\n  - name: a\n    log: {log}\n")
    if why is None:
        assert config.load(path, SOURCES).engines[0].log is not None
        return
    with pytest.raises(ConfigError) as caught:
        config.load(path, SOURCES)
    assert str(caught.value).startswith(f"{path}:3: {why}")


def test_what_is_written_holds_and_the_rest_is_default(tmp_path: Path) -> None:
    loaded = config.load(write(tmp_path, GOOD), SOURCES)
    (engine,) = loaded.engines
    assert loaded.policy(engine).floors == Floors(critical=128 * MIB, warning=1024 * MIB)
    assert loaded.policy(None).floors == Floors(critical=256 * MIB, warning=1024 * MIB)
    assert loaded.policy(engine).contract_tokens == 401408
    assert loaded.policy(None).contract_tokens is None
    assert loaded.sources["amdgpu"].interval == pytest.approx(0.2)
    assert engine.expected


@pytest.mark.parametrize(
    ("pending", "why"),
    [
        ("{unit: vllm.service}", None),
        ("{quadlet: /etc/containers/systemd/qwen.container}", None),
        ("{compose: /srv/compose.yaml, service: vllm}", None),
        ("{env_file: /etc/vllm.env}", None),
        ("{}", "config.yaml:3: engines[0].pending: give exactly one of unit, quadlet, compose, env_file"),
        ("{unit: a.service, env_file: /x}", "config.yaml:3: engines[0].pending: give exactly one of"),
        ("{compose: /srv/compose.yaml}", "config.yaml:3: engines[0].pending: compose and service go together"),
        ("{unit: a.service, service: b}", "config.yaml:3: engines[0].pending: compose and service go together"),
        ("{unit: vllm}", "config.yaml:3: engines[0].pending.unit: must end in .service: 'vllm.service'"),
        (
            "{env_file: vllm.env}",
            "config.yaml:3: engines[0].pending.env_file: must be an absolute path, not 'vllm.env'",
        ),
        ("{image: x}", "config.yaml:3: engines[0].pending.image: unknown key"),
    ],
)
def test_where_a_start_is_written(tmp_path: Path, pending: str, why: str | None) -> None:
    path = write(tmp_path, f"engines:\n  - name: qwen\n    pending: {pending}\n")
    if why is None:
        (engine,) = config.load(path, SOURCES).engines
        assert engine.pending is not None
        assert len(engine.pending.given) == 1
        return
    with pytest.raises(ConfigError) as caught:
        config.load(path, SOURCES)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("off", "on", "text", "is_off"),
    [
        ((), (), "", {"rocm_smi"}),
        ((), ("rocm_smi",), "", set()),
        ((), (), "sources: {rocm_smi: {enabled: true}}", set()),
        (("rocm_smi",), (), "sources: {rocm_smi: {enabled: true}}", {"rocm_smi"}),
        ((), (), "sources: {amdgpu: {enabled: false}}", {"amdgpu", "rocm_smi"}),
        ((), ("amdgpu",), "sources: {amdgpu: {enabled: false}}", {"rocm_smi"}),
        ((), (), "sources: {amdgpu: {interval: 1s}, rocm_smi: {interval: 60s}}", {"rocm_smi"}),
        (("amdgpu",), ("rocm_smi",), "", {"amdgpu"}),
    ],
)
def test_a_flag_decides_before_the_configuration_and_that_before_the_default(
    tmp_path: Path, off: tuple[str, ...], on: tuple[str, ...], text: str, is_off: set[str]
) -> None:
    loaded = config.load(write(tmp_path, text), SOURCES | {"rocm_smi"})
    # The others that are off unless asked for say nothing here.
    assert switched_off(frozenset(off), frozenset(on), loaded.switched()) & {"amdgpu", "rocm_smi"} == is_off


@pytest.mark.parametrize("text", ["", "# nothing\n", "engines: []\n"])
def test_an_empty_file_is_the_defaults(tmp_path: Path, text: str) -> None:
    assert config.load(write(tmp_path, text), SOURCES) == config.Config()


@pytest.mark.parametrize(
    ("old", "new", "line", "key", "what"),
    [
        ("contract_tokens", "contract", 5, "engines[0].contract", "unknown key"),
        ("floors: {warning: 1GiB}", "floors:\n  warning: 1024", 9, "floors.warning", "got 1024"),
        ("1GiB", "1Gi", 8, "floors.warning", "'1Gi'"),
        ("200ms", "200", 10, "sources.amdgpu.interval", "got 200"),
        ("200ms", "fast", 10, "sources.amdgpu.interval", "'fast'"),
        ("401408", "many", 5, "engines[0].contract_tokens", "got `str`"),
        ("401408", "0", 5, "engines[0].contract_tokens", "expected `int` >= 1"),
        ("  amdgpu: {", "  amdgpux: {", 10, "sources.amdgpux", "no such source"),
        ("128MiB", "2GiB", 6, "engines[0].floors", "is below critical"),
        ("match: {unit: vllm-qwen.service}", "match: {}", 3, "engines[0].match", "exactly one"),
        ("{file: /var/log/vllm.log}", "{file: /x, journal: true}", 4, "engines[0].log", "exactly one"),
        ("name: qwen", "name: ''", 2, "engines[0].name", "length >= 1"),
        ("floors: {warning", "engines: []\nfloors: {warning", 8, "'engines'", "given twice"),
        ("200ms", "0s", 10, "sources.amdgpu.interval", "from 0.02 to 1 s"),
        ("200ms", "1h", 10, "sources.amdgpu.interval", "from 0.02 to 1 s"),
        ("200ms", f"{'9' * 400}h", 10, "sources.amdgpu.interval", "too long"),
        ("  amdgpu: {", "  procfs: {interval: 1m}\n  amdgpu: {", 10, "sources.procfs.interval", "from 0.2 to 2 s"),
        ("  amdgpu: {", "  file: {interval: 1s}\n  amdgpu: {", 10, "sources.file.interval", "is told of changes"),
        ("1GiB", f"{'9' * 400}GiB", 8, "floors.warning", "too large"),
        ("unit: vllm-qwen.service", "unit: vllm-qwen", 3, "engines[0].match.unit", "vllm-qwen.service"),
        ("contract_tokens: 401408", "unit: vllm-qwen", 5, "engines[0].unit", "vllm-qwen.service"),
        ("7892,", "7892, kv_reserve_factor: .nan,", 7, "engines[0].constants.kv_reserve_factor", "> 0.0"),
        ("7892,", "7892, kv_reserve_factor: .inf,", 7, "engines[0].constants.kv_reserve_factor", "<= 100.0"),
        ("7892,", "7892, kv_reserve_factor: -1.0,", 7, "engines[0].constants.kv_reserve_factor", "> 0.0"),
        ("7892,", "7892, graph_base_mib: -1,", 7, "engines[0].constants.graph_base_mib", ">= 0"),
        ("name: qwen", "name: 2024-99-99", 2, "'2024-99-99'", "month must be in 1..12"),
        ("401408", "!!int many", 5, "'many'", "invalid literal"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(
    tmp_path: Path, old: str, new: str, line: int, key: str, what: str
) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        config.load(path, SOURCES)
    message = str(error.value)
    assert message.startswith(f"{path}:{line}: ")
    assert key in message
    assert what in message
    assert "\n" not in message


def test_two_engines_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r":3: engines\[1\]\.name: another engine is called 'a'"):
        config.load(write(tmp_path, "engines:\n  - name: a\n  - name: a\n"), SOURCES)


def test_an_exclusion_says_what_it_excludes(tmp_path: Path) -> None:
    text = "engines:\n  - name: a\n    exclude: true\n"
    with pytest.raises(ConfigError, match=r":3: engines\[0\]\.exclude: needs a match"):
        config.load(write(tmp_path, text), SOURCES)
    (engine,) = config.load(write(tmp_path, f"{text}    match: {{port: 9000}}\n"), SOURCES).engines
    assert engine.exclude


@pytest.mark.parametrize("match", ["{port: 8000}", "{unit: a.service}", "{container: a}", "{served_model_name: a}"])
def test_two_engines_that_would_match_the_same_are_refused(tmp_path: Path, match: str) -> None:
    text = f"engines:\n  - {{name: a, match: {match}}}\n  - {{name: b, match: {match}}}\n"
    with pytest.raises(ConfigError, match=r":3: engines\[1\]\.match: engine 'a' has the same"):
        config.load(write(tmp_path, text), SOURCES)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("engines: &a [*a]\n", "too deep"),
        ("engines: [", "not YAML: did not find"),
        ("- a\n", "expected `object`"),
        ("a: b: c\n", ":1: not YAML"),
        ("? [x]\n", "unknown key"),
    ],
)
def test_what_is_not_a_mapping_is_refused(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        config.load(write(tmp_path, text), SOURCES)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.yaml: cannot be read: No such file or directory"):
        config.load(tmp_path / "absent.yaml", SOURCES)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"engines: \xff\xfe\n")
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(path, SOURCES)


def test_the_built_in_registry_loads_and_a_configured_one_comes_first(tmp_path: Path) -> None:
    builtin = registries.load(config.Config())
    assert {entry.constants.kv_bytes_per_token for entry in builtin} >= {9190}
    own = tmp_path / "own.yaml"
    own.write_text(
        "entries:\n  - {models: ['*'], architecture: mine, tensor_parallel_size: 1, source: measured here,\n"
        "     kv_bytes_per_token: 8000, overhead_precise: 5GiB}\n"
    )
    entries = registries.load(config.load(write(tmp_path, f"registry: {{files: [{own}]}}\n"), SOURCES))
    assert entries[0].constants.kv_bytes_per_token == 8000
    assert entries[0].constants.overhead_precise == 5 << 30
    assert entries[1:] == builtin


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("floors: {}\nregistry:\n  files: [NONE]\n", "3: registry.files[0]"),
        (
            "engines:\n  - name: a\n    endpoint: https://peer.example.org\n    endpoint_ca: NONE\n",
            "4: engines[0].endpoint_ca",
        ),
    ],
)
def test_a_file_that_is_named_must_be_there(tmp_path: Path, text: str, where: str) -> None:
    named = tmp_path / "named"
    path = write(tmp_path, text.replace("NONE", str(named)))
    with pytest.raises(ConfigError) as caught:
        config.load(path, SOURCES)
    assert str(caught.value) == f"{path}:{where}: {named}: cannot be read: No such file or directory"
    named.touch()
    config.load(path, SOURCES)


def test_an_engine_overrides_single_constants(tmp_path: Path) -> None:
    loaded = config.load(write(tmp_path, GOOD), SOURCES)
    constants = registries.load(config.Config())[0].constants
    changed = registries.override(constants, loaded.engines[0].constants)
    assert changed is not None
    assert changed.kv_bytes_per_token == 7892
    assert changed.kv_reserve_factor == constants.kv_reserve_factor
    assert registries.override(None, loaded.engines[0].constants) is None


def test_a_maintenance_window_is_when_the_engine_may_be_down(tmp_path: Path) -> None:
    window = "    maintenance: [{from: 2026-12-01T02:00:00Z, until: 2026-12-01T05:00:00+01:00}]\n"
    (engine,) = config.load(write(tmp_path, "engines:\n  - name: a\n" + window), SOURCES).engines
    begin = datetime(2026, 12, 1, 2, tzinfo=UTC).timestamp()
    assert [engine.expected_at(at) for at in (begin - 1, begin, begin + 7199, begin + 7200)] == [
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("window", "what"),
    [
        ("{from: 2026-12-01T02:00:00Z, until: 2026-12-01T02:00:00Z}", "engines[0].maintenance[0].until: not after"),
        ("{from: 2026-12-01T02:00:00, until: 2026-12-01T03:00:00Z}", "engines[0].maintenance[0].from: expected"),
        ("{from: soon, until: 2026-12-01T03:00:00Z}", "engines[0].maintenance[0].from: invalid"),
    ],
)
def test_a_wrong_window_is_named(tmp_path: Path, window: str, what: str) -> None:
    with pytest.raises(ConfigError) as error:
        config.load(write(tmp_path, f"engines:\n  - name: a\n    maintenance:\n      - {window}\n"), SOURCES)
    assert f":4: {what}" in str(error.value)
