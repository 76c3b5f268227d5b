"""
What changed in vLLM's command line from release to release, as data.

Source of every row: ``engine/arg_utils.py``, ``entrypoints/openai/cli_args.py`` and ``utils/argparse_utils.py`` (before
0.11 ``utils.py``) of 0.8.5, 0.9.0.1, 0.9.2, 0.10.0, 0.10.1.1, 0.10.2, 0.11.0 to 0.11.2, 0.12, 0.13, 0.14.1, 0.15.1,
0.16, 0.17.1, 0.18 to 0.33; 0.32 was asked of its own parser. A release between two of these may have a flag of the
later one.
"""

from __future__ import annotations

import re

__all__ = [
    "AUTO_LENGTH",
    "CHOICES",
    "CHOICES_OF",
    "COMPILATION",
    "HUMAN",
    "LEVEL_FLAG",
    "LEVEL_ONLY",
    "NESTED_CONFIG",
    "NEWEST",
]
__all__ += ["RANGES", "TERA", "Version", "release"]

Version = tuple[int, ...]
NEWEST: Version = (0, 33)
_BUILT_BETWEEN = re.compile(r"dev|\d(?:a|b|rc)\d|\+g[0-9a-f]{7}")
_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)+)")
_OLDEST: Version = (0, 8)

