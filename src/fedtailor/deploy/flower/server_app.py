"""The ServerApp that a SuperLink starts, and messages over Flower's Grid."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedtailor.core.errors import UserError
from fedtailor.deploy.config import DeployConfig
from fedtailor.deploy.flower.courier import unwrap_message, wrap_message
from fedtailor.deploy.flower.superlink import CONFIG_KEY
from fedtailor.deploy.progress_log import LogWriter
from fedtailor.deploy.server.serve import serve
from fedtailor.deploy.server.transport import Lost
from fedtailor.engine.stopping import Stopped

# seconds that the SuperLink keeps a message beyond the deadline of its answer
MARGIN = 60.0

app = ServerApp()


class GridTransport:
    """A MessageTransport over the Grid. Flower's own loop sleeps three seconds between polls."""

    def __init__(self, grid: Grid, ttl: float) -> None:
        self._grid = grid
        self._ttl = ttl

    def online_nodes(self) -> set[int]:
        """Ids of the nodes that can be sent messages."""
        return set(self._grid.get_node_ids())

    def send_messages(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Send one message to each node; returns the nodes by message id."""
        sent: dict[str, int] = {}
        for node, data in messages.items():
            message = Message(
                wrap_message(data),
                dst_node_id=node,
                message_type="train",
                ttl=self._ttl,
            )
            for message_id in self._grid.push_messages([message]):
                if message_id:
                    sent[message_id] = node
        return sent

    def collect_answers(self, ids: list[str]) -> dict[str, bytes | Lost]:
        """The answers to these messages that have arrived, by message id."""
        answers: dict[str, bytes | Lost] = {}
        if not ids:
            return answers
        for message in self._grid.pull_messages(ids):
            answers[message.metadata.reply_to_message_id] = read_answer(message)
        return answers


def read_answer(message: Message) -> bytes | Lost:
    """The bytes of an answer; bytes that are no message where Flower's content is another."""
    if message.has_error():
        return Lost(str(message.error.reason))
    try:
        return unwrap_message(message.content)
    except (KeyError, ValueError, TypeError) as error:
        return f"no message: {error}".encode()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment in Flower's run configuration; progress and outcome go to the log."""
    log = LogWriter()
    try:
        config = read_config(context)
        transport = GridTransport(grid, config.deadline + MARGIN)
        log.write_event("result", serve(transport, config, log))
    except UserError as error:
        log.write_event("error", " ".join(str(error).split()))
    except Stopped as stopped:
        log.write_event("stopped", str(stopped))
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        log.write_event("error", f"the run broke off: {reason}; --resume goes on")
        raise


def read_config(context: Context) -> DeployConfig:
    """What ``fedtailor federate`` asks for."""
    if CONFIG_KEY not in context.run_config:
        raise UserError(
            "the run was started by another version of fedtailor than the server's"
        )
    return DeployConfig.from_json(str(context.run_config[CONFIG_KEY]))
