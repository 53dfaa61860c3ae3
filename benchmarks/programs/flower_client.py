"""Flower's client: loads the arrays it is sent into a module, trains, and sends its state back.

A module of its own, because ray's actors import it.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn import functional as F

from benchmarks.work import Work, read

client_app = ClientApp()


@lru_cache(maxsize=1)
def equip(path: str) -> tuple[Work, nn.Module]:
    """What an actor keeps from visit to visit."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    work = read(path)
    return work, work.net()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One visit."""
    config = message.content["config"]
    work, net = equip(str(config["work"]))
    t, j = int(config["server-round"]), int(config["seat"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = work.rows[int(work.cohorts[t - 1, j])][work.at[t][j][0]]
    x, y, batch = work.inputs(rows), work.y[rows], work.about["batch"]
    optimiser = torch.optim.SGD(net.parameters(), lr=work.about["lr"])
    for i in range(0, len(y), batch):
        optimiser.zero_grad()
        F.cross_entropy(net(x[i : i + batch]), y[i : i + batch]).backward()
        optimiser.step()
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(content), reply_to=message)
