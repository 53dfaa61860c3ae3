"""Networks cut by channel: which channels are shared and which private, and either kind as a smaller network.

A channel is an output of a layer; it owns its row of the weight, its bias and all that a normalisation layer has for
it; of a table of word vectors, its column. Classes cannot be split, so the last layer is cut by input: a feature owns
its column. The first channels of every layer are shared, the last ones private: layers of one width (those of a
residual stream among them) are cut alike, a flattened feature map is cut where its channels are, and a larger share of
private channels contains the smaller.
"""

from fedtailor.models.channels.border import (
    Border,
    Borders,
    choose,
    clear_shared,
    count_shared,
    draw_borders,
    has_two_sides,
    join_parts,
    overlay,
    smooth_private,
    split_parts,
)
from fedtailor.models.channels.decoupled import Decoupled, Side, measure_sides, score_sides

__all__ = [
    "Border",
    "Borders",
    "Decoupled",
    "Side",
    "choose",
    "clear_shared",
    "count_shared",
    "draw_borders",
    "has_two_sides",
    "join_parts",
    "measure_sides",
    "overlay",
    "score_sides",
    "smooth_private",
    "split_parts",
]
