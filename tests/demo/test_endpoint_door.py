"""The demo's endpoint, asked as a real one is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from budget_exporter.demo.endpoint import Door, Pool
from budget_exporter.engines.address import Address
from budget_exporter.engines.endpoint import EndpointSource
from budget_exporter.facts.endpoint import Answer


async def test_it_answers_while_it_is_shown_a_pool_and_nobody_listens_otherwise() -> None:
    # Sockets have paths of 107 characters at most: not below pytest's folder.
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "run", "vllm.sock")
        door = Door(place)
        async with EndpointSource().opened(Address("http://localhost", uds=str(place), verify=False)) as endpoint:
            assert await endpoint.health() == Answer("refused")
            for pool in (Pool(4096, 1024), Pool(401_408, 200_704)):
                door.show(pool)
                assert await endpoint.health() == Answer("ok")
                facts = await endpoint.facts()
                assert (facts.kv_tokens, facts.kv_blocks, facts.running) == (pool.tokens, pool.tokens // 16, 1)
                assert facts.kv_concurrency == pool.tokens / pool.max_model_len
                assert await endpoint.max_model_len() == pool.max_model_len
            door.show(None)
            assert await endpoint.health() == Answer("refused")
