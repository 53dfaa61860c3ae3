"""How large the pieces of a GPFL run are at its newest checkpoint, and how hard each term of its loss pulls.

    python experiments/gpfl_pieces.py RUN [CLIENTS]

Means over the first CLIENTS (5) clients' training samples. ``spread`` is what tells samples apart: the root mean square
distance from the mean.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Client
from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.wire import decode
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.experiment.config import make_experiment, read_config
from fedtailor.experiment.prepare import prepare
from fedtailor.method_types import server_type
from fedtailor.methods.gpfl import GPFL, Down, Keep
from fedtailor.storage.checkpoint import Checkpoints
from fedtailor.storage.private_state import MemoryStore


def main() -> None:
    """Load, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("clients", type=int, nargs="?", default=5, help="how many (5)")
    chosen = parser.parse_args()
    run = chosen.run
    setup, store = prepare(make_experiment(read_config(run / "config.toml"))), MemoryStore()
    method, site = setup.world.method, ClientRunner(setup.world, store)
    saved = Checkpoints(run).load(
        store, json.loads((run / "identity.json").read_text())["identity"]
    )
    if saved is None or not isinstance(method, GPFL):
        sys.exit(f"{run} has no checkpoint of GPFL")
    server, rows = decode(server_type(method), saved.server, "server"), []
    for k in range(chosen.clients):
        known = site.load(k)
        if known is None:
            sys.exit(f"client {k} has not taken part yet")
        rows.append(
            measure(method, site.client(k, saved.t, Purpose.CALL), method.send(server, k), known[0])
        )
    print(f"round {saved.t}")
    for name in rows[0]:
        print(f"{name:28} {sum(r[name] for r in rows) / len(rows):9.4f}")


def measure(method: GPFL, c: Client, down: Down, keep: Keep) -> dict[str, float]:
    """Lengths at one client."""
    w = {
        k: v.detach().requires_grad_()
        for k, v in (down.base | down.valve | down.embed | keep.head).items()
    }
    g, p = method.conditions(c, down, keep)
    f = c.model.base(w, c.x)
    general, own = c.model.valve(w, f, g, p)
    embed, base = w["embed.weight"], [w[k] for k in down.base]
    cosine = F.normalize(general, dim=-1) @ F.normalize(embed, dim=-1).T
    terms = {
        "task": F.cross_entropy(c.model.head(w, own), c.y),
        "angle": F.cross_entropy(cosine / method.tau, c.y),
        # the norm of a batch of that size
        "magnitude": (method.lam or 0.0)
        * (general - embed[c.y]).square().sum(-1).mean().mul(c.batch_size).sqrt(),
    }
    out = {
        "features": length(f),
        "features, spread": spread(f),
        "f^P": length(own),
        "f^P, spread": spread(own),
    }
    if down.valve:
        for i, name in enumerate(("gamma", "beta")):
            out[f"{name} of p_i"] = float(c.model.valve._module.two[i](p).detach().norm())
    out |= {
        "f^G": length(general),
        "f^G, spread": spread(general),
        "embedding of a class": length(embed),
    }
    out["two classes' embeddings, cos"] = float(
        F.cosine_similarity(embed[0], embed[1], dim=0).detach()
    )
    for name, term in terms.items():
        grads = torch.autograd.grad(term, base, retain_graph=True, allow_unused=True)
        out[f"{name}: value"] = float(term.detach())
        out[f"{name}: gradient"] = float(
            torch.cat([v.flatten() for v in grads if v is not None]).norm()
        )
    return out


def length(x: Tensor) -> float:
    """Root mean square length of a row."""
    return float(x.detach().square().sum(-1).mean().sqrt())


def spread(x: Tensor) -> float:
    """Root mean square distance of a row from the mean row."""
    return length(x - x.mean(0))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
