"""An engine's own config.json, found as the engine finds it: by path, in the hub's cache, inside its own root."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from budget_exporter.demo.procfs_tree import Process, add, build, vllm_engine
from budget_exporter.engines.model_files import SETTLED
from budget_exporter.engines.model_reader import AGAIN, SILENT, ModelReader
from budget_exporter.engines.model_wanted import folder, wanted
from budget_exporter.engines.procfs import source
from budget_exporter.errors import LawError
from budget_exporter.facts.engine import ProcessKey
from budget_exporter.facts.model import Attention, ModelFiles
from budget_exporter.roots import Roots

SERVE = ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 2048,
}
COMMIT, OTHER = "0" * 39 + "a", "0" * 39 + "b"
KEY = ProcessKey(9, 1000, "boot")


class Host:
    """One process in a root file system of its own, with whatever files a test lays there."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "container"
        self.root.mkdir()
        self.procfs = tmp_path / "proc"
        build(self.procfs, [Process(9, 1, SERVE, cwd="/srv", root=self.root)], 1, "boot")
        (self.root / "srv").mkdir()

    def write(self, path: str, content: object = LLAMA, changed: float = 0.0) -> Path:
        """Lay a file at ``path`` inside the root: JSON, or text as it is; ``changed`` is its Unix time."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content if isinstance(content, str) else json.dumps(content))
        os.utime(place, (changed, changed))
        return place

    def hub(self, cache: str, name: str, commit: str = COMMIT, ref: str = "main", content: object = LLAMA) -> None:
        """Lay a snapshot into the hub's cache as huggingface_hub does: a link into its blobs."""
        place = f"{cache}/{folder(name)}"
        blob = self.write(f"{place}/blobs/{commit}", content)
        link = self.root / f"{place}/snapshots/{commit}/config.json".lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../blobs/{blob.name}")
        self.write(f"{place}/refs/{ref}", commit)

    def read(
        self, *args: str, environ: Mapping[str, str] | None = None, cwd: str | None = "/srv", started: float = 1e9
    ) -> ModelFiles:
        """Return what is read of a server with ``args`` whose home is ``/root``."""
        places = {"HOME": "/root", **environ} if environ is not None else {"HOME": "/root"}
        return settled(ModelReader(self.procfs, wait=5.0), (*SERVE, *args), places, cwd, started)


def settled(
    reader: ModelReader,
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    cwd: str | None = "/srv",
    started: float = 1e9,
) -> ModelFiles:
    return until(lambda: reader.of(KEY, argv, environ, cwd, started), lambda files: files is not SILENT)


def until(read: Callable[[], ModelFiles], done: Callable[[ModelFiles], bool]) -> ModelFiles:
    deadline = time.monotonic() + 10
    while not done(files := read()):
        assert time.monotonic() < deadline, files
        time.sleep(0.01)
    return files


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def layers(files: ModelFiles) -> int:
    assert files.config is not None, files.notes
    return len(files.config.layers)


# -- a directory


@pytest.mark.parametrize("model", ["/models/tiny", "../models/tiny", "/models/../models//tiny/"])
def test_a_directory_is_meant_as_the_engine_sees_it(host: Host, model: str) -> None:
    host.write("/models/tiny/config.json")
    files = host.read(model, "--max-model-len", "512")
    assert files.notes == files.applied == ()
    assert files.config is not None
    assert files.config.layers == ((Attention(2, 32, 32),),) * 2
    assert files.config.architecture == "LlamaForCausalLM"


def test_the_model_flag_and_a_config_file_name_it_too(host: Host) -> None:
    host.write("/models/tiny/config.json")
    host.write("/srv/engine.yaml", "model: /models/tiny\n")
    assert layers(host.read("--model", "/models/tiny")) == 2
    assert layers(host.read("--config", "engine.yaml")) == 2
    (note,) = host.read("--config", "gone.yaml").notes
    assert "--config gone.yaml" in note


def test_links_stay_inside_the_container(host: Host, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 99}))
    host.write("/real/config.json")
    (host.root / "absolute").symlink_to("/real")
    (host.root / "climbing").symlink_to("../../../../real")
    (host.root / "away").symlink_to(outside)
    (host.root / "up").symlink_to("../outside")
    assert layers(host.read("/absolute")) == 2
    assert layers(host.read("/climbing")) == 2
    for model in ("/away", "/up"):
        files = host.read(model)
        assert files.config is None
        assert "no such directory" in files.notes[0]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ({"model_type": "nothing_known"}, "is not known"),
        ({**LLAMA, "num_hidden_layers": -1}, "num_hidden_layers"),
        (json.dumps(LLAMA) + " " * (1 << 20), "larger than 1 MiB"),
    ],
    ids=["empty", "cut", "deep", "a list", "unknown", "negative", "huge"],
)
def test_a_config_that_says_nothing_costs_a_note(host: Host, content: object, why: str) -> None:
    host.write("/models/tiny/config.json", content)
    files = host.read("/models/tiny")
    assert files.config is None
    (note,) = files.notes
    assert note.startswith("the model's config.json: ")
    assert why in note


