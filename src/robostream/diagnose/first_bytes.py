"""What a file is by its first bytes. Stores answer with pages and pointers where a video was asked for."""

from __future__ import annotations

import re

from robostream.diagnose.report import Finding, error

LENGTH = 512
"""Bytes to look at."""

_REFUSED = (
    "Ask for the file as the loader does: check the token (`hf auth login`) and that it may read this dataset, the "
    "spelling of the repository, and the revision."
)


def is_mp4(head: bytes) -> bool:
    """Whether the first bytes are those of an MP4 with its "File Type Box"."""
    return head[4:8] == b"ftyp"


def show(head: bytes, length: int = 16) -> str:
    """The first bytes for people: in hexadecimal and as text."""
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in head[:length])
    return f"{head[:length].hex(' ')}  {text}"


def judge_first_bytes(name: str, head: bytes, size: int) -> Finding | None:
    """What is wrong with a file that begins with `head` and has `size` bytes; None if it begins like an MP4."""
    if size == 0:
        return error("empty-file", f"{name}: the file has 0 bytes", "Download or copy it again.")
    if is_mp4(head) or head[4:8] in (b"moov", b"mdat", b"free", b"skip", b"wide"):
        return None
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return _pointer(name, text) or _page(name, text, head) or _other(name, head)


def _pointer(name: str, text: bytes) -> Finding | None:
    """A small file that only says where the real one is."""
    if text.startswith(b"version https://git-lfs"):
        size = re.search(rb"\nsize (\d+)", text)
        of = f" of a file of {int(size[1]):,} bytes" if size else ""
        return error(
            "lfs-pointer",
            f"{name}: a Git LFS pointer{of}, not the video itself",
            "Run `git lfs install && git lfs pull` in the clone, or fetch the dataset with "
            "`hf download --repo-type dataset NAME`.",
        )
    if b"xet" in text[:64] and (b"version" in text[:64] or b"hash" in text):
        return error(
            "xet-pointer",
            f"{name}: a Xet pointer, not the video itself",
            "Fetch the dataset with `hf download --repo-type dataset NAME` and hf_xet installed "
            "(`pip install hf_xet`), or install git-xet and run `git lfs pull` in the clone.",
        )
    return None


def _page(name: str, text: bytes, head: bytes) -> Finding | None:
    """An error page of a server."""
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<!--")):
        return error("html-page", f"{name}: an HTML page, not a video{_title(text)}", _REFUSED)
    if text.startswith((b"<?xml", b"<error")):
        code = re.search(rb"<code>([^<]+)", text)
        said = f" ({code[1].decode('latin-1')})" if code else ""
        return error("xml-error", f"{name}: an object store's error message, not a video{said}", _REFUSED)
    if text.startswith((b"{", b"[")):
        said = head[:120].decode("utf-8", "replace").strip()
        return error("json-error", f"{name}: JSON, not a video: {said}", _REFUSED)
    return None


def _title(text: bytes) -> str:
    title = re.search(rb"<title>([^<]*)", text)
    return f" (its title: {title[1].decode('utf-8', 'replace').strip()!r})" if title else ""


def _other(name: str, head: bytes) -> Finding:
    kinds = {
        b"\x1aE\xdf\xa3": "a Matroska or WebM video",
        b"RIFF": "an AVI video or another RIFF file",
        b"\x1f\x8b": "gzip-compressed data",
        b"PK\x03\x04": "a ZIP archive",
        b"PAR1": "a Parquet file",
        b"\x89PNG": "a PNG image",
        b"\xff\xd8\xff": "a JPEG image",
    }
    found = next((kind for magic, kind in kinds.items() if head.startswith(magic)), f"begins with {head[:16]!r}")
    return error(
        "not-mp4",
        f"{name}: not an MP4: {found}",
        "Put the MP4 there that the metadata promises: download the dataset again, or rewrite the video without loss "
        "with `ffmpeg -i FILE -c copy OUT.mp4`.",
    )