# First release with the flag (empty: there before 0.8.5), first without it (empty: still there in 0.33), names.
_ROWS = (
    ("", "0.10", "device long-lora-scaling-factors qlora-adapter-name-or-path tokenizer-pool-extra-config"),
    ("", "0.10", "use-v2-block-manager"),
    ("", "0.10.1.1", "multi-step-stream-outputs num-scheduler-steps"),
    ("", "0.10.2", "override-neuron-config"),
    ("", "0.11", "disable-async-output-proc max-seq-len-to-capture"),
    ("", "0.11.1", "enable-lora-bias"),
    ("", "0.12", "lora-extra-vocab-size override-pooler-config -O"),
    ("", "0.13", "disable-mm-preprocessor-cache"),
    ("", "0.17.1", "disable-log-requests logits-processor-pattern"),
    ("", "0.18", "swap-space"),
    ("", "0.28", "calculate-kv-scales"),
    ("0.9", "0.13", "cuda-graph-sizes"),
    ("0.9", "", "data-parallel-address data-parallel-rpc-port data-parallel-size-local data-parallel-start-rank"),
    ("0.9", "", "headless kv-events-config -dpa -dpl -dpp -dpr"),
    ("0.9.1", "0.12", "eplb-log-balancedness eplb-step-interval eplb-window-size"),
    ("0.9.1", "0.13", "enable-multimodal-encoder-data-parallel"),
    ("0.9.1", "0.28", "override-attention-dtype"),
    ("0.9.1", "", "api-server-count data-parallel-backend data-parallel-rank disable-hybrid-kv-cache-manager"),
    ("0.9.1", "", "enable-eplb log-config-file -dpb -dpn"),
    ("0.10", "", "data-parallel-hybrid-lb default-mm-loras interleave-mm-strings logprobs-mode"),
    ("0.10.1", "", "enable-log-requests kv-sharing-fast-prefill logits-processors mamba-cache-dtype"),
    ("0.10.1", "", "mamba-ssm-cache-dtype mm-processor-cache-gb skip-mm-profiling"),
    ("0.10.2", "", "decode-context-parallel-size eplb-config kv-cache-memory-bytes mm-encoder-tp-mode -dcp"),
    ("0.11", "", "dbo-decode-token-threshold dbo-prefill-token-threshold enable-dbo mm-processor-cache-type"),
    ("0.11", "", "mm-shm-cache-max-object-size-mb pooler-config structured-outputs-config"),
    ("0.11.1", "", "aggregate-engine-logging cudagraph-capture-sizes data-parallel-external-lb"),
    ("0.11.1", "", "dcp-kv-cache-interleave-size disable-nccl-for-dp-synchronization ec-transfer-config"),
    ("0.11.1", "", "enable-mm-embeds kv-offloading-backend kv-offloading-size mamba-block-size master-port"),
    ("0.11.1", "", "max-cudagraph-capture-size mm-encoder-attn-backend nnodes node-rank -dpe -dph -n -r"),
    ("0.12", "", "cp-kv-cache-interleave-size kv-cache-metrics kv-cache-metrics-sample optimization-level"),
    ("0.12", "", "prefill-context-parallel-size -pcp"),
    ("0.13", "", "attention-backend attention-config cudagraph-metrics profiler-config -ac"),
    ("0.14", "", "allow-deprecated-quantization enable-logging-iteration-details enable-tower-connector-lora"),
    ("0.14", "", "ubatch-size -ep"),
    ("0.15", "", "mamba-cache-mode mm-encoder-only"),
    ("0.16", "", "kernel-config specialize-active-lora weight-transfer-config"),
    ("0.17", "", "cpu-offload-params enable-elastic-ep fail-on-environ-validation language-model-only"),
    ("0.17", "", "offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step"),
    ("0.18", "", "dcp-comm-backend enable-ep-weight-filter"),
    ("0.19", "", "kv-cache-dtype-skip-layers lora-target-modules mm-tensor-ipc reasoning-config"),
    ("0.20", "", "enable-mamba-cache-stochastic-rounding ir-op-priority mamba-backend mamba-cache-philox-rounds"),
    ("0.21", "", "mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin"),
    ("0.21", "", "mm-encoder-fp8-scale-save-path safetensors-prefetch-block-size"),
    ("0.22", "", "data-parallel-multi-port-external-lb enable-cumem-allocator enable-mixed-moe-lora-format"),
    ("0.22", "", "quantization-config spec-method spec-model spec-tokens -dpm"),
    ("0.24", "", "device-ids diffusion-config -dc"),
    ("0.25", "", "mm-ipc-gpu-memory-gb model-class-overrides"),
    ("0.26", "0.30", "enable-bf16x3-router-gemm"),
    ("0.26", "", "enable-moe-shared-loras"),
    ("0.27", "", "fault-tolerance-config mamba-ssu-algorithm mm-hasher-algorithm replayssm-buffer-len use-replayssm"),
    ("0.28", "", "ec-manager-config mm-device-do-normalize mm-processor-device"),
    ("0.29", "", "dcp-q-replicate enable-trace-replay per-request-spec-decode-metrics"),
    ("0.29", "", "prefix-cache-retention-interval"),
    ("0.30", "0.31", "enable-mamba-fine-grained-prefix-cache"),
    ("0.30", "", "dp-sync-interval elastic-ep-max-dp-size enable-nccl-comm-suspend engram-config watermark-config"),
    ("0.31", "", "aux-output-config device-memory-utilization enable-mamba-shared-prefix-checkpoint log-level"),
    ("0.31", "", "logging-config max-lora-cls-labels max-num-active-seqs sleep-preserve-parameter-names"),
    ("0.31", "", "swa-bounded-replay"),
    ("0.32", "", "sleep-mode-offload-cudagraph"),
    ("0.33", "", "sleep-mode-backend watchdog-config"),
    # Of 0.8.5 and no more in 0.32; when they went was not read.
    ("", "0.32", "disable-frontend-multiprocessing enable-prompt-adapter enable-reasoning"),
    ("", "0.32", "expand-tools-even-if-tool-choice-none guided-decoding-backend"),
    ("", "0.32", "guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace"),
    ("", "0.32", "guided-decoding-disable-fallback max-long-partial-prefills max-num-partial-prefills"),
    ("", "0.32", "max-num-prefill-seqs max-prompt-adapter-token max-prompt-adapters num-lookahead-slots"),
    ("", "0.32", "num-redundant-experts preemption-mode prompt-adapters rope-scaling rope-theta"),
    ("", "0.32", "scheduler-delay-factor task tokenizer-pool-size tokenizer-pool-type"),
)


def _numbers(text: str) -> Version | None:
    return tuple(int(part) for part in text.split(".")) if text else None


