"""docs/architecture.md names files that exist, and the floors that the architecture test has."""

import re
from pathlib import Path

from test_architecture import FLOORS

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src/fedtailor"
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def test_every_file_and_room_named_exists() -> None:
    named = set(re.findall(r"`([\w./*]+(?:\.py|/))`", TEXT))
    assert len(named) > 40
    missing = [name for name in named if not list(SRC.glob(name)) and not (ROOT / name).exists()]
    assert not missing, missing


def test_the_floors_drawn_are_the_floors_tested() -> None:
    drawn = TEXT.split("```")[1]
    floors: list[set[str]] = []
    for line in drawn.strip("\n").splitlines():
        names = re.findall(r"\b(\w+)(?:/|\.py)(?=\s)", line[5:])
        if line[:3].strip():
            floors.append(set())
        floors[-1].update(names)
    floors.reverse()
    tested = [set(floor) for floor in FLOORS]
    # the drawing puts method_types beside method, on whose floor it is read
    merged = [f for f in tested if f != {"method_types"}]
    merged = [f | {"method_types"} if f == {"method"} else f for f in merged]
    assert floors == merged
