"""
What of a watched process may be kept and shown: names of its environment, names of its flags, nothing else.

Sources: vLLM 0.8.5 to 0.33 ``envs.py`` and ``engine/arg_utils.py``, its forks for the expert-offload, Gaudi and Neuron
names, the runtimes of the devices for which of them are visible.
"""

from __future__ import annotations

__all__ = ["ENVIRON_ALLOWED", "GIVEN_ALLOWED"]

_ENVIRON = """
    AMD_VISIBLE_DEVICES CPU_VISIBLE_MEMORY_NODES CUDA_DEVICE_ORDER CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES
    HABANA_VISIBLE_DEVICES HABANA_VISIBLE_MODULES HLS_MODULE_ID NVIDIA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
    NEURON_LOGICAL_NC_CONFIG NEURON_PLATFORM_TARGET_OVERRIDE NEURON_RT_NUM_CORES NEURON_RT_VIRTUAL_CORE_SIZE
    NEURON_RT_VISIBLE_CORES NEURON_VISIBLE_DEVICES
    TPU_VISIBLE_CHIPS TPU_VISIBLE_DEVICES VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE ZE_AFFINITY_MASK
    PODMAN_SYSTEMD_UNIT PROMETHEUS_MULTIPROC_DIR PT_HPU_LAZY_MODE
    PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
    VLLM_BUCKETING_FROM_FILE VLLM_BUCKETING_STRATEGY VLLM_COMPACT_GDN VLLM_CONFIGURE_LOGGING VLLM_CONTIGUOUS_PA
    VLLM_CPU_KVCACHE_SPACE VLLM_CPU_OMP_THREADS_BIND VLLM_CPU_SIM_MULTI_NUMA
    VLLM_CUDAGRAPH_MEM_BASE_MB VLLM_CUDAGRAPH_MEM_ESTIMATE_MB VLLM_CUDAGRAPH_MEM_PER_GRAPH_MB
    VLLM_ENABLE_BUCKETING VLLM_ENABLE_STARTUP_PLAN VLLM_EXPONENTIAL_BUCKETING VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE
    VLLM_GRAPH_DECODE_STRATEGY VLLM_GRAPH_MEM_MARGIN VLLM_GRAPH_PROMPT_RATIO VLLM_GRAPH_PROMPT_STRATEGY
    VLLM_GRAPH_RESERVED_MEM VLLM_KV_CACHE_LAYOUT VLLM_LOGGING_LEVEL VLLM_LOGGING_STREAM
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS VLLM_MLA_DISABLE VLLM_NEURON_CPU_COMPILE VLLM_NEURON_CPU_MODE
    VLLM_NEURON_KV_GMU_BUDGET_CAP_FRACTION VLLM_NEURON_MIN_KV_BUDGET_GIB VLLM_PP_LAYER_PARTITION
    VLLM_PROCESS_NAME_PREFIX VLLM_SERVER_DEV_MODE VLLM_SKIP_WARMUP VLLM_USE_V1 VLLM_USE_V2_MODEL_RUNNER
    VLLM_WORKER_MULTIPROC_METHOD
    NO_COLOR VLLM_CACHE_ROOT VLLM_LOGGING_COLOR VLLM_LOGGING_CONFIG_PATH VLLM_LOGGING_PREFIX
"""
_BUCKETS = frozenset(
    f"VLLM_{dimension}_BUCKET_{parameter}"
    for dimension in (
        "PROMPT_BS",
        "PROMPT_SEQ",
        "PROMPT_QUERY",
        "PROMPT_CTX",
        "DECODE_BS",
        "DECODE_SEQ",
        "DECODE_BLOCK",
    )
    for parameter in ("MIN", "STEP", "MAX", "PAD_MAX", "PAD_PERCENT")
)
"""Gaudi's bucket settings."""
ENVIRON_ALLOWED: frozenset[str] = frozenset(_ENVIRON.split()) | _BUCKETS
"""The only environment variables that are kept of a watched process: no key, token or address is among them."""

_GIVEN = """
    api-server-count async-scheduling block-size cpu-offload-gb cudagraph-capture-sizes data-parallel-backend
    data-parallel-rank data-parallel-size data-parallel-size-local data-parallel-start-rank
    decode-context-parallel-size device device-ids disable-hybrid-kv-cache-manager distributed-executor-backend dtype
    enable-chunked-prefill enable-cumem-allocator enable-expert-offload enable-expert-parallel enable-lora
    enable-prefix-caching enable-sleep-mode enforce-eager expert-direct-load expert-offload-mem expert-precise-memory
    expert-resident-layers gpu-memory-utilization headless kv-cache-dtype kv-cache-memory-bytes
    kv-offloading-backend kv-offloading-size load-format mamba-block-size mamba-cache-dtype mamba-cache-mode
    mamba-ssm-cache-dtype max-cudagraph-capture-size
    max-lora-rank max-loras max-model-len max-num-batched-tokens max-num-prefill-seqs max-num-seqs
    max-seq-len-to-capture mm-ipc-gpu-memory-gb mm-processor-cache-gb nnodes node-rank num-gpu-blocks-override
    optimization-level performance-mode pipeline-parallel-size ple-cache-gb ple-cache-reuse ple-nvme-offload port
    prefill-context-parallel-size quantization spec-method spec-tokens swap-space tensor-parallel-size
"""
GIVEN_ALLOWED: frozenset[str] = frozenset(_GIVEN.split())
"""The only flags that ``Shape.given`` repeats, by their name without dashes."""
