"""A server that the real `huggingface_hub` client takes for the Hub when `HF_ENDPOINT` names it.

Datasets: info, refs, tree (in pages), paths-info, resolve. Buckets: info, tree, paths-info, resolve. Small files are
redirected to a path of the same host, large ones to a signed URL on another host (`cdn_url`) that expires, as on the
Hub. The second host refuses requests that carry an Authorization header, as object stores do.

There are no Xet headers, so every client falls back to plain HTTP and `hf_xet` is not needed; a client that has
it installed anyway is kept from using it for buckets, whose listings must name a Xet hash, by `HF_HUB_DISABLE_XET=1`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import tempfile
import time
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from servers.http import HttpServer, Request, Response, file_response
from servers.hub_state import Blob, Bucket, Repo, Store, commit_name, tree

DATE = "2026-01-02T03:04:05.000Z"


class HubError(Exception):
    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.response = Response(status, {"X-Error-Code": code, "X-Error-Message": message, **(headers or {})})
        self.response.body = json.dumps({"error": message}).encode()


class HubServer:
    """`tokens` are the valid access tokens, each with its user's name. Signed URLs live `lifetime` seconds."""

    def __init__(self, tokens: dict[str, str] | None = None, lifetime: float = 3600.0, page_size: int = 1000) -> None:
        self._tokens, self._lifetime, self._page_size = tokens or {}, lifetime, page_size
        self._store = Store(tempfile.mkdtemp(prefix="hub-"))
        self._repos: dict[str, Repo] = {}
        self._buckets: dict[str, Bucket] = {}
        self._key = secrets.token_bytes(16)
        self._api = HttpServer(self._handle)
        self._cdn = HttpServer(self._handle_signed)
        self._cdn_url = f"http://localhost:{self._cdn.port}"
        self.record, self.cdn_record = self._api.record, self._cdn.record

    def address(self) -> dict[str, Any]:
        return {"port": self._api.port, "url": f"http://127.0.0.1:{self._api.port}", "cdn_url": self._cdn_url}

    # What tests do to it

    def push(
        self,
        repo: str,
        folder: str,
        branch: str = "main",
        private: bool = False,
        gated: bool = False,
        users: tuple[str, ...] = (),
    ) -> str:
        """Makes what is in `folder` the newest commit of a branch; its name."""
        entry = self._repos.setdefault(repo, Repo())
        entry.private, entry.gated, entry.users = private, gated, set(users)
        files = self._store.take(folder)
        commit = commit_name(files, len(entry.commits))
        entry.commits[commit] = files
        entry.branches[branch] = commit
        return commit

    def put_bucket(self, bucket: str, folder: str, private: bool = False, users: tuple[str, ...] = ()) -> None:
        """Makes the files of `folder` those of a bucket, over what it holds."""
        self._buckets[bucket] = Bucket(private, set(users), self._store.take(folder))

    def remove(self, repo: str) -> None:
        self._repos.pop(repo, None)
        self._buckets.pop(repo, None)

    def set(self, lifetime: float | None = None, page_size: int | None = None, cdn_url: str | None = None) -> None:
        """`cdn_url` puts a proxy before the second host."""
        self._lifetime = self._lifetime if lifetime is None else lifetime
        self._page_size = page_size or self._page_size
        self._cdn_url = cdn_url or self._cdn_url

    def revoke(self) -> None:
        """Every URL signed so far is expired from now on."""
        self._key = secrets.token_bytes(16)

    def forget(self) -> None:
        self._api.forget()
        self._cdn.forget()

    # What clients ask

    def _handle(self, request: Request) -> Response:
        try:
            parts = request.path.strip("/").split("/")
            match parts:
                case ["api", "whoami-v2"]:
                    return self._json({"type": "user", "name": self._user(request, needed=True), "auth": {}})
                case ["api", "datasets", owner, name, *rest]:
                    return self._dataset(request, f"{owner}/{name}", rest)
                case ["api", "resolve-cache", "datasets", owner, name, commit, *path]:
                    return self._small(request, f"{owner}/{name}", commit, unquote("/".join(path)))
                case ["datasets", owner, name, "resolve", revision, *path]:
                    return self._resolve(request, f"{owner}/{name}", unquote(revision), unquote("/".join(path)))
                case ["api", "buckets", owner, name, *rest]:
                    return self._bucket(request, f"{owner}/{name}", rest)
                case ["buckets", owner, name, "resolve", *path]:
                    return self._resolve_bucket(request, f"{owner}/{name}", unquote("/".join(path)))
            raise HubError(404, "NotFound", "Sorry, we can't find the page you are looking for.")
        except HubError as error:
            return error.response

    def _user(self, request: Request, needed: bool = False) -> str | None:
        token = request.bearer
        if token is not None and token not in self._tokens:
            raise HubError(401, "InvalidToken", "Invalid credentials in Authorization header")
        if token is None and needed:
            raise HubError(401, "Unauthorized", "Invalid username or password.")
        return None if token is None else self._tokens[token]

    def _repo(self, request: Request, name: str, content: bool) -> Repo:
        """A repository that the request may see; with `content`, whose files it may read."""
        user = self._user(request)
        repo = self._repos.get(name)
        if repo is None or (repo.private and user not in repo.users):
            raise HubError(401 if user is None else 404, "RepoNotFound", "Repository not found")
        if content and repo.gated and user not in repo.users:
            said = (
                "You must have access to it and be authenticated to access it."
                if user is None
                else "You are not in the authorized list."
            )
            raise HubError(401 if user is None else 403, "GatedRepo", f"Access to dataset {name} is restricted. {said}")
        return repo

    def _files(self, repo: Repo, revision: str) -> tuple[str, dict[str, Blob]]:
        commit = repo.commit(revision)
        if commit is None:
            raise HubError(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repo.commits[commit]

    def _dataset(self, request: Request, name: str, rest: list[str]) -> Response:
        match rest:
            case [] | ["revision", _]:
                return self._info(request, name, unquote(rest[1]) if rest else "main")
            case ["refs"]:
                branches = self._repo(request, name, content=False).branches
                listed = [
                    {"name": key, "ref": f"refs/heads/{key}", "targetCommit": value} for key, value in branches.items()
                ]
                return self._json({"branches": listed, "tags": [], "converts": []})
            case ["tree", revision, *path]:
                _, files = self._files(self._repo(request, name, content=True), unquote(revision))
                prefix = unquote("/".join(path))
                entries = tree(files, prefix, request.query.get("recursive", "").lower() in ("true", "1"))
                if not entries and prefix:
                    raise HubError(404, "EntryNotFound", f"{prefix} does not exist")
                return self._pages(request, [_listed(path, blob) for path, blob in entries])
            case ["paths-info", revision]:
                _, files = self._files(self._repo(request, name, content=True), unquote(revision))
                found = [
                    entry for path in _paths(request) for entry in tree(files, "", True) if entry[0] == path.strip("/")
                ]
                return self._json([_listed(path, blob) for path, blob in found])
        raise HubError(404, "NotFound", "Not found")

    def _info(self, request: Request, name: str, revision: str) -> Response:
        repo = self._repo(request, name, content=False)
        commit, files = self._files(repo, revision)
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in files]
        if request.query.get("blobs", "").lower() in ("true", "1"):
            siblings = [{"rfilename": path, **_listed(path, blob)} for path, blob in files.items()]
        info = {
            "_id": "1",
            "id": name,
            "author": name.split("/")[0],
            "sha": commit,
            "lastModified": DATE,
            "createdAt": DATE,
        }
        info |= {"private": repo.private, "gated": "manual" if repo.gated else False, "disabled": False, "tags": []}
        return self._json({**info, "downloads": 0, "likes": 0, "siblings": siblings})

    def _resolve(self, request: Request, name: str, revision: str, path: str) -> Response:
        commit, files = self._files(self._repo(request, name, content=True), revision)
        blob = files.get(path)
        if blob is None:
            raise HubError(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
        head = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes", "X-Linked-Size": str(blob.size)}
        head["X-Linked-ETag"] = f'"{blob.etag}"'
        if blob.large:
            return Response(302, {**head, "Location": self._signed(blob)})
        return Response(307, {**head, "Location": f"/api/resolve-cache/datasets/{name}/{commit}/{quote(path)}"})

    def _small(self, request: Request, name: str, commit: str, path: str) -> Response:
        _, files = self._files(self._repo(request, name, content=True), commit)
        return file_response(request, files[path].file, f'"{files[path].etag}"', {"X-Repo-Commit": commit})

    def _bucket(self, request: Request, name: str, rest: list[str]) -> Response:
        bucket = self._readable(request, name)
        match rest:
            case []:
                size = sum(blob.size for blob in bucket.files.values())
                about = {"id": name, "private": bucket.private, "createdAt": DATE, "size": size}
                return self._json({**about, "totalFiles": len(bucket.files)})
            case ["tree", *path]:
                recursive = request.query.get("recursive", "").lower() in ("true", "1")
                entries = tree(bucket.files, unquote("/".join(path)).strip("/"), recursive)
                listed = [_kept(path, blob) for path, blob in entries if blob is not None or not recursive]
                return self._pages(request, listed)
            case ["paths-info"]:
                wanted = [path for path in json.loads(request.body)["paths"] if path in bucket.files]
                return self._json([_kept(path, bucket.files[path]) for path in wanted])
        raise HubError(404, "NotFound", "Not found")

    def _readable(self, request: Request, name: str) -> Bucket:
        user, bucket = self._user(request), self._buckets.get(name)
        if bucket is None or (bucket.private and user not in bucket.users):
            raise HubError(401 if user is None else 404, "RepoNotFound", "Bucket not found")
        return bucket

    def _resolve_bucket(self, request: Request, name: str, path: str) -> Response:
        blob = self._readable(request, name).files.get(path)
        if blob is None:
            raise HubError(404, "EntryNotFound", "Entry not found")
        head = {"X-Linked-Size": str(blob.size), "X-Linked-ETag": f'"{blob.sha256}"', "ETag": f'"{blob.sha256}"'}
        return Response(302, {**head, "Location": self._signed(blob)})

    # The second host

    def _signed(self, blob: Blob) -> str:
        expires = f"{time.time() + self._lifetime:.3f}"
        signature = self._sign(blob.sha256, expires)
        return f"{self._cdn_url}/repos/{blob.sha256}?Expires={expires}&Signature={signature}&Key-Pair-Id=K1"

    def _sign(self, name: str, expires: str) -> str:
        return hmac.new(self._key, f"{name} {expires}".encode(), hashlib.sha256).hexdigest()

    def _handle_signed(self, request: Request) -> Response:
        if "authorization" in request.headers:
            return Response(
                400,
                {},
                b"<Error><Code>InvalidArgument</Code><Message>Only one auth mechanism allowed</Message></Error>",
            )
        name, query = request.path.rpartition("/")[2], request.query
        expires = query.get("Expires", "0")
        valid = hmac.compare_digest(query.get("Signature", ""), self._sign(name, expires))
        if not valid or time.time() > float(expires):
            return Response(403, {}, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>")
        return file_response(request, self._store.blobs[name].file, f'"{name[:32]}"')

    # Answers

    def _json(self, value: Any, headers: dict[str, str] | None = None) -> Response:
        return Response(200, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())

    def _pages(self, request: Request, entries: list[dict[str, Any]]) -> Response:
        query = request.query
        start = int(query.pop("cursor", 0))
        stop = start + min(self._page_size, int(query.get("limit", self._page_size)))
        link = {}
        if stop < len(entries):
            onward = "&".join(f"{key}={quote(value)}" for key, value in {**query, "cursor": str(stop)}.items())
            link = {"Link": f'<http://{request.headers["host"]}{request.path}?{onward}>; rel="next"'}
        return self._json(entries[start:stop], link)


def _listed(path: str, blob: Blob | None) -> dict[str, Any]:
    """An entry of a repository's tree."""
    if blob is None:
        return {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest(), "size": 0}
    entry = {"type": "file", "path": path, "size": blob.size, "oid": blob.oid, "blobId": blob.oid}
    stored = {"oid": blob.sha256, "sha256": blob.sha256, "size": blob.size, "pointerSize": 134}
    return {**entry, "lfs": stored} if blob.large else entry


def _kept(path: str, blob: Blob | None) -> dict[str, Any]:
    """An entry of a bucket's tree."""
    if blob is None:
        return {"type": "directory", "path": path, "uploadedAt": DATE}
    return {"type": "file", "path": path, "size": blob.size, "xetHash": blob.sha256, "mtime": DATE, "uploadedAt": DATE}


def _paths(request: Request) -> list[str]:
    if request.headers.get("content-type", "").startswith("application/json"):
        return list(json.loads(request.body)["paths"])
    return parse_qs(request.body.decode())["paths"]
