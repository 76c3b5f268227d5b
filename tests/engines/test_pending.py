"""What the next start would change, from units, quadlets, compose and environment files on a real tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings as with_settings, strategies as st

from budget_exporter.engines._plan import UnresolvedError
from budget_exporter.engines._settings import NAMES, Settings, differing, settings
from budget_exporter.engines.pending import PendingSource, source
from budget_exporter.engines.start import Start, Watched
from budget_exporter.facts.engine import EngineSighting, Pending, ProcessKey
from budget_exporter.roots import Roots

ARGV = ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "/models/flash", "--max-model-len", "8K", "-tp", "2")
RUNS = "/opt/venv/bin/vllm serve /models/flash --max-model-len 8192 --tensor-parallel-size=2"
STARTED = 2_000_000_000.0


class Host:
    """A tree with files, and one engine in it."""

    def __init__(self, where: Path) -> None:
        self.root = where / "root"
        self.root.mkdir()
        process = where / "proc/7"
        process.mkdir(parents=True)
        (process / "root").symlink_to(self.root)
        self.source: PendingSource = source(Roots(rootfs=self.root, procfs=where / "proc"))
        self.sighting = EngineSighting(
            source="procfs", main=ProcessKey(7, 70), started_at=STARTED, argv=ARGV, environ={}, cwd="/"
        )

    def write(self, path: str, text: str, at: float = STARTED - 60) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        os.utime(file, (at, at))

    def look(self, start: Start, version: str | None = "0.19.0") -> Pending:
        found, _ = self.source.look([Watched("flash", self.sighting, version, start)])
        return found[self.sighting.main]

    def unit(self, exec_start: str, *more: str) -> Pending:
        self.write("/etc/systemd/system/vllm.service", "\n".join(["[Service]", f"ExecStart={exec_start}", *more]))
        return self.look(Start("unit", "vllm.service"))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


SAME = [
    RUNS,
    "/opt/venv/bin/python3 -m vllm.entrypoints.cli.main serve /models/flash -tp 2 --max_model_len 8K",
    "-/opt/venv/bin/vllm serve /models/flash -tp 2 --max-model 8K -pp 1 --kv-cache-dtype auto --no-enforce-eager",
    "@/opt/venv/bin/vllm vllm serve /models/flash -tp 2 --max-model-len '8K' --gpu-memory-utilization 0.90",
    "/usr/bin/env A=b /opt/venv/bin/vllm serve /models/flash -tp 2 --max-model-len 8K",
    "/usr/bin/numactl --interleave=all /opt/venv/bin/vllm serve /models/flash -tp 2 --max-model-len 8K",
    '/bin/sh -c "exec vllm serve /models/flash -tp 2 --max-model-len 8K"',
    "/bin/bash -lc 'A=b exec vllm serve /models/flash -tp ${TP} $MORE'",
    "/opt/venv/bin/vllm serve /models/flash -tp ${TP} $MORE --port 8001",
    "/usr/bin/podman run --rm -d --name=flash -v /m:/models:ro -e A=b img serve /models/flash -tp 2 --max-model-len 8K",
    "/usr/bin/docker --log-level info container run -it --gpus all img --max-model-len 8K -tp 2 --model /models/flash",
    "/usr/bin/docker run --entrypoint vllm img serve /models/flash -tp 2 --max-model-len 8K",
    "/usr/bin/podman run -pimg:1 --tty -- img /models/flash -tp 2 --max-model-len 8K",
]


@pytest.mark.parametrize("line", SAME)
def test_the_same_in_other_words_is_not_pending(host: Host, line: str) -> None:
    host.write("/etc/vllm.env", 'TP=2\nMORE="--max-model-len 8K"\n; a comment\n')
    assert host.unit(line, "EnvironmentFile=/etc/vllm.env") == Pending(())


CHANGED = [
    ("--max-model-len 16K -tp 2", ("max-model-len",)),
    ("--max-model-len 8K", ("tensor-parallel-size",)),
    ("--max-model-len 8K -tp 4 --enforce-eager", ("enforce-eager", "tensor-parallel-size")),
    ("--max-model-len auto -tp 2", ("max-model-len",)),
    ("--max-model-len 8K -tp 2 --gpu-memory-utilization 0.92", ("gpu-memory-utilization",)),
    ("--max-model-len 8K -tp 2 -sc.method=mtp", ("speculative-config",)),
    ("--max-model-len 8K -tp 2 -cc.cudagraph_mode=NONE", ("compilation-config",)),
    ("--max-model-len 8K -tp 2 --cudagraph-capture-sizes 1 2", ("cudagraph-capture-sizes",)),
    ("--max-model-len 8K -tp 2 --max-num-seqs 1k", ("max-num-seqs",)),
    ("--max-model-len 8K -tp 2 --api-key sk-secret --port 9", ()),
    ("--max-model-len 8K -tp 2 --quantization None --hf-overrides {}", ()),
]


@pytest.mark.parametrize(("flags", "want"), CHANGED, ids=[flags for flags, _ in CHANGED])
def test_what_differs_is_named(host: Host, flags: str, want: tuple[str, ...]) -> None:
    assert host.unit(f"/opt/venv/bin/vllm serve /models/flash {flags}") == Pending(want)


def test_another_model_is_named_by_the_word_model(host: Host) -> None:
    assert host.unit(RUNS.replace("flash", "other")) == Pending(("model",))


def test_the_default_utilization_is_the_release_s(host: Host) -> None:
    host.write("/etc/systemd/system/vllm.service", f"[Service]\nExecStart={RUNS} --gpu-memory-utilization 0.92\n")
    start = Start("unit", "vllm.service")
    assert host.look(start, "0.20.0") == Pending(())
    assert host.look(start, "0.19.0") == Pending(("gpu-memory-utilization",))
    assert host.look(start, None) == Pending(("gpu-memory-utilization",))


def test_a_file_that_is_changed_is_read_again_and_a_restart_takes_it_up(host: Host) -> None:
    assert host.unit(RUNS) == Pending(())
    host.write("/etc/systemd/system/vllm.service.d/10-len.conf", f"[Service]\nExecStart=\nExecStart={RUNS} -pp 2\n")
    start = Start("unit", "vllm.service")
    assert host.look(start) == Pending(("pipeline-parallel-size",))
    host.sighting = replace(host.sighting, main=ProcessKey(7, 71), argv=(*ARGV, "-pp", "2"))
    assert host.look(start) == Pending(())
    (host.root / "etc/systemd/system/vllm.service.d/10-len.conf").unlink()
    assert host.look(start) == Pending(("pipeline-parallel-size",))


def test_drop_ins_count_by_name_and_the_nearer_of_two(host: Host) -> None:
    host.write(
        "/usr/lib/systemd/system/vllm-a.service", f"[Service]\nExecStart={RUNS} $MORE\nEnvironment=MORE=-pp\\x202\n"
    )
    host.write("/run/systemd/system/vllm-.service.d/20.conf", "[Service]\nEnvironment=MORE=-q\n")
    host.write("/etc/systemd/system/vllm-a.service.d/20.conf", "# near\n[Service]\nEnvironment='MORE=-pp 4'\n")
    host.write("/etc/systemd/system/vllm-a.service.d/30.txt", "[Service]\nEnvironment=MORE=-x\n")
    assert host.look(Start("unit", "vllm-a.service")) == Pending(("pipeline-parallel-size",))
    host.write("/etc/systemd/system/service.d/90.conf", "[Service]\nEnvironment=MORE=\n")
    assert host.look(Start("unit", "vllm-a.service")) == Pending(())


def test_a_template_knows_its_instance(host: Host) -> None:
    line = "/opt/venv/bin/vllm serve /models/%i --max-model-len 8K \\\n  # between\n  -tp 2"
    host.write("/etc/systemd/system/vllm@.service", f"[Service]\nExecStart={line}\n")
    assert host.look(Start("unit", "vllm@flash.service")) == Pending(())
    assert host.look(Start("unit", "vllm@other.service")) == Pending(("model",))


def test_what_env_takes_away_is_not_compared(host: Host) -> None:
    pending = host.unit(f"/usr/bin/env -u X {RUNS}", "Environment=VLLM_CPU_KVCACHE_SPACE=8")
    assert pending == Pending(())
    assert host.unit(f"/usr/bin/env Y=1 {RUNS}", "Environment=VLLM_SKIP_WARMUP=1") == Pending(("VLLM_SKIP_WARMUP",))


def test_variables_that_are_planned_are_compared_with_the_process_s(host: Host) -> None:
    host.sighting = replace(host.sighting, environ={"VLLM_CPU_KVCACHE_SPACE": "4"})
    lines = ("Environment=VLLM_CPU_KVCACHE_SPACE=8 VLLM_LOGGING_LEVEL=DEBUG SECRET=x", "UnsetEnvironment=HF_TOKEN")
    assert host.unit(RUNS, *lines) == Pending(("VLLM_CPU_KVCACHE_SPACE",))
    host.sighting = replace(host.sighting, main=ProcessKey(7, 72), environ=None)
    assert host.unit(RUNS, *lines) == Pending(())
    host.sighting = replace(host.sighting, environ={"VLLM_CPU_KVCACHE_SPACE": "8"})
    assert host.unit(RUNS, *lines) == Pending(())


UNTOLD = [
    ("/opt/start.sh", "no vLLM server"),
    ("/opt/venv/bin/vllm serve $MODEL", "the value of $MODEL is not known"),
    ("/opt/venv/bin/vllm serve ${MODEL}x", "the value of $MODEL is not known"),
    ("/opt/venv/bin/vllm serve %H", "specifier %H"),
    ("/opt/venv/bin/vllm serve 'M", "a quote does not end"),
    ('/bin/sh -c "cd /opt; vllm serve M"', "a shell script starts it"),
    ('/bin/sh -c "vllm serve $(cat m)"', "a shell script starts it"),
    ('/bin/sh -c "vllm serve \\"$$M\\""', "variables and quotes"),
    ("/usr/bin/podman start flash", "exists already"),
    ("/usr/bin/podman run img /start.sh --flag", "no vLLM server"),
    ("/usr/bin/podman run --rm", "no image"),
    ("/usr/bin/podman run --env-file /none img --model M", "--env-file is not there"),
    ("/opt/venv/bin/vllm serve M --config /none.yaml", "--config is not known"),
]


@pytest.mark.parametrize(("line", "why"), UNTOLD, ids=[line for line, _ in UNTOLD])
def test_what_cannot_be_told_is_not_guessed(host: Host, line: str, why: str) -> None:
    pending = host.unit(line)
    assert pending.flags is None
    assert why in pending.why


def test_files_that_are_missing_or_no_files_are_said(host: Host, tmp_path: Path) -> None:
    start = Start("unit", "vllm.service")
    assert host.look(start) == Pending(None, "no file of the unit was found")
    host.write("/etc/systemd/system/vllm.service", "[Service]\nType=simple\n")
    assert host.look(start) == Pending(None, "the unit has no ExecStart")
    host.write("/etc/systemd/system/vllm.service", f"[Service]\nExecStart={RUNS}\nEnvironmentFile=/none\n")
    assert host.look(start) == Pending(None, "the file of EnvironmentFile is not there")
    host.write("/etc/systemd/system/vllm.service", f"[Service]\nExecStart={RUNS}\nEnvironmentFile=-/none\n")
    assert host.look(start) == Pending(())
    host.write("/etc/systemd/system/vllm.service", "#" * (2 << 20))
    assert host.look(start) == Pending(None, "/etc/systemd/system/vllm.service: larger than 1 MiB")
    file = host.root / "etc/systemd/system/vllm.service"
    file.write_bytes(b"[Service]\n\xff")
    assert host.look(start) == Pending(None, "/etc/systemd/system/vllm.service: not UTF-8")
    file.unlink()
    os.mkfifo(file)
    assert host.look(start) == Pending(None, "/etc/systemd/system/vllm.service: not a plain file")
    file.unlink()
    outside = tmp_path / "outside"
    outside.write_text(f"[Service]\nExecStart={RUNS}\n")
    file.symlink_to(outside)
    assert host.look(start) == Pending(None, "no file of the unit was found")


def test_only_a_start_that_was_configured_is_a_fault(host: Host) -> None:
    for configured in (False, True):
        start = Start("compose", "/srv/compose.yaml", "vllm", configured=configured)
        _, faults = host.source.look([Watched("flash", host.sighting, None, start)])
        why = "flash: compose /srv/compose.yaml: the compose file is not there, or has no such service"
        assert faults == ([why] if configured else [])


QUADLET = """[Unit]
Description=flash
[Container]
Image=docker.io/vllm/vllm-openai:v0.19.0
Environment=VLLM_CPU_KVCACHE_SPACE=4 OTHER=x
EnvironmentFile=vllm.env
PodmanArgs=--env=VLLM_SKIP_WARMUP=true --device=/dev/kfd
Exec=--model /models/flash --max-model-len 8K \\
  -tp ${TP}
