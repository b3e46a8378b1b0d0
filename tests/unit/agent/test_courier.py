"""What travels ahead of a replay: one letter a step and rank, whatever becomes of the step."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.agent.test_guard_replay_memory import SLACK, peak
from training_agent._capture import Capture, Unit, take
from training_agent._comm import Comm
from training_agent._courier import LARGE, SMALL, Courier
from training_agent._leaves import ParameterLeaves
from training_agent._packing import Parcel, pack, unpack
from training_agent._ring import Ring
from training_agent._watch import StepWatch
from training_agent.checks.nonfinite import GradientNorms

CPU = torch.device("cpu")


@dataclass
class Post:
    """The replica group, with a peer that answers each letter by the same one."""

    device: torch.device = CPU
    sent: list[Tensor] = field(default_factory=list)
    waited: int = 0

    def start_swap(self, outgoing: Tensor, incoming: int, to: int, source: int, tag: int) -> Any:
        assert incoming == outgoing.numel()
        self.sent.append(outgoing)
        return Flight(self, outgoing)

    def peers(self, _doing: str) -> Any:
        return nullcontext()


@dataclass
class Flight:
    """One letter under way."""

    post: Post
    letter: Tensor

    def landed(self) -> Tensor:
        self.post.waited += 1
        return self.letter


def courier(room: int = 4 * SMALL) -> tuple[Courier, Post]:
    post = Post()
    made = Courier(post)  # type: ignore[arg-type]
    made.agree(room, several=False)
    return made, post


def opened(courier: Courier) -> Capture | None:
    """What the ring makes of the peer's letter."""
    letter = courier.received()
    found: Capture | None = None if letter is None else unpack(letter, CPU)
    return found


def capture(elements: int = 30_000) -> Capture:
    made = take(Unit.LOSS, nn.Linear(2, 2), CPU, (torch.randn(elements), "a word"), {"scale": 2})
    made.seeds = [torch.ones(())]
    return made


def test_a_capture_arrives_whole_and_nobody_waits_before_it_is_asked_for() -> None:
    ours, post = courier()
    mine = capture()
    ours.expect(to=1, source=2)
    ours.send(mine)
    assert ours.carried(mine) > 4 * 30_000 and not ours.carried(capture())
    assert post.waited == 0
    theirs = opened(ours)
    assert theirs is not None and theirs is not mine
    assert torch.equal(theirs.args[0], mine.args[0]) and theirs.args[1:] == ("a word",)
    assert (theirs.unit, theirs.kwargs, theirs.contexts) == (mine.unit, mine.kwargs, mine.contexts)
    assert torch.equal(theirs.cpu_rng, mine.cpu_rng)


@pytest.mark.parametrize(
    ("largest", "several"), [(SMALL, False), (LARGE + 1, False), (2 * SMALL, True), (0, False)]
)
def test_small_and_huge_batches_and_accumulating_loops_send_nothing_ahead(
    largest: int, several: bool
) -> None:
    ours, _ = courier()
    assert ours.ahead
    ours.agree(largest, several)
    assert not ours.ahead


@pytest.mark.parametrize("content", [None, capture(elements=10 * SMALL)])
def test_what_is_missing_or_does_not_fit_is_an_empty_letter(content: Capture | None) -> None:
    ours, post = courier()
    ours.expect(1, 2)
    ours.send(content)
    assert len(post.sent) == 1
    assert content is None or not ours.carried(content)
    assert ours.received() is None


def test_a_letter_is_the_only_memory_that_sending_ahead_takes() -> None:
    """A parcel that is packed first, and copied into the letter then, would be it once more."""
    elements = 1_000_000
    ours, post = courier(room=4 * elements + SMALL)
    mine = capture(elements)
    ours.expect(1, 2)
    taken = peak(lambda: ours.send(mine))
    assert ours.carried(mine) > 4 * elements
    assert taken <= post.sent[0].numel() + SLACK


