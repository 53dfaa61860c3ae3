"""The command as a person types it: mistakes are one line, exit code 2, and nothing is written."""

import json
import resource
import shutil
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch

from fedtailor.cli.main import main

FAST = [
    "--data",
    "digits",
    "--clients",
    "4",
    "--limit",
    "200",
    "--rounds",
    "2",
    "--executor",
    "sequential",
]


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


MISTAKES = [
    (["run", "--method", "dito"], "no method 'dito'; did you mean ditto"),
    (["run", "--method", "mine.py"], "no such file: mine.py"),
    (["run", "--data", "digitz"], "did you mean digits"),
    (["run", "--data", "cifar10", "--data-dir", "nowhere"], "put data_batch_1"),
    (["run", "--model", "resnet17"], "did you mean resnet"),
    (
        ["run", "--method", "ditto", "--set", "lamb=1"],
        "no hyper-parameter of Ditto 'lamb'; did you mean lam",
    ),
    (["run", "--method", "ditto", "--set", "lam=much"], "lam='much' will not do"),
    (
        ["run", "--method", "ditto", "--set", "lam=-1"],
        "lam='-1' will not do: input should be greater",
    ),
    (["run", "--method", "fedavg", "--set", "mu=1"], "mu"),
    (["run", "--set", "lam"], "write it as name=value"),
    (["run", "--rounds", "0"], "rounds='0' will not do"),
    (["run", "--rounds", "ten"], "rounds='ten' will not do"),
    (["run", "--lr", "-0.1"], "lr='-0.1' will not do"),
    (["run", "--participation", "1.5"], "not within 0 < share <= 1"),
    (["run", "--participation", "0.9..0.1"], "not within 0 < share <= 1"),
    (["run", "--late-clients", "soon"], "does not read like 5@10"),
    (["run", "--executor", "gpu"], "executor='gpu' will not do"),
    (["run", "--device", "cuda"], "no usable cuda"),
    (["run", "--device", "gpu0"], "no device 'gpu0'"),
    (["run", "--evaluate-clients", "some"], "neither all, nor cohort"),
    (["run", "--views", "sideways"], "no view 'sideways'"),
    (["run", "--batching", "keep", "--executor", "vmap"], "vmap cannot run"),
    (["run", "--partition", "dirichlet:-1"], "dirichlet"),
    (["run", "--partition", "dirichlett:0.1"], "did you mean dirichlet"),
    (["run", "--partition", "pathological:20"], "pathological"),
    (["run", "--clients", "5000"], "5000"),
    (["run", "--split", "offical"], "official"),
    (["run", "--new-clients", "20"], "at least one must train"),
    (["run", "--out", "/dev/null"], "/dev/null is no folder"),
    (["run", "--out", "/dev/null/a"], "/dev/null/a cannot be written: Not a directory"),
    (["compare", "fedavg", "--seeds", "1", "--out", "/dev/null"], "/dev/null"),
    (["run", "--roundz", "3"], "No such option '--roundz'"),
    (["run", "absent.toml"], "absent.toml cannot be read"),
    (["compare", "fedavg", "fedavg"], "named twice"),
    (["compare", "fedavg", "dito"], "did you mean ditto"),
    (["compare", "ditto[lamb=1]"], "option of ditto 'lamb'; did you mean lam"),
    (["compare", "ditto[lam=1,"], "the bracket is not closed"),
    (["compare", "ditto", "--tuned", "none.toml"], "none.toml cannot be read"),
    (["compare"], "name at least one method"),
    (["tune", "ditto"], "say what to search over"),
    (["tune", "ditto", "--over", "lamb=1|2"], "did you mean lam"),
    (["tune", "dito", "--over", "lr=0.1|1"], "did you mean ditto"),
    (["features", "nowhere"], "holds no run"),
    (["tsne", "nowhere"], "holds no run"),
    (["gradcam", "nowhere"], "holds no run"),
    (["run", "--name", ""], "write a name of one line"),
    (["compare", "fedavg", "--set", "ditto.lam=1"], "not in the comparison"),
    (["compare", "fedavg", "--seeds", "0"], "seeds"),
    (["show", "fedagv"], "did you mean fedavg"),
    (["check", "nothing.py"], "no such file"),
    (
        ["predict", "nowhere", "--client", "1", "--input", "x.npy"],
        "nowhere holds no run",
    ),
    (["partition", "--partition", "shards"], "shards"),
    (["datasets", "fetch", "mnistt"], "did you mean mnist"),
    (["fly"], "No such command 'fly'"),
    (["run", "--join", "0.5"], "--join is now --participation\n"),
    (["run", "--every", "2"], "--every is now --evaluate-every\n"),
    (["run", "--late", "5@10"], "--late is now --late-clients\n"),
    (["run", "--new", "2"], "--new is now --new-clients\n"),
    (["run", "--give-up", "2"], "--give-up is now --max-silent-rounds\n"),
    (["run", "--evaluate", "all"], "--evaluate is now --evaluate-clients\n"),
    (["compare", "fedavg", "--every=2"], "--every is now --evaluate-every\n"),
    (
        ["federate", "--superlink", "a:1", "--give-up", "2"],
        "is now --max-silent-rounds\n",
    ),
    (["show", "fedavg", "--every", "2"], "No such option '--every'"),
]


