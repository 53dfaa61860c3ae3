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
from fedtailor.experiment.config import Experiment, read_config
from fedtailor.experiment.data_outline import write_outline
from fedtailor.experiment.run_about import ABOUT, begin_session, end_session
from fedtailor.storage.checkpoint import FOLDER as FOLDER_OF_CHECKPOINTS
from fedtailor.storage.files import write_bytes, write_flat_file

CONFIG = "config.toml"
IDENTITY = "identity.json"
PARTITION = "partition.npz"
OUTLINE = "outline.npz"
JOURNAL = "rounds.jsonl"
RESULT = "result.json"
LEDGER = "ledger.json"  # what filters must not forget, written before a round begins
MODELS = "models"
SHARED = "shared.safetensors"  # the global model, among the personal ones
STATE = "state"
# what a run writes before it begins
PREPARED = (
    "sites.json",
    "deploy.json",
    "clients.key",
)

# All that a run writes; a folder with something else in it is not overwritten.
WRITTEN = {
    ABOUT,
    CONFIG,
    IDENTITY,
    PARTITION,
    OUTLINE,
    JOURNAL,
    RESULT,
    LEDGER,
    MODELS,
    f".{MODELS}",
    STATE,
    FOLDER_OF_CHECKPOINTS,
    *PREPARED,
}
PICTURES = {".png", ".svg", ".pdf"}

# of the folder; 1 named some options otherwise, so that identities differ; 2 had fewer measures
FORMAT = 3


