"""Feature skew: what it does to images, that it repeats itself, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import make_dataset, refusal

import fedtailor
from fedtailor.data import load_dataset
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.partition.build import build_federation
from fedtailor.data.partition.saved import save_partition
from fedtailor.data.partition.skew import KINDS, cut_skew
from fedtailor.report.skew_examples import IMAGES, choose_examples, draw_skew_examples


def divide(partition: str, data: Dataset | None = None, seed: int = 0) -> Federation:
    data = data or load_dataset("digits")
    return build_federation(data, partition=partition, clients=4, seed=seed)


def coloured() -> Dataset:
    """Real digits, in colours that differ from picture to picture."""
    data = load_dataset("digits")
    grey = data.x.repeat(1, 3, 1, 1).double()
    tint = torch.tensor([0.9, 0.5, 0.7]).double()
    return replace(data, x=(255 - grey * tint[:, None, None] / 2).round().byte())


def samples(federation: Federation, k: int) -> torch.Tensor:
    return torch.cat([federation.train[k], federation.val[k], federation.test[k]])


# ---------------------------------------------------------------- as it is written
@pytest.mark.parametrize(
    ("text", "partition", "skew"),
    [
        ("iid", "iid", ""),
        ("iid+rotation", "iid", "rotation:4"),
        ("rotation:8", "iid", "rotation:8"),
        ("dirichlet:0.1+noise:0.2+blur", "dirichlet:0.1", "noise:0.2+blur:1.5"),
        ("hsu:1e+3", "hsu:1e+3", ""),
        ("subset:3/6:iid+colour", "subset:3/6:iid", "colour:0.5"),
    ],
)
def test_what_is_written_behind_a_plus(text: str, partition: str, skew: str) -> None:
    assert cut_skew(text) == (partition, skew)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("iid+rotatoin", "no feature skew 'rotatoin'; did you mean rotation"),
        ("rotation:1.5", "the number of groups must be a whole number from 2 to 360"),
        ("noise:0", "the deviation must be above 0"),
        ("blur:wide", "the width in pixels must be above 0"),
        ("stain", "stain needs images in colour"),
        ("p.npz+blur", "a saved partition has the skew it was saved with"),
    ],
)
def test_mistakes_are_refused_in_one_line(text: str, complaint: str) -> None:
    assert complaint in refusal(divide, text)


def test_only_images_can_be_skewed() -> None:
    assert "only images can be skewed" in refusal(divide, "blur", make_dataset())


# ---------------------------------------------------------------- the images
def test_rotation_turns_the_images_of_each_group() -> None:
    plain = divide("iid")
    turned = divide("iid+rotation:4")
    for k in range(4):
        own = samples(plain, k)
        assert torch.equal(own, samples(turned, k))
        wanted = torch.rot90(plain.x[own], k, dims=(2, 3))
        assert torch.equal(turned.x[own], wanted)


def test_rotation_by_less_than_a_right_angle() -> None:
    turned = divide("iid+rotation:8")
    plain = divide("iid")
    own = samples(plain, 1)
    before, after = plain.x[own].double(), turned.x[own].double()
    assert (before - after).abs().mean() > 10
    # its brightness stays where it was, about
    assert after.mean() == pytest.approx(float(before.mean()), rel=0.2)


def test_noise_grows_from_client_to_client() -> None:
    plain, noisy = divide("iid"), divide("iid+noise:0.4")
    deviations = []
    for k in range(4):
        own = samples(plain, k)
        inside = (plain.x[own] > 100) & (plain.x[own] < 150)  # far from the limits
        change = noisy.x[own].double() - plain.x[own].double()
        deviations.append(float(change[inside].std()) / 255)
    assert deviations[0] == pytest.approx(0.1, rel=0.1)
    assert deviations == sorted(deviations)


def test_blur_takes_contrast_away() -> None:
    blurred = divide("iid+blur:2")
    contrast = [float(blurred.x[samples(blurred, k)].double().std()) for k in range(4)]
    assert contrast == sorted(contrast, reverse=True)


@pytest.mark.parametrize("skew", ["colour", "stain"])
def test_every_client_has_colours_of_its_own(skew: str) -> None:
    data = coloured()
    federation = divide(f"iid+{skew}", data)
    tones = []
    for k in range(4):
        own = samples(federation, k)
        tones.append(federation.x[own].double().mean((0, 2, 3)))
        assert not torch.equal(federation.x[own], data.x[own])
    for k in range(4):
        for other in range(k):
            assert (tones[k] - tones[other]).abs().max() > 2


def test_numbers_as_images_keep_their_range() -> None:
    data = load_dataset("digits")
    data = replace(data, x=data.x.float() / 10 - 3)
    federation = divide("iid+noise:0.5+rotation", data)
    assert federation.x.dtype == torch.float32
    assert federation.x.min() >= data.x.min() and federation.x.max() <= data.x.max()


def test_samples_that_share_an_image_are_changed_apart() -> None:
    data = load_dataset("digits")
    row = torch.arange(len(data.y)) // 2  # two samples an image
    federation = divide("iid+rotation:4", replace(data, row=row))
    assert federation.row is None
    own = samples(federation, 1)
    wanted = torch.rot90(data.x[row[own]], 1, dims=(2, 3))
    assert torch.equal(federation.x[own], wanted)


def test_others_data_stay_as_they_are() -> None:
    data = load_dataset("digits")
    before = data.x.clone()
    outside = {"outside": (data.x[:10], data.y[:10])}
    federation = build_federation(
        replace(data, external=outside), partition="subset:2/4:iid+rotation:2"
    )
    assert torch.equal(data.x, before)
    assert torch.equal(federation.external["outside"][0], before[:10])
    owned = torch.cat([samples(federation, k) for k in range(2)])
    others = torch.ones(len(data.y), dtype=torch.bool)
    others[owned] = False
    assert torch.equal(federation.x[others], before[others])
    assert not torch.equal(federation.x[samples(federation, 1)], before[owned[-1:]])


# ---------------------------------------------------------------- repeated and recorded
@pytest.mark.parametrize("skew", [name for name in KINDS if name != "stain"])
def test_same_seed_same_images(skew: str) -> None:
    one, again = divide(skew), divide(skew)
    assert torch.equal(one.x, again.x) and one.hash == again.hash


def test_the_hash_knows_skew_strength_and_seed() -> None:
    texts = ("iid", "iid+noise:0.1", "iid+noise:0.2", "iid+blur", "iid+noise:0.1+blur")
    hashes = [divide(text).hash for text in texts]
    hashes.append(divide("iid+noise:0.1", seed=1).hash)
    assert len(set(hashes)) == len(hashes)
    assert divide("iid+noise:0.1").settings["partition"] == "iid+noise:0.1"


def test_a_saved_partition_keeps_its_skew(tmp_path: Path) -> None:
    made = divide("iid+noise:0.2+rotation", seed=3)
    path = save_partition(made, tmp_path / "p.npz")
    read = build_federation(load_dataset("digits"), partition=str(path), seed=9)
    assert torch.equal(read.x, made.x) and read.hash == made.hash


def test_a_run_is_repeated_by_its_config(tmp_path: Path) -> None:
    options = {"partition": "rotation:2", "clients": 3, "rounds": 1, "seed": 4}
    first = fedtailor.run("fedavg", **options, out=tmp_path / "run", save="best")
    other = fedtailor.run("fedavg", **(options | {"partition": "iid"}))
    assert first["partition"] != other["partition"]
    assert first["hash"] != other["hash"]
    loaded = fedtailor.load(tmp_path / "run")
    assert loaded.federation.hash == first["partition"]


# ---------------------------------------------------------------- the picture
def test_examples_are_of_classes_in_turn(tmp_path: Path) -> None:
    federation = divide("iid+rotation:4")
    labels = federation.y[choose_examples(federation, 2)].tolist()
    assert labels == list(range(IMAGES))
    files = draw_skew_examples(federation, tmp_path / "p-examples")
    assert [file.name for file in files] == [
        "p-examples.png",
        "p-examples.svg",
        "p-examples.pdf",
    ]
    assert all(file.stat().st_size > 3000 for file in files)


def test_a_client_with_few_examples_has_a_short_row(tmp_path: Path) -> None:
    federation = divide("iid+blur")
    few = [federation.train[0][:2], *federation.train[1:]]
    federation = replace(federation, train=few)
    assert len(choose_examples(federation, 0)) == 2
    assert draw_skew_examples(federation, tmp_path / "few")[0].exists()
    assert np.isfinite(federation.x.double().numpy()).all()
