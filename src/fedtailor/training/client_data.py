"""A client's examples: the parts of its data, and mini-batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.core.tensors import onehot
from fedtailor.data.federation import features

CHUNK = 500  # examples in one forward pass where nothing is trained
# bytes of inputs fetched at once: few fetches, yet small beside a model
GATHER = 1 << 21


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
        """This step's randomness, for noise, dropout or augmentation."""
        return self.stream.fold(self.step + 1)

    def halves(self) -> tuple[Batch, Batch]:
        """The first and the second half, each with its own randomness."""
        middle = len(self.y) // 2
        first = self._cut(slice(middle), 0)
        second = self._cut(slice(middle, None), 1)
        return first, second

    def _cut(self, rows: slice, step: int) -> Batch:
        return Batch(
            x=self.x[rows],
            y=self.y[rows],
            index=self.index[rows],
            stream=self.rng,
            step=step,
        )


@dataclass(frozen=True)
class Examples:
    """One part of a client's data: rows of the arrays that all clients share.

    Under ``vmap`` clients are padded to the same number of rows; ``mask``, ``mean``, ``counts`` and
    ``class_sums`` leave the padding out.
    """

    all_x: Tensor  # the inputs of the whole data set, as they are stored
    all_y: Tensor
    # where a sample's input lies in all_x; None: at the sample's own number
    row: Tensor | None
    index: Tensor  # the client's samples
    n: int | Tensor  # how many of them are not padding
    classes: int
    layout: torch.memory_format = torch.contiguous_format  # of images

    def inputs(self, index: Tensor) -> Tensor:
        """The inputs of the given samples, as a network takes them."""
        rows = index if self.row is None else self.row[index]
        x = features(self.all_x[rows])
        if x.dim() != 4 or self.layout is torch.contiguous_format:
            return x
        # not x.to(memory_format=...), which leaves one-channel images as they are
        return torch.empty_like(x, memory_format=self.layout).copy_(x)

    @property
    def x(self) -> Tensor:
        """All inputs (padded under vmap)."""
        return self.inputs(self.index)

    @property
    def y(self) -> Tensor:
        """All labels (padded under vmap)."""
        return self.all_y[self.index]

    @property
    def mask(self) -> Tensor:
        """1 for an example, 0 for padding."""
        positions = torch.arange(self.index.shape[0], device=self.index.device)
        return (positions < self.n).to(torch.get_default_dtype())

    @property
    def counts(self) -> Tensor:
        """Number of examples of every class."""
        labels = self._shares_of_classes * self.mask[:, None]
        return labels.sum(0)

    @property
    def _shares_of_classes(self) -> Tensor:
        """By example, how much it is of every class: one class wholly, unless guessed."""
        if self.all_y.dim() == 2:  # an attacker's guess
            return self.y
        if self.all_y.is_floating_point():
            raise UserError(
                "the method counts examples by class, and this task has no classes;"
                " say so by its attribute needs_classes"
            )
        return onehot(self.y, self.classes)

    def mean(self, per_example: Tensor) -> Tensor:
        """The mean over the examples (0 where there is none)."""
        other_axes = [1] * (per_example.dim() - 1)
        mask = self.mask.reshape(-1, *other_axes)
        total = (per_example * mask).sum(0)
        n = torch.as_tensor(self.n)
        return total / n.clamp(min=1)

    def class_sums(self, per_example: Tensor) -> tuple[Tensor, Tensor]:
        """Per class, the sum of the values and the number of examples."""
        labels = self._shares_of_classes * self.mask[:, None]
        return labels.T @ per_example, labels.sum(0)

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, labels and mask, ``size`` examples at a time, in order."""
        masks = torch.split(self.mask, size)
        indices = torch.split(self.index, size)
        for index, mask in zip(indices, masks, strict=True):
            if len(index):
                yield self.inputs(index), self.all_y[index], mask

    def map(self, function: Callable[[Tensor], Tensor], size: int = CHUNK) -> Tensor:
        """What ``function`` gives for all inputs, computed ``size`` examples at a time."""
        return torch.cat([function(x) for x, _, _ in self.chunks(size)])

    def batches(self, order: Tensor, size: int, rng: Rng) -> Iterator[Batch]:
        """Mini-batches in the given order; inputs are fetched for several at once."""
        bytes_per_batch = max(1, size * self.all_x[0].nbytes)
        batches_at_once = max(1, GATHER // bytes_per_batch)
        step = 0
        for many in torch.split(order, batches_at_once * size):
            samples = self.index[many]
            xs = torch.split(self.inputs(samples), size)
            ys = torch.split(self.all_y[samples], size)
            indices = torch.split(many, size)
            for x, y, index in zip(xs, ys, indices, strict=True):
                yield Batch(x, y, index, rng, step)
                step += 1
