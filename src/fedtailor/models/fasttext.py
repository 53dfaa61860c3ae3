"""fastText as in FedCP and GPFL: the mean of the word vectors under two linear layers."""

from __future__ import annotations

from torch import nn

from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import Request, take_no_variants, take_tokens
from fedtailor.models.layers import Mean, chain

WIDTH = 32


def make_fasttext(request: Request) -> Backbone:
    """Word vectors of 32, their mean over all positions (padding, whose vector is zero, included), a layer of 32."""
    take_no_variants(request)
    base = chain(
        embedding=nn.Embedding(take_tokens(request), WIDTH, padding_idx=0),
        mean=Mean(),
        fc1=nn.Linear(WIDTH, WIDTH),  # no activation follows
    )
    return Backbone(base, nn.Linear(WIDTH, request.classes), features=WIDTH, kind=request.name)
