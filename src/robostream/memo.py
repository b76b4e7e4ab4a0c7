"""Results kept in memory, each made once however many threads ask for it at the same time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memo(Generic[K, V]):
    """The last used results, by key.

    Args:
        bound: sum of weights to keep to; the newest result is always kept.
        weight: of a result.
    """

    def __init__(self, bound: int, weight: Callable[[V], int]) -> None:
        self._bound = bound
        self._weight = weight
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, V] = OrderedDict()
        self._making: dict[K, Future[V]] = {}
        self._held = 0

    def __contains__(self, key: K) -> bool:
        """Whether the result for a key is here, or on its way."""
        with self._lock:
            return key in self._kept or key in self._making

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The result for a key; `make` is called if it is not here. Raises what `make` raises, to all who wait."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            promise = self._making.get(key)
            mine = promise is None
            if promise is None:
                promise = self._making[key] = Future()
        if not mine:
            return promise.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            promise.set_exception(error)
            raise
        with self._lock:
            del self._making[key]
            self._kept[key] = value
            self._held += self._weight(value)
            while self._held > self._bound and len(self._kept) > 1:
                self._held -= self._weight(self._kept.popitem(last=False)[1])
        promise.set_result(value)
        return value
