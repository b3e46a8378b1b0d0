"""Check 3 in a job: weights, and where a save may follow optimizer state, master weights and buffers.

Comes in: the step whose update was applied. Goes out: a `Sighting`, or nothing and the pass is booked. Next:
`_update` raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from ._alarm import Sighting
from ._examine import Examiner
from ._ledger import Ledger
from ._masters import master_weights, still_held
from ._optimizer_state import layout_word, of_unknown_optimizers, state_tensors
from ._packing import pack, unpack
from ._startup import Setup, word_of
from ._steady_buffers import PREFIX, Apart, SteadyBuffers, judged, looks_like_a_flip
from .checks.weights import Divergence
from .contract import Finding, FindingKind
from .errors import ConfigurationError
from .schedule import Schedule

STATE = "moments, master weights and buffers"
_SHOWN = 3  # names in one sentence


@dataclass(slots=True)
class WeightCheck:
    """Every method is called on all ranks alike."""

    setup: Setup
    examiner: Examiner
    ledger: Ledger
    steady: SteadyBuffers = field(init=False)
    masters: dict[str, Tensor] = field(init=False)
    _buffers_passed: int | None = None  # the step
    _state_looked: int | None = None  # step of the last comparison of what is saved beside the weights
    _own: set[str] = field(default_factory=set)  # entries of the optimizer's state that are not compared
    _trusted: bool = False  # all entries were equal once after a step of this start

    def __post_init__(self) -> None:
        self.steady = SteadyBuffers(self.setup.module)
        self.masters = master_weights(self.setup.optimizers, self.setup.parameters)

    @property
    def unseen(self) -> str | None:
        """What nobody has compared of what would be saved now."""
        schedule, step = self.setup.schedule, self.ledger.step
        if self.setup.weights_off is not None or not schedule.check_on_checkpoint:
            return None
        if self.ledger.passes.weights != step:
            return "weights"
        return STATE if schedule.optimizer_state and self._state_looked != step else None

    def require_seen(self) -> None:
        """Before a save; no collective, since some loops ask on their first rank alone.

        Raises:
            ConfigurationError: the weights of this step were not compared.
        """
        if self.unseen == STATE:
            self.ledger.note(_state_unseen(self.setup.schedule))
        elif self.unseen:
            raise _unseen_save(self.ledger.step, self.ledger.passes.weights, self.setup.schedule)

    def look(self, *, state: bool) -> Sighting | None:
        """Compare what replicas hold now; `state`: beside the weights also what a save takes along."""
        kept: Mapping[str, Tensor] = {}
        buffers: tuple[str, ...] = ()
        if state:
            self._state_looked = self.ledger.step
            kept, buffers = self._taking_part()
        divergence = self.examiner.compare_weights(kept, self.steady.tensors(buffers))
        step = self.ledger.step
        if unknown := of_unknown_optimizers(self.setup.optimizers, kept).intersection(divergence.tensors):
            sighting = self._unknown(divergence, unknown)
            return sighting or self.look(state=state)
        self._trusted = self._trusted or (bool(kept) and self.steady.trained(step))
        if divergence:
            sighting = self.examiner.weights(step, divergence)
            if set(divergence.tensors) <= set(kept):
                sighting = replace(sighting, last_pass=self.ledger.passes.optimizer_state or 0)
            return sighting
        self.ledger.weights_passed(step, divergence.rows, kept)
        return self._buffers(divergence) if buffers else None

    def _taking_part(self) -> tuple[Mapping[str, Tensor], tuple[str, ...]]:
        """Optimizer state, and buffers that no rank has written: one all-reduce, once a start a second."""
        steady, comm, kept = self.steady, self.setup.comm, self._kept()
        known, here = tuple(steady.known), steady.names()
        words = [int(layout_word(kept)), int(word_of(here))]
        flags = steady.written(known)
        largest = comm.largest([*words, *(~w for w in words), *flags])
        same_state, same_buffers = (largest[i] == ~largest[2 + i] for i in range(2))
        if not same_state:
            self.ledger.note("optimizer state is not compared: the ranks do not keep the same entries")
        steady.leave_out([name for name, moved in zip(known, largest[4:], strict=True) if moved])
        taking_part = tuple(steady.known)
        if same_buffers and here and steady.may_learn(self.ledger.step):
            moved = comm.largest([int(w) for w in steady.written(here)])
            taking_part = tuple(name for name, m in zip(here, moved, strict=True) if not m)
            steady.learned = not taking_part
        elif not same_buffers and steady.may_learn(self.ledger.step):
            steady.learned = True
            self.ledger.note("buffers are not compared: the ranks do not have the same ones")
        return kept if same_state else {}, taking_part

    def _unknown(self, divergence: Divergence, names: frozenset[str]) -> Sighting | None:
        """Judge what only an optimizer that is not torch's keeps; None: it is left out from now on.

        A program on one rank alone, or on all, is as likely as a fault: nobody is named.
        """
        self._own |= names
        listed = _listed(sorted(names))
        alone = set(divergence.tensors) == names and len(divergence.ranks) == 1 and not divergence.involved
        if not (self._trusted and alone):
            why = "ranks hold other values, as may be in an optimizer that is not torch's"
            self.ledger.note(f"optimizer state is not compared ({listed}): {why}")
            return None
        text = (
            f"{listed}: the copy of rank {divergence.ranks[0]} alone has changed since all were equal. It "
            "was corrupted in memory, or this optimizer, which is not torch's, keeps something by rank"
        )
        sighting = self.examiner.weights(self.ledger.step, replace(divergence, ranks=()))
        finding = Finding(FindingKind.SOFTWARE, evidence=text)
        return replace(sighting, findings=(finding,), last_pass=self.ledger.passes.optimizer_state or 0)

    def optimizer_state(self) -> dict[str, Tensor]:
        """What the optimizers keep for parameters and master weights, by name."""
        return {name: t for name, t in self._kept().items() if name not in self.masters}

    def _kept(self) -> dict[str, Tensor]:
        setup = self.setup
        masters = still_held(self.masters, setup.optimizers)
        own = setup.own
        shared = {n: p for n, p in setup.module.named_parameters() if n not in own}
        owners: dict[str, Tensor] = {**shared, **masters}
        found = {**masters, **state_tensors(setup.optimizers, owners)}
        return {name: tensor for name, tensor in found.items() if name not in self._own}

    # -- buffers ---------------------------------------------------------------------------------------

    def _buffers(self, compared: Divergence) -> Sighting | None:
        """Judge the buffers that were compared with the weights; the first time they are only learned."""
        steady, step = self.steady, self.ledger.step
        digests = {name.removeprefix(PREFIX): row for name, row in compared.beside.items()}
        if not steady.learned:
            steady.learned, steady.known = True, {name: row for name, row in digests.items() if row}
            self._leave_out([n for n in digests if n not in steady.known], "each rank has its own")
            self._buffers_passed = step
            return None
        changed = [name for name, row in digests.items() if row != steady.known[name]]
        apart = judged(steady.known, self._votes(changed)) if changed else Apart({}, (), ())
        self._leave_out(
            apart.everywhere,
            "all copies have changed alike: the program wrote them through .data, or DDP's broadcast "
            "has spread a wrong bit of the first rank",
        )
        self._leave_out(apart.several, "several ranks have changed theirs through .data")
        if apart.suspects:
            sighting = self._sighting(apart.suspects, compared)
            steady.leave_out(tuple(apart.suspects))  # the policy may let it pass
            return sighting
        self._buffers_passed = step
        self.ledger.buffers_compared = len(steady.known)
        return None

    def _votes(self, names: list[str]) -> dict[str, list[str]]:
        own = self.steady.digests(names)
        answers = self.setup.comm.gather(own)
        return {name: [answer[name] for answer in answers] for name in names}

    def _sighting(self, suspects: Mapping[str, int], compared: Divergence) -> Sighting:
        comm, names = self.setup.comm, tuple(suspects)
        flips = comm.largest([int(not self._flipped(name, suspects[name])) for name in names])
        unlike = {comm.ranks[suspects[name]] for name, other in zip(names, flips, strict=True) if other}
        ranks = {comm.ranks[i] for i in suspects.values()} - unlike if comm.world > 2 else set()
        divergence = Divergence(
            tensors=tuple(PREFIX + name for name in names),
            ranks=tuple(sorted(ranks)),
            bytes_compared=compared.bytes_compared,
            tensors_compared=compared.tensors_compared,
        )
        sighting = self.examiner.weights(self.ledger.step, divergence)
        if not ranks:
            sighting = replace(sighting, findings=(_nobodys(divergence.tensors, suspects, comm.ranks),))
        return replace(sighting, last_pass=self._buffers_passed)

    def _flipped(self, name: str, suspect: int) -> bool:
        """Whether the suspect's copy differs from the others' as a flip does; it says so itself."""
        comm = self.setup.comm
        source = comm.ranks[0 if suspect else 1]
        (own,) = self.steady.tensors([name]).values()
        parcel = pack(own, comm.device) if comm.rank == source else None
        theirs = unpack(comm.broadcast(parcel, source), self.setup.device)
        return comm.rank != comm.ranks[suspect] or looks_like_a_flip(own, theirs)

    def _leave_out(self, names: Sequence[str], why: str) -> None:
        if names:
            shown = _listed(names)
            self.ledger.note(f"buffers are no longer compared ({shown}): {why}")
            self.steady.leave_out(names)


def _nobodys(tensors: Sequence[str], suspects: Mapping[str, int], ranks: Sequence[int]) -> Finding:
    """What cannot be told from a write that leaves no trace accuses nobody."""
    who = ", ".join(str(ranks[i]) for i in sorted(set(suspects.values())))
    text = (
        f"{_listed(tensors)}: the copy of rank {who} alone has changed since all were equal, and no version "
        "counter has moved. Either it was corrupted in memory, or the program writes it on one rank through "
        ".data; then write it in place without .data, and it is left out"
    )
    return Finding(FindingKind.SOFTWARE, evidence=text)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else "")


def _unseen_save(step: int, last: int | None, schedule: Schedule) -> ConfigurationError:
    """What `before_save` raises where nobody looked; `last`: the step of the last passed weight check."""
    return ConfigurationError(
        f"The weights of step {step} were not compared (last passed: {last}). Save at steps that are due: "
        f"multiples of ckpt_every={schedule.ckpt_every} or check_every={schedule.check_every}."
    )


def _state_unseen(schedule: Schedule) -> str:
    """What `before_save` notes where the weights were compared, and nothing that is saved beside them."""
    return (
        "checkpoints were saved whose moments, master weights and buffers were not compared at their step: "
        f"save at multiples of ckpt_every={schedule.ckpt_every}, choose ckpt_every=None (each weight check "
        "compares them then), or let all ranks call before_save(together=True)"
    )
