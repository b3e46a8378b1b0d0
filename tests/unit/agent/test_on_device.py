"""The work of a healthy step on a device that gives nothing back: torch's meta device stands for a GPU.

It has shapes and no values: who asks for one, copies to the host, or mixes it with host memory gets an error.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training_agent import _digest_portable
from training_agent._evidence import Depth, Recorder, norms
from training_agent._gate import Gate
from training_agent.checks.nonfinite import GradientNorms, Share
from training_agent.policy import Naming

DEVICE = torch.device("meta")


class Alone:
    """What the gate needs of the replica group, where NCCL moves the device's memory."""

    world = 2

    def sum_tensor(self, counts: Tensor) -> Tensor:
        return counts


@pytest.mark.parametrize("make", [lambda t: t.item(), lambda t: t.cpu(), lambda t: t + torch.ones(1)])
def test_the_stand_in_refuses_what_makes_the_host_wait_and_what_a_gpu_refuses(make: Any) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        make(torch.ones(1, device=DEVICE))


@pytest.mark.parametrize("naming", list(Naming))
@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reads_and_gate_of_a_step_stay_on_the_device(
    naming: Naming, at_once: bool, dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)).to(DEVICE, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    read = GradientNorms(parameters, lambda: True, naming=naming, at_once=at_once, share=Share(0, 2))
    gate = Gate((optimizer,), Alone(), DEVICE)  # type: ignore[arg-type]
    for scaled in (False, True):
        read.reset()
        optimizer.zero_grad()
        for _ in range(2):  # the second one accumulates
            loss = model(torch.ones(3, 8, device=DEVICE, dtype=dtype)).square().mean()
            loss.backward()
        if scaled:
            optimizer.found_inf = torch.zeros((), device=DEVICE)  # type: ignore[attr-defined]
        flags = read.local_nonfinite(DEVICE), read.reduced_nonfinite(DEVICE)
        count = gate.count(*flags, optimizer, flags[0], (loss, read.reduced_norm(DEVICE)))
        gate.hold(count, optimizer)
        assert optimizer.found_inf.device == count.device_counts.device == DEVICE  # type: ignore[attr-defined]
        gate.release(optimizer)
        gate.open()
    assert not read.dropped()
    read.remove()


def test_the_portable_digest_stays_on_the_device() -> None:
    sizes = (0, 1, 4096, 3 * 4096 + 5)
    tensors = [torch.empty(n, device=DEVICE) for n in sizes] + [
        torch.empty(9, dtype=torch.uint8, device=DEVICE)[1:]
    ]
    for split in (2**32, 4096):
        assert _digest_portable.table(tensors, split).device == DEVICE


def test_what_an_audit_records_stays_on_the_device_until_it_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training_agent._evidence.readable", lambda _tensor: True)
    monkeypatch.setattr("training_agent._evidence.digest", _digest_portable.table)
    for depth in Depth:
        recorder = Recorder(2, depth)
        recorder.gradient(0, torch.ones(5, device=DEVICE))
        recorder.returned([torch.ones(3, 2, device=DEVICE)], [torch.ones(2, device=DEVICE)])
        recorder.loss(torch.ones((), device=DEVICE))
        with pytest.raises(NotImplementedError):
            recorder.evidence()
    assert {n.device for n in norms([torch.ones(3, device=DEVICE)])} == {DEVICE}
