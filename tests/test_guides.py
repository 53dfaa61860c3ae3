"""Every command and program of the guides works, in its order; the pages are built."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedtailor.data.sets.digits import read_digits
from fedtailor.data.sets.heart import HOSPITALS

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs/guides"
# fenced blocks, with their language; lines of commands
PARTS = re.compile(
    r"```([^\n]*)\n(.*?)```|^    (fedtailor [^\n]*)$", re.DOTALL | re.MULTILINE
)
ENVIRONMENT = {**os.environ, "PYTHONWARNINGS": "ignore"}
SOON = 600  # seconds; other tests may run beside this one


class Reader:
    """Somebody who follows a guide in an empty folder."""

    def __init__(self, guide: str, folder: Path) -> None:
        self.text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
        self.folder = folder
        self.server: subprocess.Popen[str] | None = None

    def follow(self) -> list[str]:
        """Do everything; gives the outputs."""
        outputs = []
        try:
            for language, block, command in PARTS.findall(self.text):
                if command.startswith("fedtailor serve"):
                    self.start_server(command)
                elif command:
                    outputs.append(self.call(fedtailor_words(command)))
                elif language == "python":
                    outputs.append(self.run_python(block))
                elif language == "csv":
                    (self.folder / "new.csv").write_text(block)
                elif language == "sh query":
                    outputs.append(self.query(block))
        finally:
            self.stop_server()
        return outputs

    def call(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        assert done.returncode == 0, (words, done.stdout[-500:], done.stderr[-500:])
        return done.stdout

    def run_python(self, block: str) -> str:
        """A program; one whose first line is a docstring is a file to save."""
        if block.startswith('"""'):
            name = re.search(r"save it as `(\w+\.py)`", self.text)
            assert name
            (self.folder / name[1]).write_text(block)
            return ""
        return self.call([sys.executable, "-c", block])

    def start_server(self, command: str) -> None:
        self.stop_server()
        self.server = subprocess.Popen(
            fedtailor_words(command),
            cwd=self.folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout
        assert "http://127.0.0.1" in self.server.stdout.readline()

    def stop_server(self) -> None:
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            self.server.communicate(timeout=60)
            self.server = None

    def query(self, block: str) -> str:
        """What curl would send, sent by httpx: not every machine has curl."""
        import httpx

        words = shlex.split(block)
        url = next(word for word in words if word.startswith("http"))
        name, value = words[words.index("-H") + 1].split(": ")
        body = words[words.index("-d") + 1]
        reply = httpx.post(
            url, content=body, headers={name: value}, trust_env=False, timeout=60
        )
        assert reply.status_code == 200, reply.text
        return reply.text


def fedtailor_words(command: str) -> list[str]:
    return [sys.executable, "-m", *shlex.split(command)]


def write_pictures(folder: Path) -> None:
    """Digits 0 and 1 of two people, as the guide's folders."""
    x, y = (np.asarray(part) for part in read_digits()[:2])
    x = x.reshape(-1, 8, 8).astype(np.uint8)
    for label, name in enumerate(["zero", "one"]):
        for i, index in enumerate(np.flatnonzero(y == label)[:60]):
            owner = ["north", "south"][i % 2]
            place = folder / f"pictures/{owner}/{name}"
            if i >= 50:
                place = folder / "new-pictures"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x[index] * 15).save(place / f"{name}-{i}.png")


NEW_PATIENT = (
    "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal\n"
    "63,1,1,145,,1,2,150,0,2.3,,,\n"
)


def put_heart(folder: Path, real_data: Callable[[str], Path]) -> None:
    """The four hospitals' files in the form of the official ones, and a new patient."""
    place = folder / "data/heart"
    place.mkdir(parents=True)
    (folder / "new.csv").write_text(NEW_PATIENT)
    prepared = real_data("heart") / "heart.npz"
    if not prepared.exists():  # the official files themselves
        place.rmdir()
        place.symlink_to(real_data("heart") / "heart")
        return
    with np.load(prepared) as arrays:
        x, y, client = (arrays[key] for key in ("x", "y", "client"))
    for k, hospital in enumerate(HOSPITALS):
        lines = []
        for patient, diagnosis in zip(x[client == k], y[client == k], strict=True):
            cells = ["?" if np.isnan(value) else f"{value:g}" for value in patient]
            lines.append(",".join([*cells, str(int(diagnosis))]))
        (place / f"processed.{hospital}.data").write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_the_researchers_guide(tmp_path: Path) -> None:
    outputs = Reader("researcher", tmp_path).follow()
    assert len(outputs) == 6
    assert (tmp_path / "runs/compare/leaderboard.csv").exists()


@pytest.mark.slow
def test_the_inventors_guide(tmp_path: Path) -> None:
    Reader("inventor", tmp_path).follow()
    assert (tmp_path / "fading.pt2").exists()


@pytest.mark.slow
def test_the_data_scientists_guide(
    tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    """From the raw file to a personal model that is exported, served and queried."""
    pytest.importorskip("onnxruntime")
    put_heart(tmp_path, real_data)
    write_pictures(tmp_path)
    outputs = Reader("data-scientist", tmp_path).follow()
    table = next(out for out in outputs if out.startswith("input,prediction"))
    assert table.splitlines()[0].endswith("p(healthy),p(heart disease)")
    assert len(table.splitlines()) == 3
    (answer,) = [out for out in outputs if '"client":"va"' in out]
    assert "heart disease" in answer
    for made in ("cleveland.onnx", "cleveland.pt2", "cleveland", "hungarian.pt2"):
        assert (tmp_path / made).exists(), made


@pytest.mark.slow
def test_the_hospitals_guide(tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    put_heart(tmp_path, real_data)
    outputs = Reader("hospital", tmp_path).follow()
    assert '"client":"switzerland"' in outputs[-1]
    assert len(list((tmp_path / "sites").iterdir())) == 4


def test_the_pages_are_built_without_a_network(tmp_path: Path) -> None:
    """Strictly: every link and every name of the reference is there."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    site = tmp_path / "site"
    words = ["-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    offline = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:1")
    environment = {**os.environ, **offline, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SOON,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = (site / "api/methods.html").read_text(encoding="utf-8")
    assert "fedtailor.Client.train" in reference
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?([^\s\">]+)",
            page.read_text(encoding="utf-8"),
        )
        foreign = [url for url in loaded if re.match(r"(?:https?:)?//", url)]
        assert not foreign, (page.name, foreign)
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", text), style.name
