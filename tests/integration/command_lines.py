"""Command lines for a vLLM server, made at random: well-typed ones, and ones with the mistakes people make."""

from __future__ import annotations

from pathlib import Path
from random import Random

__all__ = ["CONFIGS", "FORK", "Lines"]


def _words(text: str) -> list[str]:
    return text.split()


FORK = frozenset(
    _words("""enable-expert-offload expert-direct-load expert-offload-mem expert-precise-memory expert-resident-layers
    ple-cache-gb ple-cache-reuse ple-nvme-offload""")
)
"""Flags of a fork: the real parser does not know them."""
CONFIGS = {
    "plain.yaml": "max-model-len: 512\nmax_num_seqs: 4\ngpu-memory-utilization: 0.5\nkv-cache-memory-bytes: 32M\n",
    "model.yml": "model: from-file\nenforce-eager: true\nserved-model-name: [a, b]\ntensor-parallel-size: 2\n",
    "nested.yaml": "compilation-config:\n  cudagraph_capture_sizes: [1, 2]\n  cudagraph_mode: none\nblock-size: 16\n",
    "off.yaml": "enable-prefix-caching: false\nenforce-eager: false\nno-async-scheduling: true\n",
    "wrong.yaml": "max-num-seqs: 1k\n",
    "unknown.yaml": "no-such-flag: 1\n",
    "list.yaml": "- max-num-seqs\n",
    "number.yaml": "1: 2\n",
    "broken.yaml": "a: [\n",
    "empty.yaml": "",
    "plain.txt": "max-num-seqs: 4\n",
}
_WHOLE = (
    "1",
    "2",
    "4",
    "16",
    "128",
    "0",
    "-1",
    "-5",
    "1_0",
    "+3",
    " 7 ",
    "1k",
    "1.5",
    "x",
    "",
    "None",
    "1e3",
    "\u0664",
)
_HUMAN = (
    *("32k", "32K", "64M", "1.5g", "1.5G", "25.6k", "1.001k", "2t", "2T", "64Mi", "64MB", "1e9", "1_000_000", "4096"),
    *("auto", "AUTO", "-1", " 8K ", "None", "", "0", "-7", "1.5", "k", "0x10", "1 k"),
)
_REAL = ("0.9", "0.92", "1", "1.0", "1.01", "0", "-0.5", ".5", "5e-1", "nan", "inf", "x", "", "None", "1_0.5")
_TEXT = ("auto", "fp8", "x", "", "None", "float16", "bfloat16", "native", "align", "mp", "ray", "dummy", "1,2", "0,1")
_VALUES = {
    **dict.fromkeys(
        _words("""api-server-count block-size data-parallel-rank data-parallel-size data-parallel-size-local
        data-parallel-start-rank decode-context-parallel-size max-cudagraph-capture-size max-lora-rank max-loras
        max-num-seqs nnodes node-rank pipeline-parallel-size port prefill-context-parallel-size tensor-parallel-size
        mamba-block-size num-gpu-blocks-override"""),
        _WHOLE,
    ),
    **dict.fromkeys(_words("max-model-len max-num-batched-tokens kv-cache-memory-bytes"), _HUMAN),
    **dict.fromkeys(
        _words("""gpu-memory-utilization device-memory-utilization cpu-offload-gb kv-offloading-size
        mm-ipc-gpu-memory-gb mm-processor-cache-gb"""),
        _REAL,
    ),
    **dict.fromkeys(
        _words("""kv-cache-dtype dtype kv-offloading-backend mamba-cache-dtype mamba-ssm-cache-dtype mamba-cache-mode
        load-format quantization distributed-executor-backend data-parallel-backend device-ids"""),
        _TEXT,
    ),
}
_SHORT = _words("-tp -pp -dp -dcp -pcp -dpn -dpr -dpl -dpb -asc -n -r -q")
_SWITCHES = _words("""enforce-eager enable-prefix-caching async-scheduling enable-chunked-prefill enable-expert-parallel
    enable-sleep-mode enable-cumem-allocator enable-lora disable-hybrid-kv-cache-manager""")
