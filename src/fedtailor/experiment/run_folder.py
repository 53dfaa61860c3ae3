"""The folder of a run: its configuration, partition, journal, result, models and checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError, writing
from fedtailor.core.tree import Params
from fedtailor.data.federation import Federation
from fedtailor.data.partition.saved import save_partition
from fedtailor.experiment.config import Experiment, read
from fedtailor.experiment.data_outline import write_outline
from fedtailor.storage.files import write, write_bytes

CONFIG, PARTITION, OUTLINE, JOURNAL = "config.toml", "partition.npz", "outline.npz", "rounds.jsonl"
RESULT, MODELS = "result.json", "models"
PREPARED = ("sites.json", "deploy.json")  # what a deployed run writes before it begins


class Folder:
    """A run's folder; without a path, a temporary one that goes away."""

    def __init__(self, path: Path | None) -> None:
        self.kept = path is not None
        self.path = path or Path(tempfile.mkdtemp(prefix="fedtailor-run-"))

    def close(self) -> None:
        """Delete it if nobody asked to keep it; private state on disk is not needed any more either way."""
        shutil.rmtree(self.path / "state" if self.kept else self.path, ignore_errors=True)

    def state(self) -> Path:
        """An empty folder for private state while the run goes on; workers of a killed process know another one."""
        shutil.rmtree(self.path / "state", ignore_errors=True)
        return self.path / "state" / str(os.getpid())

    # ---------------------------------------------------------------- whose folder it is
    def claim(self, identity: str, resume: bool) -> None:
        """Make sure that the folder is empty, or, when going on, that it holds this very run."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is no folder; choose another --out")
        if not self.path.exists() or not any(
            p.name not in PREPARED and p.suffix != ".py" for p in self.path.iterdir()
        ):
            return
        if not (self.path / CONFIG).exists():
            raise UserError(f"{self.path} holds something else than a run; choose another --out")
        theirs = (
            json.loads((self.path / "identity.json").read_text())
            if (self.path / "identity.json").exists()
            else {}
        )
        if theirs.get("identity") != identity:
            raise UserError(f"{self.path} holds another run; choose another --out")
        if not resume:
            raise UserError(
                f"{self.path} holds this run already; go on with --resume, or choose another --out"
            )

    def begin(self, options: Experiment, identity: str, federation: Federation | None) -> None:
        """Write down what is going to be run, and on whose data (where they are here)."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        write_bytes(self.path / "identity.json", json.dumps({"identity": identity}).encode())
        write_bytes(self.path / CONFIG, options.toml().encode())
        if federation is not None:
            save_partition(federation, self.path / PARTITION)
            write_outline(federation, self.path / OUTLINE)

    def options(self) -> dict[str, Any]:
        """The resolved configuration of the run that is here."""
        return read(self.path / CONFIG)

    # ---------------------------------------------------------------- journal and result
    def cut(self, t: int) -> list[dict[str, Any]]:
        """The journal up to round t; what came after is forgotten."""
        path = self.path / JOURNAL
        records = [r for r in journal(path) if r["t"] <= t] if path.exists() else []
        write_bytes(path, "".join(json.dumps(r) + "\n" for r in records).encode())
        return records

    def append(self, record: dict[str, Any]) -> None:
        """One more line in the journal."""
        path = self.path / JOURNAL
        with writing(path), path.open("a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result: a run that has one is done."""
        write_bytes(self.path / RESULT, json.dumps(result, indent=1).encode())

    def result(self) -> dict[str, Any] | None:
        """The result, if the run is done."""
        path = self.path / RESULT
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found

    # ---------------------------------------------------------------- models
    def keep_models(self, t: int, which: str, models: Iterable[tuple[int, Params]]) -> None:
        """Replace the kept personal models by those of round t."""
        fresh = self.path / f".{MODELS}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for k, w in models:
            write(fresh / f"{k}.safetensors", dict(w))
        write_bytes(fresh / "about.json", json.dumps({"round": t, "which": which}).encode())
        shutil.rmtree(self.path / MODELS, ignore_errors=True)
        fresh.rename(self.path / MODELS)

    def models(self) -> dict[str, Any] | None:
        """Which personal models are kept: their round, and whether it is the best or the last."""
        path = self.path / MODELS / "about.json"
        found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return found


def journal(path: Path) -> list[dict[str, Any]]:
    """The records of a journal; a last line cut off in the middle is no record."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records
