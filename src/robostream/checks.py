"""Checks of arguments that several places share."""

from __future__ import annotations

import operator
from numbers import Integral

from robostream.errors import SettingError


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Raise SettingError unless a value is a whole number, and from `least` to what 63 bits hold."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or (least is not None and not least <= int(value) < 1 << 62):  # type: ignore[call-overload]
        raise SettingError(
            f"{name}={value!r} must be a whole number" + ("" if least is None else f", at least {least}")
        )


def sample_index(value: object) -> int:
    """`value` as an int; TypeError for what is no integer, of Python or numpy."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"a sample's index must be an integer, not {value!r}; for several, ask for each") from None