COMMANDS = [
    ["run"],
    ["compare"],
    ["demo"],
    ["tune"],
    ["features"],
    ["tsne"],
    ["gradcam"],
    ["audit"],
    ["partition"],
    ["predict"],
    ["show"],
    ["check"],
    ["methods"],
    ["models"],
    ["datasets"],
    ["datasets", "fetch"],
    ["federate"],
    ["node"],
    ["keys"],
    ["register"],
]


@pytest.mark.parametrize(
    ("words", "complaint"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES]
)
def test_mistakes_are_one_line_and_nothing_is_written(
    fedtailor, tmp_path, words, complaint
):
    code, out, err = fedtailor(*words)
    assert code == 2 and complaint.lower() in err.lower(), err
    assert (
        err.startswith("fedtailor: ")
        and err.count("\n") == 1
        and "Traceback" not in err + out
    )
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_a_file_names_the_file(fedtailor, tmp_path):
    (tmp_path / "exp.toml").write_text('method = "ditto"\nrouds = 3\n')
    code, _, err = fedtailor("run", "exp.toml")
    assert code == 2 and "exp.toml: no option 'rouds'; did you mean rounds" in err
    (tmp_path / "exp.toml").write_text('method = "ditto"\nevery = 3\n')
    for words in (["run", "exp.toml"], ["compare", "fedavg", "--config", "exp.toml"]):
        code, _, err = fedtailor(*words)
        assert code == 2 and err.endswith(
            "exp.toml: option 'every' is now 'evaluate_every'\n"
        )
    (tmp_path / "exp.toml").write_text('method = "ditto\n')
    assert "is no TOML" in fedtailor("run", "exp.toml")[2]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"x": np.full((40, 3), np.nan, np.float32)}, "NaN"),
        ({"x": np.full((40, 3), np.inf, np.float32)}, "inf"),
        ({"y": np.arange(40) % 4 - 2}, "label"),
        ({"y": np.zeros(40, int)}, "class"),
        ({"client": np.arange(40) % 2 * 5}, "client"),
    ],
)
def test_bad_own_data(fedtailor, tmp_path, change, complaint):
    data = {
        "x": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32),
        "y": np.arange(40) % 4,
    }
    np.savez(tmp_path / "mine.npz", **(data | change))
    code, _, err = fedtailor("run", "--data", "mine.npz", *FAST[2:])
    assert code == 2 and complaint.lower() in err.lower() and err.count("\n") == 1, err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.npz"]


