"""Letters through Flower: the Post of the executor over a Grid, and the ServerApp that a SuperLink starts."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.courier import unwrap, wrap
from fedtailor.deploy.progress_log import Relay
from fedtailor.deploy.server.executor import Lost
from fedtailor.deploy.server.serve import DEADLINE, serve
from fedtailor.engine.stopping import Stopped

app = ServerApp()


class GridPost:
    """Drives the grid directly: Flower's own loop sleeps three seconds between two looks."""

    def __init__(self, grid: Grid, ttl: float) -> None:
        self._grid, self._ttl = grid, ttl

    def online(self) -> set[int]:
        """The nodes that can be written to."""
        return set(self._grid.get_node_ids())

    def send(self, letters: Mapping[int, bytes]) -> dict[str, int]:
        """Send one letter to each node; gives the nodes by the letters' ids."""
        sent: dict[str, int] = {}
        for node, letter in letters.items():
            message = Message(wrap(letter), dst_node_id=node, message_type="train", ttl=self._ttl)
            sent |= {i: node for i in self._grid.push_messages([message]) if i}
        return sent

    def collect(self, ids: list[str]) -> dict[str, bytes | Lost]:
        """The answers that have come to these letters."""
        found: dict[str, bytes | Lost] = {}
        for message in self._grid.pull_messages(ids) if ids else []:
            to = message.metadata.reply_to_message_id
            if message.has_error():
                found[to] = Lost(str(message.error.reason))
                continue
            try:
                found[to] = unwrap(message.content)
            except (KeyError, ValueError, TypeError) as error:
                found[to] = f"no letter: {error}".encode()
        return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry out the order in the run's configuration, telling whoever follows its log."""
    relay = Relay()
    order = json.loads(str(context.run_config["order"]))
    try:
        ttl = float(order.get("deadline") or DEADLINE) + 60
        relay.tell("result", serve(GridPost(grid, ttl), order, relay))
    except UserError as error:
        relay.tell("error", " ".join(str(error).split()))
    except Stopped as stopped:
        relay.tell("stopped", str(stopped))
    except BaseException as error:
        relay.tell("error", f"the run broke off: {type(error).__name__}: {error}; --resume goes on")
        raise
