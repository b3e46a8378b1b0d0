"""A replay in one process: same bits as the original, and nothing of the user's is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from training_agent._capture import Capture, Unit, take
from training_agent._evidence import Depth, Evidence, Recorder, finiteness
from training_agent._leaves import ParameterLeaves
from training_agent.checks.nonfinite import GradientNorms, read_locally
from training_agent.checks.replay import recompute
from training_agent.policy import Naming

CPU = torch.device("cpu")


class Wrapped(nn.Module):
    """What a replay needs of DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


def model(width: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 3))


def compute_loss(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    return out.float().pow(2).mean()


def original(
    ddp: Wrapped, x: Tensor, loss_of: Callable[..., Tensor] = compute_loss
) -> tuple[Capture, Evidence]:
    parameters = dict(ddp.module.named_parameters())
    recorder = Recorder(len(parameters), Depth.BITS)
    stop = ParameterLeaves(parameters).watch(recorder.gradient)
    outputs = ddp.module.register_forward_hook(lambda _m, _a, out: recorder.output(out))
    capture = take(Unit.LOSS, ddp.module, CPU, (x,), {})
    capture.buffers = {n: b.clone() for n, b in ddp.module.named_buffers()}
    loss = loss_of(ddp, x)
    recorder.loss(loss)
    capture.seeds = [torch.ones_like(loss)]
    loss.backward()
    stop()
    outputs.remove()
    return capture, recorder.evidence()


def test_a_replay_gives_the_bits_of_the_original_with_dropout_batch_norm_and_autocast() -> None:
    ddp = Wrapped(model())
    capture, evidence = original(ddp, torch.randn(8, 4))
    torch.manual_seed(99)
    assert recompute(ddp, compute_loss, capture, Depth.BITS, CPU).agrees(evidence)


def test_a_replay_leaves_weights_buffers_gradients_rng_and_flags_alone() -> None:
    ddp = Wrapped(model())
    capture, _ = original(ddp, torch.randn(8, 4))
    ddp.eval()
    state = {k: v.clone() for k, v in ddp.state_dict().items()}
    gradients = [p.grad for p in ddp.parameters()]
    values = [g.clone() for g in gradients if g is not None]
    fired: list[int] = []
    for p in ddp.parameters():
        p.register_post_accumulate_grad_hook(lambda _p: fired.append(1))
    rng = torch.get_rng_state()
    recompute(ddp, compute_loss, capture, Depth.BITS, CPU)
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in ddp.state_dict().items())
    assert all(p.grad is g for p, g in zip(ddp.parameters(), gradients, strict=True))
    assert all(torch.equal(g, v) for g, v in zip(gradients, values, strict=True) if g is not None)
    assert not any(m.training for m in ddp.modules())
    assert fired == []


def test_a_users_tensor_hook_acts_in_the_replay_too() -> None:
    ddp = Wrapped(model())
    next(ddp.parameters()).register_hook(lambda g: g * 2)
    capture, evidence = original(ddp, torch.randn(8, 4))
    assert recompute(ddp, compute_loss, capture, Depth.BITS, CPU).agrees(evidence)


def test_a_loss_that_reads_parameters_by_itself_is_replayed_on_the_aliases() -> None:
    def decayed(model: nn.Module, x: Tensor) -> Tensor:
        penalty = sum(p.pow(2).sum() for p in model.parameters())
        return compute_loss(model, x) + model.module[3].weight.abs().sum() + 0.1 * penalty

    ddp = Wrapped(model())
    capture, evidence = original(ddp, torch.randn(8, 4), decayed)
    before = [p.grad.clone() for p in ddp.parameters()]
    assert recompute(ddp, decayed, capture, Depth.BITS, CPU).agrees(evidence)
    assert all(
        torch.equal(p.grad, b) for p, b in zip(ddp.parameters(), before, strict=True) if p.grad is not None
    )


def test_one_changed_bit_of_a_weight_changes_the_evidence() -> None:
    ddp = Wrapped(model())
    capture, evidence = original(ddp, torch.randn(8, 4))
    with torch.no_grad():
        ddp.module[3].weight.view(torch.int32)[0, 0] ^= 1 << 22
    assert not recompute(ddp, compute_loss, capture, Depth.BITS, CPU).agrees(evidence)


