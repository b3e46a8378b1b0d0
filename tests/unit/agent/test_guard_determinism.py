"""Determinism is switched on for audited steps only, and refused in time where it cannot be had."""

from __future__ import annotations

import pytest
import torch

from training_agent.determinism import DeterministicMode, deterministic, require_cublas_workspace
from training_agent.errors import ConfigurationError


def switches() -> tuple[bool, bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.benchmark,
    )


def test_the_block_is_strict_and_the_users_switches_come_back() -> None:
    torch.backends.cudnn.benchmark = True
    try:
        before = switches()
        with deterministic():
            assert switches() == (True, False, False, False)
        assert switches() == before
    finally:
        torch.backends.cudnn.benchmark = False


def test_entering_twice_does_not_forget_what_the_user_had() -> None:
    before, mode = switches(), DeterministicMode()
    mode.enter()
    mode.enter()
    mode.leave()
    mode.leave()
    assert switches() == before


def test_a2_cuda_without_a_fixed_cublas_workspace_is_refused_with_variable_and_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with pytest.raises(ConfigurationError, match="CUBLAS_WORKSPACE_CONFIG=:4096:8"):
        require_cublas_workspace(torch.device("cuda"))
    require_cublas_workspace(torch.device("cpu"))


@pytest.mark.parametrize("value", [":4096:8", ":16:8"])
def test_a2_both_documented_workspaces_are_accepted(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    require_cublas_workspace(torch.device("cuda"))
