"""FedDyn: a regulariser that follows every client's gradient makes local optima agree with the global one.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1.

All clients weigh the same, as in the paper. Its code also scales alpha by n_mean / n_k, clips gradients and decays the
learning rate; the last is the experiment's, the others are left out. BatchNorm statistics are measured, not learned:
they have no gradient and no correction, the server takes their mean.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Batch, Client
from fedtailor.method import Method, New, Positive, Uploads
from fedtailor.tree import Params, add, average, dot, sqdist, subtract, tmap, total


class Server(NamedTuple):
    """What the server remembers."""

    w: Params  # theta, global model
    h: Params  # -alpha times the sum of all corrections so far
    clients: int  # m, how many there are


class Down(NamedTuple):
    """What goes down."""

    w: Params


class Keep(NamedTuple):
    """What never leaves the client."""

    grad: Params  # its gradient at its last model


class Up(NamedTuple):
    """What goes up."""

    w: Params  # theta_k, locally trained model


@dataclass(frozen=True)
class FedDyn(Method[Server, Down, Keep, Up]):
    """Everything is shared; the personal model is the global one."""

    alpha: Positive = 0.01  # alpha, strength of the regulariser; the authors try 0.1, 0.01 and 0.001

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(w, tmap(torch.zeros_like, _learned(w)), clients)

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def join(self, c: Client, down: Down) -> Keep:
        return Keep(tmap(torch.zeros_like, _learned(down.w)))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        start = _learned(down.w)

        def risk(w: Params, batch: Batch) -> Tensor:  # Eq. (1): L_k(w) - <grad, w> + alpha/2 ||w - theta||^2
            mine = _learned(w)
            return c.loss(w, batch) - dot(keep.grad, mine) + self.alpha / 2 * sqdist(mine, start)

        w = c.train(risk, down.w)
        return Up(w), Keep(self.follow(keep.grad, _learned(w), start))

    def follow(self, grad: Params, w: Params, start: Params) -> Params:
        """The gradient at the model just trained: where Eq. (1) is least, its own gradient vanishes."""
        moved: Params = add(grad, subtract(w, start), -self.alpha)
        return moved

    def merge(self, server: Server, ups: Uploads) -> Server:
        start = _learned(server.w)
        moved = total([subtract(_learned(w), start) for w in ups.w])
        h = add(server.h, moved, -self.alpha / server.clients)
        mean = average(ups.w, torch.ones(len(ups)))
        return server._replace(w={**mean, **add(_learned(mean), h, -1 / self.alpha)}, h=h)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w


def _learned(w: Params) -> Params:
    """All but BatchNorm's running statistics."""
    return {k: v for k, v in w.items() if not k.endswith((".running_mean", ".running_var"))}
