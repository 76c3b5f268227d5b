"""Real programs that tests need: a missing one skips the test on a developer's machine, and fails it in CI."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

__all__ = ["program", "unavailable"]


def unavailable(why: str) -> NoReturn:
    """Skip with the reason, but fail in CI, where every real part has to be there."""
    if os.environ.get("CI"):
        pytest.fail(f"a real part is missing in CI: {why}")
    pytest.skip(why)


def program(name: str, package: str = "") -> str:
    """Return the path of a real program, of the Debian ``package`` where its name differs."""
    path = shutil.which(name)
    if path is None:
        unavailable(f"{name} is not installed: apt-get install {package or name}")
    return path
