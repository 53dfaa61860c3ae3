"""Networks matched unit by unit: how layers are connected, which units are the same, averages.

The order of hidden units means nothing, so equal places in two networks need not hold equal units.
Matched averaging (FedMA) finds out which units are equal, layer by layer.
"""

from fedtailor.maths.matching.bbp import Prior, average_units, count_owners, match_units
from fedtailor.maths.matching.trace import trace_wiring
from fedtailor.maths.matching.units import (
    average_classes,
    average_layers,
    match_layer,
    place_units,
    shrink_layers,
    take_layers,
    take_statistics,
    take_units,
)
from fedtailor.maths.matching.wiring import Layer, Step, Stream, Wiring

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
    "match_layer",
    "match_units",
    "place_units",
    "shrink_layers",
    "take_layers",
    "take_statistics",
    "take_units",
    "trace_wiring",
]
