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

from benchmarks.work_file import Work, read_work_file

client_app = ClientApp()


@lru_cache(maxsize=1)
def load_work(path: str) -> tuple[Work, nn.Module]:
    """The work file and a network, which an actor keeps from visit to visit."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    work = read_work_file(path)
    return work, work.build_initial_network()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One visit."""
    config = message.content["config"]
    work, net = load_work(str(config["work"]))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = work.visit_rows(int(config["server-round"]), int(config["place"]))
    x = work.inputs(rows)
    y = work.y[rows]
    batch = work.task.batch
    optimiser = torch.optim.SGD(net.parameters(), lr=work.task.lr)
    for start in range(0, len(y), batch):
        stop = start + batch
        optimiser.zero_grad()
        loss = F.cross_entropy(net(x[start:stop]), y[start:stop])
        loss.backward()
        optimiser.step()
    content = {
        "arrays": ArrayRecord(net.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(content), reply_to=message)
