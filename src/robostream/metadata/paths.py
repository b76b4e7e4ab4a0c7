"""The path templates of `meta/info.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from robostream.errors import MetadataError


def fill_template(template: str, field: str, info_name: str, values: Iterable[Mapping[str, int | str]]) -> list[str]:
    """One path, relative to the root, per mapping of placeholder → value.

    field: the template's name in `info.json`; info_name: that file's, for messages. Raises `MetadataError`
    for a placeholder that is unknown, a path that leaves the root, and one path for two different files.
    """
    where = f"{info_name}: {field} {template!r}"
    paths: list[str] = []
    for placeholders in values:
        try:
            paths.append(template.format_map(placeholders))
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            known = ", ".join(f"{{{name}}}" for name in placeholders)
            raise MetadataError(f"{where}: cannot be filled in ({error!r}); placeholders: {known}") from error
    if paths and (PurePosixPath(paths[0]).is_absolute() or ".." in PurePosixPath(paths[0]).parts):
        raise MetadataError(f"{where}: {paths[0]!r} is outside the dataset's root")
    if len(set(paths)) != len(paths):
        raise MetadataError(f"{where}: gives the same path for different files")
    return paths
