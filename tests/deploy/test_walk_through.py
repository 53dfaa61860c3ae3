"""The walk-through of docs/deploy.md, as it is written there, with a node that is killed in mid-round."""

import json
import re

import pytest
from real_superlink import Loopback, walk_through

pytest.importorskip("flwr")


def test_the_walk_through_gives_the_simulated_run_though_a_node_is_killed(tmp_path):
    steps, files = walk_through()
    assert [s.command.split()[0] for s in steps].count("fedtailor") >= 6
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    place = Loopback(tmp_path)
    try:
        for step in steps:
            if step.command.startswith("fedtailor federate"):
                lives_through_a_kill(
                    place, step.command, {s.place: s.command for s in steps if s.lasting}
                )
            elif step.lasting:
                place.start(step.place, step.command)
            else:
                if step.command.startswith("fedtailor register"):
                    place.listening()
                place.run(step.command)
    finally:
        place.close()
    deployed, simulated = (
        json.loads((tmp_path / f"runs/{n}/result.json").read_text())
        for n in ("deployed", "simulated")
    )
    assert deployed["hash"] == simulated["hash"]
    for same in ("accuracy", "views", "fairness", "bytes"):
        assert deployed[same] == simulated[same], same
    assert not (tmp_path / "runs/deployed/models").exists(), "personal models stay at the sites"
    for k in (0, 1):
        (run,) = (tmp_path / f"home/fedtailor/node-{k}").glob("run-*")
        mine, theirs = (
            (folder / f"models/{k}.safetensors").read_bytes()
            for folder in (run / "model", tmp_path / "runs/simulated")
        )
        assert mine == theirs, "every site has the personal model that the simulation has for it"


def lives_through_a_kill(place: Loopback, federate: str, nodes: dict[str, str]) -> None:
    """Run it; when node-1 has got its letter of round 2, kill it, and start it again."""
    run = place.start("federate", federate)
    flower = place.folder / "home/fedtailor/node-1/flower.log"
    place.hears("node-1", "round 1: 'local'")
    got = flower.read_text().count("Receiving")
    place.until(lambda: flower.read_text().count("Receiving") > got, "the letter of round 2")
    place.kill("node-1")
    assert not re.search(r"round [34]", place.said("node-1"))
    place.start("node-1", nodes["node-1"])
    place.until(lambda: run.poll() is not None, "the end of the run")
    assert run.returncode == 0, place.logs()
    del place.processes["federate"]
