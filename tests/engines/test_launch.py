"""Which command lines start a vLLM server, and which only talk of one."""

from __future__ import annotations

import pytest

from budget_exporter.engines.arguments import server_arguments

SERVERS = [
    (["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "M", "-tp", "2"], ("serve", "M", "-tp", "2")),
    (["vllm", "serve", "M"], ("serve", "M")),
    (["/usr/local/bin/vllm", "serve"], ("serve",)),
    (["python3.12", "-m", "vllm.entrypoints.openai.api_server", "--model", "M"], ("--model", "M")),
    (["python3", "-u", "-X", "dev", "-m", "vllm.entrypoints.openai.api_server"], ()),
    (["python3", "-um", "vllm.entrypoints.openai.api_server", "--port", "1"], ("--port", "1")),
    (["python3", "-mvllm.entrypoints.openai.api_server"], ()),
    (["python", "/src/vllm/entrypoints/openai/api_server.py", "--model", "M"], ("--model", "M")),
    (["python", "-m", "vllm.entrypoints.cli.main", "serve", "M"], ("serve", "M")),
    (["python3", "-m", "vllm.entrypoints.api_server", "--model", "M"], ("--model", "M")),
    (["python3", "-m", "vllm.entrypoints.grpc_server", "--model", "M"], ("--model", "M")),
    (["python3", "/src/vllm/entrypoints/launchers/grpc_server.py", "--model", "M"], ("--model", "M")),
]
BYSTANDERS = [
    [],
    [""],
    ["grep", "vllm", "serve"],
    ["sh", "-c", "vllm serve M"],
    ["uv", "run", "vllm", "serve", "M"],
    ["podman", "run", "image", "vllm", "serve", "M"],
    ["vllm", "bench", "serve"],
    ["vllm", "chat"],
    ["vllm", "launch", "render", "M"],
    ["vllm"],
    ["python3", "/opt/venv/bin/vllm", "bench", "serve", "--model", "M"],
    ["python3", "/opt/venv/bin/vllm", "serve", "--help"],
    ["python3", "/opt/venv/bin/vllm", "serve", "--help=ModelConfig"],
    ["python3", "-c", "from multiprocessing.resource_tracker import main;main(31)", "vllm", "serve"],
    ["python3", "train.py", "vllm", "serve"],
    ["python3", "-m", "pytest", "vllm", "serve"],
    ["python3", "-m"],
    ["python3", "-W"],
    ["python3", "/srv/fastchat/api_server.py"],
    ["vim", "/opt/venv/bin/vllm", "serve"],
]


@pytest.mark.parametrize(("argv", "args"), SERVERS, ids=[" ".join(a) for a, _ in SERVERS])
def test_a_server_is_known(argv: list[str], args: tuple[str, ...]) -> None:
    assert server_arguments(argv) == args


@pytest.mark.parametrize("argv", BYSTANDERS, ids=[" ".join(a) or "nothing" for a in BYSTANDERS])
def test_a_bystander_is_not_one(argv: list[str]) -> None:
    assert server_arguments(argv) is None
