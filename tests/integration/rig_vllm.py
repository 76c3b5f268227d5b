"""A real vLLM on the CPU: tiny models made here, engines booted, waited for, and ended with all they left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.integration.processes import free_port, get, until
from tests.real_parts import unavailable

__all__ = ["MODELS", "VERSION", "Vllm", "installed", "vllm", "write_model"]

INSTALL = Path(__file__).with_name("install_vllm.sh")
VERSION = "0.32.0"
BOOT = 300.0
"""Seconds a boot may take; 22 to 57 were measured on two busy cores."""
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_SHARED = re.compile(r"(/dev/shm/\S+)")
_COMMON = {
    "vocab_size": 259,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "tiny-llama": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "tiny-gemma2": {
        **_COMMON,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": 64,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
    },
    "tiny-mla": {
        **_COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 2,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
        "scoring_func": "softmax",
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 1,
        "routed_scaling_factor": 1.0,
    },
}
"""Models by name: config.json of real architectures with as few and small layers as they boot with."""


def installed() -> Path:
    """Return the venv that holds vLLM; skip where it cannot be had, fail so in CI."""
    venv = Path(subprocess.run([INSTALL, "--where"], capture_output=True, text=True, check=True).stdout.strip())
    if not (venv / ".complete").exists():
        why = venv.with_name(f"{venv.name}.why")
        unavailable(why.read_text().strip() if why.exists() else "no vLLM for the tests yet: run make real-parts")
    return venv


def write_model(folder: Path, name: str) -> Path:
    """Write a model without weights (vLLM's ``--load-format dummy`` makes them up) into ``folder``; return its path."""
    model = folder / name
    model.mkdir(parents=True, exist_ok=True)
    for file, content in (
        ("config.json", MODELS[name]),
        ("generation_config.json", {key: _COMMON[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}),
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **_SPECIAL}),
    ):
        (model / file).write_text(json.dumps(content), encoding="utf-8")
    return model


def _tokenizer() -> dict[str, Any]:
    """Return a tokenizer whose tokens are the 256 bytes, written as byte-level BPE writes them, and three more."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    letters = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    special = ["<unk>", "<s>", "</s>"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": at, "content": text, "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for at, text in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "vocab": {text: at for at, text in enumerate([*special, *letters])},
            "merges": [],
        },
    }


class Vllm:
    """
    One ``vllm serve`` in a session of its own; its log is a file.

    ``flags`` are given as they are, ``environ`` besides what keeps it off the network.
    """

    def __init__(
        self, folder: Path, model: Path, *flags: str, environ: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        venv = installed()
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / "boot.log"
        self.port = port or free_port()
        self.flags = ("--load-format", "dummy", "--host", "127.0.0.1", "--port", str(self.port), *flags)
        # Sockets have paths of 107 characters at most: not below pytest's folder.
        self._scratch = tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True)
        self.environ = {
            "PATH": f"{venv}/bin:/usr/bin:/bin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "TMPDIR": self._scratch.name,
            **(environ or {}),
        }
        self._shared: set[Path] = set()
        self.started = time.time()
        with self.log_file.open("wb") as output:
            self.process = subprocess.Popen(
                [venv / "bin" / "vllm", "serve", model, *self.flags],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the PID of its main process."""
        return self.process.pid

    @property
    def log(self) -> str:
        """Return what it has written so far."""
        return self.log_file.read_text(errors="replace")

    def health(self) -> int | None:
        """Return the status of its health endpoint, None where nobody answers."""
        try:
            return get(f"http://127.0.0.1:{self.port}/health", timeout=5)[0]
        except OSError:
            return None

    def serving(self) -> Vllm:
        """Wait until it is healthy; return itself."""

        def look() -> bool:
            self._look_for_leftovers()
            assert self.process.poll() is None, f"vllm ended with {self.process.returncode}: {self.log[-4000:]}"
            return self.health() == 200

        until(look, f"vllm on port {self.port} is healthy", BOOT, pause=0.5)
        return self

    def ended(self, limit: float = BOOT) -> int:
        """Wait until its main process has ended by itself; return the exit status."""

        def look() -> bool:
            self._look_for_leftovers()
            return self.process.poll() is not None

        until(look, f"vllm on port {self.port} ends", limit, pause=0.1)
        return int(self.process.returncode)

    def members(self) -> dict[int, str]:
        """Return the title (or first word) of each process of its session by PID."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.pid and fields[0] not in "ZX":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        return found

    def worker(self, title: str) -> int:
        """Return the PID of the process that calls itself ``title``."""
        (pid,) = [pid for pid, called in self.members().items() if called == title]
        return pid

    def samples(self) -> list[tuple[str, dict[str, str], float]]:
        """Return name, labels and value of each sample of its own metrics."""
        status, text = get(f"http://127.0.0.1:{self.port}/metrics", timeout=30)
        assert status == 200
        return [
            (sample.name, dict(sample.labels), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def cache_config(self) -> dict[str, str]:
        """Return the labels of its ``vllm:cache_config_info``; of several engines, the first."""
        return next(labels for name, labels, _ in self.samples() if name == "vllm:cache_config_info")

    def stop(self) -> None:
        """End it, first as Ctrl-C does, then with all its group; remove what it left behind."""
        self._look_for_leftovers()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not self.members(), f"all processes of vllm {self.pid} have gone")
        for path in self._shared:
            path.unlink(missing_ok=True)
        self._scratch.cleanup()

    def _look_for_leftovers(self) -> None:
        """Note the shared memory its processes use: one that is killed does not remove it."""
        for pid in self.members():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text()
                self._shared.update(Path(path) for path in _SHARED.findall(maps))


@contextlib.contextmanager
def vllm(
    folder: Path, model: Path, *flags: str, environ: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[Vllm]:
    """Run ``vllm serve model flags``; end it and all that belongs to it."""
    running = Vllm(folder, model, *flags, environ=environ, port=port)
    try:
        yield running
    finally:
        running.stop()
