"""The exporter as a process: bad input, reload, its end, and what it does when what it watches goes wrong."""

from __future__ import annotations

import os
import pwd
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from budget_exporter.demo import amdgpu_tree, boot_log
from budget_exporter.demo.host import DEVICES, SIZE, Host
from budget_exporter.demo.player import HEALTHY, Engine
from budget_exporter.units import GIB, MIB
from tests.integration.incident import serve, serving_host
from tests.integration.processes import Exporter, exporter, get, until
from tests.real_parts import unavailable


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return serving_host(tmp_path / "host")[0]


@pytest.fixture
def running(host: Host, tmp_path: Path) -> Iterator[Exporter]:
    with serve(host, tmp_path / "exporter.log") as started:
        yield started.ready()


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "budget_exporter", *words],
        capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **environ},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("engines:\n  - name: a\n    contract: 5\n", ":3: engines[0].contract: unknown key"),
        ("floors:\n  critical: 256\n", ":2: floors.critical: expected a size with a unit such as 256MiB, got 256"),
        ("registry: {files: [absent.yaml]}\n", "absent.yaml: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_status_2(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    ended = run(f"--config.file={path}")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert what in ended.stderr


@pytest.mark.parametrize(
    ("flag", "what"),
    [
        ("--config.file=/absent.yaml", "/absent.yaml: cannot be read"),
        ("--path.sysfs=/absent", "--path.sysfs: no such directory: /absent"),
        (f"--path.procfs=/{'n' * 300}", "n: File name too long"),
        ("--web.listen-address=nonsense", "--web.listen-address: not [HOST]:PORT: 'nonsense'"),
        ("--web.listen-address=:70000", "--web.listen-address: not [HOST]:PORT"),
        ("--web.listen-address=:" + "9" * 5000, "--web.listen-address: not [HOST]:PORT"),
        ("--web.listen-address=::1:19470", "--web.listen-address: an IPv6 address stands in brackets: '::1:19470'"),
        ("--web.listen-address=unix:/run/x.sock", "--web.listen-address: not [HOST]:PORT: 'unix:/run/x.sock'"),
        ("--web.telemetry-path=metrics", "--web.telemetry-path: must start with a slash"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(flag: str, what: str) -> None:
    ended = run(flag)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert what in ended.stderr


def test_a_flag_that_is_not_there_is_status_2() -> None:
    ended = run("--config.fil=x")
    assert ended.returncode == 2
    assert "--config.fil=x" in ended.stderr


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("budget-exporter 0.")
    told = run("demo", "--help").stdout
    assert re.findall(r"--no-source\S*", told) == ["--no-source.NAME"]
    assert "--scenario" in told


def test_a_taken_port_is_one_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(f"--web.listen-address=127.0.0.1:{port}")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr


def test_one_of_two_ports_taken_is_one_line_and_status_1() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run("--web.listen-address=127.0.0.1:0", f"--web.listen-address=127.0.0.1:{port}")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port}: Address already in use" in ended.stderr


def test_a_host_that_is_none_is_one_line_and_status_1() -> None:
    ended = run("--web.listen-address=no.such.host.invalid:0")
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "cannot listen on no.such.host.invalid:0: " in ended.stderr
    assert "Unknown error" not in ended.stderr


def test_it_listens_on_ipv6_and_says_so_as_a_url_has_it(host: Host, tmp_path: Path) -> None:
    words = (f"--config.file={host.config}", f"--path.sysfs={host.roots.sysfs}", f"--path.procfs={host.roots.procfs}")
    with exporter(tmp_path / "exporter.log", "serve", *words, "--web.listen-address", "[::1]:0") as running:
        port = until(lambda: re.search(r"listening on \[::1\]:(\d+)", running.log), "it listens")[1]
        assert get(f"http://[::1]:{port}/-/healthy")[0] == 200


def test_a_hangup_during_the_start_is_no_end(host: Host, tmp_path: Path) -> None:
    """``systemctl reload`` may come at any moment; what it asks for is done when there is something to reload."""
    pipe = tmp_path / "slow.yaml"
    os.mkfifo(pipe)
    words = (f"--config.file={pipe}", f"--path.sysfs={host.roots.sysfs}", f"--path.procfs={host.roots.procfs}")
    with exporter(tmp_path / "exporter.log", "serve", *words) as running:
        with pipe.open("w") as config:  # opened once the exporter reads it
            running.signal(signal.SIGHUP)
            config.write("floors: {critical: 64MiB}\n")
        assert running.address  # it has read the first to its end
        with pipe.open("w") as config:
            config.write("floors: {critical: 32MiB}\n")
        floor = "budget_law_margin_floor_bytes"
        until(lambda: running.value(floor, severity="critical") == 32 * MIB, "the reload that was asked for")


def test_sigterm_ends_it_within_a_second(running: Exporter) -> None:
    running.signal(signal.SIGTERM)
    assert running.process.wait(1.0) == 0


def test_ctrl_c_ends_a_demo_and_its_player_without_a_word(tmp_path: Path) -> None:
    with exporter(tmp_path / "demo.log", "demo", prefix=["setsid"]) as running:
        running.ready()
        (player,) = (int(p) for p in children(running.process.pid))
        os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does
        assert running.process.wait(2.0) == 0
        assert "Traceback" not in running.log
    until(lambda: not Path(f"/proc/{player}").exists(), "the player is gone")


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_reload_takes_what_is_right_and_keeps_the_old_where_it_is_wrong(host: Host, running: Exporter) -> None:
    floor = ("budget_law_margin_floor_bytes", {"severity": "critical"})
    good = host.config.read_text()
    assert running.value(floor[0], **floor[1]) == 256 * MIB
    host.config.write_text(good + "floors: {critical: 128MiB}\n")
    running.signal(signal.SIGHUP)
    until(lambda: running.value(floor[0], **floor[1]) == 128 * MIB, "the new floor")
    host.config.write_text(good + "floor: {}\n")
    running.signal(signal.SIGHUP)
    until(lambda: running.value("budget_exporter_config_last_reload_successful") == 0, "the failed reload")
    assert running.value(floor[0], **floor[1]) == 128 * MIB
    assert f"{host.config}:" in running.log
    assert "floor: unknown key" in running.log
    host.config.write_text(good)
    running.signal(signal.SIGHUP)
    until(lambda: running.value("budget_exporter_config_last_reload_successful") == 1, "the mended reload")
    assert running.value(floor[0], **floor[1]) == 256 * MIB


def test_a_vanished_card_ends_its_series_and_comes_back_by_itself(host: Host, running: Exporter) -> None:
    used = "budget_device_memory_used_bytes"
    until(lambda: running.value(used, device=DEVICES[0]) is not None, "the first sample")
    amdgpu_tree.remove_card(host.roots.sysfs, DEVICES[1])
    until(lambda: running.value(used, device=DEVICES[1]) is None, "the series end")
    until(lambda: running.value("budget_source_success", source="amdgpu") == 0, "the source says so")
    assert running.value(used, device=DEVICES[0]) is not None
    amdgpu_tree.add_card(host.roots.sysfs, amdgpu_tree.R9700_PAIR[1])
    until(lambda: running.value(used, device=DEVICES[1]) is not None, "the card is back")
    until(lambda: running.value("budget_source_success", source="amdgpu") == 1, "the source has recovered")


def test_an_unreadable_counter_is_absent_and_never_zero(host: Host, running: Exporter) -> None:
    used = "budget_device_memory_used_bytes"
    until(lambda: running.value(used, device=DEVICES[0]) is not None, "the first sample")
    counter = amdgpu_tree.card_directory(host.roots.sysfs, DEVICES[0]) / "mem_info_vram_used"
    counter.write_text("")
    until(lambda: running.value(used, device=DEVICES[0]) is None, "the series ends")
    assert running.value("budget_source_success", source="amdgpu") == 0
    assert "mem_info_vram_used" in running.log
    counter.write_text(f"{5 * GIB}\n")
    until(lambda: running.value(used, device=DEVICES[0]) == 5 * GIB, "the figure is back")


def test_a_read_that_hangs_holds_up_nothing_else(host: Host, tmp_path: Path) -> None:
    """A FIFO where the kernel has a counter hangs the sampler's thread, at start and for ever."""
    counter = amdgpu_tree.card_directory(host.roots.sysfs, DEVICES[0]) / "mem_info_vram_used"
    counter.unlink()
    os.mkfifo(counter)
    with serve(host, tmp_path / "exporter.log") as running:
        until(lambda: running.value("budget_source_success", source="amdgpu") == 0, "the source is stale", 20)
        running.ready()
        assert running.value("budget_engine_up") == 1
        assert running.value("budget_reported_kv_pool_tokens") == 401408
        assert running.value("budget_device_memory_used_bytes", device=DEVICES[0]) is None
        assert running.get()[0] == 200  # the read hangs for ever: whoever waits for it is never answered
        running.signal(signal.SIGTERM)
        assert running.process.wait(2.0) == 0


def test_marks_counts_and_boot_facts_survive_a_restart_of_the_exporter(tmp_path: Path) -> None:
    host, engine = serving_host(tmp_path / "host")
    state = f"--state.file={tmp_path / 'state.json'}"
    with serve(host, tmp_path / "1.log", state) as first:
        until(lambda: first.value("budget_reported_kv_pool_tokens") == 401408, "the log is read")
        host.hold(DEVICES[0], SIZE - 300 * MIB)
        margin = ("budget_device_margin_bytes", DEVICES[0])
        until(lambda: first.value(margin[0], device=margin[1]) == 300 * MIB, "the spike is seen")
        host.hold(DEVICES[0], 20 * GIB)
        assert first.value("budget_engine_restarts_total") == 0
        first.stop()
    host.log.write_text("")  # the log is rotated away meanwhile
    engine.end()
    again = Engine(host, 5, HEALTHY, boot_log.SHAPE_G)
    with serve(host, tmp_path / "2.log", state) as second:
        second.ready()
        assert second.value("budget_engine_restarts_total") == 0
        again.start()
        until(lambda: second.value("budget_engine_restarts_total") == 1, "the restart is counted")
        second.stop()
    with serve(host, tmp_path / "3.log", state) as third:
        third.ready()
        assert third.value("budget_engine_restarts_total") == 1


def test_the_same_engine_keeps_its_mark_and_its_boot_facts_without_its_log(host: Host, tmp_path: Path) -> None:
    state = f"--state.file={tmp_path / 'state.json'}"
    with serve(host, tmp_path / "1.log", state) as first:
        until(lambda: first.value("budget_reported_kv_pool_tokens") == 401408, "the log is read")
        host.hold(DEVICES[0], SIZE - 300 * MIB)
        until(lambda: first.value("budget_device_margin_bytes", device=DEVICES[0]) == 300 * MIB, "the spike is seen")
        host.hold(DEVICES[0], 20 * GIB)
        first.stop()
    host.log.unlink()
    host.log.touch()
    with serve(host, tmp_path / "2.log", state) as second:
        second.ready()
        assert second.value("budget_device_margin_bytes", device=DEVICES[0]) == 300 * MIB
        assert second.value("budget_reported_kv_pool_tokens") == 401408
        assert second.value("budget_engine_phase", phase="serving") == 1


def test_a_broken_state_file_is_set_aside(host: Host, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("{")
    with serve(host, tmp_path / "exporter.log", f"--state.file={path}") as running:
        running.ready()
        assert "set aside" in running.log
    assert list(tmp_path.glob("state.json.broken-*"))


def test_a_state_file_that_cannot_be_written_is_said_once(host: Host, tmp_path: Path) -> None:
    with serve(host, tmp_path / "exporter.log", f"--state.file={tmp_path}/absent/state.json") as running:
        running.ready()
        running.stop()
        assert running.log.count("state cannot be written: No such file or directory") == 1


def test_an_engine_whose_environ_may_not_be_read_is_shown_and_the_capability_named(host: Host, tmp_path: Path) -> None:
    """The exporter as nobody, the engine's environ readable by root only, as the kernel has it."""
    if os.geteuid() != 0:
        unavailable("needs root to become somebody else")
    for pid in (p for p in host.roots.procfs.iterdir() if p.name.isdecimal()):
        (pid / "environ").chmod(0o400)
    nobody = pwd.getpwnam("nobody")
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.is_relative_to("/tmp") and parent != Path("/tmp"):  # noqa: S108 - pytest's own folders
            parent.chmod(0o755)
    prefix = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--"]
    roots = host.roots
    words = (
        f"--config.file={host.config}", f"--path.sysfs={roots.sysfs}", f"--path.procfs={roots.procfs}",
        f"--path.rootfs={roots.rootfs}", "--no-source.systemd", "--no-source.journal",
    )  # fmt: skip
    with exporter(tmp_path / "exporter.log", "serve", *words, prefix=prefix) as running:
        until(lambda: running.value("budget_engine_up") == 1, "the engine is shown")
        assert running.value("budget_source_success", source="procfs") == 0
        assert "CAP_SYS_PTRACE" in running.log


def test_a_log_of_a_gigabyte_in_one_line_and_of_noise_invents_nothing(host: Host, running: Exporter) -> None:
    until(lambda: running.value("budget_reported_kv_pool_tokens") == 401408, "the log is read")
    with host.log.open("r+b") as log:
        log.seek(0, os.SEEK_END)
        log.truncate(log.tell() + (1 << 30))  # a hole of zeros: one line of a gigabyte
        log.seek(0, os.SEEK_END)
        log.write(
            b"\n\xff\xfe\x00GPU KV cache size: 12\xff34 tokens\n(EngineCore pid=1) Estimated CUDA graph memory: x GiB\n"
        )
    until(lambda: (running.value("budget_exporter_unparsed_lines_total", source="file") or 0) > 0, "the counter", 60)
    assert running.value("budget_reported_kv_pool_tokens") == 401408
    resident = running.value("process_resident_memory_bytes")
    assert resident is not None
    assert resident < 80 * MIB


def test_it_opens_nothing_but_to_read_and_no_device_node(running: Exporter) -> None:
    until(lambda: running.value("budget_engine_up") == 1, "the engine is shown")
    for entry in Path(f"/proc/{running.process.pid}/fd").iterdir():
        target = str(entry.readlink())
        assert not target.startswith(("/dev/kfd", "/dev/neuron", "/dev/dri"))
        flags = (entry.parent.parent / "fdinfo" / entry.name).read_text().splitlines()[1].split()[1]
        if "/host/" in target:
            assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY, target


def test_it_fits_in_56_mib_with_two_ranks(running: Exporter) -> None:
    until(lambda: running.value("budget_reported_kv_pool_tokens") == 401408, "the log is read")
    resident = running.value("process_resident_memory_bytes")
    assert resident is not None
    assert resident <= 56 * MIB, f"{resident / MIB:.1f} MiB"


def test_only_what_is_watched_is_imported(running: Exporter) -> None:
    until(lambda: running.value("budget_engine_up") == 1, "the engine is shown")
    mapped = Path(f"/proc/{running.process.pid}/maps").read_text()
    assert "torch" not in mapped
    assert "dbus_fast" not in mapped
