"""From options to what a run needs, and what is refused on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import fedtailor
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare, prepare_federation
from fedtailor.method import Method
from fedtailor.methods import RENAMED_HOOKS, check_hooks, find
from fedtailor.methods.fedavg import FedAvg
from fedtailor.testing.small_world import digits

FILE = '''"""A method of an earlier version."""

from dataclasses import dataclass
from fedtailor import Method

@dataclass(frozen=True)
class Mine(Method[None, None, None, None]):
    def {hook}(self):
        return []
'''


def test_all_that_is_decided_stands_in_the_options() -> None:
    setup = prepare(
        make_experiment({"data": "digits", "limit": 300, "method": "ditto"})
    )
    options = setup.options
    assert (options.clients, options.model) == (20, "cnn")
    assert options.lr == setup.world.plan.lr and "lam" in options.set
    assert any(text.startswith("model: cnn with") for text in setup.notices)
    told = prepare(
        make_experiment({"method": "ditto", "set": {"lam": 0}, "limit": 300})
    ).notices
    assert any(text.startswith("warning: lam=0") for text in told)


@pytest.mark.parametrize("hook", RENAMED_HOOKS)
def test_an_old_hook_is_refused_with_the_new_name(hook: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE.format(hook=hook))
    complaint = f"^Mine: the hook '{hook}' is now '{RENAMED_HOOKS[hook]}'; rename it$"
    assert hasattr(Method, RENAMED_HOOKS[hook]) and not hasattr(Method, hook)
    with pytest.raises(fedtailor.UserError, match=complaint):
        find(str(tmp_path / "mine.py"))
    with pytest.raises(fedtailor.UserError, match=complaint):
        fedtailor.run(str(tmp_path / "mine.py"), rounds=1)


def test_an_old_hook_of_a_class_or_an_instance_is_refused() -> None:
    class Old(FedAvg):
        suits: ClassVar[str] = "mlp"

    class Older(Old):
        pass

    for given in (Old, Old(), Older, Older()):
        with pytest.raises(fedtailor.UserError, match="Old: the hook 'suits' is now"):
            fedtailor.run(given, digits(), rounds=1)


def test_a_hyper_parameter_may_have_the_name_of_an_old_hook() -> None:
    @dataclass(frozen=True)
    class Patient(Method[Any, Any, Any, Any]):
        after: int = 3
        join: float = 0.5

    check_hooks(Patient)
    check_hooks(FedAvg)


def test_clients_that_never_train_leave_some_that_do() -> None:
    with pytest.raises(
        fedtailor.UserError, match="new_clients=6: of 6 clients at least one must"
    ):
        prepare(make_experiment({"new_clients": 6}), data=digits())


def test_every_filter_is_there_once() -> None:
    options = {"bn": "local", "filters": "tap,local_buffers,tap", "limit": 200}
    filters = prepare(make_experiment(options)).world.filters
    assert [type(f).__name__ for f in filters] == ["LocalBuffers", "Tap"]


def test_missing_values_of_data_given_in_python_are_filled():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    x[3, 1] = np.nan
    clients = [(x, np.arange(40) % 2), (x + 1, np.arange(40) % 2)]
    options = make_experiment({"data": "own", "missing": "median"})
    federation, _ = prepare_federation(options, clients)
    assert federation.shape == (6,)
    assert bool(torch.isfinite(federation.x).all())


@pytest.mark.parametrize("device", ["mps", "cuda", "xpu"])
def test_a_device_that_is_not_there_is_one_line(device):
    if getattr(torch, device).is_available():
        pytest.skip(f"this machine has {device}")
    with pytest.raises(
        fedtailor.UserError, match=f"device={device}: this machine has no usable"
    ):
        prepare(make_experiment({"device": device}))
