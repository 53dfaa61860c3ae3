"""A SuperLink as ``fedtailor federate`` and ``register`` use it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedtailor.core.errors import UserError
from fedtailor.deploy.config import DeployConfig

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
CONFIG_KEY = "deploy"  # of the DeployConfig in Flower's run configuration
PROJECT = f"""
[project]
name = "fedtailor-run"
version = "1.0.0"
description = "A run of FedTailor"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedtailor"
fab-include = ["fedtailor_run/*.py"]

[tool.flwr.app.components]
serverapp = "fedtailor_run.server:app"
clientapp = "fedtailor_run.client:app"

[tool.flwr.app.config]
{CONFIG_KEY} = ""
"""
SERVER = '''"""The server, which is installed at the SuperLink."""

from fedtailor.deploy.flower.server_app import app
'''
CLIENT = '''"""Nothing: a site is started with fedtailor node, and runs its own code only."""

from flwr.clientapp import ClientApp

app = ClientApp()
'''


def require_flower(command: str) -> None:
    """Say in one line how to get Flower where it is not installed."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise UserError(
            f"{command} needs Flower: pip install 'fedtailor[flower]'"
        ) from None


class SuperLinkClient:
    """A connection to a SuperLink's control interface."""

    def __init__(self, address: str, certificates: Path | None, home: Path) -> None:
        # Nothing of the user's own Flower configuration is read or written.
        os.environ["FLWR_HOME"] = str(home)
        from flwr.cli.typing import SuperLinkConnection
        from flwr.cli.utils import init_http_client_from_connection

        if certificates is not None and not certificates.is_file():
            raise UserError(
                f"there is no file {certificates}: "
                "--root-certificates is the CA's certificate, ca.pem"
            )
        root = None if certificates is None else str(certificates.resolve())
        connection = SuperLinkConnection(
            "federate", address, root, insecure=certificates is None
        )
        self._address = address
        with contextlib.redirect_stdout(io.StringIO()), self._one_line_errors():
            self._client: Any = init_http_client_from_connection(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._client.close()

    def start_run(self, config: DeployConfig) -> int:
        """Start a run; returns its number."""
        from flwr.common.serde import fab_to_proto, user_config_to_proto
        from flwr.proto.control_pb2 import StartRunRequest

        request = StartRunRequest(
            fab=fab_to_proto(build_app()),
            override_config=user_config_to_proto({CONFIG_KEY: config.to_json()}),
        )
        with self._one_line_errors():
            response = self._client.StartRun(request)
        if not response.HasField("run_id"):
            raise UserError(f"the SuperLink at {self._address} did not start the run")
        return int(response.run_id)

    def stream_log(self, run: int) -> Iterator[str]:
        """The run's log in chunks, as it grows, until the run is over."""
        from flwr.proto.control_pb2 import StreamLogsRequest

        request = StreamLogsRequest(run_id=run, after_timestamp=0.0)
        with self._one_line_errors():
            for chunk in self._client.StreamLogs(request):
                yield chunk.log_output

    def stop_run(self, run: int) -> None:
        """Stop a run."""
        from flwr.proto.control_pb2 import StopRunRequest

        with self._one_line_errors():
            self._client.StopRun(StopRunRequest(run_id=run))

    def register_node(self, key: Path) -> int:
        """Allow the node with this public key to connect; returns the node's id."""
        from flwr.cli.supernode.register import try_load_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest

        with self._one_line_errors():
            request = RegisterNodeRequest(public_key=try_load_public_key(key))
            return int(self._client.RegisterNode(request).node_id)

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """Flower's errors as a UserError of one line."""
        import click
        import httpx
        from flwr.cli.utils import flwr_cli_exc_handler

        try:
            with flwr_cli_exc_handler():
                yield
        except (click.ClickException, httpx.HTTPError, OSError) as error:
            text = (
                error.message if isinstance(error, click.ClickException) else str(error)
            )
            raise UserError(
                f"the SuperLink at {self._address}: {' '.join(text.split())}"
            ) from None


def build_app() -> Any:
    """The app that Flower wants with every run: it names the server, and brings no code."""
    from flwr.cli.build import build_fab_from_files
    from flwr.supercore.fab import Fab

    files = {
        "pyproject.toml": PROJECT,
        "fedtailor_run/__init__.py": '"""A run."""\n',
        "fedtailor_run/server.py": SERVER,
        "fedtailor_run/client.py": CLIENT,
    }
    content, _ = build_fab_from_files(
        {name: text.encode() for name, text in files.items()}
    )
    return Fab(hashlib.sha256(content).hexdigest(), content, {})
