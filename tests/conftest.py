"""Order and scenery: the healthy host is started first, and what takes minutes is looked at last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.incident import Incident, scenery


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the end-to-end tests first, except those that are to see what all others left: they are last."""

    def place(item: pytest.Item) -> int:
        if item.name.startswith("test_last_"):
            return 2
        return 0 if item.path.name == "test_end_to_end.py" else 1

    items.sort(key=place)


@pytest.fixture(scope="session")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Incident]:
    with scenery(tmp_path_factory.mktemp("incident")) as running:
        yield running
