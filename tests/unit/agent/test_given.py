"""Arguments of `attach` that are of another kind than it takes: a sentence each, never a bare TypeError."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import ConstantLR

from training_agent._given import optimizers_in, refuse_given, refuse_trained
from training_agent._hooks import ModelHooks, guarded
from training_agent._startup import Wishes
from training_agent.checkpoint import CheckpointStore
from training_agent.errors import ConfigurationError

NET = nn.Linear(2, 2)
GOOD = SGD(NET.parameters(), lr=0.1)
REPORTER: Any = SimpleNamespace(started=print, progress=print, alarm=print, close=print)


def refuse(optimizer: Any = GOOD, *, guarded: bool = False, **wishes: Any) -> None:
    refuse_given(optimizers_in(optimizer), Wishes(**wishes), guarded=guarded)


def test_what_attach_takes_is_taken(tmp_path: Any) -> None:
    refuse()
    refuse([GOOD, SGD([torch.zeros(1)], lr=0.1)], compute_loss=print, finish=print, rebuild_batch=print)
    refuse((GOOD,), reporter=REPORTER, checkpoints=CheckpointStore(tmp_path, 2), step=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer", None),
        ("optimizer", "adam"),
        ("optimizer", {"lr": 0.1}),
        ("optimizer", [None]),
        ("optimizer", NET.parameters()),
        ("compute_loss", "x"),
        ("finish", 1),
        ("rebuild_batch", {}),
        ("schedule", 10),
        ("step", "0"),
        ("step", -1),
        ("step", True),
        ("step", 1.0),
        ("settings", {}),
        ("reporter", "log"),
        ("checkpoints", "/shared/checkpoints"),
    ],
)
def test_an_argument_of_another_kind_is_a_sentence_that_names_it(name: str, value: Any) -> None:
    """Found: attach(optimizer=None) and compute_loss="x" ended with a TypeError and exit code 1."""
    with pytest.raises(ConfigurationError, match=rf"^attach\({name}=.*\): give .*\.$") as e:
        refuse(**{name: value})
    assert e.value.exit_code == 4


NOTHING = dict.fromkeys(("clip_norm", "scheduler", "on_step", "checkpoints"))
TRAINED: dict[str, Any] = {"batch_of": print, "compute_loss": print, "steps": 3, **NOTHING}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_of", [1, 2]),
        ("compute_loss", None),
        ("steps", "10"),
        ("clip_norm", "1"),
        ("scheduler", 0.1),
        ("on_step", "log"),
        ("checkpoints", "/shared/checkpoints"),
    ],
)
def test_an_argument_of_train_of_another_kind_is_a_sentence_too(name: str, value: Any) -> None:
    refuse_trained(**TRAINED)
    refuse_trained(**{**TRAINED, "clip_norm": torch.tensor(1.0), "scheduler": ConstantLR(GOOD)})
    with pytest.raises(ConfigurationError, match=rf"^train\({name}=.*\): give .*\.$"):
        refuse_trained(**{**TRAINED, name: value})


def zero(module: str, name: str) -> Any:
    """An instance of a class of that name, as that library makes it."""
    kind = type(name, (Optimizer,), {"__module__": module})
    return kind([torch.zeros(1)], {})


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"),
        ("fairscale.optim.oss", "OSS"),
        ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer"),
        ("megatron.core.optimizer.distrib_optimizer", "DistributedOptimizer"),
        ("apex.contrib.optimizers.distributed_fused_adam", "DistributedFusedAdam"),
    ],
)
def test_optimizers_that_shard_their_state_are_refused_by_class_and_subclass(module: str, name: str) -> None:
    """Found: ZeRO-1 ran with no state compared and no note, and a wrong moment spread without an alarm."""
    sharded = zero(module, name)
    heir = type("Ours", (type(sharded),), {})([torch.zeros(1)], {})
    wrapped = type("AcceleratedOptimizer", (), {"__module__": "accelerate.optimizer", "optimizer": sharded})()
    for optimizer in (sharded, heir, wrapped, [GOOD, sharded]):
        with pytest.raises(ConfigurationError, match=r"each shard exists once.*fully_shard"):
            refuse(optimizer)


def test_a_class_of_that_name_of_somebody_else_is_no_zero() -> None:
    refuse(zero("horovod.torch.optimizer", "DistributedOptimizer"))


def test_a_second_guard_on_the_same_model_is_refused_until_the_first_is_gone() -> None:
    """Found: both were accepted, and audits were skipped at nearly every step."""
    net = nn.Linear(2, 2)
    hooks = ModelHooks(net, nn.Sequential(net), print, print, print)
    assert guarded(net) and not guarded(copy.deepcopy(net)) and not guarded(nn.Linear(2, 2))
    hooks.remove()
    assert not guarded(net)
    with pytest.raises(ConfigurationError, match=r"a guard already.*close\(\) the first one"):
        refuse(guarded=True)
