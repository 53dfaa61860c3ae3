"""The service at a site: answers the messages of runs with the site's own data and private state.

It runs nothing that is sent: only functions of the fedtailor that is installed here (or of method
files that the site was given), called by name, and only those that a method declares as client
functions.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from fedtailor import methods
from fedtailor._version import __version__
from fedtailor.core.errors import UserError, describe_error
from fedtailor.core.torch_settings import torch_settings
from fedtailor.deploy.code_digests import digest_engine, digest_method
from fedtailor.deploy.messages import (
    Header,
    Hello,
    Message,
    RequestHeader,
    parse_hello,
    parse_request,
    read_message,
    write_message,
)
from fedtailor.deploy.site.data import Source, split_data
from fedtailor.deploy.site.permissions import (
    describe_client_function,
    find_denial,
    list_setup_calls,
    needs_permission,
)
from fedtailor.deploy.site.run import SiteRun, open_run
from fedtailor.executors.visit import Look, Reply, Visit, down_type
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import make_experiment
from fedtailor.method_types import client_functions
from fedtailor.storage.files import write_bytes

VOCABULARY = "vocabulary.json"
LOOKS = {  # in words of the log
    Look.SCORE: "evaluated the personal model",
    Look.GLOBAL: "evaluated the global model",
    Look.FILTER: "answered a filter",
    Look.DIGEST: "gave a digest of the private state",
    Look.CLOSE: "kept the best personal model",
}


@dataclass
class SiteService:
    """One site."""

    name: str
    source: Source
    state_folder: Path
    # what setup may ask for; None is all that is declared
    allow: Collection[str] | None = None
    method_files: Collection[Path] = ()  # beside the built-in methods
    log: Callable[[str], None] = lambda text: None
    device: str = "cpu"
    # the file of the key that sites share, for runs that encrypt
    he_key: Path | None = None

    def __post_init__(self) -> None:
        self.incarnation = uuid.uuid4().hex  # tells two starts of a site apart
        self._run: SiteRun | None = None  # the run that was asked for last
        self._run_key = ""  # what it was opened with
        self.state_folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def answer_message(self, data: bytes) -> bytes:
        """The answer to a message; whatever goes wrong is told in one line."""
        header: Header = {"site": self.name, "incarnation": self.incarnation}
        try:
            message = read_message(data)
            if "hello" in message.header:
                answer = self._answer_hello(parse_hello(message.header))
                return write_message({**header, **answer})
            replies = self._answer_request(message)
            flat = [reply.encode() for reply in replies]
            return write_message({**header, "replies": len(replies)}, flat)
        except UserError as error:
            self.log(f"refused: {error}")
            return write_message({**header, "refused": " ".join(str(error).split())})
        except Exception as error:
            self.log(f"failed: {describe_error(error)}")
            return write_message(
                {**header, "refused": f"it failed: {describe_error(error)}"}
            )

    # ---------------------------------------------------------------- hello
    def _answer_hello(self, hello: Hello) -> Header:
        """Tell what data there are, if this site has the run's method."""
        cls = methods.find(self._find_method(hello))
        options = make_experiment({**hello.experiment, "set": {}})
        facts = split_data(self.source, options, hello.vocabulary).facts()
        if hello.vocabulary:
            words = json.dumps(hello.vocabulary).encode()
            write_bytes(self._make_run_folder(hello.run) / VOCABULARY, words)
        self.log(
            f"run {hello.run[:8]} ({options.method}) says hello; told it: {facts.summarise()}"
        )
        for name in list_setup_calls(cls):
            what = describe_client_function(cls, name)
            denial = find_denial(cls, name, self.allow)
            self.log(f"it will ask for '{name}': {what}; {denial or 'allowed'}")
        return {
            "facts": asdict(facts),
            "torch": torch.__version__,
            "fedtailor": __version__,
        }

    def _find_method(self, run: Hello | RequestHeader) -> str:
        """The method of a run: its name, or this site's own copy of its file.

        A method or an engine of another version is refused.
        """
        name = str(run.experiment["method"])
        if name.endswith(".py"):
            name = str(self._find_method_file(Path(name).name))
        mine = digest_method(methods.find(name))
        check_version(f"method {Path(name).stem}", mine, run.method)
        check_version("fedtailor's engine", digest_engine(), run.engine)
        return name

    def _find_method_file(self, file_name: str) -> Path:
        for path in self.method_files:
            if path.name == file_name:
                return path
        raise UserError(
            f"this site has no method file {file_name}: start it with --method FILE"
        )

    def _make_run_folder(self, run: str) -> Path:
        if not run.isalnum():
            raise UserError(f"'{run[:40]}' is no name of a run")
        folder = self.state_folder / f"run-{run}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    # ---------------------------------------------------------------- visits
    def _answer_request(self, message: Message) -> list[Reply]:
        """Make the visits that a message asks for, in order."""
        header = parse_request(message.header)
        if not header.visits:  # the server only asks whether this site is there
            return []
        run = self._open_run(header)
        method = run.setup.world.method
        replies = []
        with torch_settings(run.setup.world.dtype, self.device):
            for i, visit in enumerate(header.visits):
                prefix = f"run {header.run[:8]}, round {visit.t}"
                self._check_function(type(method), visit.function)
                down = message.decode_tree(i, down_type(method, visit.function))
                replies.append(self._make_visit(run, visit._replace(down=down), prefix))
        return replies

    def _open_run(self, header: RequestHeader) -> SiteRun:
        """This site's part in a run; set up once, and again when anything about the run changes."""
        key = json.dumps(
            [
                header.run,
                header.client,
                header.experiment,
                asdict(header.data),
                header.method,
                header.engine,
            ]
        )
        if self._run is None or self._run_key != key:
            method = self._find_method(header)
            folder = self._make_run_folder(header.run)
            words = read_vocabulary(folder)
            self._run = open_run(
                method,
                header,
                self.source,
                words,
                folder,
                self.name,
                self.device,
                self.he_key,
            )
            self._run_key = key
        self._run.catch_up(header)
        return self._run

    def _check_function(self, cls: type[AnyMethod], function: str | Look) -> None:
        """Refuse what is no client function of the method."""
        if isinstance(function, str) and function not in client_functions(cls):
            raise UserError(f"{cls.__name__} has no client function '{function}'")

    def _make_visit(self, run: SiteRun, visit: Visit, prefix: str) -> Reply:
        """Make a visit, if this site's owner allows it."""
        if isinstance(visit.function, Look):
            return self._look(run, visit, visit.function, prefix)
        cls = type(run.setup.world.method)
        if not needs_permission(cls, visit.function, visit.call):
            return self._call(run, visit, f"{prefix}: '{visit.function}'")
        asked = f"'{visit.function}' ({describe_client_function(cls, visit.function)})"
        denial = find_denial(cls, visit.function, self.allow)
        if denial:
            self.log(f"{prefix}: asked for {asked}: {denial}")
            return Reply(0, None, f"{asked} is {denial}", denied=True)
        return self._call(run, visit, f"{prefix}: asked for {asked}: answered")

    def _call(self, run: SiteRun, visit: Visit, what: str) -> Reply:
        """Run a client function."""
        begun = time.monotonic()
        reply = run.call(visit)
        self.log(f"{what}, {describe_outcome(reply, begun)}")
        return reply

    def _look(self, run: SiteRun, visit: Visit, look: Look, prefix: str) -> Reply:
        """Make an evaluation, or close the run."""
        begun = time.monotonic()
        reply = run.look(visit)
        what = LOOKS.get(look, look.value)
        if look is Look.CLOSE:
            what += f" in {run.folder / 'model'}"
        self.log(f"{prefix}: {what}, {describe_outcome(reply, begun)}")
        return reply


def check_version(what: str, mine: str, wanted: str) -> None:
    """Refuse a run whose code is another version than this site's."""
    if mine != wanted:
        raise UserError(
            f"this site has another version of {what} (digest {mine}) than the run ({wanted})"
        )


def read_vocabulary(folder: Path) -> list[str]:
    """The words that came with a run's hello, if any did."""
    path = folder / VOCABULARY
    if not path.exists():
        return []
    words: list[str] = json.loads(path.read_text())
    return words


def describe_outcome(reply: Reply, begun: float) -> str:
    """Why a visit failed, or how long it took."""
    return reply.error or f"{time.monotonic() - begun:.2f} s"