[Service]
Environment=TP=2
"""


def test_a_quadlet_is_read_in_the_generated_unit_s_place(host: Host) -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_SKIP_WARMUP": "true"}
    host.sighting = replace(host.sighting, environ=environ)
    start = Start("unit", "flash.service")
    host.write("/etc/containers/systemd/flash.container", QUADLET)
    host.write("/etc/containers/systemd/vllm.env", "VLLM_CPU_KVCACHE_SPACE=2\n# comment\nLEFT\n")
    assert host.look(start) == Pending(())
    generated = (
        "[Unit]\nSourcePath=/etc/containers/systemd/flash.container\n[Service]\nExecStart=/usr/bin/podman run old\n"
    )
    host.write("/run/systemd/generator/flash.service", generated)
    assert host.look(start) == Pending(())
    host.write("/etc/containers/systemd/flash.container", QUADLET.replace("8K", "4K"))
    assert host.look(start) == Pending(("max-model-len",))
    host.write("/etc/containers/systemd/flash.container.d/10.conf", "[Container]\nEnvironment=VLLM_SKIP_WARMUP=false\n")
    host.write("/etc/containers/systemd/flash.container", QUADLET)
    assert host.look(Start("quadlet", "/etc/containers/systemd/flash.container")) == Pending(())
    host.write("/etc/containers/systemd/flash.container", QUADLET.replace("PodmanArgs", "X"))
    assert host.look(start) == Pending(("VLLM_SKIP_WARMUP",))
    host.write("/etc/systemd/system/flash.service.d/x.conf", f"[Service]\nExecStart=\nExecStart={RUNS} -pp 2\n")
    assert host.look(start) == Pending(("pipeline-parallel-size",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[Container]\nImage=x\n", "the quadlet has no Exec"),
        ("[Container]\nExec=/start.sh\n", "no vLLM server"),
        ("[Container]\nEntrypoint=/bin/x\nExec=y\n", "no vLLM server"),
        ("[Container]\nExec=--model ${M}\n", "the value of $M"),
        ("[Container]\nEnvironmentFile=no.env\nExec=--model M\n", "--env-file is not there"),
    ],
)
def test_a_quadlet_that_does_not_tell(host: Host, text: str, why: str) -> None:
    host.write("/srv/flash.container", text)
    pending = host.look(Start("quadlet", "/srv/flash.container"))
    assert pending.flags is None
    assert why in pending.why


def compose(command: str, *more: str) -> str:
    return "\n".join(["services:", "  db: {image: postgres}", "  vllm:", f"    command: {command}", *more]) + "\n"


COMPOSE = [
    ("--model /models/flash --max-model-len 8K -tp 2", ()),
    ("[--model, /models/flash, --max-model-len, 8192, -tp, 2]", ()),
    ("/models/flash --max-model-len ${LEN} -tp 2", ()),
    ("/models/flash --max-model-len ${LEN:-1K} -tp ${TP:-2} --x", ()),
    ("/models/flash --max-model-len $LEN -tp ${TP-4}", ("tensor-parallel-size",)),
    ("/models/flash --max-model-len ${LEN:+16K} -tp 2${TP:+0}", ("max-model-len",)),
    ("serve /models/other --max-model-len 8K -tp 2", ("model",)),
    ('["sh", "-c", "vllm serve /models/flash -tp 4 --max-model-len 8K"]', ("tensor-parallel-size",)),
]


@pytest.mark.parametrize(("command", "want"), COMPOSE, ids=[command for command, _ in COMPOSE])
def test_a_compose_file_s_command(host: Host, command: str, want: tuple[str, ...]) -> None:
    host.write("/srv/compose.yaml", compose(command))
    host.write("/srv/.env", "# lengths\nexport LEN='8K' # of old\nEMPTY=\n")
    assert host.look(Start("compose", "/srv/compose.yaml", "vllm")) == Pending(want)


def test_a_compose_file_s_environment_and_override(host: Host) -> None:
    more = (
        "    env_file: [a.env, {path: none.env, required: false}]",
        "    environment: [VLLM_SKIP_WARMUP=true, FROM_SHELL]",
    )
    command = "--model /models/flash --max-model-len 8K -tp 2"
    host.write("/srv/compose.yaml", compose(command, *more))
    host.write("/srv/a.env", "VLLM_CPU_KVCACHE_SPACE=4\nVLLM_SKIP_WARMUP=false\n")
    start = Start("compose", "/srv/compose.yaml", "vllm")
    host.sighting = replace(host.sighting, environ={"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_SKIP_WARMUP": "true"})
    assert host.look(start) == Pending(())
    host.write("/srv/compose.override.yaml", "services: {vllm: {environment: {VLLM_CPU_KVCACHE_SPACE: 8}}}\n")
    assert host.look(start) == Pending(("VLLM_CPU_KVCACHE_SPACE",))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("services: [", "not YAML, line"),
        ("- x", "no such service"),
        ("services: {vllm: 3}", "no such service"),
        ("services: {vllm: {image: x}}", "the service has no command"),
        ("services: {vllm: {extends: other, command: --model M}}", "extends another"),
        ("services: {vllm: {command: '--model $NO'}}", "the value of $NO is not known"),
        ("services: {vllm: {command: '--model ${NO:?say}'}}", "the value of $NO is not known"),
        ('services: {vllm: {command: "--model \'M"}}', "does not end"),
        ("services: {vllm: {env_file: no.env, command: --model M}}", "env_file is not there"),
        ("services: {vllm: {command: " + "[" * 3000, "not YAML"),
    ],
)
def test_a_compose_file_that_does_not_tell(host: Host, text: str, why: str) -> None:
    host.write("/srv/c.yaml", text)
    pending = host.look(Start("compose", "/srv/c.yaml", "vllm"))
    assert pending.flags is None
    assert why in pending.why


def test_an_environment_file_alone_tells_of_variables_only(host: Host) -> None:
    host.sighting = replace(host.sighting, environ={"VLLM_CPU_KVCACHE_SPACE": "4"})
    start = Start("env_file", "/etc/vllm.env")
    assert host.look(start) == Pending(None, "the file is not there")
    host.write("/etc/vllm.env", "VLLM_CPU_KVCACHE_SPACE=4\n")
    assert host.look(start) == Pending(())
    host.write("/etc/vllm.env", "VLLM_CPU_KVCACHE_SPACE='40'\nHF_TOKEN=tok\n")
    assert host.look(start) == Pending(("VLLM_CPU_KVCACHE_SPACE",))


def test_a_configuration_file_of_the_engine_s_own_that_was_changed(host: Host) -> None:
    line = "/opt/venv/bin/vllm serve M --config /etc/vllm.yaml"
    host.sighting = replace(host.sighting, argv=tuple(line.split()))
    host.write("/etc/vllm.yaml", "max-model-len: 8192\n")
    assert host.unit(line) == Pending(())
    host.write("/etc/vllm.yaml", "max-model-len: 4096\n", at=STARTED + 100)
    assert host.unit(line) == Pending(("max-model-len",))
    # Nobody knows what stood there when an engine started before we did.
    host.sighting = replace(host.sighting, main=ProcessKey(7, 75))
    assert host.unit(line) == Pending(None, "the file after --config is not known as the engine reads it")


def test_what_is_not_there_to_be_told_has_no_names(host: Host) -> None:
    host.sighting = replace(host.sighting, argv=("VLLM::APIServer",))
    assert host.unit(RUNS) == Pending(None, "what runs is not known by its command line")


def test_no_name_opens_a_door() -> None:
    assert not any(
        word in name.lower() for name in NAMES for word in ("api-key", "token_", "hf-token", "password", "ssl")
    )


def refuse(path: str) -> str:
    raise UnresolvedError(path)


@given(st.lists(st.sampled_from([*ARGV, "--", "-cc.x", "-O3", "--max-num-seqs", "x"]), max_size=8))
def test_a_line_never_differs_from_itself(words: list[str]) -> None:
    one = settings(["serve", *words], {}, refuse, None)
    assert differing(one, one, None) == ()
    assert differing(Settings({}, None), one, None) == differing(one, Settings({}, None), None)


@with_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(text=st.text(max_size=200), kind=st.sampled_from(["service", "container", "yaml", "env"]))
def test_no_file_ends_the_look(host: Host, text: str, kind: str) -> None:
    starts: Mapping[str, tuple[str, Start, Callable[[str], str]]] = {
        "service": ("/etc/systemd/system/v.service", Start("unit", "v.service"), "[Service]\nExecStart={}".format),
        "container": ("/srv/v.container", Start("quadlet", "/srv/v.container"), "[Container]\nExec={}".format),
        "yaml": ("/srv/v.yaml", Start("compose", "/srv/v.yaml", "vllm"), "services: {{vllm: {{command: {}}}}}".format),
        "env": ("/srv/v.env", Start("env_file", "/srv/v.env"), str),
    }
    path, start, around = starts[kind]
    host.write(path, around(text.replace("\ud800", "")))
    pending = host.look(start)
    assert "in reading how it starts" not in pending.why
