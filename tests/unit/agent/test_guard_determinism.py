"""Determinism is switched on for audited steps only, and refused in time where it cannot be had."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from training_agent import _attention
from training_agent._attention import Attention
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


@pytest.mark.parametrize(
    ("own", "forced"),
    [
        ((True, True, True, True), (True, True, True, False)),
        ((False, True, False, True), (False, True, False, False)),
        ((False, False, False, True), (True, True, True, False)),  # cuDNN's alone: the others take its place
    ],
)
def test_forced_kernels_have_one_choice_of_attention_and_the_users_comes_back(
    own: Attention, forced: Attention
) -> None:
    before = _attention.allowed()
    _attention.allow(own)
    try:
        with deterministic(attention=True):
            assert _attention.allowed() == forced
            assert switches()[0], "and the rest is strict as well"
        assert _attention.allowed() == own
        with deterministic():
            assert _attention.allowed() == own, "a switched audit leaves it to torch"
    finally:
        _attention.allow(before)


def test_switched_off_it_changes_nothing() -> None:
    before = switches()
    with deterministic(False, attention=True):
        assert switches() == before


def test_switching_repeats_no_warning_of_the_users() -> None:
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):  # forced kernels switch at every step
            with deterministic(attention=True):
                warnings.warn("once", stacklevel=1)
        said += [str(w.message) for w in caught]
    assert said == ["once"]


def test_entering_twice_does_not_forget_what_the_user_had() -> None:
    before, mode = switches(), DeterministicMode()
    mode.enter()
    mode.enter()
    mode.leave()
    mode.leave()
    assert switches() == before


def test_a_users_context_that_ends_inside_keeps_what_it_put_back() -> None:
    """As `with sdpa_kernel(MATH):` around forward and backward, but not around the update."""
    before, mode = (switches(), _attention.allowed()), DeterministicMode(attention=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        mode.enter()
    mode.leave()
    assert (switches(), _attention.allowed()) == before
    torch.backends.cudnn.benchmark = False
    mode.enter()
    torch.backends.cudnn.benchmark = True
    mode.leave()
    assert torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    assert (switches(), _attention.allowed()) == before


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


def test_audits_keep_flash_attention_instead_of_falling_back_to_the_math_kernel() -> None:
    used: set[str] = set()

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            used.add(func._schema.name)
            return func(*args, **(kwargs or {}))

    query, key, value = (torch.randn(1, 2, 32, 16, requires_grad=True) for _ in range(3))
    with deterministic(), Seen():
        mixed = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed.sum().backward()
    assert any("flash_attention" in name and "backward" in name for name in used)
    assert not any("softmax" in name for name in used)  # the math kernel writes its scores out
