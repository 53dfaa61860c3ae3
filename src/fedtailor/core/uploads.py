"""The replies to one call, and how they are combined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedtailor.core.tree import Tree, average, total

Up = TypeVar("Up")
# several trees and their weights to one tree
Reduction = Callable[[Sequence[Tree], Tensor], Tree]


class Uploads(Generic[Up]):
    """The replies to one call, in client order; lost replies are absent.

    ``ups.w`` is the list of all uploads' field ``w``; ``ups.mean("w")`` is their mean.

    Attributes:
        clients: ids of the senders.
        n: their numbers of training examples.
        reduction: how ``mean`` turns trees and weights into one tree. Filters may replace it.
    """

    def __init__(
        self,
        clients: Sequence[int],
        n: Tensor,
        replies: Sequence[Up],
        reduction: Reduction = average,
    ) -> None:
        self.clients = list(clients)
        self.n = n
        self.reduction = reduction
        self._replies = list(replies)

    def __getattr__(self, field: str) -> list[Any]:
        if field.startswith("_"):
            raise AttributeError(field)
        return [getattr(reply, field) for reply in self._replies]

    def __len__(self) -> int:
        return len(self._replies)

    def of(self, clients: Iterable[int]) -> Uploads[Up]:
        """The uploads of the given clients."""
        wanted = set(clients)
        places: list[int] = []
        senders: list[int] = []
        replies: list[Up] = []
        for place, k in enumerate(self.clients):
            if k in wanted:
                places.append(place)
                senders.append(k)
                replies.append(self._replies[place])
        return Uploads(senders, self.n[places], replies, self.reduction)

    def sizes(self) -> dict[int, float]:
        """The number of training examples of every sender."""
        return dict(zip(self.clients, self.n.tolist(), strict=True))

    def mean(self, field: str, weight: Tensor | Sequence[float] | None = None) -> Any:
        """The mean of one field.

        Args:
            field: its name.
            weight: of every client; its number of training examples unless given.
        """
        weights = self.n
        if weight is not None:
            weights = torch.as_tensor(weight, dtype=torch.float64)
        trees = getattr(self, field)
        return self.reduction(trees, weights)

    def sum(self, field: str) -> Any:
        """The sum of one field."""
        trees = getattr(self, field)
        return total(trees)

    def mean_by_group(
        self, field: str, group: Mapping[int, int], old: Sequence[Tree]
    ) -> list[Any]:
        """The mean of one field in every group of clients.

        Args:
            field: its name.
            group: the group of every sender, counted from 0.
            old: one value a group, which it keeps if none of its clients replied.
        """
        means = list(old)
        for i in range(len(means)):
            members = [k for k in self.clients if group[k] == i]
            if members:
                means[i] = self.of(members).mean(field)
        return means

    def by_client(self) -> dict[int, Up]:
        """Every upload under its sender's id."""
        return dict(zip(self.clients, self._replies, strict=True))

    def map(self, function: Callable[[Up], Up]) -> Uploads[Up]:
        """The uploads with ``function`` applied to each."""
        replies = [function(reply) for reply in self._replies]
        return Uploads(self.clients, self.n, replies, self.reduction)

    def with_reduction(self, reduction: Reduction) -> Uploads[Up]:
        """The same uploads, combined another way (a median, a noisy or an encrypted sum)."""
        return Uploads(self.clients, self.n, self._replies, reduction)
