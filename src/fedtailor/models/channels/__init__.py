"""Networks cut by channel: which channels are shared and which private, and either kind alone.

A channel is an output of a layer. It owns its row of the weight, its bias, and all that a
normalisation layer has for it; of a table of word vectors it owns its column. Classes cannot be
split, so the last layer is cut by input: a feature owns its column.

The first channels of every layer are shared, the last ones private. So layers of one width (those
of a residual stream among them) are cut alike, a flattened feature map is cut where its channels
are, and a larger share of private channels contains a smaller one.
"""

from fedtailor.models.channels.border import (
    Border,
    Borders,
    choose_channels,
    clear_shared,
    count_shared,
    draw_borders,
    has_two_sides,
    join_channels,
    overlay_channels,
    smooth_private,
    split_channels,
    take_channels,
)
from fedtailor.models.channels.decoupled import Decoupled, Side

__all__ = [
    "Border",
    "Borders",
    "Decoupled",
    "Side",
    "choose_channels",
    "clear_shared",
    "count_shared",
    "draw_borders",
    "has_two_sides",
    "join_channels",
    "overlay_channels",
    "smooth_private",
    "split_channels",
    "take_channels",
]
