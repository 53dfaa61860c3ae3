"""Flower's own SuperNode, polling for messages more often; started by path, as ``courier`` is.

Flower's constants make it poll every three seconds and be missed after a minute.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

POLL = 0.25  # seconds between two polls for a message at the SuperLink
READY = 0.05  # seconds between two polls whether the answer is ready, on this machine
HEARTBEAT = 10  # seconds; a node that was killed counts as gone after twice that


def main() -> None:
    """Set the constants and run it; it ends with its parent."""
    from flwr.supercore import heartbeat
    from flwr.supercore.app_utils import start_parent_process_monitor
    from flwr.supernode import fleet_http_connection, start_client_internal
    from flwr.supernode.cli.flower_supernode import flower_supernode

    poll = float(os.environ.get("FEDTAILOR_POLL", POLL))

    def sleep(seconds: float) -> None:
        time.sleep(poll if seconds > 1 else READY)

    vars(start_client_internal)["time"] = SimpleNamespace(sleep=sleep)
    for module in (heartbeat, fleet_http_connection):
        vars(module)["HEARTBEAT_DEFAULT_INTERVAL"] = HEARTBEAT
    start_parent_process_monitor(os.getppid())
    flower_supernode()


if __name__ == "__main__":
    main()
