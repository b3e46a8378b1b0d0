"""The gate on the device: a fused optimizer passes over a flagged step and over all after it, until read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training_agent._gate import Gate, Tally

CPU = torch.device("cpu")


class Alone:
    """What the gate needs of the replica group, with one rank in it."""

    world = 1

    def sum_tensor(self, counts: Tensor) -> Tensor:
        return counts


class Job:
    """A layer under fused AdamW; each step has other gradients."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.layer.parameters(), lr=0.1, fused=True)
        self.gate = Gate((self.optimizer,), Alone(), CPU)  # type: ignore[arg-type]
        self.steps = 0

    def step(self, *, local: int = 0, reduced: int = 0, sizes: tuple[Tensor, ...] = ()) -> Tally:
        self.steps += 1
        self.optimizer.zero_grad()
        self.layer(torch.full((1, 3), float(self.steps))).sum().backward()
        count = self.gate.count(torch.tensor(local), torch.tensor(reduced), self.optimizer, None, sizes)
        self.gate.hold(count, self.optimizer)
        self.optimizer.step()
        self.gate.release(self.optimizer)
        return count.read()

    def state(self) -> list[Tensor]:
        moments = [v for entry in self.optimizer.state.values() for v in entry.values()]
        return [t.detach().clone() for t in (*self.layer.parameters(), *moments)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("fault", [{"local": 1}, {"reduced": 1}, {"local": 3, "reduced": 4}])
def test_fault_at_k_and_a_clean_k_plus_1_leave_weights_moments_and_counter_of_k_minus_1(
    fault: dict[str, Any],
) -> None:
    job = Job()
    job.step()
    job.step()
    before = job.state()
    job.step(**fault)
    assert same(job.state(), before)
    job.step()  # computed before the host has read the flags
    job.step()
    assert same(job.state(), before)
    job.gate.open()
    job.step()
    assert not same(job.state(), before)


def test_the_attribute_is_gone_after_the_update_unless_a_scaler_brought_it() -> None:
    job = Job()
    job.step(local=1)
    assert not hasattr(job.optimizer, "found_inf")
    job.gate.open()
    job.optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    job.step()
    assert hasattr(job.optimizer, "found_inf")


def test_a_step_that_the_scaler_skips_does_not_shut_the_gate() -> None:
    job = Job()
    job.step()
    before = job.state()
    job.optimizer.found_inf = torch.ones(())  # type: ignore[attr-defined]
    job.step(reduced=1)
    assert same(job.state(), before)
    job.optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    job.step()
    assert not same(job.state(), before)


def test_loss_and_norm_travel_with_the_flags_and_shut_nothing() -> None:
    job = Job()
    job.step()
    before = job.state()
    tally = job.step(sizes=(torch.tensor(-2.5), torch.tensor(0.75)))
    assert (tally.loss, tally.norm, tally.suspicious) == (2.5, 0.75, False)
    assert not same(job.state(), before)
    before = job.state()
    assert job.step(reduced=1, sizes=(torch.tensor(1.0), torch.tensor(1.0))).suspicious
    huge = job.step(sizes=(torch.tensor(float("nan")), torch.tensor(float("inf"))))
    assert (huge.loss, huge.norm) == (0.0, float(1 << 20))
    assert same(job.state(), before)


def test_momenta_are_waited_for_where_an_update_makes_them_and_not_of_frozen_layers() -> None:
    """Fused SGD makes them in a group's first update, out of free memory where that is stopped."""
    layers = [nn.Linear(3, 2) for _ in range(3)]
    groups = [{"params": layer.parameters()} for layer in layers]
    groups[2]["momentum"] = 0.0  # type: ignore[assignment]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True)
    gate = Gate((optimizer,), Alone(), CPU)  # type: ignore[arg-type]
    for trained, keeps in (((2,), True), ((0, 2), False), ((0, 2), True), ((0, 1), False), ((0, 1), True)):
        optimizer.zero_grad()
        for i in trained:
            layers[i](torch.ones(1, 3)).sum().backward()
        assert gate.keeps_state is keeps, trained
        optimizer.step()
