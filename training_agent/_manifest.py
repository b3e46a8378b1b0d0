"""What a checkpoint must hold, by digests: written into its manifest, and compared with what was loaded.

Comes in: the model as it is saved or as it was loaded. Goes out: digests for `_ledger.Ledger.manifest`, or
the sentence that says which tensors are not those that were saved. Next: `guard.after_load` raises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ._alarm import Passes
from ._comm import Comm
from ._trail import ROW, raw
from .checks.sharded import is_sharded, whole
from .digest import DIGEST_VERSION, digest
from .errors import AgentError, ConfigurationError


def state_digests(module: nn.Module) -> dict[str, list[int]]:
    """Three words per tensor of the model's state, by name in `state_dict`.

    Of a sharded tensor the whole is digested, so that a checkpoint fits any mesh: then this is a collective.
    """
    tensors = {name: t for name, t in module.state_dict().items() if isinstance(t, Tensor)}
    if not any(map(is_sharded, tensors.values())):
        rows = digest(list(tensors.values()))
    else:  # one at a time: all of them together would not fit
        rows = torch.cat([digest([whole(t)]) for t in tensors.values()])
    return dict(zip(tensors, rows.tolist(), strict=True))


def common_digests(module: nn.Module, comm: Comm, own: Collection[str] = ()) -> dict[str, list[int]]:
    """What the file of a checkpoint must hold, whichever rank wrote it; `own`: each rank has another one.

    Beside shards whole tensors may legally differ from rank to rank, as BatchNorm statistics do, and nobody
    knows whose copy is saved: those are left out. Without shards one rank saves what it has.
    """
    digests = {name: row for name, row in state_digests(module).items() if name not in own}
    whole_ones = {n: digests[n] for n, t in module.state_dict().items() if n in digests and not is_sharded(t)}
    if len(whole_ones) == len(digests):
        return digests
    answers = comm.gather(whole_ones)
    own = {name for name, row in whole_ones.items() if any(a.get(name) != row for a in answers)}
    return {name: row for name, row in digests.items() if name not in own}


def state_rows(state: Mapping[str, Tensor], rows: str) -> dict[str, str]:
    """What optimizers keep, as a comparison found it: dtype and digest of each tensor, by name.

    Args:
        rows: digests as hex digits, those of `state` last; "" under `fully_shard`: each rank has others.
    """
    if not state or not rows:
        return {}
    own = rows[-ROW * len(state) :]
    return {name: f"{_kind(t)} {own[i * ROW : (i + 1) * ROW]}" for i, (name, t) in enumerate(state.items())}


def _changed_state(saved: Mapping[str, str], now: Mapping[str, Tensor]) -> list[str]:
    """Names of loaded tensors that are not those that were saved.

    Only what is there in the same type: an optimizer may be new, be loaded later, or take another type.
    """
    same_type = {n: t for n, t in now.items() if saved.get(n, "").startswith(f"{_kind(t)} ")}
    rows = digest(list(same_type.values())) if same_type else ()
    return [n for n, row in zip(same_type, rows, strict=True) if saved[n] != f"{_kind(now[n])} {raw(row)}"]


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class LoadedManifest:
    """The part of a checkpoint's manifest that a resumed run needs."""

    step: int
    passes: Passes
    digests: dict[str, list[int]]
    state: dict[str, str] = field(default_factory=dict)  # of optimizers; older manifests have none
    turn: int | None = None  # of layer audits

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> LoadedManifest:
        """Read a manifest.

        Raises:
            ConfigurationError: it is no manifest of ours, or its digests are of another version.
        """
        if manifest.get("digest_version") != DIGEST_VERSION or not isinstance(manifest.get("step"), int):
            raise ConfigurationError(
                f"after_load() got no manifest with digest version {DIGEST_VERSION}. Pass the dictionary "
                "that guard.manifest() gave for this checkpoint; for one without, use attach(step=...)."
            )
        last = ("last_audit_pass", "last_weight_check_pass", "last_optimizer_state_pass")
        passes = Passes(*(manifest.get(name) for name in last))
        digests, state = (dict(manifest.get(name, {})) for name in ("digests", "state_digests"))
        layers = manifest.get("layer_audits")
        turn = layers.get("turn") if isinstance(layers, Mapping) else None
        return cls(manifest["step"], passes, digests, state, turn)

    @classmethod
    def read(cls, manifest: Mapping[str, Any], comm: Comm, refusal: str = "") -> LoadedManifest:
        """Read a manifest on all ranks; a collective, so that a rank that cannot leaves none waiting.

        Args:
            refusal: why this rank does not go on, if so.

        Raises:
            ConfigurationError: on every rank: one of them refuses or cannot read, or their steps or last
                passed checks differ.
        """
        mine: LoadedManifest | None = None
        problem = refusal
        try:
            mine = cls.parse(manifest)
        except Exception as e:  # noqa: BLE001 - whatever a broken manifest raises must end all ranks alike
            problem = problem or (str(e) if isinstance(e, AgentError) else f"{type(e).__name__}: {e}")
        answers = comm.gather((problem, mine and mine.step, mine and (mine.passes, mine.turn)))
        problems = [f"rank {r}: {p}" for r, (p, *_) in zip(comm.ranks, answers, strict=True) if p]
        if problems or mine is None:
            raise ConfigurationError("; ".join(problems[:3]))
        if any(step != mine.step for _, step, _ in answers):
            raise ConfigurationError(f"Ranks loaded different steps: {[step for _, step, _ in answers]}.")
        if any(booked != answers[0][2] for *_, booked in answers):  # the next audits follow from it
            raise ConfigurationError(
                f"Ranks loaded different manifests of step {mine.step}: their last passed checks are not the "
                "same. Give every rank the one that was saved with the checkpoint."
            )
        return mine

    def compare(self, module: nn.Module, state: Mapping[str, Tensor], comm: Comm) -> str | None:
        """Compare what was loaded with what was saved, on all ranks; a collective.

        Args:
            state: what the optimizers keep now, by name.

        Returns:
            None when all is equal; a sentence, the same on every rank, when some bits differ.

        Raises:
            ConfigurationError: on every rank, when one of them could not compute its digests.
        """
        damaged, problem = [], ""
        try:
            loaded = state_digests(module)
            damaged = [name for name, row in self.digests.items() if loaded.get(name) != row]
            damaged += _changed_state(self.state, state)
        except Exception as e:  # noqa: BLE001 - memory, or a user's state_dict: the others wait below
            problem = f"{type(e).__name__}: {e}"
        answers = comm.gather((problem, damaged[:3], len(damaged)))
        by_rank = dict(zip(comm.ranks, answers, strict=True))
        problems = [f"rank {r}: {p}" for r, (p, _, _) in by_rank.items() if p]
        if problems:
            raise ConfigurationError(f"The loaded state cannot be digested on {'; '.join(problems[:3])}")
        ranks = [r for r, (_, _, count) in by_rank.items() if count]
        if not ranks:
            return None
        _, names, count = by_rank[ranks[0]]
        who = "every rank" if len(ranks) == comm.world else f"ranks {ranks[:16]}"
        return (
            f"The checkpoint of step {self.step} is damaged: {', '.join(names)} ({count} tensors) differ "
            f"from its manifest on {who}. Load an older one."
        )
