"""One block of one step, recorded and computed again in one process: here, and as a peer gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from training_agent._block_watch import BlockRecord, BlockWatch
from training_agent._blocks import Block, blocks_of
from training_agent._evidence import Depth, Evidence
from training_agent._leaves import ParameterLeaves
from training_agent._packing import pack, unpack
from training_agent._watch import StepWatch
from training_agent.checks.block import recompute_block, rows_of
from training_agent.checks.nonfinite import GradientNorms

CPU = torch.device("cpu")
Prepare = Callable[[nn.Module], Any]


class Net(nn.Module):
    """A block between two others; how it is called is the case's affair."""

    def __init__(self, block: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.before, self.block, self.after = nn.Linear(6, 6), block, nn.Linear(6, 6)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(self.call(self.block, self.before(x)))
        return out


@dataclass
class Step:
    """What was recorded, and the block to compute it again with."""

    part: nn.Module
    block: Block
    seen: BlockRecord

    def again(self, *, as_a_peer: bool = False) -> Evidence:
        capture: Any = self.seen.capture
        if as_a_peer:
            capture = unpack(pack(capture, CPU), CPU)
        return recompute_block(self.part, self.block, capture, Depth.BITS, CPU)


def one_step(net: nn.Module, *, bf16: bool = False, backward_inside: bool = False) -> Step:
    torch.manual_seed(2)
    parameters = {n: p for n, p in net.named_parameters() if p.requires_grad}
    norms = GradientNorms(list(parameters.values()), lambda: True)
    watch = StepWatch(net, parameters, norms, CPU, ParameterLeaves(parameters))
    watch.begin(audit=False)
    block = next(b for b in blocks_of(net) if b.name == "block")
    recorder = BlockWatch(net.get_submodule("block"), block, 0, watch, norms, Depth.BITS, CPU, strict=True)
    recorder.install()
    x = torch.randn(3, 4, 6)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        with watch.inside_loss((x,), {}):
            loss = net(x).float().square().mean()
        watch.leave_loss(loss)
        if backward_inside:
            loss.backward()
    if not backward_inside:
        loss.backward()
    seen = recorder.ended(watch.record(1))
    norms.remove()
    return Step(net.get_submodule("block"), block, seen)


class Attention(nn.Module):
    """Asks whether its inputs are one and the same."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, dropout=0.2, batch_first=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q is k is v
        out: Tensor = self.inner(q, k, v, need_weights=False)[0]
        return out


class Linear(nn.Linear):
    """Takes what else there is, in any form."""

    def forward(self, x: Tensor, *more: Any, **named: Any) -> Tensor:
        out = super().forward(x)
        for value in (*more, *named.values()):
            for one in value if isinstance(value, (tuple, list)) else [value]:
                out = out + one if isinstance(one, Tensor) else out
        if more and isinstance(more[0], list):
            more[0].append(out)
        return out


class Two(nn.Linear):
    """Gives two values, one made of the other."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = super().forward(x)
        return {"first": first, "second": torch.tanh(first)}


class Island(nn.Linear):
    """Switches autocast off inside."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.tanh(F.linear(x.float(), self.weight, self.bias))


CALLS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Any]]] = {
    "one tensor three times": (Attention, lambda b, x: b(x, x, x)),
    "a slice that begins anywhere": (
        lambda: nn.LayerNorm(6),
        lambda b, x: F.pad(b(torch.cat([x[:, :, :1], x], 2)[:, :, 1:]), (0, 0)),
    ),
    "by name": (lambda: Linear(6, 6), lambda b, x: b(x, bias_of=torch.ones(6), other=x * 2)),
    "in a tuple": (lambda: Linear(6, 6), lambda b, x: b(x, (x * 2, x * 3), 7, None, "word")),
    "in a list that the block writes to": (lambda: Linear(6, 6), lambda b, x: b(x, [x * 2])),
    "two values": (lambda: Two(6, 6), lambda b, x: sum(b(x).values())),
    "dropout": (lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)), lambda b, x: b(x)),
    "transposed": (lambda: nn.Linear(4, 6), lambda b, x: b(x.transpose(1, 2))),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_block_gets_the_same_bits_again_here_and_on_a_peer(name: str) -> None:
    build, call = CALLS[name]
    net = Net(build(), call)
    step = one_step(net)
    assert step.seen.obstacle is None
    original = step.seen.evidence()
    assert original.tensors >= 3  # a gradient of a weight, one of an input, an output
    assert step.again().agrees(original)
    assert step.again(as_a_peer=True).agrees(original)
    assert step.seen.leak() == ""


@pytest.mark.parametrize("inside", [False, True])
def test_the_backward_runs_under_the_switches_of_its_own(inside: bool) -> None:
    """A product in float32 inside autocast: its gradients are products too, which autocast would lower."""
    torch.manual_seed(1)
    step = one_step(Net(Island(6, 6), lambda b, x: b(x)), bf16=True, backward_inside=inside)
    assert step.again(as_a_peer=True).agrees(step.seen.evidence())


def test_users_hooks_are_part_of_the_block() -> None:
    net = Net(nn.Linear(6, 6), lambda b, x: b(x))
    net.block.register_forward_pre_hook(lambda _m, args: (args[0] * 2,))
    net.block.register_forward_hook(lambda _m, _a, out: out + 1)
    net.block.weight.register_hook(lambda g: g * 5)  # type: ignore[no-untyped-call, union-attr]
    step = one_step(net)
    assert step.seen.obstacle is None
    assert step.again().agrees(step.seen.evidence())


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
def test_a_hook_on_the_blocks_own_backward_is_an_obstacle(kind: str) -> None:
    """It changes what arrives at outputs and leaves at inputs, outside of what is recorded."""
    net = Net(nn.Linear(6, 6), lambda b, x: b(x))
    getattr(net.block, kind)(lambda _m, given, *_out: (given[0] * 3,))
    assert "has backward hooks of its own" in str(one_step(net).seen.obstacle)


def test_a_weight_among_the_arguments_is_handed_on_as_it_is() -> None:
    """Autocast casts a weight once for all its uses, by its identity."""
    net = Net(Linear(6, 6), lambda b, x: b(x, net.after.bias))
    step = one_step(net)
    assert step.seen.capture is not None and step.seen.capture.inputs == (True, False)
    assert step.again(as_a_peer=True).agrees(step.seen.evidence())
    assert step.seen.leak() == ""


def test_a_frozen_block_is_compared_by_what_it_returns() -> None:
    net = Net(nn.Linear(6, 6).requires_grad_(False), lambda b, x: b(x.detach()))
    step = one_step(net)
    assert step.seen.obstacle is None
    original = step.seen.evidence()
    assert (original.tensors, step.again().agrees(original)) == (1, True)


def test_rows_are_named_after_weights_and_inputs() -> None:
    assert rows_of(Block("h.3", ("weight",)), 2) == ("h.3.weight", "h.3.input 0", "h.3.input 1")
    assert rows_of(Block("", ("weight",)), 0) == ("weight",)


@pytest.mark.parametrize("where", ["weight", "input", "output"])
def test_a_wrong_number_anywhere_in_the_block_is_seen(where: str) -> None:
    net, fired = Net(nn.Linear(6, 6), lambda b, x: b(x)), []

    def spoil(tensor: Tensor) -> Tensor:
        if fired:
            return tensor
        fired.append(where)
        return tensor * 1.001

    def on_input(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        alias = args[0].view_as(args[0])
        alias.register_hook(spoil)  # type: ignore[no-untyped-call]
        return (alias,)

    if where == "weight":
        net.block.weight.register_hook(spoil)  # type: ignore[no-untyped-call, union-attr]
    elif where == "input":
        net.block.register_forward_pre_hook(on_input)
    else:
        net.block.register_forward_hook(lambda _m, _a, out: spoil(out))
    step = one_step(net)
    assert fired and step.seen.obstacle is None
    assert not step.again().agrees(step.seen.evidence())


def test_a_block_that_is_no_longer_there_is_skipped() -> None:
    net = Net(nn.Linear(6, 6), lambda b, x: b(x))
    block = Block("block", ("weight", "bias", "gate"))
    norms = GradientNorms(list(net.parameters()), lambda: True)
    parameters = dict(net.named_parameters())
    watch = StepWatch(net, parameters, norms, CPU, ParameterLeaves(parameters))
    watch.begin(audit=False)
    recorder = BlockWatch(net.block, block, 0, watch, norms, Depth.BITS, CPU, strict=True)
    recorder.install()
    with watch.inside_loss((), {}):
        loss = net(torch.ones(2, 6)).sum()
    watch.leave_loss(loss)
    loss.backward()
    obstacle = recorder.ended(watch.record(1)).obstacle
    assert obstacle == "block block has other weights than it had when the guard was attached"
