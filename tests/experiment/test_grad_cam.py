"""Grad-CAM and features of finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.experiment.feature_table import (
    draw_sample,
    extract_features,
    write_features,
)
from fedtailor.experiment.finished_run import FinishedRun
from fedtailor.experiment.grad_cam import (
    GLOBAL,
    PERSONAL,
    WHOLE,
    explain_images,
    find_last_convolution,
    give_zeros,
    name_heads,
    watch_outputs,
)

FAST: dict[str, Any] = {"clients": 3, "limit": 200, "rounds": 1, "save": "last"}
FAST |= {"executor": "sequential"}


def run_small(method: str, out: Path, **more: Any) -> FinishedRun:
    fedtailor.run(method, "digits", out=out, **FAST | more)
    return fedtailor.load(out)


@pytest.mark.parametrize("method", ["fedcp", "fedrod"])
def test_the_heads_of_a_method_add_up(method: str, tmp_path: Path) -> None:
    """With one head silent the logits are the other's: their sum is the whole model's."""
    run = run_small(method, tmp_path / "a")
    model = run.client(1)
    x, _ = run.data(1)
    module = model.module()
    with watch_outputs(module.network) as seen:
        whole = module(x)
    heads = name_heads(module, seen, whole)
    assert list(heads) == [GLOBAL, PERSONAL, WHOLE]
    parts = []
    for silent in (heads[GLOBAL], heads[PERSONAL]):
        (name,) = silent
        layer = module.network.get_submodule(name)
        handle = layer.register_forward_hook(give_zeros)
        parts.append(module(x))
        handle.remove()
    assert torch.allclose(parts[0] + parts[1], whole, atol=1e-6)
    assert not torch.equal(parts[0], parts[1])

    found = explain_images(model, x[:3])
    assert list(found.maps) == [GLOBAL, PERSONAL, WHOLE]
    assert torch.equal(found.classes, whole[:3].argmax(-1))
    for maps in found.maps.values():
        assert maps.shape == (3, 8, 8)
        assert maps.min() >= 0 and maps.max() <= 1
    assert torch.equal(module(x), whole)  # nothing stays hooked


def test_the_personal_head_is_the_one_that_stays_at_the_client(tmp_path: Path) -> None:
    run = run_small("fedcp", tmp_path / "a")
    module = run.client(0).module()
    x, _ = run.data(0)
    with watch_outputs(module.network) as seen:
        logits = module(x)
    heads = name_heads(module, seen, logits)
    assert heads[GLOBAL] == ("head",) and heads[PERSONAL] == ("shared",)


@pytest.mark.parametrize("method", ["fedavg", "gpfl", "cd2pfed"])
def test_other_methods_have_one_map_of_the_last_convolution(
    method: str, tmp_path: Path
) -> None:
    run = run_small(method, tmp_path / "a")
    x, _ = run.data(0)
    found = explain_images(run.client(0), x[:2])
    assert list(found.maps) == [WHOLE] and found.layer.endswith("conv2")


def test_the_map_is_grad_cams_formula(tmp_path: Path) -> None:
    """The same, from maps and gradients taken by hand."""
    run = run_small("fedavg", tmp_path / "a")
    model = run.client(0)
    x, _ = run.data(0)
    x = x[:2]
    found = explain_images(model, x)
    module = model.module()
    kept: list[torch.Tensor] = []
    layer = module.network.get_submodule(found.layer)
    layer.register_forward_hook(lambda m, i, out: kept.append(out))
    logits = module(x)
    for i in range(2):
        score = logits[i, logits[i].argmax()]
        (gradient,) = torch.autograd.grad(score, kept[0], retain_graph=True)
        weights = gradient[i].mean((1, 2))
        rough = torch.einsum("c,chw->hw", weights, kept[0][i]).clamp(min=0)
        wide = torch.nn.functional.interpolate(
            rough[None, None], (8, 8), mode="bilinear", align_corners=False
        )[0, 0]
        largest = wide.max()
        if largest > 0:
            wide = wide / largest
        assert torch.allclose(found.maps[WHOLE][i], wide, atol=1e-5)


def test_networks_without_convolution_are_refused(tmp_path: Path) -> None:
    run = run_small("fedavg", tmp_path / "a", model="mlp")
    x, _ = run.data(0)
    with pytest.raises(fedtailor.UserError, match="needs a convolution over images"):
        explain_images(run.client(0), x[:2])
    with pytest.raises(fedtailor.UserError, match="needs a convolution"):
        find_last_convolution(torch.nn.Linear(2, 2), [])


def test_features_have_labels_and_clients(tmp_path: Path) -> None:
    run = run_small("fedper", tmp_path / "a")
    table = extract_features(run, [0, 2])
    assert table.shares_extractor and set(table.clients) == {0, 2}
    x, y = run.data(2)
    own = table.clients == 2
    assert np.array_equal(table.labels[own], y.numpy())
    assert np.array_equal(table.features[own], run.client(2).features(x).numpy())
    write_features(tmp_path / "f.npz", table)
    with np.load(tmp_path / "f.npz") as read:
        assert np.array_equal(read["features"], table.features)
        assert np.array_equal(read["clients"], table.clients)
    write_features(tmp_path / "f.csv", table)
    lines = (tmp_path / "f.csv").read_text().splitlines()
    assert len(lines) == len(table) + 1 and lines[0].startswith(
        "client,label,feature_0"
    )
    with pytest.raises(fedtailor.UserError, match=r"\.npz or a \.csv"):
        write_features(tmp_path / "f.txt", table)
    few = draw_sample(table, 7, seed=1)
    assert len(few) == 7
    assert np.array_equal(few.features, draw_sample(table, 7, seed=1).features)
    assert not extract_features(
        run_small("local", tmp_path / "b"), [0, 1]
    ).shares_extractor


def test_runs_and_models_show_themselves(tmp_path: Path) -> None:
    result = fedtailor.run("fedper", "digits", out=tmp_path / "a", **FAST)
    run = fedtailor.load(tmp_path / "a")
    assert "fedper on digits, seed 0" in repr(run) and "version" in repr(run)
    assert "<table>" in run._repr_html_() and "client 1" in repr(run.client(1))
    assert "<table>" in run.client(1)._repr_html_()
    assert repr(result).startswith("fedper on digits, seed 0, 1 rounds")
    assert "<table>" in result._repr_html_()
    assert result.history == run.history and result.history[0]["t"] == 1
    assert result == run.result
    (session,) = run.about
    assert session["how"] == "finished" and session["version"] == fedtailor.__version__
    assert session["started"] <= session["ended"] and session["machine"]["cores"]