def test_what_is_no_file_costs_a_note(host: Host) -> None:
    (host.root / "models/fifo").mkdir(parents=True)
    os.mkfifo(host.root / "models/fifo/config.json")
    (host.root / "models/folder/config.json").mkdir(parents=True)
    (host.root / "models/loop").symlink_to("loop")
    for model, why in (("fifo", "plain file"), ("folder", "directory"), ("loop", "symbolic links")):
        assert why in host.read(f"/models/{model}").notes[0]
    host.write("/models/latin/config.json").write_bytes(b"\xe9")
    assert "UTF-8" in host.read("/models/latin").notes[0]


def test_a_file_that_may_not_be_read_names_the_capability(host: Host) -> None:
    host.write("/models/tiny/config.json").chmod(0)
    was = os.geteuid()
    os.seteuid(was or 65534)
    try:
        files = host.read("/models/tiny")
    finally:
        os.seteuid(was)
    assert "CAP_DAC_READ_SEARCH" in files.notes[0]


def test_a_config_changed_after_the_start_may_not_be_the_engines(host: Host) -> None:
    host.write("/models/tiny/config.json", changed=1e9 + SETTLED - 1)
    assert layers(host.read("/models/tiny")) == 2
    host.write("/models/tiny/config.json", changed=1e9 + SETTLED + 1)
    assert "changed since the engine started" in host.read("/models/tiny").notes[0]


def test_formats_that_are_not_read_are_said(host: Host) -> None:
    host.write("/models/mistral/params.json", {"dim": 4096})
    (host.root / "models/empty").mkdir()
    host.write("/models/quant.gguf", "GGUF")
    host.write("/models/tiny/config.json")
    for args, why in (
        (("/models/mistral",), "params.json (Mistral's own format) is not read here"),
        (("/models/empty",), "not there"),
        (("/models/quant.gguf",), "GGUF"),
        (("org/quant-GGUF:Q4_K_M",), "GGUF"),
        (("s3://key:secret@bucket/model",), "object store"),
        (("/models/tiny", "--config-format", "mistral"), "--config-format mistral"),
        ((), "name no model"),
        (("/models/none",), "no such directory"),
    ):
        files = host.read(*args)
        assert files.config is None
        assert why in files.notes[0]
        assert "secret" not in files.notes[0]


# -- the hub's cache


@pytest.mark.parametrize(
    ("cache", "environ"),
    [
        ("/root/.cache/huggingface/hub", {}),
        ("/var/xdg/huggingface/hub", {"XDG_CACHE_HOME": "/var/xdg"}),
        ("/data/hf/hub", {"HF_HOME": "/data/hf"}),
        ("/root/hf/hub", {"HF_HOME": "~/hf"}),
        ("/hub", {"HF_HUB_CACHE": "/hub", "HF_HOME": "/data/hf"}),
        ("/older", {"HUGGINGFACE_HUB_CACHE": "/older"}),
        ("/tf", {"TRANSFORMERS_CACHE": "/tf"}),
    ],
)
@pytest.mark.parametrize("model", ["org/Tiny-Llama.1", "gpt2"])
def test_the_hubs_cache_by_each_of_its_variables(
    host: Host, cache: str, environ: Mapping[str, str], model: str
) -> None:
    host.hub(cache, model)
    assert layers(host.read(model, environ=environ)) == 2
    assert "network is not asked" in host.read("org/another", environ=environ).notes[0]


def test_the_download_folder_is_a_cache_too(host: Host) -> None:
    host.hub("/weights", "org/tiny")
    assert layers(host.read("org/tiny", "--download-dir", "/weights")) == 2


def test_a_revision_is_a_branch_or_a_commit(host: Host) -> None:
    hub = "/root/.cache/huggingface/hub"
    host.hub(hub, "org/tiny")
    host.hub(hub, "org/tiny", OTHER, "refs/pr/1", {**LLAMA, "num_hidden_layers": 3})
    assert layers(host.read("org/tiny")) == 2
    assert layers(host.read("org/tiny", "--revision", COMMIT)) == 2
    assert layers(host.read("org/tiny", "--revision", "refs/pr/1")) == 3
    assert layers(host.read("org/tiny", "--revision", OTHER)) == 3
    for revision, why in (("none", "does not hold"), ("../../x", "no name of a branch")):
        assert why in host.read("org/tiny", "--revision", revision).notes[0]
    host.write(f"{hub}/models--org--tiny/refs/main", "../../../etc")
    assert "names no commit" in host.read("org/tiny").notes[0]


