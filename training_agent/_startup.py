"""What happens once: refusals before the first update, the self-test, the map of ranks.

Comes in: the user's model, optimizer and settings. Goes out: nothing on success, or `ConfigurationError` on
every rank alike. Next: `guard` watches steps.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from . import _bisecting, exit_codes
from ._alarm import versions
from ._bisecting import BisectReporter
from ._blocks import Block, blocks_of
from ._comm import Comm
from ._data_path import RebuildBatch
from ._evidence import Depth
from ._given import optimizers_in, refuse_given
from ._hooks import guarded
from ._refusals import (
    diverging_hook,
    group_of,
    left_to_ranks,
    own_by_rank,
    refuse_optimizers,
    refuse_tensors,
    unwrapped,
)
from ._sharding import Sharding, sharding_of
from ._shared_proof import prove_shared
from .checkpoint_folder import Checkpoints
from .checks.replay import LossFunction
from .contract import Env
from .determinism import environment, require_cublas_workspace
from .digest import digest
from .errors import AgentError, ConfigurationError, in_short
from .placement import RankMap, partners, rank_map_of
from .policy import Mode, Naming, Policy
from .report import Reporter
from .schedule import Schedule
from .settings import AgentSettings


@dataclass(frozen=True, slots=True)
class Wishes:
    """The arguments of `guard.attach`, as given."""

    compute_loss: LossFunction | None = None
    schedule: Schedule = field(default_factory=Schedule)
    step: int = 0
    settings: AgentSettings | None = None
    reporter: Reporter | None = None
    checkpoints: Checkpoints | None = None
    mode: Mode | str = Mode.IMMEDIATE
    policy: Policy | str = Policy.STOP
    finish: Callable[[], None] | None = None  # what the loop does between backward and step
    naming: Naming | str = Naming.FULL
    rebuild_batch: RebuildBatch | None = None


@dataclass(frozen=True, slots=True)
class Setup:
    """What a guard works on, after everything that can be refused has been."""

    model: nn.Module  # as given: DDP, torch.compile of it, or what `fully_shard` holds
    outer: nn.Module  # whose forward begins a step: DDP, or what `fully_shard` holds
    module: nn.Module  # whose forward is captured: what DDP wraps, or the same once more
    sharding: Sharding | None  # under `fully_shard`
    optimizers: tuple[Optimizer, ...]
    compute_loss: LossFunction | None
    schedule: Schedule
    settings: AgentSettings
    reporter: Reporter | None
    checkpoints: Checkpoints | None
    mode: Mode
    policy: Policy
    finish: Callable[[], None] | None
    naming: Naming
    rebuild_batch: RebuildBatch | None
    comm: Comm
    rank_map: RankMap
    device: torch.device
    parameters: dict[str, nn.Parameter]  # those that are trained, by name
    weights_off: str | None  # why check 3 is off
    replay_off: str | None  # why nothing can be replayed
    blocks: tuple[Block, ...]  # for layer audits; none where they are not asked for

    @property
    def own(self) -> frozenset[str]:
        """Parameters that each rank has for itself."""
        return left_to_ranks(self.outer, self.module)

    @property
    def depth(self) -> Depth | None:
        """The deepest that audits may compare; None: replays are off."""
        deep = Depth.BITS if self.schedule.deterministic else Depth.OUTPUT
        return deep if self.replay_off is None else None

    @property
    def may_defer(self) -> bool:
        """Whether steps may be judged one step late."""
        return self.mode is Mode.DEFERRED and self.policy in (Policy.STOP, Policy.SKIP)

    @property
    def switched_off(self) -> list[str]:
        """What cannot be compared here, a sentence each."""
        kinds = ((self.weights_off, "weight checks"), (self.replay_off, "replay audits"))
        return [f"{what} are off: {why}" for why, what in kinds if why is not None]


def set_up(model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], wishes: Wishes) -> Setup:
    """See `guard.attach` for arguments and errors; a collective."""
    exit_codes.install()
    outer = unwrapped(model)
    sharding = sharding_of(outer, wishes.compute_loss)
    group = group_of(outer) if sharding is None else dist.group.WORLD
    assert group is not None
    module = outer.module if isinstance(outer, DistributedDataParallel) else outer
    optimizers = optimizers_in(optimizer)
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    device = next(iter(parameters.values()), torch.empty(0, device="cpu")).device
    comm = Comm(group, device)
    own = agree_on_setup(comm, device, wishes, optimizers, module, parameters)
    self_test(comm, device)
    rank_map = rank_map_of(comm.gather(own.place(comm.rank, local_rank())))
    prove_shared(comm, rank_map, own, wishes.checkpoints)
    if sharding is None:
        partners(rank_map, 0)  # refuses layouts without an assignment, before the first update
    hook = diverging_hook(outer)
    bisecting = _bisecting.plan()
    if bisecting is not None and (sharding is not None or comm.world < dist.get_world_size()):
        raise ConfigurationError(
            "sdc bisect compares the whole weights of one group of all ranks: a model under fully_shard has "
            "none, several groups have several."
        )
    reporter = wishes.reporter if bisecting is None else BisectReporter(bisecting, module, comm)
    off = f"replicas may legally hold different weights under the communication hook {hook}" if hook else None
    return Setup(
        model,
        outer,
        module,
        sharding,
        optimizers,
        wishes.compute_loss,
        wishes.schedule,
        own,
        reporter,
        wishes.checkpoints,
        Mode(wishes.mode),
        Policy(wishes.policy),
        wishes.finish,
        Naming(wishes.naming),
        wishes.rebuild_batch,
        comm,
        rank_map,
        device,
        parameters,
        off,
        off or own_by_rank(outer, module),
        blocks_of(module) if wishes.schedule.layered else (),
    )


def agree_on_setup(
    comm: Comm,
    device: torch.device,
    wishes: Wishes,
    optimizers: Sequence[Optimizer],
    module: nn.Module,
    parameters: dict[str, nn.Parameter],
) -> AgentSettings:
    """Check what each rank can check by itself, then that all ranks see the same; a collective.

    Raises:
        ConfigurationError: on every rank, with the ranks' own sentences.
    """
    found: AgentSettings | None = None
    problem = ""
    audits = isinstance(wishes.schedule, Schedule) and wishes.schedule.audit_every is not None
    try:
        refuse_given(optimizers, wishes, guarded=guarded(module))
        found = wishes.settings or AgentSettings.from_env()
        found.place(comm.rank, local_rank())
        if wishes.schedule.deterministic_step(audits):
            require_cublas_workspace(device)
        if not parameters:
            raise ConfigurationError("The model has no parameter that requires a gradient: nothing to check.")
        refuse_tensors(module, parameters)
        refuse_optimizers(optimizers, parameters)
        _refuse_unknown(wishes)
    except Exception as e:  # noqa: BLE001 - whatever is wrong on one rank must end all of them alike
        problem = str(e) if isinstance(e, AgentError) else in_short(e)
    shapes = {name: (str(p.dtype), tuple(p.shape)) for name, p in parameters.items()}
    facts = {
        "schedule": repr(wishes.schedule),
        "mode, policy and naming": (str(wishes.mode), str(wishes.policy), str(wishes.naming)),
        "step": wishes.step,
        "rebuild_batch": wishes.rebuild_batch is not None,
        "parameters": hashlib.sha256(repr(shapes).encode()).hexdigest()[:12],
        "versions": versions(),
    }
    # What makes replays differ matters only to those who replay.
    facts |= environment(device) if audits else {}
    if comm.all_equal(word_of((problem, facts))) and found is not None and not problem:
        return found  # a large job need not send all of it to everybody
    answers = comm.gather((problem, facts))
    problems = [f"rank {r}: {p}" for r, (p, _) in zip(comm.ranks, answers, strict=True) if p]
    problems += differences({r: f for r, (_, f) in zip(comm.ranks, answers, strict=True)})
    if problems or found is None:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ConfigurationError("; ".join(problems[:3]) + more)
    return found


def _refuse_unknown(wishes: Wishes) -> None:
    for what, kinds in ((wishes.mode, Mode), (wishes.policy, Policy), (wishes.naming, Naming)):
        if what not in list(kinds):
            names = ", ".join(repr(k.value) for k in kinds)
            raise ConfigurationError(f"attach({kinds.__name__.lower()}={what!r}): use one of {names}.")
    if wishes.rebuild_batch is not None and wishes.compute_loss is None:
        raise ConfigurationError(
            "rebuild_batch rebuilds what compute_loss gets: pass attach(compute_loss=...)."
        )
    if wishes.policy == Policy.RETRY and wishes.compute_loss is None:
        raise ConfigurationError(
            "policy='retry' computes a step again, which needs the loss function: pass attach(..., "
            "compute_loss=compute_loss), or use training_agent.train(...)."
        )


def differences(facts: Mapping[int, Mapping[str, object]]) -> list[str]:
    """One sentence per fact that is not equal on all ranks."""
    found = []
    origin = min(facts)
    for name, first in facts[origin].items():
        # some facts are of audits only
        others = [r for r, f in facts.items() if name in f and f[name] != first]
        if others:
            theirs = facts[others[0]][name]
            found.append(
                f"{name} must be equal on all ranks: rank {origin} has {first}, rank {others[0]} has {theirs}"
            )
    return found


def environment_difference(comm: Comm, device: torch.device) -> str | None:
    """What differs between the ranks' environments right now; a collective."""
    mine = environment(device)
    if comm.all_equal(word_of(mine)):
        return None
    found = dict(zip(comm.ranks, comm.gather(mine), strict=True))
    return "; ".join(differences(found)[:3]) or None


def word_of(facts: object) -> torch.Tensor:
    """One int64 word over what `facts` prints as."""
    raw = hashlib.sha256(repr(facts).encode()).digest()[:8]
    return torch.tensor([int.from_bytes(raw, "little", signed=True)], device="cpu")


def self_test(comm: Comm, device: torch.device) -> None:
    """Prove that the comparison sees a flipped bit: the first rank flips one in a copy, all must notice.

    Raises:
        ConfigurationError: the comparison is blind (or differs between ranks), so no check could ever fire.
    """
    words = digest([torch.arange(1000, dtype=torch.float32, device=device)])
    flipped = words.clone()
    if comm.is_first:
        flipped[0, 0] ^= 1
    same, seen = comm.all_equal(words), not comm.all_equal(flipped)
    (good,) = comm.total([int(same and seen)])
    if good != comm.world:
        raise ConfigurationError(
            f"Self-test of the digest comparison failed on {comm.world - good} of {comm.world} ranks: one "
            "flipped bit in a copy was not seen, or equal digests compared unequal. Check that all ranks run "
            "the same torch and communication library."
        )


def local_rank() -> int:
    """This process's number on its node, as torchrun sets it; 0 without."""
    return int(os.environ.get(Env.LOCAL_RANK, "0"))
