"""Compute a capsule again, several times, and say whether the bits are the right ones.

In: a `Capsule`, the user's model with weights in it, perhaps a reference from a trusted GPU. Out: an
`Outcome`. Next: `receipt`, or the screen of `sdc replay`.

The digests that the alarm recorded hold for the weights of that step. With other weights, such as those of an
older checkpoint, only a reference made from the same ones on a trusted GPU can tell right from wrong.

"Different" needs a repeat whose bits somebody got before, or a reference that was made of the same
operations: a model that is built in another way than the job's differs as well, on any GPU.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import torch
from torch import nn

from .._alarm import versions
from .._blocks import Block, blocks_of
from .._capture import Unit
from .._evidence import Depth, Evidence
from .._ring import COMPUTE_ERRORS
from .._statistics import Statistics
from ..checks.block import recompute_block, rows_of
from ..checks.replay import recompute
from ..contract import from_plain
from ..determinism import deterministic, environment, require_cublas_workspace
from ..errors import CapsuleError
from .content import Capsule, weight_digests
from .operations import Operations
from .subject import Subject

MAX_THREADS = 1024


class Answer(str, Enum):
    """What a replay says."""

    EQUAL = "equal"  # every repeat gave the bits that were expected
    DIFFERENT = "different"  # at least one did not, and one gave bits that are known: these, or some rank's
    UNDECIDED = "undecided"  # there is nothing to compare with, or a difference has another explanation


@dataclass(frozen=True, slots=True)
class Reference:
    """What a trusted GPU computed, and from what."""

    capsule: str  # SHA-256
    weights: str
    result: str  # short digest
    environment: dict[str, str]
    operations: str = ""  # see `operations`; "" where they could not be seen, or from an older version


@dataclass(frozen=True, slots=True)
class Repeat:
    """One computation."""

    result: str  # short digest, as in the alarm's votes
    equal: bool | None  # to what was expected; None: nothing was
    observed_by: tuple[int, ...]  # ranks that got the same when the alarm was raised
    differs_in: tuple[str, ...]  # from the rank's own result: loss, outputs, parameters


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all repeats say together."""

    answer: Answer
    expected: str | None
    source: str  # where `expected` comes from, in words
    repeats: tuple[Repeat, ...]
    why: str  # one sentence for people
    reference: (
        Reference | None
    )  # of this run; None when not asked for, or its repeats differ among themselves


def replay(
    capsule: Capsule,
    subject: Subject,
    repeat: int,
    reference: Reference | None = None,
    *,
    keep: bool = False,
) -> Outcome:
    """Compute it `repeat` times; with `keep` the outcome has a reference for other GPUs.

    Raises:
        CapsuleError: the model is not the capsule's, or cannot compute it.
        ConfigurationError: deterministic kernels cannot be had.
    """
    _require_same_model(capsule, subject)
    if subject.device.type == "cuda":
        if capsule.facts.deterministic:
            require_cublas_workspace(subject.device)
    else:
        _use_threads(capsule.facts.environment.get("threads", ""))
    weights = weight_digests(dict(subject.model.named_parameters()))
    with deterministic(capsule.facts.deterministic):
        here = {name: str(fact) for name, fact in environment(subject.device).items()} | versions()
        found = [_once(capsule, subject) for _ in range(repeat)]
        operations = _operations(capsule, subject) if keep or reference is not None else ""
    summary = hashlib.sha256(json.dumps(weights, sort_keys=True).encode()).hexdigest()
    truth, source, there = _truth(capsule, weights, summary, reference)
    repeats = tuple(_judged(capsule, evidence, truth) for evidence in found)
    answer, why = _answer(repeats, truth, source, here, there)
    if answer is Answer.DIFFERENT and not any(r.equal or r.observed_by for r in repeats):
        answer, why = _without_witness(why, reference, operations)
    own = None
    if keep and len({r.result for r in repeats}) == 1:
        own = Reference(capsule.sha256, summary, repeats[0].result, here, operations)
    return Outcome(answer, truth, source, repeats, why, own)


def _use_threads(count: str) -> None:
    """As many as the job had, since they change the bits of sums; a file may ask for any number."""
    if not count.isdecimal():
        return
    if len(count) > len(str(MAX_THREADS)) or int(count) > MAX_THREADS:
        raise CapsuleError(f"it asks for {count[:20]} threads, at most {MAX_THREADS} are started")
    torch.set_num_threads(int(count))


def reference_text(reference: Reference) -> str:
    """JSON of a reference."""
    return json.dumps(asdict(reference), sort_keys=True, indent=1) + "\n"


def reference_of(text: str) -> Reference:
    """Read `reference_text` back; ContractError when it is something else."""
    return from_plain(Reference, json.loads(text))


def _once(capsule: Capsule, subject: Subject) -> Evidence:
    facts = capsule.facts
    alone: Any = _WithoutPeers(subject.model)
    try:
        if capsule.capture.unit is Unit.BLOCK:
            block = _block(capsule, subject)
            part = subject.model.get_submodule(block.name)
            return recompute_block(part, block, capsule.capture, Depth(facts.compared), subject.device)
        return recompute(
            alone,
            subject.compute_loss,
            capsule.capture,
            Depth(facts.compared),
            subject.device,
            facts.parameters,
            facts.read,
            Statistics(subject.model, compared=facts.statistics > 0).now,
        )
    except COMPUTE_ERRORS as e:
        raise CapsuleError(
            f"the micro-batch cannot be computed with this model: {type(e).__name__}: {e}"
        ) from e