def test_a_branch_that_moved_after_the_start_leaves_open_what_was_read(host: Host) -> None:
    hub = "/root/.cache/huggingface/hub"
    host.hub(hub, "org/tiny")
    host.write(f"{hub}/models--org--tiny/refs/main", COMMIT, changed=2e9)
    assert "changed since the engine started" in host.read("org/tiny").notes[0]


def test_two_caches_that_differ_leave_open_which_was_read(host: Host) -> None:
    host.hub("/tf", "org/tiny")
    host.hub("/root/.cache/huggingface/hub", "org/tiny")
    environ = {"TRANSFORMERS_CACHE": "/tf"}
    assert layers(host.read("org/tiny", environ=environ)) == 2
    host.hub("/dir", "org/tiny", OTHER, content={**LLAMA, "num_hidden_layers": 3})
    assert "two caches" in host.read("org/tiny", "--download-dir", "/dir", environ=environ).notes[0]


def test_a_snapshot_of_mistrals_format_is_said(host: Host) -> None:
    place = "/root/.cache/huggingface/hub/models--org--tiny"
    host.write(f"{place}/refs/main", COMMIT)
    host.write(f"{place}/snapshots/{COMMIT}/params.json", {})
    assert "Mistral's own format" in host.read("org/tiny").notes[0]


def test_a_folder_of_the_same_name_goes_before_the_hub(host: Host) -> None:
    host.hub("/root/.cache/huggingface/hub", "org/tiny")
    host.write("/srv/org/tiny/config.json", {**LLAMA, "num_hidden_layers": 3})
    assert layers(host.read("org/tiny")) == 3


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"HOME": ""}, "no HOME"),
        ({"HF_HOME": "~vllm/hf"}, "no HOME"),
        ({"HF_HOME": "$SCRATCH/secret"}, "holds a variable"),
        ({"VLLM_USE_MODELSCOPE": "True"}, "ModelScope"),
        ({"VLLM_MODEL_REDIRECT_PATH": "/redirect"}, "VLLM_MODEL_REDIRECT_PATH"),
    ],
)
def test_an_environment_that_leaves_it_open_is_said(host: Host, environ: Mapping[str, str], why: str) -> None:
    files = host.read("org/tiny", environ=environ)
    assert why in files.notes[0]
    assert "secret" not in files.notes[0]


def test_without_the_environment_only_paths_are_read(host: Host) -> None:
    host.write("/models/tiny/config.json")
    reader = ModelReader(host.procfs, wait=5.0)
    assert "may not be read" in settled(reader, (*SERVE, "org/tiny"), None).notes[0]
    reader = ModelReader(host.procfs, wait=5.0)
    assert layers(settled(reader, (*SERVE, "/models/tiny"), None, None)) == 2
    reader = ModelReader(host.procfs, wait=5.0)
    assert "working directory" in settled(reader, (*SERVE, "models/tiny"), None, None).notes[0]


@pytest.mark.parametrize("name", ["a/b/c", "../x", "a--b", "a b", "", "é", "a/"])
def test_what_is_no_name_of_the_hub_is_never_looked_for(name: str) -> None:
    assert folder(name) is None


# -- what else the flags say


def test_a_config_of_its_own_stands_in_place_of_the_models(host: Host) -> None:
    host.write("/config/config.json")
    files = host.read("/models/quant.gguf", "--hf-config-path", "/config")
    assert layers(files) == 2
    assert files.applied == ("hf-config-path",)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--hf-overrides", '{"num_hidden_layers": 5}'), 5),
        (("--hf-overrides.num_hidden_layers", "5"), 5),
        (("--hf-overrides", '{"rope_scaling": {"factor": 4.0}, "max_position_embeddings": 8192}'), 2),
    ],
)
def test_overrides_are_put_over_the_file(host: Host, args: Sequence[str], expected: int) -> None:
    host.write("/models/tiny/config.json")
    files = host.read("/models/tiny", *args)
    assert layers(files) == expected
    assert files.applied == ("hf-overrides",)


def test_overrides_reach_into_the_language_model(host: Host) -> None:
    host.write("/models/tiny/config.json", {"model_type": "llava", "text_config": LLAMA})
    for flags in (
        ("--hf-overrides", '{"text_config": {"num_hidden_layers": 5}}'),
        ("--hf-overrides.text_config.num_hidden_layers", "5"),
    ):
        assert layers(host.read("/models/tiny", *flags)) == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "--hf-overrides: not JSON"),
        ("[1]", "--hf-overrides: not a JSON object"),
        ('{"n_layer": 5}', "--hf-overrides n_layer: not in config.json"),
        ('{"quantization_config.bits": 4}', "--hf-overrides quantization_config"),
        ('{"num_hidden_layers": "many"}', "num_hidden_layers must be"),
    ],
)
def test_overrides_that_are_not_understood_leave_the_model_unknown(host: Host, text: str, why: str) -> None:
    host.write("/models/tiny/config.json")
    files = host.read("/models/tiny", "--hf-overrides", text)
    assert files.config is None
    assert why in files.notes[0]
    assert files.applied == ()