RANGES: dict[str, tuple[Version | None, Version | None]] = {
    name: (_numbers(since), _numbers(until)) for since, until, names in _ROWS for name in names.split()
}
"""First release with a flag and first without it; what is not here is in all of them, or of a fork."""

HUMAN: dict[str, Version] = {
    "max-model-len": _OLDEST,
    "max-num-batched-tokens": (0, 9),
    "kv-cache-memory-bytes": (0, 10, 2),
}
"""Since when a flag takes a suffix (``32k``, ``32K``); before, whole numbers only. ``arg_utils.py``."""
TERA: Version = (0, 13)
"""Since when ``t`` and ``T`` are suffixes. ``human_readable_int``."""
AUTO_LENGTH: Version = (0, 14)
"""Since when ``--max-model-len`` may be ``auto`` or -1. ``human_readable_int_or_auto``."""
NESTED_CONFIG: Version = (0, 16)
"""Since when a mapping in the file after ``--config`` becomes JSON. ``load_config_file``."""
LEVEL_FLAG: Version = (0, 12)
"""Since when ``-O3`` is ``--optimization-level 3``; before, it is the level in ``--compilation-config``."""
LEVEL_ONLY: Version = (0, 13)
"""Since when ``-O.level=3`` is no dotted key of ``--compilation-config`` any more, but a level that is none."""

CHOICES_OF: Version = (0, 32)
"""The only release whose closed lists are judged: each release adds to them."""
_FLOATS = "auto bfloat16 float16 float32"
CHOICES: dict[str, frozenset[str]] = {
    name: frozenset(values.split())
    for name, values in {
        "dtype": "auto bfloat16 float float16 float32 half",
        "kv-cache-dtype": """auto bfloat16 float16 fp8 fp8_ds_mla fp8_e4m3 fp8_e5m2 fp8_inc fp8_per_token_head
            int4_per_token_head int8_per_token_head nvfp4 nvfp4_4over6 nvfp4_ds_mla turboquant_3bit_nc
            turboquant_4bit_nc turboquant_k3v4_nc turboquant_k8v4 ultraquant_4bit""",
        "kv-offloading-backend": "lmcache native",
        "mamba-cache-dtype": _FLOATS,
        "mamba-ssm-cache-dtype": _FLOATS,
        "mamba-cache-mode": "align none",
        "max-lora-rank": "1 8 16 32 64 128 256 320 512",
        "spec-method": """bailing_hybrid_mtp bailing_hybrid_v3_mtp custom_class deepseek_mtp dflash dots3_note_mtp
            draft_model dspark eagle eagle3 ernie_mtp exaone4_5_mtp exaone_moe_mtp extract_hidden_states gemma4_mtp
            glm4_moe_lite_mtp glm4_moe_mtp glm5_next_mtp glm_ocr_mtp hy_v3_mtp hy_v4_mtp inkling_mtp kimi_k3_mtp
            longcat_flash_mtp medusa mimo_mtp mimo_v2_mtp minimax_m3_mtp mlp_speculator mtp nemotron_h_mtp ngram
            ngram_gpu pangu_ultra_moe_mtp qwen3_5_mtp qwen3_next_mtp qwen4_exp_mtp step3p5_mtp suffix""",
    }.items()
}
"""The values 0.32's parser takes for a flag with a closed list."""
COMPILATION: dict[str, frozenset[str]] = {
    "mode": frozenset({"NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"}),
    "cudagraph_mode": frozenset({"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"}),
}
"""The words 0.32 takes for two keys of ``--compilation-config``, in any case. ``config/compilation.py``."""


def release(text: str | None) -> Version | None:
    """
    Return the release that ``text`` names (``0.19.1+rocm`` is 0.19.1), None where it is none of vLLM's.

    A build between two releases has flags of the next one, and a build of one's own often calls itself 0.1: both count
    as unknown, which takes what any release takes.
    """
    if not text or _BUILT_BETWEEN.search(text):
        return None
    match = _NUMBERS.match(text)
    version = _numbers(match[1]) if match else None
    return None if version is None or version < _OLDEST else version
