"""What is measured, one module a scenario.

A scenario has a ``TITLE``, ``plan(quick, folder, peers)``, which gives its contenders, and
``report(results)``, which makes a section of the document out of what was measured.
"""

from __future__ import annotations

from types import ModuleType

from benchmarks.scenarios import (
    auto_executor,
    engine_overhead,
    hardware_limit,
    large_population,
    pfl_benchmark,
    small_models,
)

SCENARIOS: dict[str, ModuleType] = {  # by the name on the command line
    "S1": pfl_benchmark,
    "S2": engine_overhead,
    "S3": large_population,
    "S4": small_models,
    "limit": hardware_limit,
    "auto": auto_executor,
}
