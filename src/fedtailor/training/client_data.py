"""A client's examples: mini-batches, and the parts (train, validation, test) of its data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core.rng import Rng
from fedtailor.core.tensors import onehot
from fedtailor.data.federation import features


@dataclass(frozen=True)
class Batch:
    """A mini-batch."""

    x: Tensor
    y: Tensor
    index: Tensor  # positions of the examples within the client's data
    stream: Rng  # of the epoch; ``rng`` is this step's own
    step: int = 0

    @property
    def rng(self) -> Rng:
        """This step's randomness (noise, dropout, augmentation); drawn only by those who ask."""
        return self.stream.fold(self.step + 1)

    def halves(self) -> tuple[Batch, Batch]:
        """The first and the second half, each with randomness of its own."""
        m = len(self.y) // 2
        return (
            Batch(self.x[:m], self.y[:m], self.index[:m], self.rng, 0),
            Batch(self.x[m:], self.y[m:], self.index[m:], self.rng, 1),
        )


@dataclass(frozen=True)
class Examples:
    """One part (train or validation) of a client's data: rows of the common arrays. Under vmap it is padded."""

    _x: Tensor  # the whole data set, stored small
    _y: Tensor
    _row: Tensor | None
    index: Tensor  # the client's samples
    n: int | Tensor  # how many of them are real
    classes: int
    layout: torch.memory_format = torch.contiguous_format  # of images

    def inputs(self, index: Tensor) -> Tensor:
        """The inputs of the given samples, as a network takes them."""
        x = features(self._x[index if self._row is None else self._row[index]])
        if x.dim() != 4 or self.layout is torch.contiguous_format:
            return x
        return torch.empty_like(x, memory_format=self.layout).copy_(
            x
        )  # .to() leaves one-channel images as they are

    @property
    def x(self) -> Tensor:
        """All inputs. Under vmap short clients are padded: use ``mean`` and ``class_sums``, which know."""
        return self.inputs(self.index)

    @property
    def y(self) -> Tensor:
        """All labels (padded like ``x``)."""
        return self._y[self.index]

    @property
    def mask(self) -> Tensor:
        """1 for an example, 0 for padding."""
        slots = torch.arange(self.index.shape[0], device=self.index.device)
        return (slots < self.n).to(torch.get_default_dtype())

    @property
    def counts(self) -> Tensor:
        """Examples of every class."""
        return (onehot(self.y, self.classes) * self.mask[:, None]).sum(0)

    def mean(self, per_example: Tensor) -> Tensor:
        """The mean over the real examples (0 where there is none)."""
        mask = self.mask.reshape(-1, *[1] * (per_example.dim() - 1))
        return (per_example * mask).sum(0) / torch.as_tensor(self.n).clamp(min=1)

    def class_sums(self, per_example: Tensor) -> tuple[Tensor, Tensor]:
        """Per class, the sum of the values and the number of examples."""
        mine = onehot(self.y, self.classes) * self.mask[:, None]
        return mine.T @ per_example, mine.sum(0)

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and mask, ``size`` examples at a time, in order."""
        mask = self.mask
        for i in range(0, self.index.shape[0], size):
            index = self.index[i : i + size]
            yield self.inputs(index), self._y[index], mask[i : i + size]