def test_the_version_is_told(fedtailor):
    code, out, err = fedtailor("--version")
    assert code == 0 and out.split() == [
        "fedtailor",
        f"{version('fedtailor')},",
        "torch",
        torch.__version__,
    ], err


def test_who_says_nothing_is_told_what_there_is(fedtailor):
    code, out, err = fedtailor()
    assert (
        code == 0
        and err == ""
        and out == fedtailor("--help")[1]
        and len(out.splitlines()) > 15
    )


def test_run_resume_and_predict(fedtailor, tmp_path):
    code, out, err = fedtailor(
        "run", "--method", "ditto", *FAST, "--set", "lam=0.5", "--out", "a"
    )
    assert code == 0 and "chosen by validation data" in out, err
    assert (tmp_path / "a/curves.png").stat().st_size > 10_000 and (
        tmp_path / "a/curves.svg"
    ).exists()
    assert (
        fedtailor("run", "--method", "ditto", *FAST, "--set", "lam=0.5", "--out", "a")[
            0
        ]
        == 2
    )
    assert (
        fedtailor(
            "run",
            "--method",
            "ditto",
            *FAST,
            "--set",
            "lam=0.6",
            "--out",
            "a",
            "--resume",
        )[0]
        == 2
    )
    again = fedtailor("run", "a/config.toml", "--out", "b", "--quiet")
    assert again[0] == 0 and again[1] == ""
    one, two = (json.loads((tmp_path / p / "result.json").read_text()) for p in "ab")
    assert one["hash"] == two["hash"]
    np.save(tmp_path / "x.npy", np.zeros((3, 1, 8, 8), np.uint8))
    code, out, _ = fedtailor("predict", "a", "--client", "1", "--input", "x.npy")
    assert code == 0 and len(out.splitlines()) == 4
    assert (
        "there are 0 to 3"
        in fedtailor("predict", "a", "--client", "9", "--input", "x.npy")[2]
    )