def test_evidence_of_fewer_tensors_does_not_agree() -> None:
    whole, part = Recorder(2, Depth.BITS), Recorder(2, Depth.BITS)
    whole.gradient(0, torch.ones(3))
    assert not whole.evidence().agrees(part.evidence())
    assert whole.evidence().short() != part.evidence().short()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e25])
def test_which_gradients_are_non_finite_is_the_same_evidence_from_norms_and_from_a_replay(bad: float) -> None:
    gradient = torch.tensor([1.0, bad])
    recorder = Recorder(3, Depth.FINITENESS)
    recorder.gradient(0, gradient)
    recorder.gradient(1, torch.ones(2))
    recorder.loss(torch.tensor(2.0))
    norms = [torch.linalg.vector_norm(gradient), torch.tensor(1.4), None]
    assert recorder.evidence().agrees(finiteness(norms, torch.tensor(2.0)))


def test_lazy_naming_compares_the_gradients_that_were_read_and_no_other() -> None:
    small, large = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, 2))
    read = read_locally([large, small], Naming.LAZY)
    norms = GradientNorms([large, small], lambda: True, naming=Naming.LAZY)
    ((large * float("nan")).sum() + small.sum()).backward()
    recorder = Recorder(2, Depth.FINITENESS, read)
    for i, p in enumerate((large, small)):
        assert p.grad is not None
        recorder.gradient(i, p.grad)
    recorder.loss(torch.ones(()))
    assert (norms.came(), norms.local()[0]) == ((True, True), None)
    assert recorder.evidence().agrees(finiteness(norms.local(), torch.ones(())))
    assert int(norms.local_nonfinite(CPU)) == 0, "what is not read names nobody"
    assert int(norms.reduced_nonfinite(CPU)) == 1, "and is detected all the same"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_norm_of_any_type_is_finite_up_to_a_float32_norm(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(64, dtype=dtype))
    norms = GradientNorms([parameter], lambda: True, at_once=False)
    (parameter * torch.full((64,), 6e4, dtype=dtype)).sum().backward()  # an fp16 norm would be Inf
    assert int(norms.local_nonfinite(CPU)) == int(norms.reduced_nonfinite(CPU)) == 0


def test_the_bits_of_a_nan_do_not_matter_where_it_stands_does() -> None:
    def evidence(*values: float) -> Evidence:
        recorder = Recorder(2, Depth.BITS)
        for i, v in enumerate(values):
            recorder.gradient(i, torch.tensor([1.0, v]))
        return recorder.evidence()

    nan = float("nan")
    assert evidence(nan, 1.0).agrees(evidence(float("inf"), 1.0))
    assert not evidence(nan, 1.0).agrees(evidence(1.0, nan))


def test_norms_are_forgotten_at_the_next_step_and_ignored_outside_training() -> None:
    parameter = nn.Parameter(torch.ones(2))
    active = [True]
    norms = GradientNorms([parameter], lambda: active[0])
    (parameter * torch.tensor([1.0, float("inf")])).sum().backward()
    assert int(norms.local_nonfinite(CPU)) == int(norms.reduced_nonfinite(CPU)) == 1
    assert norms.backwards == 1
    norms.reset()
    assert int(norms.local_nonfinite(CPU)) == int(norms.reduced_nonfinite(CPU)) == 0
    active[0] = False
    (parameter * float("inf")).sum().backward()
    assert norms.came() == (False,)


def test_a_second_backward_is_judged_by_what_enters_it_not_by_the_sum() -> None:
    parameter = nn.Parameter(torch.ones(2))
    norms = GradientNorms([parameter], lambda: True)
    parameter.sum().backward()
    parameter.grad = torch.full((2,), float("nan"))  # what another rank's NaN makes of it in the all-reduce
    parameter.sum().backward()
    assert int(norms.local_nonfinite(CPU)) == 0
    assert int(norms.reduced_nonfinite(CPU)) == 1
    (parameter * float("nan")).sum().backward()
    assert int(norms.local_nonfinite(CPU)) == 1
