"""What all tests share."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from servers.fixtures import hub, own_caches, places, s3_server, serve  # noqa: F401
from videos import written  # noqa: F401


def _torchcodec_problem() -> str | None:
    try:
        importlib.import_module("torchcodec")
    except (ImportError, RuntimeError, OSError) as error:
        return f"torchcodec does not load here: {str(error).splitlines()[0]}"
    return None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "torchcodec: needs torchcodec, and with it an FFmpeg on the system")


@pytest.fixture(autouse=True, scope="session")
def _own_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests neither read nor fill the user's caches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROBOSTREAM_CACHE", str(tmp_path_factory.mktemp("caches")))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = _torchcodec_problem()
    if problem:
        for item in items:
            if item.get_closest_marker("torchcodec"):
                item.add_marker(pytest.mark.skip(reason=problem))