def test_a_parcel_is_made_once_and_travels_as_it_is() -> None:
    mine, elements = capture(1_000_000), 1_000_000
    parcels: list[Parcel] = []
    assert peak(lambda: parcels.append(pack(mine, CPU))) <= 4 * elements + SLACK
    (parcel,) = parcels
    line: Any = SimpleNamespace(device=CPU, _swap=lambda body, nbytes, to, source: body)
    assert peak(lambda: parcels.append(Comm.swap(line, parcel, 1, 2))) <= SLACK
    assert torch.equal(unpack(parcels[1], CPU).args[0], mine.args[0])


class Unsendable:
    """Of a user: pickling it raises what it likes."""

    def __reduce__(self) -> Any:
        raise OSError("a handle of this process")


class Unopenable:
    """Of a user: it goes out, and cannot be made anew on the other side."""

    def __reduce__(self) -> Any:
        return _no_such_file, ()


def _no_such_file() -> None:
    raise FileNotFoundError("/data/shard-7")


def test_a_batch_that_cannot_be_rebuilt_here_is_a_reason_and_no_end_of_this_rank() -> None:
    mine = capture()
    mine.kwargs = {"shard": Unopenable()}
    ring = Ring(SimpleNamespace(rank=2), CPU, recompute=lambda *_: pytest.fail("computed"))  # type: ignore[arg-type]
    content, why = ring._opened(pack((mine, None), CPU), None, 1)
    assert content is None
    assert why == "rank 2 cannot rebuild the batch of rank 1: FileNotFoundError: /data/shard-7"
    content, why = ring._opened(pack((None, None), CPU), pack(mine, CPU), 1)  # its part that came ahead
    assert content is None and "FileNotFoundError" in why


@pytest.mark.parametrize("value", [lambda: None, Unsendable()], ids=["lambda", "an error of its own"])
def test_what_cannot_be_packed_is_an_empty_letter(value: object) -> None:
    mine = capture()
    mine.kwargs = {"callback": value}
    ours, _ = courier()
    ours.expect(1, 2)
    ours.send(mine)
    assert not ours.carried(mine) and ours.received() is None


def test_a_step_sends_one_letter_whether_its_backward_runs_never_or_three_times() -> None:
    ours, post = courier()
    for backwards in (0, 1, 3):
        ours.expect(1, 2)
        for _ in range(backwards):
            ours.send(None)
        ours.settle()
    assert len(post.sent) == 3
    ours.send(capture())  # a step that is not audited owes none
    assert len(post.sent) == 3


def test_letters_of_dropped_steps_are_taken_off_the_line_before_the_next_one_is_read() -> None:
    ours, post = courier()
    for dropped in range(2):
        ours.expect(1, 2)
        ours.send(capture())
        ours.settle()
        assert post.waited == dropped, "the peer may come to its letter only in its next step"
    ours.expect(1, 2)
    ours.send(mine := capture())
    theirs = opened(ours)
    assert theirs is not None and torch.equal(theirs.args[0], mine.args[0])
    assert post.waited == 3


def test_the_memory_of_letters_that_nobody_asks_for_is_that_of_one_step() -> None:
    ours, post = courier()
    for steps in range(1, 6):
        ours.expect(1, 2)
        ours.settle()
        assert len(post.sent) - post.waited == 1, f"after {steps} audits that were not made"


def test_a_replay_posts_what_a_backward_that_nobody_watched_still_owes() -> None:
    ours, post = courier()
    ours.expect(1, 2)
    assert opened(ours) is None
    assert (len(post.sent), post.waited) == (1, 1), "the peer would wait for it"


def test_a_loss_that_does_not_come_from_the_outputs_posts_before_the_first_gradient_is_reduced() -> None:
    model = nn.Linear(2, 2)
    named = dict(model.named_parameters())
    norms = GradientNorms(tuple(named.values()), lambda: True)
    watch = StepWatch(model, named, norms, CPU, ParameterLeaves(named))
    told: list[tuple[Capture | None, bool]] = []
    watch.begin(audit=True, complete=lambda c: told.append((c, model.weight.grad is None)))
    x = torch.ones(1, 2)
    watch.enter_module((x,), {})
    watch.leave_module(model(x))
    sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
    assert told == [(None, True)]


def test_a_loop_that_ends_waits_for_nothing() -> None:
    ours, post = courier()
    ours.expect(1, 2)
    ours.forget()
    ours.send(capture())
    assert (post.sent, post.waited) == ([], 0)
