"""The commands of a deployment: what they refuse, and what they pass on."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedtailor.cli.federate import make_config
from fedtailor.cli.main import app
from fedtailor.core.errors import UserError
from fedtailor.deploy.config import DeployConfig
from fedtailor.methods import fedprox

NODE = "node --data digits --superlink 127.0.0.1:1"
FEDERATE = "federate --superlink 127.0.0.1:1"


def run(command: str) -> None:
    app(command.split(), standalone_mode=False)


@pytest.mark.parametrize(
    "command",
    [NODE, FEDERATE, "register {key} --superlink h:1 --root-certificates ca.pem"],
)
def test_without_flower_there_is_one_clear_line(command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(
        UserError, match=r"needs Flower: pip install 'fedtailor\[flower\]'"
    ):
        run(command.format(key=tmp_path / "a.pub"))


def test_all_else_works_without_flower():
    absent = "import sys; sys.modules['flwr'] = sys.modules['fcntl'] = None"
    alone = f"{absent}; import fedtailor.cli.main"
    subprocess.run([sys.executable, "-c", alone], check=True)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (NODE, "give --root-certificates ca.pem, or --insecure"),
        (f"{NODE} --insecure --key k", "--key needs TLS"),
        (f"{NODE} --root-certificates nowhere.pem", "there is no file nowhere.pem"),
        (f"{NODE} --insecure --name a/b", "a name has letters"),
        (FEDERATE, "give --root-certificates ca.pem, or --insecure"),
        (f"{FEDERATE} --insecure --method dito", "no method 'dito'"),
    ],
)
def test_a_mistake_is_one_clear_line(command, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(UserError, match=why):
        run(command)


def test_a_wrong_deploy_table_is_told(tmp_path):
    (tmp_path / "e.toml").write_text("[deploy]\nsite = 3\n")
    with pytest.raises(UserError, match=r"e.toml: .*'site'.*sites"):
        run(f"{FEDERATE} --insecure {tmp_path / 'e.toml'}")


def test_the_configuration_holds_all_that_the_server_needs(tmp_path):
    text = Path(fedprox.__file__).read_text(encoding="utf-8")
    method = tmp_path / "mine.py"
    method.write_text(text)
    words = tmp_path / "words.txt"
    words.write_text("the\ncat\n")
    deploy = {"sites": 3, "deadline": 9, "classes": 10, "vocabulary": words}
    config = make_config({"method": str(method), "seed": 4}, deploy, None, True)
    assert config.sites == 3 and config.deadline == 9 and config.wait == 600
    assert config.data == {"classes": 10} and config.resume
    assert config.source == text and config.vocabulary == ["the", "cat"]
    assert config.out.endswith("runs/mine-sites-s4")
    assert DeployConfig.from_json(config.to_json()) == config
    words.write_text("the\ncat\nthe\n")
    with pytest.raises(UserError, match="a word is in it twice"):
        make_config({}, deploy, None, False)
