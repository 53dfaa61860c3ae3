"""Every data set, partition, split, model and way to bring own data, through the command as a
person types it.
"""

import csv
import gzip
import json
import pickle
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits, load_wine

from fedtailor import data as data_sets
from fedtailor import models
from fedtailor.cli.main import main
from fedtailor.data.catalogue import find_entry
from fedtailor.data.partition.saved import load_partition
from fedtailor.data.partition.spec import EXAMPLES, parse_partition
from fedtailor.data.partition.split import SPLIT_KINDS, parse_split
from fedtailor.data.sets.histo import TISSUES

QUICK = ["--rounds", 1, "--executor", "sequential", "--quiet"]


@pytest.fixture
def fedtailor(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder; gives exit code, output and complaints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedtailor", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        seen = capsys.readouterr()
        return end.value.code or 0, seen.out, seen.err

    return call


@pytest.fixture
def run(fedtailor, tmp_path):
    """One quick run that must succeed; gives its result and who had which samples."""

    def call(*words, method="local"):
        code, _, err = fedtailor(
            "run", "--method", method, *words, *QUICK, "--out", tmp_path / "a"
        )
        warnings = [line for line in err.splitlines() if "warning" in line]
        # a quick run learns little, and is told so
        odd = [line for line in warnings if "is no better than" not in line]
        assert code == 0 and not odd, err
        return json.loads((tmp_path / "a/result.json").read_text()), load_partition(
            tmp_path / "a/partition.npz"
        )

    return call


def held(saved, k):
    """All samples of client k."""
    return torch.cat([saved.train[k], saved.val[k], saved.test[k]])


# ----------------------------------------------------------------------------------------------
# -- named data sets
# What is asked for, the number of clients, and an accuracy that guessing does not reach: a
# model that has learned
# nothing is right once in as many times as there are classes.
REAL = {
    "mnist": ("--partition iid --clients 2 --limit 240 --epochs 5 --lr 0.05", 2, 0.25),
    "fashion_mnist": (
        "--partition dirichlet:0.1 --clients 4 --limit 400 --split official --epochs 4 --lr 0.02",
        4,
        0.3,
    ),
    "cifar10": (
        "--partition pathological:2 --clients 5 --limit 250 --epochs 3 --lr 0.02",
        5,
        0.25,
    ),
    "cifar100": (
        "--partition subset:2/50:pathological:5 --limit 4000 --epochs 4 --lr 0.05",
        2,
        0.1,
    ),
    "cifar100:coarse": (
        "--partition dirichlet:0.1 --clients 4 --limit 300 --epochs 4 --lr 0.02",
        4,
        0.12,
    ),
    "tiny_imagenet": (
        "--partition subset:2/50:pathological:5 --limit 3000 --epochs 2 --lr 0.05",
        2,
        0.1,
    ),
    "har": (
        "--partition subset:2/30:natural --split block:0.75 --epochs 2 --lr 0.05",
        2,
        0.22,
    ),
    "har:legacy": ("--partition subset:2/30:natural --epochs 2 --lr 0.05", 2, 0.22),
    "har:standard": ("--partition subset:2/30:natural --epochs 3 --lr 0.05", 2, 0.3),
    "amazon": (
        "--partition domains --split merged:0.8 --limit 2000 --epochs 2 --lr 0.05 "
        "--momentum 0.9 --batch 20",
        4,
        0.55,
    ),
    "heart": ("--partition domains --split merged:0.8 --epochs 10", 4, 0.65),
    "ag_news": (
        "--partition dirichlet:0.1 --clients 4 --limit 200 --split official --epochs 3 --lr 0.5",
        4,
        0.4,
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data_are_learned_from(name, run, real_data):
    words, clients, least = REAL[name]
    # a quarter of the reviews is too few to learn from alone
    method = "fedavg" if name == "amazon" else "local"
    result, saved = run(
        "--data",
        name,
        "--data-dir",
        real_data(name),
        *words.split(),
        "--save",
        "none",
        method=method,
    )
    assert (
        result["data"] == name
        and result["rounds"] == 1
        and len(result["clients"]) == clients
    )
    assert result["accuracy"]["last"] > least
    for k, client in enumerate(result["clients"]):
        assert (client["n_train"], client["n_test"]) == (
            len(saved.train[k]),
            len(saved.test[k]),
        )
        assert (
            client["n_train"] > 0
            and client["n_test"] > 0
            and 0 <= client["accuracy"] <= 1
        )
    right = sum(c["accuracy"] * c["n_test"] for c in result["clients"])
    assert right / sum(c["n_test"] for c in result["clients"]) == pytest.approx(
        result["accuracy"]["last"]
    )
    assert (
        0
        <= result["fairness"]["worst_decile"]
        <= result["accuracy_mean_of_clients"]["last"]
        <= 1
    )
    if "--limit" in words and "subset" not in words:
        assert sum(len(held(saved, k)) for k in range(clients)) == int(
            words.split("--limit ")[1].split()[0]
        )


def test_the_official_test_part_measures_the_global_model(run, real_data):
    words = (
        "--partition dirichlet:0.1 --clients 3 --limit 210 --split official --save none"
    )
    result, saved = run(
        "--data",
        "mnist",
        "--data-dir",
        real_data("mnist"),
        *words.split(),
        method="fedavg",
    )
    # a seventh of MNIST is its test part
    assert result["views"]["global_gtest"]["n"] == 30
    assert (
        sorted(torch.cat(saved.test).tolist()) == saved.common.tolist()
        and min(saved.common.tolist()) >= 60_000
    )
    assert max(torch.cat([*saved.train, *saved.val]).tolist()) < 60_000


def enlarge(x, side):
    """Digits of 8 x 8 pixels in the middle of a larger picture."""
    big = np.kron(x, np.ones((side // 8, side // 8), np.uint8))
    edge = side - big.shape[1]
    return np.pad(
        big, ((0, 0), (edge // 2, edge - edge // 2), (edge // 2, edge - edge // 2))
    )


def digits(n=1797):
    x, y = load_digits(return_X_y=True)
    return np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8)[:n], y[:n]


def write_idx(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def write_emnist(folder):
    x, y = digits(300)
    parts = (slice(0, 250), slice(250, None))
    for part, (images, labels) in zip(
        parts,
        (find_entry("emnist").files[:2], find_entry("emnist").files[2:]),
        strict=True,
    ):
        # as they are in the official files
        write_idx(folder / "emnist" / images, enlarge(x, 28).swapaxes(1, 2)[part])
        write_idx(folder / "emnist" / labels, y[part])


def write_pathmnist(folder):
    x, y = digits(330)
    x, y = (
        enlarge(x[y < 9], 28)[..., None].repeat(3, -1),
        y[y < 9, None].astype(np.uint8),
    )
    ends = {"train": slice(0, 200), "val": slice(200, 240), "test": slice(240, None)}
    (folder / "pathmnist").mkdir()
    arrays = {f"{p}_images": x[at] for p, at in ends.items()} | {
        f"{p}_labels": y[at] for p, at in ends.items()
    }
    np.savez(folder / "pathmnist/pathmnist.npz", **arrays)


def write_histo(folder):
    x, y = digits(200)
    for c, tissue in enumerate(TISSUES):
        for i, picture in enumerate(enlarge(x[y == c][:10], 224)):
            place = (
                folder
                / "histo"
                / ("CRC-VAL-HE-7K" if i == 9 else "NCT-CRC-HE-100K")
                / tissue
            )
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).convert("RGB").save(place / f"{i}.tif")


def write_flickr_aes(folder):
    home = folder / "flickr_aes"
    (home / "40K").mkdir(parents=True)
    lines = ["worker, imagePair, score"]
    for i, picture in enumerate(enlarge(digits(70)[0], 64)):
        Image.fromarray(picture).convert("RGB").save(home / f"40K/farm_{i}.jpg")
        lines += [f"A1, farm_{i}.jpg, {i % 5 + 1}", f"A2, farm_{i}.jpg, {5 - i % 5}"]
    (home / "FLICKR-AES_image_labeled_by_each_worker.csv").write_text(
        "\n".join(lines) + "\n"
    )


# small files in the official formats of sets that are large, and how many clients and samples
# there are
WRITTEN = {
    "emnist": (
        write_emnist,
        "--partition pathological:2 --clients 5 --epochs 4 --lr 0.05 --split official",
        5,
        300,
    ),
    "pathmnist": (
        write_pathmnist,
        "--partition pathological:3 --clients 3 --epochs 4 --lr 0.05",
        3,
        297,
    ),
    "histo:32": (write_histo, "--partition iid --clients 2 --views external", 2, 81),
    "flickr_aes:64": (write_flickr_aes, "--partition concept", 2, 140),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_files_in_the_official_format(name, run, tmp_path):
    write, words, clients, samples = WRITTEN[name]
    write(tmp_path)
    result, saved = run(
        "--data", name, "--data-dir", tmp_path, *words.split(), "--save", "none"
    )
    assert (
        len(result["clients"]) == clients
        and sum(len(held(saved, k)) for k in range(clients)) == samples
    )
    # nine or ten digits, two or three a client: they can be learned
    if name in (
        "emnist",
        "pathmnist",
    ):
        assert result["accuracy"]["last"] > 0.6
    if name == "histo:32":
        view = result["views"]["external"]["crc_val"]
        assert view["n"] == 9 and set(view) == {
            "accuracy",
            "single",
            "logmean",
            "probmean",
            "vote",
            "paramavg",
            "global",
            "n",
        }
    if name == "flickr_aes:64":
        assert saved.owners == ("A1", "A2")


def test_no_data_set_is_forgotten():
    named = {name.partition(":")[0] for name in (*REAL, *WRITTEN)}
    assert named | {"digits"} == {e.name for e in data_sets.list_datasets()}


# -------------------------------------------------------------------------------------------
# partitions and splits
def classes_of(saved, y):
    return [set(y[held(saved, k)].tolist()) for k in range(len(saved.train))]


def sizes_of(saved):
    return [len(held(saved, k)) for k in range(len(saved.train))]


LAWS = {
    "iid": lambda s, y: (
        max(sizes_of(s)) - min(sizes_of(s)) <= 1
        and min(map(len, classes_of(s, y))) >= 8
    ),
    "dirichlet:0.1": lambda s, y: (
        min(sizes_of(s)) >= 15 and min(map(len, classes_of(s, y))) < 10
    ),
    "dirichlet:0.1:uncapped:least=5": lambda s, y: (
        min(sizes_of(s)) >= 5 and max(sizes_of(s)) > 40
    ),
    "hsu:0.5": lambda s, y: (
        set(sizes_of(s)) == {30} and min(map(len, classes_of(s, y))) < 10
    ),
    "pathological:2": lambda s, y: (
        all(len(c) == 2 for c in classes_of(s, y)) and len(set(sizes_of(s))) > 2
    ),
    "shards:2": lambda s, y: (
        all(len(c) <= 2 for c in classes_of(s, y))
        and max(sizes_of(s)) - min(sizes_of(s)) <= 4
    ),
    "classes:2": lambda s, y: (
        all(len(c) == 2 for c in classes_of(s, y))
        and max(sizes_of(s)) - min(sizes_of(s)) <= 4
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_laws_of_labels(law, run):
    result, saved = run(
        "--data",
        "digits",
        "--limit",
        300,
        "--clients",
        10,
        "--partition",
        law,
        "--save",
        "none",
    )
    y = torch.from_numpy(load_digits().target)
    assert (
        sum(sizes_of(saved)) == 300
        and len(result["clients"]) == 10
        and LAWS[law](saved, y)
    )


def test_concepts_change_the_labels_of_every_other_client(run):
    _, saved = run(
        "--data",
        "digits",
        "--limit",
        300,
        "--clients",
        4,
        "--partition",
        "concept:2",
        "--save",
        "none",
    )
    y = torch.from_numpy(load_digits().target)
    for k in range(4):
        was, now = y[held(saved, k)].tolist(), saved.y[held(saved, k)].tolist()
        assert (was == now) == (k % 2 == 0) and len(
            set(zip(was, now, strict=True))
        ) == 10


def test_a_subset_keeps_some_clients_as_they_were(fedtailor, tmp_path):
    words = "partition --data digits --limit 300 --out"
    assert (
        fedtailor(
            *words.split(), "all", "--clients", 6, "--partition", "dirichlet:0.5"
        )[0]
        == 0
    )
    assert (
        fedtailor(*words.split(), "some", "--partition", "subset:3/6:dirichlet:0.5")[0]
        == 0
    )
    every, some = (load_partition(tmp_path / f"{p}.npz") for p in ("all", "some"))
    every, some = (
        [held(p, k).tolist() for k in range(len(p.train))] for p in (every, some)
    )
    assert len(every) == 6 and len(some) == 3 and all(own in every for own in some)


@pytest.mark.parametrize(
    ("name", "law", "owners"), [("har", "natural", 30), ("heart", "domains", 4)]
)
def test_natural_clients_keep_their_names(
    name, law, owners, fedtailor, real_data, tmp_path
):
    words = [
        "--data",
        name,
        "--data-dir",
        real_data(name),
        "--partition",
        law,
        "--limit",
        400,
    ]
    code, out, err = fedtailor("partition", *words, "--out", "p")
    saved = load_partition(tmp_path / "p.npz")
    assert code == 0 and len(saved.train) == len(set(saved.owners)) == owners, err
    assert sum(sizes_of(saved)) == 400 and all(owner in out for owner in saved.owners)
    assert (tmp_path / "p.png").stat().st_size > 5_000 and (
        tmp_path / "p.svg"
    ).read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("split", "share"), [("merged:0.75", 0.75), ("merged:0.8", 0.8)]
)
def test_merged_splits(split, share, run):
    _, saved = run(
        "--data",
        "digits",
        "--clients",
        5,
        "--partition",
        "iid",
        "--split",
        split,
        "--save",
        "none",
    )
    for k, size in enumerate(sizes_of(saved)):
        assert len(saved.test[k]) == size - round(share * size)
        assert len(saved.val[k]) == round(0.1 * round(share * size))


def test_blocks_end_before_their_tests_begin(fedtailor, real_data, tmp_path):
    place = real_data("har")
    words = ["--data", "har", "--data-dir", place, "--split", "block:0.75"]
    code, _, err = fedtailor("partition", *words, "--out", "p")
    assert code == 0, err
    saved, har = (
        load_partition(tmp_path / "p.npz"),
        data_sets.load_dataset("har", place),
    )
    tested, cut = 0, 0
    for k in range(30):
        train, test = torch.cat([saved.train[k], saved.val[k]]), saved.test[k]
        assert (har.owner[train] == k).all() and (har.owner[test] == k).all()
        for recording in har.segment[test].unique():
            first = test[har.segment[test] == recording].min()
            before = train[har.segment[train] == recording]
            cut += len(before) > 0
            assert (before < first - 1).all()  # neighbours share half of their values
        tested += len(test)
    assert cut > 100 and 0.2 < tested / len(har) < 0.27


def test_a_run_uses_the_partition_that_is_shown(fedtailor, run):
    words = "--data digits --clients 5 --partition dirichlet:0.1 --seed 3 --limit 500"
    shown = fedtailor("partition", *words.split(), "--out", "p")[1]
    result, saved = run(*words.split(), "--save", "none")
    assert f"hash {result['partition']}," in shown
    assert all(
        torch.equal(a, b)
        for a, b in zip(saved.train, load_partition("p.npz").train, strict=True)
    )


# ----------------------------------------------------------------------------------------------
# -------- own data
def own_npz(folder, **more):
    x, y = digits(400)
    np.savez(folder / "mine.npz", x=x, y=y, **more)
    return "mine.npz"


def own_marked_npz(folder):
    client, test = (
        np.array(["north", "east", "south"])[np.arange(400) % 3],
        np.arange(400) % 5 == 0,
    )
    return own_npz(
        folder, client=client, test=test, labels=[f"digit {i}" for i in range(10)]
    )


def own_folder_of_npz(folder):
    x, y = digits(400)
    (folder / "mine").mkdir()
    for k in range(4):
        np.savez(folder / f"mine/site{k}.npz", x=x[k::4], y=y[k::4])
    return "mine"


def wine_rows():
    wine = load_wine()
    x = (wine.data - wine.data.mean(0)) / wine.data.std(0)
    return (
        wine.feature_names,
        [[f"{v:.4f}" for v in row] for row in x],
        wine.target_names[wine.target].tolist(),
    )


def write_csv(path, head, rows):
    with path.open("w", newline="") as f:
        csv.writer(f).writerows([head, *rows])
    return path.name


def own_csv(folder):
    names, x, y = wine_rows()
    return write_csv(
        folder / "wine.csv",
        [*names, "label"],
        [[*r, t] for r, t in zip(x, y, strict=True)],
    )


def own_marked_csv(folder):
    names, x, y = wine_rows()
    rows = [
        ["?" if i % 9 == 0 else r[0], *r[1:], t, i % 5 == 0, "ab"[i % 2]]
        for i, (r, t) in enumerate(zip(x, y, strict=True))
    ]
    return write_csv(folder / "wine.csv", [*names, "label", "test", "client"], rows)


def own_pictures(folder, divided=False):
    x, y = digits(240)
    for i, (picture, label) in enumerate(zip(x, y, strict=True)):
        part = ("test" if i % 5 == 0 else "train") if divided else ""
        place = folder / "shots" / f"camera{i % 2}" / part / f"digit{label}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(place / f"{i}.png")
    return "shots"


def own_divided_pictures(folder):
    return own_pictures(folder, divided=True)


# what there is, further words, number of clients, names of clients, accuracy beyond guessing
OWN = {
    "npz": (own_npz, "--partition iid --clients 4", 4, (), 0.3),
    "npz with clients and tests": (
        own_marked_npz,
        "--split official",
        3,
        ("east", "north", "south"),
        0.3,
    ),
    "npz files": (own_folder_of_npz, "", 4, ("site0", "site1", "site2", "site3"), 0.3),
    "csv": (own_csv, "--partition iid --clients 3", 3, (), 0.7),
    "csv with gaps, clients and tests": (
        own_marked_csv,
        "--split official --missing median",
        2,
        ("a", "b"),
        0.7,
    ),
    "pictures": (own_pictures, "", 2, ("camera0", "camera1"), 0.3),
    "pictures with tests": (
        own_divided_pictures,
        "--split official",
        2,
        ("camera0", "camera1"),
        0.3,
    ),
}


@pytest.mark.parametrize("form", OWN)
def test_own_data_without_code(form, run, tmp_path):
    write, words, clients, owners, least = OWN[form]
    result, saved = run(
        "--data",
        write(tmp_path),
        *words.split(),
        "--epochs",
        8,
        "--lr",
        0.1,
        "--save",
        "none",
    )
    assert (
        len(result["clients"]) == clients
        and saved.owners == owners
        and result["accuracy"]["last"] > least
    )
    assert {c["n_test"] for c in result["clients"]} == {
        len(t) for t in saved.test
    } and min(map(len, saved.test)) > 0


def test_own_test_samples_stay_test_samples(run, tmp_path):
    _, saved = run(
        "--data", own_marked_npz(tmp_path), "--split", "official", "--save", "none"
    )
    assert sorted(torch.cat(saved.test).tolist()) == list(range(0, 400, 5))


# ----------------------------------------------------------------------------------------------
# --------- backbones
MODELS = {
    "cnn": "mnist",
    "lenet5": "cifar10",
    "lenet5:84": "cifar10",
    "lenet_mgda": "mnist",
    "convnet2": "fashion_mnist",
    "convnet3": "cifar10",
    "pflcnn": "cifar10",
    "resnet18": "cifar10",
    "resnet18:imagenet": "tiny_imagenet",
    "resnet18:cifar": "cifar10",
    "resnet18:cifar,50": "cifar10",
    "resnet34": "cifar10",
    "resnet34:imagenet": "cifar10",
    "resnet34:cifar": "cifar10",
    "resnet34:cifar,50": "cifar10",
    "resnet32": "cifar10",
    "fasttext": "ag_news",
    "har_cnn": "har",
    "amazon_mlp": "amazon",
    "mlp": "heart",
    "mlp:200,100": "mnist",
    "linear": "cifar10",
}
SLOW = ("resnet18", "resnet34", "amazon_mlp")


def weigh_down(spec):
    return pytest.param(spec, marks=pytest.mark.slow) if spec.startswith(SLOW) else spec


@pytest.mark.parametrize("spec", [weigh_down(spec) for spec in MODELS])
def test_every_layer_of_every_backbone_learns(spec, run, real_data, tmp_path):
    """Two clients start alike and train alone: what is still the same after a round has not
    been trained.
    """
    name = MODELS[spec]
    words = "--partition iid --clients 2 --limit 60 --batch 10 --save last"
    result, _ = run(
        "--data", name, "--data-dir", real_data(name), "--model", spec, *words.split()
    )
    assert result["model"] == spec and 0 <= result["accuracy"]["last"] <= 1
    one, two = (load_file(tmp_path / f"a/models/{k}.safetensors") for k in (0, 1))
    assert one.keys() == two.keys() and len(one) >= 2
    for key in one:
        if one[key].is_floating_point():
            assert one[key].isfinite().all() and not torch.equal(one[key], two[key]), (
                key
            )


def test_no_backbone_is_forgotten():
    there = {
        f"{e.name}:{v}" if v else e.name
        for e in models.catalogue()
        for v in ("", *e.variants)
    }
    assert there == set(MODELS)


# ----------------------------------------------------------------------------------------------
# --------- bad input
def list_files(folder):
    return {
        (str(p.relative_to(folder)), p.stat().st_mtime_ns, p.stat().st_size)
        for p in folder.rglob("*")
    }


def copy_official(name, source, folder):
    (folder / name).mkdir()
    for file in find_entry(name).files:
        (folder / name / file).symlink_to(official(name, source, file))
    return folder / name


def official(name, source, file):
    path = (source / name / file).resolve()
    if not path.exists():
        pytest.skip(f"no official {file} of {name}, only a prepared or unpacked one")
    return path


def replace(path, content):
    path.unlink()
    path.write_bytes(content)


def test_a_truncated_official_file(refused, real_data, tmp_path):
    home = copy_official("mnist", real_data("mnist"), tmp_path)
    path = home / "train-images-idx3-ubyte.gz"
    replace(path, path.read_bytes()[:4_000_000])
    refused("mnist", "train-images-idx3-ubyte.gz is truncated or damaged")


def test_a_repacked_truncated_official_file(refused, real_data, tmp_path):
    home = copy_official("mnist", real_data("mnist"), tmp_path)
    path = home / "t10k-images-idx3-ubyte.gz"
    replace(path, gzip.compress(gzip.decompress(path.read_bytes())[:-100], 1))
    refused(
        "mnist",
        "t10k-images-idx3-ubyte.gz is truncated: 7839900 bytes for 10000 x 28 x 28 values",
    )


def test_a_file_of_another_data_set(refused, real_data, tmp_path):
    home, file = (
        copy_official("mnist", real_data("mnist"), tmp_path),
        "t10k-labels-idx1-ubyte.gz",
    )
    replace(
        home / file,
        official("fashion_mnist", real_data("fashion_mnist"), file).read_bytes(),
    )
    refused(
        "mnist",
        "is 't10k-labels-idx1-ubyte' of fashion_mnist, not 't10k-labels-idx1-ubyte' of mnist",
    )


def test_labels_in_the_place_of_images(refused, real_data, tmp_path):
    home = copy_official("mnist", real_data("mnist"), tmp_path)
    replace(
        home / "train-images-idx3-ubyte.gz",
        (home / "train-labels-idx1-ubyte.gz").read_bytes(),
    )
    refused("mnist", "holds labels, not images; has it been given another file's name?")


class Malicious:
    def __reduce__(self):
        return open, ("ran.txt", "w")


def write_cifar10(folder, first=None):
    rng = np.random.default_rng(0)
    (folder / "cifar10").mkdir()
    for file in find_entry("cifar10").files:
        batch = {
            "data": rng.integers(0, 256, (20, 3072), dtype=np.uint8),
            "labels": rng.integers(0, 10, 20).tolist(),
        }
        (folder / "cifar10" / file).write_bytes(pickle.dumps(batch, protocol=2))
    return folder / "cifar10" / "data_batch_1"


def test_a_malicious_pickle(refused, tmp_path):
    path = write_cifar10(tmp_path)
    path.write_bytes(pickle.dumps({"data": Malicious(), "labels": [0]}, protocol=2))
    pickle.loads(path.read_bytes())["data"].close()
    (tmp_path / "ran.txt").unlink()  # so it does harm where it is trusted
    refused("cifar10", "data_batch_1 is not a CIFAR pickle and may be malicious")


def test_a_truncated_pickle(refused, tmp_path):
    path = write_cifar10(tmp_path)
    path.write_bytes(path.read_bytes()[:30_000])
    refused("cifar10", "pickle data was truncated")


def test_the_pickle_of_the_other_cifar(refused, tmp_path):
    path = write_cifar10(tmp_path)
    path.write_bytes(
        pickle.dumps(
            {"data": np.zeros((20, 3072), np.uint8), "fine_labels": [1] * 20},
            protocol=2,
        )
    )
    refused(
        "cifar10", "data_batch_1 has no 'labels'; is it the file of another data set?"
    )


@pytest.mark.parametrize(
    ("name", "file", "content", "complaint"),
    [
        (
            "heart",
            "processed.va.data",
            "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n44,1\n",
            "line 2: 2 columns instead of 14",
        ),
        (
            "ag_news",
            "train.csv",
            '"3","Oil","Prices rise"\n"2","Cup"\n',
            "line 2: 2 columns instead of 3",
        ),
        (
            "amazon",
            "books/negative.review",
            "bad_book:1 #label#:negative\nbad:1 dul",
            "line 2: it ends with 'dul'",
        ),
        ("har", "train/y_train.txt", "5\n5 5\n", "y_train.txt"),
    ],
)
def test_official_tables_that_break_off(
    name, file, content, complaint, refused, tmp_path
):
    sound = {
        "heart": "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n",
        "ag_news": '"3","Oil","Prices rise"\n',
        "amazon": "bad_book:1 #label#:negative\n",
        "har": "1\n",
    }[name]
    for official in find_entry(name).files:
        path = tmp_path / name / official
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            " ".join(["0.5"] * 128) + "\n" if "Inertial" in official else sound
        )
    (tmp_path / name / file).write_text(content)
    refused(name, complaint)


@pytest.mark.parametrize("line", ["0.1,0.2", "0.1,0.2,0,7"])
def test_a_csv_row_of_another_length(line, refused, tmp_path):
    (tmp_path / "mine.csv").write_text(f"a,b,label\n0.1,0.2,0\n0.3,0.1,1\n{line}\n")
    refused("mine.csv", f"mine.csv, line 4: {line.count(',') + 1} columns instead of 3")


def test_a_picture_of_another_size(refused, tmp_path):
    own_pictures(tmp_path)
    Image.new("L", (9, 8)).save(tmp_path / "shots/camera1/digit3/wide.png")
    refused("shots", "digit3/wide.png has 9 x 8 pixels, the others 8 x 8")


def test_half_a_picture(refused, tmp_path):
    own_pictures(tmp_path)
    path = sorted((tmp_path / "shots/camera1/digit3").iterdir())[0]
    path.write_bytes(path.read_bytes()[:60])
    refused("shots", f"digit3/{path.name} is truncated or damaged")


def test_arrays_of_objects(refused, tmp_path):
    np.savez(
        tmp_path / "mine.npz", x=np.zeros((4, 2)), y=np.array([0, 1, None, 1], object)
    )
    refused("mine.npz", "mine.npz: 'y' holds Python objects")


def test_half_an_npz(refused, tmp_path):
    own_npz(tmp_path)
    (tmp_path / "mine.npz").write_bytes((tmp_path / "mine.npz").read_bytes()[:9_000])
    refused("mine.npz", "mine.npz is truncated or not an npz file")


def test_a_prepared_file_of_another_data_set(refused, tmp_path):
    x, y = digits(40)
    np.savez(tmp_path / "cifar10.npz", x=x[:, None], y=y)
    refused(
        "cifar10",
        "a sample has shape (1, 8, 8), cifar10 has (3, 32, 32); "
        "is it the file of another data set?",
    )


@pytest.fixture
def refused(fedtailor, tmp_path):
    """The run ends with exit code 2 and one line that says so, and nothing is written, not even
    a cache.
    """

    def call(name, complaint):
        before = list_files(tmp_path)
        code, out, err = fedtailor(
            "run", "--data", name, "--data-dir", tmp_path, *QUICK
        )
        assert code == 2 and complaint in err and out == "", err
        assert (
            err.startswith("fedtailor: ")
            and err.count("\n") == 1
            and "Traceback" not in err
        )
        assert list_files(tmp_path) == before

    return call


# ----------------------------------------------------------------------------------------------
# ----- documentation
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/data.md").read_text(encoding="utf-8")


def test_the_documented_commands_work_and_draw_what_is_shown(
    fedtailor, real_data, tmp_path, monkeypatch
):
    # or it would be fetched
    official("fashion_mnist", real_data("fashion_mnist"), "t10k-labels-idx1-ubyte.gz")
    (tmp_path / "data").mkdir()
    for name in ("mnist", "fashion_mnist", "har"):
        for path in (real_data(name) / name, real_data(name) / f"{name}.npz"):
            if path.exists():
                (tmp_path / "data" / path.name).symlink_to(path)
    monkeypatch.setenv("FEDTAILOR_DATA", "data")
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "data.md", "exec"), {})
    lines = re.findall(r"^    fedtailor (.*)$", PAGE, re.MULTILINE)
    assert len(lines) > 10
    for line in lines:
        words = line.split()
        quick = (
            [*QUICK, "--limit", 400]
            if words[0] == "run" and "p.npz" not in words
            else QUICK * (words[0] == "run")
        )
        code, _, err = fedtailor(*words, *quick)
        assert code == 0, (line, err)
    pictures = sorted((ROOT / "docs/pictures").glob("partition-*.png"))
    assert [p.stem for p in pictures] == re.findall(r"--out (partition-.*)", PAGE)
    for path in pictures:
        shown, drawn = (
            np.asarray(Image.open(p).convert("L"), float) for p in (path, path.name)
        )
        # letters differ a little
        assert shown.shape == drawn.shape and np.abs(shown - drawn).mean() < 0.3
        assert path.stat().st_size < 120_000


def test_the_documented_table_holds_every_data_set():
    rows = {
        r.split("`")[1]: r
        for r in PAGE.split("## Data sets")[1].split("### ")[0].splitlines()
        if r.startswith("| `")
    }
    entries = data_sets.list_datasets()
    assert list(rows) == [e.name for e in entries]
    for e in entries:
        words = [
            *(f"`{v}`" for v in e.variants),
            *(f"`{f}`" for f in e.files[:1]),
            e.natural_clients.split(" with")[0],
        ]
        assert all(word in rows[e.name] for word in words), e.name


def test_every_documented_partition_and_split_can_be_read():
    laws, splits = (
        PAGE.split(f"## {part}")[1].split("\n\n| ")[1]
        for part in ("Partitions", "Splits")
    )
    laws, splits = (
        re.findall(r"^\| `(.*?)`", text.split("\n\n")[0], re.MULTILINE)
        for text in (laws, splits)
    )
    assert {parse_partition(law).law for law in laws} == {*EXAMPLES, "file"} and any(
        parse_partition(law).keep for law in laws
    )
    assert {parse_split(split).kind for split in splits} == set(SPLIT_KINDS)