class RunFolder:
    """A run's folder; without a path, a temporary one that ``close`` deletes."""

    def __init__(self, path: Path | None) -> None:
        self.kept = path is not None
        self.path = path or Path(tempfile.mkdtemp(prefix="fedtailor-run-"))

    def close(self) -> None:
        """Delete what is not needed after the run: private state, or a temporary folder."""
        unneeded = self.path / STATE if self.kept else self.path
        shutil.rmtree(unneeded, ignore_errors=True)

    def empty(self, resume: bool = False) -> None:
        """Delete the run in the folder; refuses a folder that holds anything else."""
        if resume:
            raise UserError("--resume goes on with a run that --overwrite deletes")
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise UserError(f"{self.path} is no folder; choose another --out")
        entries = sorted(self.path.iterdir())
        if not entries:
            return
        names = {entry.name for entry in entries}
        if not {CONFIG, IDENTITY} <= names:
            raise UserError(
                f"{self.path} is not the folder of a run: nothing is overwritten"
            )
        for entry in entries:
            if entry.name not in WRITTEN and entry.suffix not in PICTURES:
                raise UserError(
                    f"{self.path} also holds {entry.name}, which no run writes:"
                    " nothing is overwritten"
                )
        shutil.rmtree(self.path)

    def clear_state(self) -> Path:
        """Delete earlier private state; gives the path where this process may keep its own.

        The path has the process's number: workers of a killed process know another one.
        """
        shutil.rmtree(self.path / STATE, ignore_errors=True)
        return self.path / STATE / str(os.getpid())

    # ---------------------------------------------------------------- which run it holds
    def claim(self, identity: str, resume: bool) -> None:
        """Refuse a folder that is not empty, unless ``resume`` and it holds this very run."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is no folder; choose another --out")
        if not self._is_begun():
            return
        if not (self.path / CONFIG).exists():
            raise UserError(
                f"{self.path} holds something else than a run; choose another --out"
            )
        self.check_format()
        if self._read_identity().get("identity") != identity:
            raise UserError(f"{self.path} holds another run; choose another --out")
        if not resume:
            raise UserError(
                f"{self.path} holds this run already; go on with --resume, or choose another --out,"
                " or --overwrite it"
            )

    def _is_begun(self) -> bool:
        """Whether there is more in the folder than a deployed run prepares."""
        if not self.path.exists():
            return False
        paths = [path for path in self.path.iterdir() if path.suffix != ".py"]
        return any(path.name not in PREPARED for path in paths)

    def check_format(self) -> None:
        """Refuse a folder that another version wrote."""
        found = self._read_identity().get("format", 1)
        if found != FORMAT:
            raise UserError(
                f"{self.path} holds a run of format {found}, and this version reads format"
                f" {FORMAT} only: run it again in another --out"
            )

    def _read_identity(self) -> dict[str, Any]:
        return _read_json(self.path / IDENTITY) or {}

    # ---------------------------------------------------------------- where it comes from
    def note_begin(self, resume: bool) -> None:
        """Write version, command, machine and time."""
        if self.kept:
            begin_session(self.path, resume)

    def note_end(self, is_finished: bool) -> None:
        """Write when it ended, and how."""
        if self.kept:
            end_session(self.path, "finished" if is_finished else "stopped")

    # ---------------------------------------------------------------- configuration
    def begin(
        self, options: Experiment, identity: str, federation: Federation | None
    ) -> None:
        """Write what is going to be run, and the partition if the data are on this machine."""
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        _write_json(self.path / IDENTITY, {"identity": identity, "format": FORMAT})
        write_bytes(self.path / CONFIG, options.to_toml().encode())
        if federation is not None:
            save_partition(federation, self.path / PARTITION)
            write_outline(federation, self.path / OUTLINE)

    def read_config(self) -> dict[str, Any]:
        """The options of the run, all resolved."""
        return read_config(self.path / CONFIG)

    # ---------------------------------------------------------------- journal and result
    def truncate_journal(self, t: int) -> list[dict[str, Any]]:
        """Delete the records after round t; gives those that remain."""
        path = self.path / JOURNAL
        records = read_journal(path) if path.exists() else []
        records = [record for record in records if record["t"] <= t]
        lines = [json.dumps(record) + "\n" for record in records]
        write_bytes(path, "".join(lines).encode())
        return records

    def append_to_journal(self, record: dict[str, Any]) -> None:
        """Write the record of a round."""
        path = self.path / JOURNAL
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def write_result(self, result: dict[str, Any]) -> None:
        """Write the result; a run that has one is finished."""
        _write_json(self.path / RESULT, result, indent=1)

    def read_result(self) -> dict[str, Any] | None:
        """The result, or None if the run is not finished."""
        return _read_json(self.path / RESULT)

    def write_ledger(self, ledger: dict[str, Any]) -> None:
        """Write what filters must not forget, even if the round is never saved."""
        _write_json(self.path / LEDGER, ledger)

    def read_ledger(self) -> dict[str, Any]:
        """What filters must not forget."""
        return _read_json(self.path / LEDGER) or {}

    # ---------------------------------------------------------------- models
    def keep_models(
        self,
        t: int,
        which: str,
        models: Iterable[tuple[int, Params]],
        shared: Params | None = None,
    ) -> None:
        """Replace the kept personal models, and the global one, by those of round t."""
        fresh = self.path / f".{MODELS}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for k, parameters in models:
            write_flat_file(fresh / f"{k}.safetensors", dict(parameters))
        if shared is not None:
            write_flat_file(fresh / SHARED, dict(shared))
        _write_json(fresh / "about.json", {"round": t, "which": which})
        shutil.rmtree(self.path / MODELS, ignore_errors=True)
        fresh.rename(self.path / MODELS)

    def kept_models(self) -> dict[str, Any] | None:
        """The ``round`` of the kept personal models and ``which`` it is, best or last."""
        return _read_json(self.path / MODELS / "about.json")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The records of a journal; a last line that was cut off is ignored."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def _read_json(path: Path) -> dict[str, Any] | None:
    """What a file holds, or None if there is no such file."""
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write_json(path: Path, value: dict[str, Any], indent: int | None = None) -> None:
    write_bytes(path, json.dumps(value, indent=indent).encode())
