"""The HTTP server, as a process of its own, asked over a real connection."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedtailor

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

COLUMNS = ["age", "dose", "time"]


def write_hospitals(path: Path) -> Path:
    """Two hospitals' patients with gaps; who is old is ill."""
    rng = np.random.default_rng(5)
    lines = ["client,age,dose,time,label"]
    for i in range(80):
        age = rng.normal()
        dose = "" if i % 7 == 0 else f"{rng.normal():.3f}"
        label = "ill" if age > 0 else "well"
        lines.append(f"{['north', 'south'][i % 2]},{age:.3f},{dose},{i / 80},{label}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    data = write_hospitals(folder / "hospitals.csv")
    options = {"missing": "median", "rounds": 20, "lr": 0.3, "executor": "sequential"}
    fedtailor.run("ditto", str(data), **options, out=folder / "run")
    return folder / "run"


class Server:
    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "fedtailor", "serve", *words, "--port", "0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found, line + self.process.stderr.read()
        self.url = found[0]

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        assert (self.process.returncode, out) == (0, "stopped\n"), err
        return err


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    started = Server(str(run), "--max-mb", "1")
    yield started
    err = started.stop()
    assert not err


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as asking:
        yield asking


def test_a_client_is_asked_by_name(client: httpx.Client, run: Path) -> None:
    assert client.get("/healthz").json() == {"status": "ok", "models": 2}
    cards = client.get("/models").json()
    assert [card["client"] for card in cards] == ["north", "south"]
    assert cards[0]["columns"] == COLUMNS and cards[0]["labels"] == ["ill", "well"]

    old = {"age": 2.0, "dose": None, "time": 0.5}
    young = {"time": 0.5, "dose": 0.1, "age": -2}
    question = {"client": "south", "records": [old, young]}
    reply = client.post("/predict", json=question)
    assert reply.json() == {"client": "south", "predictions": ["ill", "well"]}
    found = client.post("/predict_proba", json=question).json()
    # gaps are filled with the client's own medians
    model = fedtailor.load(run).client("south")
    medians = model.inputs.fill.medians
    rows = [[2.0, medians[1], 0.5, 0, 1, 0], [-2, 0.1, 0.5, 0, 0, 0]]
    expected = model.predict_proba(np.array(rows, np.float32)).numpy()
    assert np.allclose(found["probabilities"], expected, atol=1e-6)
    assert found["labels"] == ["ill", "well"]

    lists = {"client": 1, "inputs": [[2.0, None, 0.5], [-2, 0.1, 0.5]]}
    again = client.post("/predict_proba", json=lists).json()
    assert np.allclose(again["probabilities"], expected, atol=1e-6)
    shared = client.post("/predict", json={**question, "client": "shared"})
    assert "no medians of one client" in shared.json()["error"]


@pytest.mark.parametrize(
    ("question", "status", "complaint"),
    [
        ({"client": "sout", "inputs": [[1, 2, 3]]}, 400, "did you mean south"),
        ({"inputs": [[1, 2, 3]]}, 400, "2 clients: say which, one of north, south"),
        ({"client": "north"}, 400, "give one of inputs, records and texts"),
        ({"client": "north", "inputs": []}, 400, "there are no inputs"),
        ({"client": "north", "inputs": [[1, 2]]}, 400, "shape (6,), not (2,)"),
        ({"client": "north", "inputs": [[1, 2], [3]]}, 400, "all of one shape"),
        ({"client": "north", "inputs": [["a", 2, 3]]}, 400, "lists of numbers"),
        ({"client": "north", "inputs": [{"a": 1}]}, 400, "nested lists"),
        ({"client": "north", "texts": ["hello"]}, 400, "table inputs, not texts"),
        ({"client": "north", "records": [{"age": 1}]}, 400, "named 'dose'"),
        (
            {"client": "north", "records": [{"age": "x", "dose": 1, "time": 1}]},
            400,
            "record 0, column 'age': 'x' is not a number",
        ),
        ({"client": "north", "input": [[1, 2, 3]]}, 422, "body.input"),
        ({"client": "north", "inputs": 3}, 422, "body.inputs"),
    ],
)
def test_mistakes_are_one_line(
    client: httpx.Client, question: object, status: int, complaint: str
) -> None:
    reply = client.post("/predict", json=question)
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["error"] and complaint in reply.json()["error"]
    assert "\n" not in reply.json()["error"]


def test_what_is_no_json_is_refused(client: httpx.Client) -> None:
    reply = client.post("/predict", content=b"{", headers={"Content-Type": "a/json"})
    assert reply.status_code == 422 and "error" in reply.json()
    huge = b'{"client": "north", "inputs": [[1e999, 1, 1]]}'
    reply = client.post(
        "/predict", content=huge, headers={"Content-Type": "application/json"}
    )
    assert reply.status_code in (400, 422) and "error" in reply.json()
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert client.get("/predict").status_code == 405


def test_large_requests_are_refused(client: httpx.Client, server: Server) -> None:
    body = b" " * (1 << 20) + b"{}"
    reply = client.post("/predict", content=body)
    assert reply.status_code == 413 and reply.json() == {
        "error": "a request may have 1 MB"
    }

    def pieces() -> Iterator[bytes]:  # without a length in front
        for _ in range(20):
            yield b" " * (1 << 16)

    with httpx.Client(base_url=server.url, trust_env=False) as other:
        reply = other.post("/predict", content=pieces())
    assert reply.status_code == 413
    assert client.get("/healthz").status_code == 200


def test_only_this_machine_is_answered(client: httpx.Client, server: Server) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", ""):
        reply = client.get("/models", headers={"Host": host})
        assert reply.status_code in (400, 421), host
        assert "client" not in reply.text
    for host in ("localhost", "localhost:8350", "[::1]:8350"):
        assert client.get("/healthz", headers={"Host": host}).status_code == 200
    port = int(server.url.rpartition(":")[2])
    with socket.socket() as outside:
        outside.bind(("127.0.0.2", 0))
        assert outside.connect_ex(("127.0.0.3", port)) != 0


def test_the_page_loads_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/").text
    assert not re.findall(r"(?:https?:)?//[a-z]", page)
    schema = client.get("/openapi.json").json()
    assert {"/predict", "/predict_proba", "/models", "/healthz"} == set(schema["paths"])
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404


def test_many_at_once(client: httpx.Client, run: Path, server: Server) -> None:
    """Clients' models do not mix, though layers are shared."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(20, 3)).round(3)
    opened = fedtailor.load(run)
    marks = np.zeros_like(rows)
    full = np.concatenate([rows, marks], 1).astype(np.float32)
    wrong: list[str] = []

    def ask(name: str) -> None:
        expected = opened_answers[name]
        with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as own:
            for _ in range(10):
                question = {"client": name, "inputs": rows.tolist()}
                found = own.post("/predict_proba", json=question).json()
                if not np.allclose(found["probabilities"], expected, atol=1e-5):
                    wrong.append(name)

    opened_answers = {
        name: opened.client(name).predict_proba(full).numpy()
        for name in ("north", "south")
    }
    assert not np.allclose(*opened_answers.values(), atol=1e-3)
    threads = [threading.Thread(target=ask, args=(name,)) for name in opened_answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_port_that_is_taken_is_one_line(server: Server, run: Path) -> None:
    port = server.url.rpartition(":")[2]
    words = [sys.executable, "-m", "fedtailor", "serve", str(run), "--port", port]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2
    assert done.stderr.startswith(f"fedtailor: port {port} cannot be had")


def test_an_exported_folder_is_served(run: Path, tmp_path: Path) -> None:
    fedtailor.load(run).client("north").export(tmp_path / "north")
    started = Server(str(tmp_path / "north"))
    try:
        question = {"records": [{"age": 2, "dose": None, "time": 0}]}
        reply = httpx.post(f"{started.url}/predict", json=question, trust_env=False)
        assert reply.json() == {"client": "north", "predictions": ["ill"]}
    finally:
        err = started.stop()
    assert "Traceback" not in err