def _operations(capsule: Capsule, subject: Subject) -> str:
    """What one more computation is made of, its results thrown away; "" where that cannot be seen."""
    try:
        with Operations() as seen:
            _once(capsule, subject)
    except CapsuleError:  # it was computed before: what fails now is to look at it
        return ""
    return str(seen.digest)


def _block(capsule: Capsule, subject: Subject) -> Block:
    name = capsule.capture.block
    for block in blocks_of(subject.model):
        if block.name == name and rows_of(block, sum(capsule.capture.inputs)) == capsule.facts.parameters:
            return block
    raise CapsuleError(f"the model has no block {name} with the parameters that the job's had")


def _require_same_model(capsule: Capsule, subject: Subject) -> None:
    known = dict(subject.model.named_parameters())
    if missing := [n for n in capsule.facts.weights if n not in known]:
        raise CapsuleError(f"the model has no parameter {missing[0]}, the job's had ({len(missing)} missing)")
    part = subject.model
    if capsule.capture.unit is Unit.BLOCK:
        part = part.get_submodule(_block(capsule, subject).name)
    count = len(list(part.modules()))
    if count != len(capsule.capture.training):
        raise CapsuleError(f"the model has {count} modules, the job's had {len(capsule.capture.training)}")
    if capsule.capture.unit is Unit.LOSS and subject.compute_loss is None:
        raise CapsuleError(
            "the job audited its loss function: --model's function must return (model, compute_loss)"
        )
    if subject.device.type != capsule.facts.device:
        raise CapsuleError(
            f"it was made on a {capsule.facts.device} device and cannot be judged on {subject.device.type}"
        )


def _truth(
    capsule: Capsule, weights: Mapping[str, str], summary: str, reference: Reference | None
) -> tuple[str | None, str, Mapping[str, str]]:
    """The right bits, where they come from, and the environment in which they were computed."""
    facts = capsule.facts
    if reference is not None:
        if reference.capsule != capsule.sha256:
            return None, "the reference is of another capsule", {}
        if reference.weights != summary:
            return None, "the reference was made from other weights than these", {}
        return reference.result, "the reference", reference.environment
    if facts.compiled:
        return None, "the job was compiled, and no other process has its graphs", {}
    others = [name for name, known in facts.weights.items() if weights[name] != known]
    if others:
        text = f"{len(others)} of {len(facts.weights)} weights are not those of step {facts.step}"
        return None, f"{text} ({others[0]} is the first)", {}
    if facts.expected is None:
        return None, "no result had a majority when the alarm was raised", {}
    return facts.expected, "the majority of the job's ranks", {**facts.environment, **facts.versions}


def _judged(capsule: Capsule, evidence: Evidence, truth: str | None) -> Repeat:
    facts, result = capsule.facts, evidence.short()
    own, again = capsule.original.table, evidence.table
    rows: list[str] = []
    if own.shape == again.shape:
        outputs = len(own) - len(facts.parameters) - 1 - facts.statistics
        names = [*facts.parameters, "loss", *(f"output {i}" for i in range(outputs))]
        names += [f"running statistic {i}" for i in range(facts.statistics)]
        differing = (own != again).any(dim=1).nonzero().flatten().tolist()
        rows = [names[i] for i in differing]
    equal = None if truth is None else result == truth
    return Repeat(result, equal, capsule.observed_by(result), tuple(rows))


def _answer(
    repeats: tuple[Repeat, ...],
    truth: str | None,
    source: str,
    here: Mapping[str, str],
    there: Mapping[str, str],
) -> tuple[Answer, str]:
    results = {r.result for r in repeats}
    among = "all alike" if len(results) == 1 else f"{len(results)} different results among them"
    if truth is None:
        return Answer.UNDECIDED, f"{len(repeats)} repeats, {among}; nothing to compare with: {source}"
    wrong = sum(not r.equal for r in repeats)
    if not wrong:
        return Answer.EQUAL, f"{len(repeats)} of {len(repeats)} repeats are equal to {source}"
    text = f"{wrong} of {len(repeats)} repeats differ from {source}, {among}"
    changed = sorted(k for k in there if there[k] != here.get(k))
    if changed:
        shown = ", ".join(f"{k} is {here.get(k)}, was {there[k]}" for k in changed[:3])
        return Answer.UNDECIDED, f"{text}; but the environment differs too ({shown})"
    return Answer.DIFFERENT, text


def _without_witness(why: str, reference: Reference | None, operations: str) -> tuple[Answer, str]:
    """Nobody got these bits before: is it the GPU, or a model that is built in another way?"""
    if reference is None:
        return Answer.UNDECIDED, f"nobody in the job got these bits: {_FIRST}; {why}"
    if not reference.operations or not operations:
        return Answer.UNDECIDED, f"nothing says that the reference is of the same model: {_FIRST}; {why}"
    if reference.operations != operations:
        return Answer.UNDECIDED, f"the reference was made of other operations than these: {_FIRST}; {why}"
    return Answer.DIFFERENT, f"{why}, and were computed by the same operations"


_FIRST = (
    "check --model, --checkpoint and versions first, since a model that is built in another way differs on "
    "every GPU"
)


class _WithoutPeers(nn.Module):
    """Stands where `DistributedDataParallel` stood."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)
