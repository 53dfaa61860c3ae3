"""A run computes under its own settings and gives the caller's back."""

import pytest
import torch

from fedtailor.core.torch_settings import torch_settings


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("fails", [False, True])
def test_settings_come_and_go(three_threads, fails):
    try:
        with torch_settings(torch.float64):
            assert torch.get_num_threads() == 1
            assert torch.get_default_dtype() == torch.float64
            assert torch.tensor(1e-310, dtype=torch.float64) * 1 == 0  # denormal
            if fails:
                raise RuntimeError
    except RuntimeError:
        assert fails
    assert torch.get_num_threads() == 3
    assert torch.get_default_dtype() == torch.float32
