"""Joining a ray cluster, or starting one."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from typing import Any

from fedtailor.core.errors import UserError

try:
    import ray
    from ray import exceptions as faults
except ImportError:
    raise UserError(
        "executor=ray needs an extra: pip install 'fedtailor[ray]'"
    ) from None

__all__ = ["connect", "faults", "last_line", "ray"]


def connect(address: str, workers: int | None) -> int:
    """Join the cluster, or with 'local' start one; gives its number of cores."""
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if ":" in address and address != here:
            raise UserError(
                f"this process is in the ray cluster at {here}; "
                f"ray.shutdown() before joining {address}"
            )
    else:
        _join(address, workers)
    cores = int(ray.cluster_resources().get("CPU", 0))  # type: ignore[no-untyped-call]
    if not cores:
        raise UserError(
            f"the ray cluster ({address}) has no cores: start its nodes with --num-cpus"
        )
    return cores


def _join(address: str, workers: int | None) -> None:
    # nothing is told to ray's makers
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # ray's coming default; else it warns
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    own: dict[str, Any] = (
        {"include_dashboard": False, "num_cpus": workers} if address == "local" else {}
    )
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        if ":" in address:  # ray itself would try for minutes
            host, port = address.rsplit(":", 1)
            socket.create_connection((host, int(port)), timeout=10).close()
        ray.init(
            address=address, log_to_driver=False, logging_level=logging.ERROR, **own
        )
    except (
        OSError,
        RuntimeError,
        ValueError,
        faults.RayError,
    ) as error:  # ConnectionError is an OSError
        hint = (
            "start one with 'ray start --head', or say --ray-address local"
            if address == "auto"
            else last_line(error)
        )
        raise UserError(
            f"no ray cluster to be joined (ray_address={address}): {hint}"
        ) from None
    finally:
        # not in the main thread: ray has left them alone
        with contextlib.suppress(ValueError):
            for s, handler in handlers.items():
                signal.signal(s, handler)  # how a run is stopped is not ray's to decide


def last_line(error: BaseException) -> str:
    """The last line of an error, which is where ray says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
