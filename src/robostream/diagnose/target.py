"""Which file is looked at: one camera's video of one episode of a dataset, or a file alone."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from robostream.errors import MetadataError, SelectionError, SettingError
from robostream.metadata import DatasetMetadata, Feature, load_metadata
from robostream.source import Source, open_source


@dataclass(frozen=True, eq=False)
class Target:
    """A video file. meta, camera, episode: what it belongs to; None for a file alone.

    first, length: the episode's pictures in the file, if the file has one for each row; else all of the file.
    """

    source: Source
    path: str
    meta: DatasetMetadata | None = None
    camera: str | None = None
    episode: int | None = None
    first: int = 0
    length: int | None = None

    @property
    def name(self) -> str:
        return self.source.describe(self.path)

    @property
    def feature(self) -> Feature | None:
        return None if self.meta is None or self.camera is None else self.meta.features[self.camera]


def find_target(
    *,
    repo_id: str | None = None,
    root: str | os.PathLike[str] | None = None,
    data_files_root: str | None = None,
    camera: str | None = None,
    episode: int | None = None,
    file: str | None = None,
) -> Target:
    """The file to look at: by default the first camera's of the first episode.

    file: a path or URL, or with a dataset a path inside of it. Raises SelectionError for a camera or an episode that
    the dataset does not have, MetadataError if the metadata can't be read, SettingError if nothing is named.
    """
    if repo_id is None and root is None and data_files_root is None:
        return _alone(file)
    source = open_source(repo_id=repo_id, root=root, data_files_root=data_files_root).source
    if file is not None:
        return Target(source, file)
    meta = _metadata(source, camera)
    if not meta.video_keys:
        raise SelectionError("the dataset has no cameras in video files: there is nothing to decode")
    camera = camera or meta.video_keys[0]
    if camera not in meta.episodes.videos:
        raise SelectionError(f"no video camera {camera!r}; there are {', '.join(meta.video_keys)}")
    row = 0 if episode is None else int(np.searchsorted(meta.episodes.index, episode))
    if episode is not None and (row == len(meta.episodes) or meta.episodes.index[row] != episode):
        raise SelectionError(f"no episode {episode}; there are {len(meta.episodes)}, from {meta.episodes.index[0]} on")
    placement = meta.episodes.videos[camera]
    return Target(
        source,
        placement.files[int(placement.file[row])],
        meta,
        camera,
        int(meta.episodes.index[row]),
        int(placement.base[row]),
        int(meta.episodes.length[row]),
    )


def _metadata(source: Source, camera: str | None) -> DatasetMetadata:
    """All cameras' metadata, or if another one has no files, that of the camera asked for."""
    try:
        return load_metadata(source)
    except MetadataError:
        if camera is None:
            raise
        return load_metadata(source, cameras=[camera])


def _alone(file: str | None) -> Target:
    if file is None:
        raise SettingError("say what to look at: a dataset (root or repo_id) or a file")
    if "://" in file:
        folder, _, name = file.rpartition("/")
        return Target(open_source(root=folder).source, name)
    folder, name = os.path.split(os.path.abspath(os.path.expanduser(file)))
    return Target(open_source(root=folder).source, name)