def test_a_full_disk_is_told_and_costs_nothing(fedtailor, tmp_path):
    words = [
        "run",
        "--method",
        "ditto",
        *FAST[:-4],
        "--executor",
        "sequential",
        "--checkpoint-every",
        "1",
    ]
    assert fedtailor(*words, "--rounds", "4", "--out", "whole")[0] == 0
    assert fedtailor(*words, "--rounds", "2", "--out", "a")[0] == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # less than the network takes
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        code, _, err = fedtailor(
            *words, "--rounds", "4", "--out", "a", "--resume", "--quiet"
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert code == 2 and err.startswith("fedtailor: a/") and err.count("\n") == 1, err
    assert "cannot be written: File too large; what was saved before is whole" in err
    assert not [
        p for p in tmp_path.glob("a/**/.*.safetensors.*")
    ]  # no half files are left
    assert fedtailor(*words, "--rounds", "4", "--out", "a", "--resume")[0] == 0
    one, two = (
        json.loads((tmp_path / p / "result.json").read_text()) for p in ("whole", "a")
    )
    assert one["hash"] == two["hash"]


def test_flags_win_over_the_file(fedtailor, tmp_path):
    (tmp_path / "exp.toml").write_text(
        'method = "ditto"\nclients = 4\nlimit = 200\nrounds = 9\n[set]\nlam = 0.1\n'
    )
    assert (
        fedtailor(
            "run", "exp.toml", "--rounds", "1", "--out", "a", "--executor", "sequential"
        )[0]
        == 0
    )
    result = json.loads((tmp_path / "a/result.json").read_text())
    assert (
        result["rounds"] == 1
        and "lam = 0.1" in (tmp_path / "a/config.toml").read_text()
    )


def test_an_interrupted_comparison_goes_on(fedtailor, tmp_path):
    words = [
        "compare",
        "fedavg",
        "ditto",
        *FAST,
        "--seeds",
        "2",
        "--out",
        "cmp",
        "--set",
        "ditto.lam=0.5",
    ]
    code, out, err = fedtailor(*words)
    assert code == 0 and "ditto" in out, err
    for name in (
        "comparison.png",
        "comparison.svg",
        "leaderboard.md",
        "leaderboard.csv",
        "comparison.pdf",
        "leaderboard.tex",
        "report.html",
    ):
        assert (tmp_path / "cmp" / name).exists()
    before = (tmp_path / "cmp/fedavg-s1/result.json").stat().st_mtime_ns
    (tmp_path / "cmp/ditto-s1/result.json").unlink()  # as if it had been stopped there
    shutil.rmtree(tmp_path / "cmp/ditto-s0")
    assert fedtailor(*words)[0] == 0
    assert (tmp_path / "cmp/fedavg-s1/result.json").stat().st_mtime_ns == before
    assert (tmp_path / "cmp/ditto-s0/result.json").exists()
    assert "holds another run" in fedtailor(*words, "--lr", "0.2")[2]


def test_warnings_about_values_that_switch_a_method_off(fedtailor):
    code, out, _ = fedtailor(
        "run", "--method", "ditto", *FAST, "--set", "lam=0", "--out", "a"
    )
    assert code == 0 and "warning: lam=0" in out
    assert (
        "warning: mu=0"
        in fedtailor(
            "run", "--method", "fedprox", *FAST, "--set", "mu=0", "--out", "b"
        )[1]
    )


def test_lists(fedtailor):
    for words, seen in (
        (["models"], "har_cnn"),
        (["datasets"], "fashion_mnist"),
        (["show", "ditto"], "pull towards the global model"),
        (["--help"], "compare"),
        (["run", "--help"], "--partition"),
    ):
        code, out, err = fedtailor(*words)
        assert code == 0 and seen in out, err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_no_stray_backslashes(fedtailor, words):
    code, out, err = fedtailor(*words, "--help")
    assert code == 0 and "Usage: " in out and "\\" not in out, err


def test_help_groups_options_and_shows_choices(fedtailor):
    out = fedtailor("run", "--help")[1]
    sections = [
        line for line in out.splitlines() if line.endswith(":") and line[0] != " "
    ]
    parts = [
        "Method",
        "Data",
        "Model",
        "Rounds",
        "Training",
        "Protection",
        "Execution",
        "Evaluation",
    ]
    assert sections == ["Arguments:", "Options:", *(f"{part}:" for part in parts)]
    assert "--executor [auto|sequential|processes|vmap|ray]" in out
    assert "--save [best|last|none]" in out and "--seed VALUE" in out
    assert "[required]" in fedtailor("predict", "--help")[1]
    assert "--method " not in fedtailor("compare", "--help")[1]


def test_commands_have_the_options_they_can_use(fedtailor):
    partition = fedtailor("partition", "--help")[1]
    assert (
        "--batch " in partition
        and "--seed " in partition
        and "--rounds" not in partition
    )
    federate = fedtailor("federate", "--help")[1]
    assert "--rounds " in federate and "--late-clients" not in federate


def test_partition_prints_and_draws(fedtailor, tmp_path):
    words = "partition --data digits --partition dirichlet:0.1 --clients 20 --out p"
    code, out, err = fedtailor(*words.split())
    assert code == 0 and "hash" in out, err
    assert {p.name for p in tmp_path.iterdir()} == {
        "p.png",
        "p.svg",
        "p.pdf",
        "p.npz",
    }
    fedtailor(
        "partition", "--clients", "5", "--partition", "dirichlet:0.5", "--out", "p-0.5"
    )
    assert (tmp_path / "p-0.5.npz").exists(), "a point in the name is no suffix"
    fedtailor(
        "run", "--partition", "p.npz", "--data", "digits", "--rounds", "1", "--out", "a"
    )
    assert (tmp_path / "a/result.json").exists()
