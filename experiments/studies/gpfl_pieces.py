"""How large the pieces of a GPFL run are at its newest checkpoint, and how hard each loss pulls.

    python -m experiments.studies.gpfl_pieces RUN [CLIENTS]

Means over the first CLIENTS (5) clients' training samples. ``spread`` is what tells samples apart:
the root mean square distance from the mean.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Client
from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.tree import Params
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("clients", type=int, nargs="?", default=5, help="how many (5)")
    chosen = parser.parse_args()
    t, measured = measure_run(chosen.run, chosen.clients)
    print(f"round {t}")
    for name in measured[0]:
        mean = sum(lengths[name] for lengths in measured) / len(measured)
        print(f"{name:28} {mean:9.4f}")


def measure_run(run: Path, clients: int) -> tuple[int, list[dict[str, float]]]:
    """The round of the newest checkpoint, and the lengths at some clients."""
    setup = prepare(make_experiment(read_config(run / "config.toml")))
    method = setup.world.method
    store = MemoryStore()
    runner = ClientRunner(setup.world, store)
    identity = json.loads((run / "identity.json").read_text())["identity"]
    saved = Checkpoints(run).load(store, identity)
    if saved is None or not isinstance(method, GPFL):
        sys.exit(f"{run} has no checkpoint of GPFL")
    server = decode(server_type(method), saved.server, "server")
    measured = []
    for k in range(clients):
        state = runner.load(k)
        if state.is_new:
            sys.exit(f"client {k} has not taken part yet")
        client = runner.client(k, saved.t, Purpose.CALL)
        down = method.send(server, k)
        lengths = measure_client(method, client, down, keep=state.keep)
        measured.append(lengths)
    return saved.t, measured


def measure_client(method: GPFL, c: Client, down: Down, keep: Keep) -> dict[str, float]:
    """Lengths, values and gradients at one client."""
    everything = down.base | down.valve | down.embed | keep.head
    w = {name: value.detach().requires_grad_() for name, value in everything.items()}
    general_condition, personal_condition = method.conditions(c, down, keep)
    features = c.model.base(w, c.x)
    general, personal = c.model.valve(
        w, features, general_condition, personal_condition
    )
    embed = w["embed.weight"]
    lengths = {
        "features": measure_length(features),
        "features, spread": measure_spread(features),
        "f^P": measure_length(personal),
        "f^P, spread": measure_spread(personal),
    }
    if down.valve:
        for i, name in enumerate(("gamma", "beta")):
            output = c.model.valve._module.two[i](personal_condition)
            lengths[f"{name} of p_i"] = float(output.detach().norm())
    lengths["f^G"] = measure_length(general)
    lengths["f^G, spread"] = measure_spread(general)
    lengths["embedding of a class"] = measure_length(embed)
    cosine = F.cosine_similarity(embed[0], embed[1], dim=0)
    lengths["two classes' embeddings, cos"] = float(cosine.detach())
    base = [w[name] for name in down.base]
    for name, term in compute_terms(method, c, w, general, personal).items():
        lengths[f"{name}: value"] = float(term.detach())
        lengths[f"{name}: gradient"] = measure_gradient(term, base)
    return lengths


def compute_terms(
    method: GPFL,
    c: Client,
    w: Params,
    general: Tensor,
    personal: Tensor,
) -> dict[str, Tensor]:
    """The three terms of GPFL's loss."""
    embed = w["embed.weight"]
    logits = c.model.head(w, personal)
    directions = F.normalize(embed, dim=-1)
    cosine = F.normalize(general, dim=-1) @ directions.T
    difference = general - embed[c.y]
    distance = difference.square().sum(-1).mean()
    norm = distance.mul(c.batch_size).sqrt()  # of a batch of that size
    lam = method.lam or 0.0
    return {
        "task": F.cross_entropy(logits, c.y),
        "angle": F.cross_entropy(cosine / method.tau, c.y),
        "magnitude": lam * norm,
    }


def measure_gradient(term: Tensor, parameters: Sequence[Tensor]) -> float:
    """The length of a term's gradient."""
    gradients = torch.autograd.grad(
        term, parameters, retain_graph=True, allow_unused=True
    )
    used = [gradient.flatten() for gradient in gradients if gradient is not None]
    return float(torch.cat(used).norm())


def measure_length(x: Tensor) -> float:
    """Root mean square length of a row."""
    return float(x.detach().square().sum(-1).mean().sqrt())


def measure_spread(x: Tensor) -> float:
    """Root mean square distance of a row from the mean row."""
    return measure_length(x - x.mean(0))


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
