"""The synthetic engine's own endpoint: a socket inside its root that answers the few questions a vLLM is asked."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

__all__ = ["Door", "Pool"]

BLOCK = 16
"""Tokens of a block, vLLM's default on GPUs."""
VERSION = "0.28.0"
"""Of the engine that the demo's log is of."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool the endpoint tells of."""

    tokens: int
    max_model_len: int

    def metrics(self) -> str:
        """Return it as vLLM 0.28 has it, with one request at work on one window."""
        blocks, ratio = self.tokens // BLOCK, self.tokens / self.max_model_len
        settings = (
            f'block_size="{BLOCK}",cache_dtype="fp8",engine="0",kv_cache_max_concurrency="{ratio}",'
            f'kv_cache_size_tokens="{self.tokens}",num_gpu_blocks="{blocks}",num_gpu_blocks_override="None"'
        )
        labels = 'engine="0",model_name="Qwen3.8-Flash-Next"'
        return (
            f"vllm:cache_config_info{{{settings}}} 1.0\n"
            f"vllm:kv_cache_usage_perc{{{labels}}} {1 / ratio / 4:.4f}\n"
            f"vllm:num_requests_running{{{labels}}} 1.0\nvllm:num_requests_waiting{{{labels}}} 0.0\n"
        )


class _Server(socketserver.UnixStreamServer):
    """Says nothing of a client that has heard enough: the exporter reads of a health only its status."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


class Door:
    """The socket at ``place``: there while a pool is shown, and nobody listens otherwise, as with a vLLM that boots."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._server: socketserver.UnixStreamServer | None = None

    def show(self, pool: Pool | None) -> None:
        """Answer for ``pool`` from now on; with None end."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._place.unlink(missing_ok=True)
            self._server = None
        if pool is not None:
            self._place.parent.mkdir(parents=True, exist_ok=True)
            self._server = _Server(str(self._place), _handler(pool))
            threading.Thread(target=self._server.serve_forever, name="door", daemon=True).start()


def _handler(pool: Pool) -> Callable[..., BaseHTTPRequestHandler]:
    answers: dict[str, Callable[[], str]] = {
        "/health": str,
        "/metrics": pool.metrics,
        "/version": lambda: json.dumps({"version": VERSION}),
        "/v1/models": lambda: json.dumps({"data": [{"max_model_len": pool.max_model_len}]}),
    }

    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            answer = answers.get(self.path)
            body = b"" if answer is None else answer().encode()
            self.send_response(404 if answer is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
