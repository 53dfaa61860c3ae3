"""The walk-through of docs/deploy.md as it is written, with a node that is killed in mid-round."""

import json
import re

import pytest
from real_superlink import RealSuperLink, read_walk_through

pytest.importorskip("flwr")


@pytest.mark.slow
def test_the_walk_through_gives_the_simulated_run_though_a_node_is_killed(tmp_path):
    steps, files = read_walk_through()
    assert [step.command.split()[0] for step in steps].count("fedtailor") >= 6
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    node_command = next(step.command for step in steps if step.place == "node-1")
    real = RealSuperLink(tmp_path)
    try:
        for step in steps:
            if step.command.startswith("fedtailor federate"):
                federate_while_a_node_is_killed(real, step.command, node_command)
            elif step.keeps_running:
                real.start(step.place, step.command)
            else:
                if step.command.startswith("fedtailor register"):
                    real.wait_until_listening()
                real.run(step.command)
    finally:
        real.close()
    deployed = json.loads((tmp_path / "runs/deployed/result.json").read_text())
    simulated = json.loads((tmp_path / "runs/simulated/result.json").read_text())
    for same in ("hash", "accuracy", "views", "fairness", "bytes"):
        assert deployed[same] == simulated[same], same
    models = {path.name for path in (tmp_path / "runs/deployed/models").iterdir()}
    assert models == {"about.json", "shared.safetensors"}, "personal ones stay at sites"
    for k in (0, 1):
        (run,) = (tmp_path / f"home/fedtailor/node-{k}").glob("run-*")
        mine = (run / f"model/models/{k}.safetensors").read_bytes()
        theirs = (tmp_path / f"runs/simulated/models/{k}.safetensors").read_bytes()
        assert mine == theirs, (
            "every site has the personal model that the simulation has for it"
        )


def federate_while_a_node_is_killed(
    real: RealSuperLink, federate_command: str, node_command: str
) -> None:
    """Start the run; kill node-1 when it has got its message of round 2, and start it again."""
    real.start("federate", federate_command)
    flower_log = real.folder / "home/fedtailor/node-1/flower.log"
    real.wait_for_text("node-1", "round 1: 'local'")
    received = flower_log.read_text().count("Receiving")
    real.wait_until(
        lambda: flower_log.read_text().count("Receiving") > received,
        "the message of round 2",
    )
    real.kill("node-1")
    assert not re.search(r"round [34]", real.read_log("node-1"))
    real.start("node-1", node_command)
    real.wait_for_end("federate")
