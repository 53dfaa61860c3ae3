"""fastText as in FedCP and GPFL: the mean of the word vectors under two linear layers."""

from __future__ import annotations

from torch import nn

from fedtailor.models.architecture import Architecture, add_linear_head
from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import Request, refuse_variants, require_tokens
from fedtailor.models.layers import Mean, chain

WIDTH = 32


def build_fasttext(request: Request) -> Backbone:
    """Word vectors of 32, their mean over all positions, a layer of 32.

    Padding, whose vector is zero, counts as a position.
    """
    refuse_variants(request)
    vocabulary = require_tokens(request)
    base = chain(
        embedding=nn.Embedding(vocabulary, WIDTH, padding_idx=0),
        mean=Mean(),
        fc1=nn.Linear(WIDTH, WIDTH),  # no activation follows
    )
    return add_linear_head(base, WIDTH, request)


ARCHITECTURES = {
    "fasttext": Architecture(
        build=build_fasttext,
        learning_rate=0.1,  # FedCP, GPFL
        layers="mean of word vectors of 32, FC 32",
        source="FedCP, GPFL",
        shape=(200,),
        classes=4,
        vocabulary=98635,
    ),
}
