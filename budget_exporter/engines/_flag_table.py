"""
vLLM's command-line flags by name and by how many values they take.

The names are a fact of vLLM 0.8.5 to 0.33 (0.32 asked of its own parser, the others read in ``engine/arg_utils.py`` and
``entrypoints/openai/cli_args.py``), of the expert-offload fork and, where a law asks for one, of Gaudi's fork. They are
listed because an abbreviation can only be understood against all names it might stand for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from budget_exporter.engines._flag_versions import RANGES, Version

__all__ = ["OPTIONS", "Option", "options"]

Kind = Literal["switch", "mark", "value", "list", "maybe"]
"""``switch`` has a ``--no-`` form, ``mark`` has none; ``list`` takes one or more values, ``maybe`` none or one."""


@dataclass(frozen=True, slots=True)
class Option:
    """What one option string stands for: the flag's own name without dashes, its kind, whether it says no."""

    name: str
    kind: Kind
    negative: bool = False
    ranges: tuple[tuple[Version | None, Version | None], ...] = ()
    """First release with it and first without it, of the flag and of its short form."""
    fork: bool = False
    """Whether only the expert-offload fork has it: an abbreviation means a flag of vLLM's own first."""

    def in_(self, version: Version) -> bool:
        """Return whether ``version`` has it."""
        return all(
            (since is None or since <= version) and (until is None or version < until) for since, until in self.ranges
        )


_SWITCHES = """
allow-credentials allow-deprecated-quantization async-scheduling calculate-kv-scales cohere-is-reasoning-model
cudagraph-metrics data-parallel-external-lb data-parallel-hybrid-lb dcp-q-replicate disable-cascade-attn
disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager
disable-mm-preprocessor-cache disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
enable-auto-tool-choice enable-batch-sharded-sampling enable-bf16x3-router-gemm enable-chunked-prefill
enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-offload
enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune
enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs
enable-log-requests enable-logging-iteration-details enable-lora enable-lora-bias
enable-mamba-cache-stochastic-rounding enable-mamba-fine-grained-prefix-cache enable-mamba-shared-prefix-checkpoint
enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras
enable-multimodal-encoder-data-parallel enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics
enable-prefix-caching enable-prompt-adapter enable-prompt-embeds enable-prompt-tokens-details enable-reasoning
enable-request-id-headers enable-return-routed-experts enable-scale-out enable-server-load-tracking
enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh enable-tokenizer-info-endpoint
enable-tower-connector-lora enable-trace-replay enforce-eager eplb-log-balancedness
exclude-tools-when-tool-choice-none expert-direct-load expert-precise-memory fail-on-environ-validation
fully-sharded-loras guided-decoding-disable-additional-properties guided-decoding-disable-any-whitespace
guided-decoding-disable-fallback interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill
language-model-only log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only
multi-step-stream-outputs numa-bind ple-nvme-offload ray-workers-use-nsight return-sampling-mask
return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init
sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay tokens-only trust-remote-code
trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
"""
_MARKS = """
aggregate-engine-logging data-parallel-multi-port-external-lb disable-async-output-proc
disable-frontend-multiprocessing disable-log-requests disable-log-stats expand-tools-even-if-tool-choice-none grpc
headless use-v2-block-manager
"""
_VALUES = """
additional-config all2all-backend allowed-headers allowed-local-media-path allowed-methods allowed-origins
anthropic-disabled-thinking-effort api-server-count attention-backend attention-config aux-output-config block-size
chat-template chat-template-content-format code-revision cohere-format compilation-config config config-format convert
cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb custom-histogram-buckets
data-parallel-address data-parallel-backend data-parallel-rank data-parallel-rpc-port data-parallel-size
data-parallel-size-local data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold
dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size decode-context-parallel-size
default-chat-template-kwargs default-mm-loras device device-ids device-memory-utilization diffusion-config
disable-access-log-for-endpoints distributed-executor-backend distributed-timeout-seconds download-dir
dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval
dtype ec-manager-config ec-transfer-config elastic-ep-max-dp-size engram-config eplb-config eplb-step-interval
eplb-window-size expert-offload-mem expert-placement-strategy expert-resident-layers fault-tolerance-config
fingerprint-mode fingerprint-value gdn-prefill-backend generation-config gpu-memory-utilization grpc-port
guided-decoding-backend h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-overrides host
io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend kda-prefill-backend kernel-config
kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config kv-offloading-backend
kv-offloading-size kv-transfer-config limit-mm-per-prompt linear-backend load-format log-config-file log-level
logging-config logits-processor-pattern logprobs-mode long-lora-scaling-factors long-prefill-token-threshold
lora-dtype lora-extra-vocab-size mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode
mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm master-addr master-port max-cpu-loras
max-cudagraph-capture-size max-log-len max-logprobs max-long-partial-prefills max-lora-cls-labels max-lora-rank
max-loras max-model-len max-num-active-seqs max-num-batched-tokens max-num-partial-prefills max-num-prefill-seqs
max-num-queued-reqs
max-num-queued-tokens max-num-scheduled-tokens max-num-seqs max-parallel-loading-workers max-prompt-adapter-token
max-prompt-adapters max-seq-len-to-capture media-io-kwargs middleware mm-encoder-attn-backend mm-encoder-attn-dtype
mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin mm-encoder-fp8-scale-save-path mm-encoder-tp-mode
mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-cache-gb mm-processor-cache-type mm-processor-device
mm-processor-kwargs mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl
model-loader-extra-config moe-backend nnodes node-rank num-gpu-blocks-override num-lookahead-slots
num-redundant-experts num-scheduler-steps offload-backend offload-group-size offload-num-in-group
offload-prefetch-step optimization-level otlp-traces-endpoint override-attention-dtype override-generation-config
override-neuron-config override-pooler-config per-request-spec-decode-metrics performance-mode
pipeline-parallel-size ple-cache-gb pooler-config port preemption-mode prefill-context-parallel-size
prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit profiler-config
pt-load-map-location qlora-adapter-name-or-path quantization quantization-config reasoning-config reasoning-parser
reasoning-parser-plugin renderer-num-workers replayssm-buffer-len response-role revision root-path rope-scaling
rope-theta runner safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads
scheduler-cls scheduler-delay-factor scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout
sleep-mode-backend sparse-indexer-topk-backend spec-method spec-model spec-tokens speculative-config
sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile stream-interval
structured-outputs-config swap-space task tensor-parallel-size tokenizer tokenizer-mode tokenizer-pool-extra-config
tokenizer-pool-size tokenizer-pool-type tokenizer-revision tool-call-parser tool-parser-plugin tool-server
tool-strict-level ubatch-size uds uvicorn-log-level video-pruning-method video-pruning-rate watchdog-config watermark
watermark-config weight-transfer-config worker-cls worker-extension-cls
"""
_LISTS = """
allowed-media-domains api-key collect-detailed-traces cpu-offload-params cuda-graph-sizes cudagraph-capture-sizes
ignore-patterns kv-cache-dtype-skip-layers logits-processors lora-modules lora-target-modules numa-bind-cpus
numa-bind-nodes offload-params prompt-adapters served-model-name sleep-preserve-parameter-names
"""
_MAYBE = "hf-token ple-cache-reuse"
_SHORT = {
    "-O": "compilation-config",
    "-ac": "attention-config",
    "-asc": "api-server-count",
    "-cc": "compilation-config",
    "-dc": "diffusion-config",
    "-dcp": "decode-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpa": "data-parallel-address",
    "-dpb": "data-parallel-backend",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpl": "data-parallel-size-local",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-dpn": "data-parallel-rank",
    "-dpp": "data-parallel-rpc-port",
    "-dpr": "data-parallel-start-rank",
    "-ep": "enable-expert-parallel",
    "-n": "nnodes",
    "-pcp": "prefill-context-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-q": "quantization",
    "-r": "node-rank",
    "-sc": "speculative-config",
    "-tp": "tensor-parallel-size",
}
_FORK = """
enable-expert-offload expert-direct-load expert-offload-mem expert-precise-memory expert-resident-layers ple-cache-gb
ple-cache-reuse ple-nvme-offload
"""
_ALIASES = {"device-memory-utilization": "gpu-memory-utilization"}


