"""The injector: what it spoils, in which phase, on which GPU, and that it can be seen afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.patience import PATIENCE_S
from training_agent._phase import Phase
from training_agent.errors import ConfigurationError
from training_agent.faults import Fault, FaultPlan, Injector, StrikeRecord, strike_records

VICTIM = "GPU-victim"


class Net(nn.Module):
    """`down` is the layer that is struck."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 16)
        self.down = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Bench:
    """One rank's model and injector, and what they compute."""

    def __init__(
        self,
        state_dir: Path,
        fault: Fault,
        *,
        gpu: str = VICTIM,
        rank: int = 1,
        seed: int = 3,
        step: int = 5,
        ranks: tuple[int, ...] = (1,),
    ) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.0)
        self.phase = Phase.TRAINING
        self.plan = FaultPlan(fault, ranks, step, seed)
        self.injector = Injector(
            self.plan, self.net.down, self.optimizer, gpu, rank, state_dir, lambda: self.phase
        )
        self.x = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))

    def compute(self, step: int, phase: Phase = Phase.TRAINING) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Output, loss and gradients under bf16 autocast, replayed as the guard replays."""
        self.injector.begin_step(step)
        self.phase = phase
        aliases = {n: p.detach().requires_grad_() for n, p in self.net.named_parameters()}
        for name, p in self.net.named_parameters():
            for hook in (p._backward_hooks or {}).values():
                aliases[name].register_hook(hook)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = functional_call(self.net, aliases, (self.x,))
        loss = out.float().pow(2).mean()
        grads = torch.autograd.grad(loss, list(aliases.values()))
        return out.detach(), loss.detach(), dict(zip(aliases, grads, strict=True))


def hit(bench: Bench, step: int, phase: Phase = Phase.TRAINING) -> bool:
    """Whether any bit of the computation differs from the healthy one."""
    healthy = Bench(Path("unused"), Fault.NONE).compute(step)
    out, loss, grads = bench.compute(step, phase)
    same = torch.equal(out, healthy[0]) and torch.equal(loss, healthy[1])
    return not (same and all(torch.equal(grads[n], healthy[2][n]) for n in grads))


PHASES = [Phase.TRAINING, Phase.REPLAY, Phase.ARBITRATION, Phase.WARM_UP]


@pytest.mark.parametrize(
    ("fault", "struck"),
    [
        (Fault.FORWARD, [True, True, True, False]),
        (Fault.TWO_GPUS, [True, True, True, False]),
        (Fault.WEIGHT_GRAD, [True, True, True, False]),
        (Fault.REPLAYER, [False, True, True, False]),
    ],
)
def test_persistent_faults_strike_from_their_step_on_in_their_phases(
    tmp_path: Path, fault: Fault, struck: list[bool]
) -> None:
    bench = Bench(tmp_path, fault)
    assert [hit(bench, 4, phase) for phase in PHASES] == [False] * 4
    assert [hit(bench, 5, phase) for phase in PHASES] == struck
    assert [hit(bench, 9, phase) for phase in PHASES] == struck


def test_forward_fault_changes_one_element_and_the_loss_in_bf16(tmp_path: Path) -> None:
    healthy = Bench(tmp_path, Fault.NONE).compute(5)
    out, loss, grads = Bench(tmp_path, Fault.FORWARD).compute(5)
    changed = (out != healthy[0]).nonzero()
    assert len(changed) == 1
    position = tuple(changed[0].tolist())
    assert out[position].abs() > 100 * healthy[0][position].abs()
    assert loss != healthy[1]
    assert all(torch.isfinite(g).all() for g in grads.values())


def test_forward_fault_leaves_the_gradient_path(tmp_path: Path) -> None:
    """A detached delta: the output's derivative by the layer's input and weight is what it was."""
    bench = Bench(tmp_path, Fault.FORWARD)
    bench.injector.begin_step(5)
    x = torch.randn(3, 16)
    bench.net.down(x).sum().backward()
    assert bench.net.down.weight.grad is not None
    assert torch.equal(bench.net.down.weight.grad, x.sum(0).expand(6, 16))


def test_persistent_fault_gives_the_same_wrong_bits_every_time(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fault.FORWARD)
    assert torch.equal(bench.compute(5)[0], bench.compute(5, Phase.REPLAY)[0])


def test_nan_reaches_every_gradient_of_the_layer_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fault.NAN_ONCE)
    assert not hit(bench, 4)
    _, loss, grads = bench.compute(5)
    assert loss.isnan()
    assert all(g.isnan().any() for g in grads.values())
    assert not hit(bench, 5) and not hit(bench, 6)


@pytest.mark.parametrize("fault", [Fault.NAN_ONCE, Fault.FORWARD_ONCE])
def test_one_off_fault_strikes_in_training_only_and_keeps_its_mark_on_disk(
    tmp_path: Path, fault: Fault
) -> None:
    bench = Bench(tmp_path, fault)
    assert not any(hit(bench, 5, phase) for phase in PHASES[1:])
    assert hit(bench, 5)
    assert not any(hit(bench, 5, phase) for phase in PHASES)
    assert not hit(Bench(tmp_path, fault), 5), "after a restart on the same GPU"


def test_mark_stands_before_the_fault_strikes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, Fault.FORWARD_ONCE)

    def spoil(*_: object) -> Tensor:
        assert strike_records(tmp_path)[0].struck_step == 5
        raise KeyboardInterrupt

    monkeypatch.setattr("training_agent.fault_sites.corrupted", spoil)
    with pytest.raises(KeyboardInterrupt):
        bench.compute(5)


def test_weight_flip_strikes_once_after_the_update(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fault.WEIGHT_FLIP)
    before = bench.net.down.weight.detach().clone()
    for step in (4, 5, 5, 6):
        bench.injector.begin_step(step)
        bench.net(bench.x).sum().backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad()
        if step == 4:
            assert torch.equal(bench.net.down.weight, before)
    changed = before.view(torch.int32) ^ bench.net.down.weight.detach().view(torch.int32)
    assert sorted(changed.flatten().tolist())[-2:] == [0, 1 << 22]


def test_weight_flip_is_in_place_before_any_other_post_hook(tmp_path: Path) -> None:
    """A weight check of the same step must see it, whoever registered first."""
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    before = net.down.weight.detach().clone()
    seen: list[bool] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(torch.equal(net.down.weight, before)))
    plan = FaultPlan(Fault.WEIGHT_FLIP, (0,), 1, 0)
    injector = Injector(plan, net.down, optimizer, VICTIM, 0, tmp_path, lambda: Phase.TRAINING)
    injector.begin_step(1)
    net(torch.randn(2, 6)).sum().backward()
    optimizer.step()
    assert seen == [False]


def test_fault_stays_in_its_gpu(tmp_path: Path) -> None:
    assert hit(Bench(tmp_path, Fault.FORWARD), 5)
    assert not hit(Bench(tmp_path, Fault.FORWARD, gpu="GPU-new"), 5), "the rank has moved to a new GPU"
    assert hit(Bench(tmp_path, Fault.FORWARD, rank=0), 5), "another rank has come to the bad GPU"


def test_other_ranks_bind_nothing(tmp_path: Path) -> None:
    assert not hit(Bench(tmp_path, Fault.FORWARD, rank=0, gpu="GPU-0"), 5)
    assert strike_records(tmp_path) == ()


def test_strike_records_say_who_is_bad_and_since_when(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Fault.FORWARD)
    assert strike_records(tmp_path) == (StrikeRecord(1, VICTIM, None),)
    bench.compute(4)
    bench.compute(7)
    bench.compute(8)
    assert strike_records(tmp_path) == (StrikeRecord(1, VICTIM, 7),)


def test_two_gpus_give_different_wrong_bits(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / str(seed)
        outs = [
            Bench(folder, Fault.TWO_GPUS, rank=rank, gpu=f"GPU-{rank}", ranks=(1, 4), seed=seed).compute(5)[0]
            for rank in (1, 4)
        ]
        assert not torch.equal(*outs)
        assert [r.rank for r in strike_records(folder)] == [1, 4]


def test_position_depends_on_the_seed_and_is_repeatable(tmp_path: Path) -> None:
    outs = [Bench(tmp_path / str(seed), Fault.FORWARD, seed=seed).compute(5)[0] for seed in range(12)]
    again = [Bench(tmp_path / f"again-{s}", Fault.FORWARD, seed=s).compute(5)[0] for s in range(12)]
    assert all(torch.equal(a, b) for a, b in zip(outs, again, strict=True))
    assert len({str(o.tolist()) for o in outs}) > 1


def test_row_of_zeros_is_not_struck_in_vain(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)
    plan = FaultPlan(Fault.FORWARD, (0,), 1, 0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    injector = Injector(plan, layer, optimizer, VICTIM, 0, tmp_path, lambda: Phase.TRAINING)
    nn.init.zeros_(layer.bias)
    for alive in range(6):
        x = torch.zeros(6, 4)
        x[alive] = 1
        injector.begin_step(0)
        healthy = layer(x)
        injector.begin_step(1)
        assert (layer(x) != healthy).sum() == 1


def test_first_floating_tensor_of_a_nested_output_is_struck(tmp_path: Path) -> None:
    class Pair(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return {"ids": torch.arange(3), "y": (super().forward(x),)}

    layer = Pair(4, 4)
    plan = FaultPlan(Fault.NAN_ONCE, (0,), 1, 0)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    injector = Injector(plan, layer, optimizer, VICTIM, 0, tmp_path, lambda: Phase.TRAINING)
    injector.begin_step(1)
    assert layer(torch.randn(2, 4))["y"][0].isnan().sum() == 1


def test_close_takes_the_hooks_off(tmp_path: Path) -> None:
    for fault in (Fault.FORWARD, Fault.WEIGHT_GRAD):
        bench = Bench(tmp_path / fault.value, fault)
        bench.injector.close()
        assert not hit(bench, 5)
    bench = Bench(tmp_path / "flip", Fault.WEIGHT_FLIP)
    bench.injector.close()
    assert not bench.optimizer._optimizer_step_post_hooks


def test_unknown_gpu_is_refused_on_every_rank(tmp_path: Path) -> None:
    unknown: Any = None
    for rank in (0, 1):
        with pytest.raises(ConfigurationError, match="GPU UUID is unknown"):
            Bench(tmp_path, Fault.FORWARD, gpu=unknown, rank=rank)


def test_layer_that_cannot_carry_the_fault_is_refused(tmp_path: Path) -> None:
    net = nn.Sequential(nn.ReLU(), nn.Linear(4, 4).to(torch.bfloat16))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for fault, layer, sentence in (
        (Fault.FORWARD, net[0], "ReLU holds no weight"),
        (Fault.WEIGHT_FLIP, net[1], "float32 weight, this one is torch.bfloat16"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            Injector(
                FaultPlan(fault, (0,), 1, 0), layer, optimizer, VICTIM, 0, tmp_path, lambda: Phase.TRAINING
            )


FAULTS = "fault_plan fault_shapes fault_spec fault_sites faults"
PURE = f"attribution placement schedule digest {FAULTS} _phase checks.weights"


def test_importing_these_modules_needs_no_torch() -> None:
    lines = [f"import training_agent.{name}" for name in PURE.split()]
    code = "; ".join([*lines, "import json, sys", "print(json.dumps('torch' in sys.modules))"])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert json.loads(done.stdout) is False