_GLUED = (
    *("-O3", "-O0", "-O=2", "-O 1", "-O.level=3", "-O", '-O {"level":3}', "-tp2", "-tp=2", "-ep", "-t 2", "-d 2"),
    *("-cc.cudagraph_mode=NONE", "-cc.cudagraph_capture_sizes+ 1,2,4", "-cc.cudagraph_capture_sizes=[8,16]"),
    *("-cc.max_cudagraph_capture_size 16", "-cc.max_cudagraph_capture_size=1k", "--compilation-config.mode=3"),
    *('-cc {"cudagraph_mode":"piecewise"}', '-cc {"max_cudagraph_capture_size":1k}', "-cc {bad", "-cc 3", "-cc.mode"),
    *("--hf-overrides.num_hidden_layers 1", '--hf-overrides {"a":1}', "--hf-overrides {bad}", "--hf_overrides.a.b 1k"),
    *('-sc {"method":"ngram","num_speculative_tokens":3}', "-sc.method=ngram", "-sc {bad", "--spec-tokens 3"),
    *("--spec-method ngram", "--spec-method none", "--spec-tokens None", "--kv-transfer-config {bad"),
    *("--cudagraph-capture-sizes 1 2 4", "--cudagraph-capture-sizes 1 x", "--cudagraph-capture-sizes"),
    *("--swap-space 4", "--disable-log-requests", "--bogus-flag 1", "--no-such", "-x", "--watchdog-config x"),
    *("--seed 1", "--trust-remote-code", "--host 127.0.0.1", "--revision main", "--uvicorn-log-level info"),
    *("--api-key a b", "--headless", "--hf-token", "--hf-token t", "--disable-log-stats", "--uvicorn-log-level=info"),
    *("--served-model-name a b c", "--served_model_name=a", "--lora-target-modules a b"),
)
_STRAY = ("stray", "-5", "-1.5", "", "--", "a b", "-", "--=", "-.5", "--.a=1", "---", "--gpu-mem=")


class Lines:
    """An endless supply; ``folder`` holds the files of ``CONFIGS``."""

    def __init__(self, random: Random, folder: Path) -> None:
        self._random = random
        self._folder = folder

    def line(self) -> tuple[list[str], bool]:
        """Return the arguments of a server, and whether they are those of ``vllm`` (else of the API server module)."""
        choose = self._random
        parts = [self._part() for _ in range(choose.choice((0, 1, 1, 2, 2, 3, 4, 6)))]
        if choose.random() < 0.04:
            parts.insert(choose.randrange(len(parts) + 1), [choose.choice(_STRAY)])
        if choose.random() < 0.12:
            parts.insert(choose.randrange(len(parts) + 1), self._config())
        serve = choose.random() < 0.85
        place = choose.random()
        if place < 0.75:
            model = ["M"] if serve else ["--model", "M"]
            parts.insert(0, model)
        elif place < 0.92:
            model = choose.choice((["M"], ["--model", "M"], ["--model=M"], ["--model="], ["--model"], ["M", "N"]))
            parts.insert(choose.randrange(len(parts) + 1), model)
        args = [word for part in parts for word in part]
        return (["serve", *args] if serve else args), serve

    def _part(self) -> list[str]:
        kind = self._random.random()
        if kind < 0.6:
            name = self._random.choice(sorted(_VALUES))
            return self._valued(self._spelled(f"--{name}"), self._value(_VALUES[name]))
        if kind < 0.7:
            return self._valued(self._random.choice(_SHORT), self._value(_WHOLE))
        if kind < 0.82:
            return self._switch()
        return self._random.choice(_GLUED).split()

    def _value(self, pool: tuple[str, ...]) -> str:
        # The first few are well-typed everywhere: enough lines must be taken.
        return self._random.choice(pool[:4] if self._random.random() < 0.7 else pool)

    def _spelled(self, flag: str) -> str:
        if self._random.random() < 0.25:
            flag = flag[: self._random.randint(min(7, len(flag)), len(flag))]
        if self._random.random() < 0.3:
            flag = "--" + "".join(self._random.choice("-_") if c == "-" else c for c in flag[2:])
        return flag

    def _valued(self, flag: str, value: str) -> list[str]:
        kind = self._random.random()
        if kind < 0.03:
            return [flag]
        return [f"{flag}={value}"] if kind < 0.4 else [flag, value]

    def _switch(self) -> list[str]:
        flag = self._random.choice(("--", "--no-")) + self._random.choice(_SWITCHES)
        kind = self._random.random()
        if kind < 0.04:
            return [f"{flag}=True"]
        return [flag, "false"] if kind < 0.08 else [self._spelled(flag)]

    def _config(self) -> list[str]:
        path = str(
            self._folder / self._random.choice([*CONFIGS, "plain.yaml", "model.yml", "nested.yaml", "none.yaml"])
        )
        return self._random.choice(
            (
                ["--config", path],
                ["--config", path],
                ["--config", path],
                [f"--config={path}"],
                ["--config"],
                ["--conf", path],
            )
        )
