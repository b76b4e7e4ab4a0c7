"""What all tests share."""

from __future__ import annotations

import importlib

import pytest
from servers.fixtures import hub, own_caches, s3_server, serve  # noqa: F401


def _torchcodec_problem() -> str | None:
    try:
        importlib.import_module("torchcodec")
    except (ImportError, RuntimeError, OSError) as error:
        return f"torchcodec does not load here: {str(error).splitlines()[0]}"
    return None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torchcodec: needs torchcodec, and with it an FFmpeg on the system")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = _torchcodec_problem()
    if problem:
        for item in items:
            if item.get_closest_marker("torchcodec"):
                item.add_marker(pytest.mark.skip(reason=problem))
