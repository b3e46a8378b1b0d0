"""Layer audits: one block of a step that is computed anyway, the next block each time.

Comes in: steps without a whole audit, as they begin and as they are judged. Goes out: a `Sighting` as from a
whole audit, or nothing. Recording is `_block_watch`'s, comparing and naming that of whole audits (`_examine`,
`_ring`, `attribution`). Next: `_update` answers.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from . import _bisecting
from ._alarm import Sighting
from ._block_watch import BlockRecord, BlockWatch
from ._blocks import Block
from ._capture import Capture
from ._compilers import graphs
from ._evidence import Depth
from ._examine import AuditPass, Examiner, ReplayOff
from ._ledger import Ledger
from ._rhythm import Rhythm
from ._startup import Setup
from ._step_record import MicroBatch, StepRecord
from ._watch import StepWatch
from .checks.nonfinite import GradientNorms
from .contract import Check
from .determinism import deterministic
from .kernels import Kernels
from .pace import Pace


class LayerAudits:
    """Whose turn it is, and what came of it. Every method is called on all ranks alike."""

    def __init__(
        self, setup: Setup, watch: StepWatch, norms: GradientNorms, examiner: Examiner, ledger: Ledger
    ) -> None:
        self._setup, self._watch, self._norms = setup, watch, norms
        self._examiner, self._ledger = examiner, ledger
        self._blocks = setup.blocks
        ledger.layers.blocks = len(self._blocks)
        pace = Pace(setup.schedule.of_layers, ledger.step, "layer_budget")
        self._rhythm = Rhythm(setup.comm, pace, "layer_audit_rate", _replayed=_bisecting.layer_audits())
        self._off: dict[str, str] = {}  # block: why it cannot be compared
        self._agreed = False  # that they can be made at all
        self._recording: BlockWatch | None = None
        self._last: tuple[Block, int, Depth] | None = None  # what the step in progress recorded
        if self._blocks and setup.sharding is not None:
            self._switch_off("under fully_shard the weights of a block are gathered by all ranks together")
        self._pass_over_scripted()

    @property
    def armed(self) -> bool:
        """Whether the step in progress has a block recorded."""
        return self._recording is not None

    def begin(self, step: int, depth: Depth | None, *, audit: bool) -> None:
        """`step` begins; `depth`: that of whole audits, None where they are off. `audit`: it is one."""
        self.end()
        self._last = None
        if audit or len(self._off) == len(self._blocks) or not self._rhythm.due(step):
            return
        if depth is None:
            self._ledger.layers.audit_skipped(step, "replay audits are off")
            return
        if not self._agreed and not self._may_begin():
            return
        micro_batch = self._ledger.layers.turn // len(self._blocks) % self._watch.per_update
        self._record(self._next(), micro_batch, depth)

    def again(self) -> None:
        """The step in progress is computed once more: record the same block."""
        self.end()
        if self._last is not None:
            self._record(*self._last)

    def end(self) -> None:
        """Stop recording."""
        if self._recording is not None:
            self._recording.end()
            self._recording = None

    def restart(self, step: int) -> None:
        """Training goes on from another step."""
        self._rhythm.restart(step)

    def clock(self, step: int, *, audit: bool) -> None:
        """`step` was judged, with a layer audit or without; a collective of those with."""
        self._rhythm.judged(step, audit=audit)

    def judge(self, record: StepRecord) -> Sighting | None:
        """Replay the recorded block around the ring; None when it passed or could not be compared."""
        watched, self._recording = self._recording, None
        assert watched is not None
        self._ledger.trail.layers.append(record.step)
        block, book = watched.block, self._ledger.layers
        found = self._examined(record, watched.ended(record))
        book.turn += 1
        if isinstance(found, Sighting):
            if found.check is Check.WEIGHTS:
                return found
            told = tuple(replace(f, evidence=f"{block.title}: {f.evidence}") for f in found.findings)
            return replace(found, findings=told)
        if isinstance(found, AuditPass):
            book.audit_passed(record.step, block.name, found.nbytes, self._setup.comm.world)
        elif isinstance(found, ReplayOff):
            self._off[block.name] = found.reason
            self._ledger.note(f"layer audits of {block.title} are off: {found.reason}")
            book.audit_skipped(record.step, found.reason)
        else:
            book.audit_skipped(record.step, found)
        return None

    def _examined(self, record: StepRecord, seen: BlockRecord) -> AuditPass | Sighting | ReplayOff | str:
        capture = seen.capture if seen.obstacle is None else None
        with deterministic(self._setup.schedule.deterministic):
            found = self._compared(record, seen, capture, seen.obstacle)
            if isinstance(found, Sighting) and found.check is Check.REPLAY:
                return self._inside(record, seen)
        return found

    def _compared(
        self, record: StepRecord, seen: BlockRecord, capture: Capture | None, obstacle: str | None
    ) -> AuditPass | Sighting | ReplayOff | str:
        turn, count = self._ledger.layers.turn, len(self._blocks)
        kept = None if seen.around is None else seen.around.kept
        batch = None if capture is None else MicroBatch(capture, 0, kept=kept)
        original = None if capture is None else seen.evidence()
        # Each round meets another peer, so that each block meets all of them.
        found = self._examiner.examine_block(record.step, batch, original, obstacle, turn + turn // count)
        if isinstance(found, ReplayOff) or (isinstance(found, Sighting) and found.check is Check.REPLAY):
            leaks = self._setup.comm.complaints(seen.leak())
            if leaks:
                return ReplayOff(leaks[0])
        return found

    def _inside(self, record: StepRecord, seen: BlockRecord) -> AuditPass | Sighting | ReplayOff | str:
        """Some rank differs: compare once more inside the whole forward of each micro-batch.

        What a model hands to a block by other ways than its arguments (an attribute, a global) is another on
        each rank, so that a healthy one would be outvoted.
        """
        around, capture = seen.around, seen.capture
        assert around is not None and capture is not None  # it was compared
        problem = around.changed()
        if problem is None:
            capture = replace(capture, whole=replace(around.capture, seeds=[]))
        found = self._compared(record, seen, capture if problem is None else None, problem)
        if isinstance(found, AuditPass):
            return (
                "a replay of the block alone gave other bits, and inside the whole forward it did not: the "
                "model gives the block something that is not among its arguments, or the replay itself went "
                "wrong once"
            )
        return found

    def _may_begin(self) -> bool:
        """Once, after the warm-up; a collective."""
        self._agreed = True
        reason = ""
        if graphs():
            reason = "torch.compile has compiled code of this job, and no hook sees a block inside of it"
        problems = self._setup.comm.complaints(reason)
        if problems:
            self._switch_off(problems[0])
        return not problems

    def _switch_off(self, reason: str) -> None:
        self._blocks, self._ledger.layers.blocks = (), 0
        self._ledger.note(f"layer audits are off: {reason}")

    def _pass_over_scripted(self) -> None:
        part = self._setup.module.get_submodule
        scripted = [b for b in self._blocks if isinstance(part(b.name), torch.jit.ScriptModule)]
        reason = "a scripted module takes no hooks"
        self._off |= {block.name: reason for block in scripted}
        if scripted:
            some = ", ".join(b.title for b in scripted[:3]) + (" and more" if len(scripted) > 3 else "")
            self._ledger.note(f"layer audits of {some} are off: {reason}")

    def _next(self) -> Block:
        """The block whose turn it is; those that cannot be compared are passed over."""
        book = self._ledger.layers
        for _ in self._blocks:
            block = self._blocks[book.turn % len(self._blocks)]
            if block.name not in self._off:
                break
            book.turn += 1
        return block

    def _record(self, block: Block, micro_batch: int, depth: Depth) -> None:
        self._last = block, micro_batch, depth
        self._watch.keeping.add(micro_batch)
        try:
            module = self._setup.module.get_submodule(block.name)
        except AttributeError:  # the model was changed meanwhile
            module = nn.Module()
        self._recording = BlockWatch(
            module,
            block,
            micro_batch,
            self._watch,
            self._norms,
            depth,
            self._setup.device,
            strict=self._setup.schedule.kernels is Kernels.SWITCHED,  # forced: the whole step runs them
        )
        self._recording.install()
