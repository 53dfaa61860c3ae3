"""What the tests of data share: small data sets, archives, a file server, messages of errors."""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.data.catalogue import find_entry
from fedtailor.data.federation import Dataset


def refusal(function: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The message of the UserError that the call ends in, which must be one line."""
    with pytest.raises(UserError) as error:
        function(*arguments, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


def make_dataset(
    n: int = 1200, classes: int = 10, owners: int = 0, tests: int = 0, **more: Any
) -> Dataset:
    """A data set with random labels, owners and test part; x tells the sample's number."""
    rng = np.random.default_rng(n + classes)
    return Dataset(
        name="world",
        kind="table",
        x=torch.arange(n, dtype=torch.float32)[:, None],
        y=torch.from_numpy(rng.permutation(np.arange(n) % classes)),
        classes=classes,
        test=torch.from_numpy(rng.permutation(n) < tests) if tests else None,
        owner=torch.from_numpy(rng.permutation(np.arange(n) % owners))
        if owners
        else None,
        owners=tuple(f"owner {k}" for k in range(owners)),
        **more,
    )


def write_prepared(folder: Path, name: str, n: int = 8, **change: Any) -> None:
    """A small prepared file of a named data set, with some arrays changed or added."""
    entry = find_entry(name)
    pixels = np.random.default_rng(0).integers(
        0, 256, (n, *entry.shape), dtype=np.uint8
    )
    x = pixels if entry.kind == "image" else np.ones(pixels.shape)
    arrays = {"x": x, "y": np.arange(n) % 2} | change
    np.savez(folder / f"{entry.stems[0]}.npz", **arrays)


def write_npz(path: Path, n: int = 12, **change: Any) -> Path:
    """A small npz file of a user, with some arrays changed or added."""
    arrays = {
        "x": np.arange(n * 4, dtype=np.float32).reshape(n, 4),
        "y": np.arange(n) % 3,
    }
    path.parent.mkdir(exist_ok=True, parents=True)
    np.savez(path, **arrays | change)
    return path


def zip_files(files: dict[str, bytes]) -> bytes:
    """The contents of a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def tar_files(files: dict[str, bytes]) -> bytes:
    """The contents of a gzipped tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


class FileServer:
    """A web server on this machine that serves ``files``, ranges included.

    ``breaks`` says after how many bytes the next answers for a file end early.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str | None]] = []  # file and range of every request
        self.ranges = True
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = unquote(request.path.lstrip("/"))
        asked = request.headers.get("Range")
        self.asked.append((name, asked))
        if name not in self.files:
            request.send_error(404)
            return
        content = self.files[name]
        start = 0
        if asked and self.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                request.send_error(416)
                return
            request.send_response(206)
            last = len(content) - 1
            request.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        else:
            request.send_response(200)
        request.send_header("Content-Length", str(len(content) - start))
        request.end_headers()
        breaks = self.breaks.get(name, [])
        end = start + breaks.pop(0) if breaks else len(content)
        request.wfile.write(content[start:end])
        request.close_connection = True


@contextmanager
def serve_files() -> Iterator[FileServer]:
    """A file server, for as long as the context lasts."""
    server = FileServer()
    thread = threading.Thread(
        target=server.http.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()
