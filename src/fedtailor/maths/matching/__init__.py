"""Networks matched unit by unit: how their layers hang together, which units are the same, and their averages.

The order of hidden units means nothing, so that equal places in two networks need not hold equal units. Matched
averaging (FedMA) finds out which do, layer by layer.
"""

from fedtailor.maths.matching.bbp import Prior, average_units, count_owners, match_units
from fedtailor.maths.matching.trace import trace_wiring
from fedtailor.maths.matching.units import (
    average_classes,
    average_layers,
    keep_statistics,
    list_units,
    place_units,
    shrink_layers,
    take_layers,
    take_units,
)
from fedtailor.maths.matching.wiring import Layer, Step, Stream, Wiring, read_wiring

__all__ = [
    "Layer",
    "Prior",
    "Step",
    "Stream",
    "Wiring",
    "average_classes",
    "average_layers",
    "average_units",
    "count_owners",
    "keep_statistics",
    "list_units",
    "match_units",
    "place_units",
    "read_wiring",
    "shrink_layers",
    "take_layers",
    "take_units",
    "trace_wiring",
]