def test_the_model_that_drafts_is_read_as_well(host: Host) -> None:
    host.write("/models/tiny/config.json")
    host.hub("/root/.cache/huggingface/hub", "org/eagle", content={**LLAMA, "num_hidden_layers": 1})
    both = '{"model": "org/eagle", "method": "eagle3", "num_speculative_tokens": 3}'
    for flags in (("--speculative-config", both), ("--spec-model", "org/eagle", "--spec-method", "eagle3")):
        files = host.read("/models/tiny", *flags)
        assert files.draft is not None
        assert len(files.draft.layers) == 1
        assert files.notes == ()
    (note,) = host.read("/models/tiny", "--spec-model", "org/none").notes
    assert note.startswith("the draft model's config.json: ")
    other = json.dumps({"model": "org/eagle", "draft_tensor_parallel_size": 1})
    assert "divided" in host.read("/models/tiny", "-tp", "2", "--speculative-config", other).notes[0]
    assert host.read("/models/tiny", "--speculative-config", other).draft is not None


def test_a_model_that_drafts_for_itself_has_no_other_config(host: Host) -> None:
    host.write("/models/tiny/config.json")
    for text in ('{"method": "mtp", "model": "org/x"}', '{"model": "/models/tiny"}', '{"method": "ngram"}'):
        files = host.read("/models/tiny", "--speculative-config", text)
        assert (files.draft, files.notes) == (None, ())


def test_flags_that_are_no_objects_name_themselves() -> None:
    with pytest.raises(LawError, match="--speculative-config: not a JSON object"):
        wanted(("serve", "m", "--speculative-config", "3"), str)


# -- the reader


def test_a_model_that_is_fetched_later_is_found_then(host: Host) -> None:
    now = [0.0]
    reader = ModelReader(host.procfs, lambda: now[0], wait=5.0)
    argv, environ = (*SERVE, "/models/tiny"), {"HOME": "/root"}
    assert settled(reader, argv, environ).config is None
    host.write("/models/tiny/config.json")
    assert reader.of(KEY, argv, environ, "/srv", 1e9).config is None
    now[0] = AGAIN
    assert until(lambda: reader.of(KEY, argv, environ, "/srv", 1e9), lambda f: f.config is not None).notes == ()
    host.write("/models/tiny/config.json", "{")
    now[0] = 3 * AGAIN
    assert reader.of(KEY, argv, environ, "/srv", 1e9).config is not None
    reader.keep([KEY])
    assert reader.of(KEY, argv, environ, "/srv", 1e9).config is not None
    reader.keep([])
    assert settled(reader, argv, environ).config is None


def test_a_name_that_no_file_can_have_costs_a_note(host: Host) -> None:
    host.write("/models/tiny/config.json")
    files = host.read("/models/tiny", "--spec-model", "a\0b")
    assert files.config is not None
    assert "not a path" in files.notes[0]


def test_an_engine_that_is_found_brings_its_model_along(tmp_path: Path) -> None:
    root = tmp_path / "container"
    place = root / "hf/hub/models--org--tiny"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text(COMMIT)
    (place / f"snapshots/{COMMIT}").mkdir(parents=True)
    (place / f"snapshots/{COMMIT}/config.json").write_text(json.dumps(LLAMA))
    environ = {"HF_HOME": "/hf", "HF_TOKEN": "hf_secret", "VLLM_USE_V1": "1"}
    build(tmp_path / "proc", vllm_engine(4000, (*SERVE, "org/tiny"), environ, root=root), 4_000_000_000, "b")
    finder = source(Roots(procfs=tmp_path / "proc"))

    def look() -> ModelFiles:
        (sighting,) = finder.find()[0]
        assert sighting.environ == {"VLLM_USE_V1": "1"}
        assert sighting.model_files is not None
        return sighting.model_files

    files = until(look, lambda files: files is not SILENT)
    assert files.notes == ()
    assert layers(files) == 2
    add(tmp_path / "proc", replace(vllm_engine(5000, (*SERVE, "/nowhere"), {})[0]))
    deadline = time.monotonic() + 10
    while True:
        notes = [s.model_files.notes for s in finder.find()[0] if s.model_files is not None]
        if notes == [(), ("the model's config.json: there is no such directory, and it is no name of the hub's",)]:
            break
        assert time.monotonic() < deadline, notes
        time.sleep(0.01)