def _options() -> dict[str, Option]:
    kinds: dict[str, Kind] = {}
    groups: tuple[tuple[Kind, str], ...] = (
        ("switch", _SWITCHES),
        ("mark", _MARKS),
        ("value", _VALUES),
        ("list", _LISTS),
        ("maybe", _MAYBE),
    )
    for kind, names in groups:
        kinds |= dict.fromkeys(names.split(), kind)
    fork = frozenset(_FORK.split())
    options: dict[str, Option] = {}
    for name, kind in kinds.items():
        option = Option(_ALIASES.get(name, name), kind, ranges=(_range(name),), fork=name in fork)
        options[f"--{name}"] = option
        if kind == "switch":
            options[f"--no-{name}"] = replace(option, negative=True)
    options |= {
        short: Option(name, kinds[name], ranges=(_range(name), _range(short))) for short, name in _SHORT.items()
    }
    return options


def _range(name: str) -> tuple[Version | None, Version | None]:
    return RANGES.get(name, (None, None))


OPTIONS: dict[str, Option] = _options()
"""Every option string (``--max-model-len``, ``--no-enforce-eager``, ``-tp``) and what it stands for."""


@lru_cache(maxsize=8)
def options(version: Version | None) -> Mapping[str, Option]:
    """Return the option strings of one release, of all releases where ``version`` is None."""
    return OPTIONS if version is None else {text: option for text, option in OPTIONS.items() if option.in_(version)}
