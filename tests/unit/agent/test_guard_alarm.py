"""Windows, messages and manifests: what people and the next start read."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.agent.places import even_map
from training_agent._alarm import Passes, Sighting, suspect_window, weights_findings
from training_agent._alarm_text import message
from training_agent._compilers import eager_contests
from training_agent._examine import Examiner
from training_agent._ledger import Ledger
from training_agent._manifest import LoadedManifest, state_digests
from training_agent._ring import Answer, contests
from training_agent.checks.weights import Divergence
from training_agent.contract import (
    Alarm,
    Check,
    Finding,
    FindingKind,
    Independence,
    Job,
    Pair,
    ResumePoint,
    SecondConfirmation,
    Verdict,
)
from training_agent.errors import ConfigurationError

MAP = even_map(6, 2)


@pytest.mark.parametrize(
    ("sighting", "passes", "window"),
    [
        (Sighting(Check.REPLAY, 30, ()), Passes(audit=20, weights=30), (21, 30)),
        (Sighting(Check.NONFINITE, 25, (), nonfinite_ranks=(3,)), Passes(audit=20, weights=20), (21, 25)),
        (Sighting(Check.NONFINITE, 25, (), reduced_nonfinite=True), Passes(audit=20), (25, 25)),
        (
            Sighting(Check.NONFINITE, 25, (), nonfinite_ranks=(3,), reduced_nonfinite=True),
            Passes(audit=20),
            (21, 25),
        ),
        (Sighting(Check.WEIGHTS, 40, ()), Passes(audit=30, weights=20), (21, 40)),
        (Sighting(Check.REPLAY, 10, ()), Passes(), (1, 10)),
        (Sighting(Check.WEIGHTS, 0, ()), Passes(), (0, 0)),
        (Sighting(Check.WEIGHTS, 20, ()), Passes(weights=20), (20, 20)),
    ],
)
def test_the_suspect_window_starts_after_the_last_pass_of_its_check_and_never_ends_before_it_begins(
    sighting: Sighting, passes: Passes, window: tuple[int, int]
) -> None:
    assert suspect_window(sighting, passes) == window


def test_replicas_without_a_majority_are_involved_not_named() -> None:
    (finding,) = weights_findings(Divergence(("w",), (), (0, 1), 8, 4), MAP)
    assert finding.rank is None
    assert [p.rank for p in finding.involved] == [0, 1]


def alarm(resume_from: ResumePoint | None) -> Alarm:
    finding = Finding(FindingKind.CULPRIT, rank=3, place=MAP.places[3], majority=True, evidence="wrong twice")
    return Alarm(
        "cluster",
        Job("job", "uid"),
        Check.REPLAY,
        30,
        "2026-01-01T00:00:00Z",
        (finding,),
        (21, 30),
        6,
        3,
        Independence.NODE,
        pairs=(Pair(5, 3),),
        last_audit_pass=20,
        resume_from=resume_from,
    )


def test_the_message_names_rank_node_gpu_window_and_what_to_do() -> None:
    text = message(alarm(ResumePoint(20, "/shared/step-20")))
    for part in (
        "step 30",
        "not applied",
        "rank 3",
        MAP.places[3].node,
        "GPU-1-1",
        "21 to 30",
        "/shared/step-20",
    ):
        assert part in text


def test_without_a_checkpoint_the_message_says_so() -> None:
    assert "no complete checkpoint from before step 21 is known" in message(alarm(None))


def test_where_no_checkpoint_can_exist_the_message_says_to_start_over() -> None:
    """Found in a job whose first step alarmed: it was told to choose a checkpoint by hand."""
    text = message(replace(alarm(None), step=1, suspect_window=(1, 1), last_audit_pass=None))
    assert "Next: start over from the beginning" in text and "by hand" not in text


ALONE = "alone; each step's reduction is checked by itself"
SINCE: dict[str, tuple[dict[str, Any], str]] = {
    "reduction": (
        {"check": Check.REDUCTION, "step": 70, "suspect_window": (70, 70), "last_audit_pass": 70},
        f"step 70 {ALONE}",
    ),
    "reduced, not finite": (
        {"check": Check.NONFINITE, "reduced_nonfinite": True, "step": 27, "suspect_window": (27, 27)},
        f"step 27 {ALONE}",
    ),
    "not finite": (
        {"check": Check.NONFINITE, "nonfinite_ranks": (3,), "step": 27, "suspect_window": (21, 27)},
        "steps 21 to 27; the last audit that passed was at step 20",
    ),
    "never": (
        {"suspect_window": (1, 30), "last_audit_pass": None},
        "steps 1 to 30; no audit had passed before",
    ),
    "weights": (
        {"check": Check.WEIGHTS, "suspect_window": (21, 30), "last_weight_check_pass": 20},
        "steps 21 to 30; the last weight check that passed was at step 20",
    ),
    "optimizer state": (
        {"check": Check.WEIGHTS, "suspect_window": (11, 30), "last_weight_check_pass": 20},
        "steps 11 to 30; the last comparison of what differs that passed was at step 10",
    ),
}


@pytest.mark.parametrize(("changes", "window"), SINCE.values(), ids=SINCE)
def test_the_window_is_said_with_the_pass_that_it_begins_after(changes: dict[str, Any], window: str) -> None:
    """Found: steps 70 to 70, "this check last passed at step 70"; a NaN said the audit's pass was its own."""
    assert f"Suspect window: {window}." in message(replace(alarm(None), pairs=(), **changes))


def test_a_nan_that_peers_reproduce_sends_people_to_the_batch_before_the_checkpoint() -> None:
    finding = Finding(FindingKind.NONFINITE, reproduced=True, involved=(MAP.places[1],), evidence="the same")
    seen = replace(
        alarm(ResumePoint(20, "/shared/step-20")), check=Check.NONFINITE, pairs=(), findings=(finding,)
    )
    (after,) = [line for line in message(seen).splitlines() if "Next:" in line]
    assert after.startswith("  Next: look at the batch of rank 1 at step 30 first")
    assert "the same batch again; then resume from step 20, /shared/step-20" in after


def test_a_named_rank_that_repeats_may_still_be_software_that_only_it_runs() -> None:
    (culprit,) = alarm(None).findings
    still = "If it follows the rank to another node it is software"
    for verdict, second, said in (
        (Verdict.PERSISTENT, None, True),
        (Verdict.REPLAYER, SecondConfirmation.REPEATS, True),
        (Verdict.REPLAYER, SecondConfirmation.AGREES, False),
        (Verdict.TRANSIENT, None, False),
    ):
        finding = replace(culprit, verdict=verdict, second_confirmation=second)
        assert (still in message(replace(alarm(None), findings=(finding,)))) is said


def test_second_answers_of_target_and_replayer_do_not_vote_and_missing_ones_count_as_asked() -> None:
    good, bad = "good", "bad"
    answers = [
        Answer(good, 2, good, (good,)),
        Answer(bad, 0, good, (good,)),  # the target: wrong in the step, right when asked again
        Answer(good, 1, good, (bad,)),  # its replayer: right in the ring, wrong when asked again
        Answer(good, 3, good, (None,)),  # could not compute
    ]
    (contest,) = contests((1,), (Pair(replayer=2, target=1),), dict(enumerate(answers)), {1: (0, 1, 2, 3)})
    assert dict(contest.results) == {0: good, 1: bad, 2: good}
    assert (contest.target_again, contest.replayer_again) == (good, bad)
    assert (contest.absent, contest.asked, contest.majority) == ((3,), 4, None)


def test_a_manifest_comes_back_and_tells_a_changed_bit() -> None:
    model = nn.BatchNorm1d(3)
    ledger = Ledger(20)
    ledger.weights_passed(20, "")
    manifest = ledger.manifest(6, state_digests(model))
    loaded = LoadedManifest.parse(manifest)
    assert (loaded.step, loaded.passes) == (20, Passes(None, 20))
    assert loaded.digests == state_digests(model)
    with torch.no_grad():
        model.weight.view(torch.int32)[1] ^= 1
    assert loaded.digests != state_digests(model)


@pytest.mark.parametrize(
    "manifest", [{}, {"digest_version": 99, "step": 3}, {"digest_version": 1, "step": "3"}]
)
def test_a_foreign_manifest_is_refused(manifest: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="after_load"):
        LoadedManifest.parse(manifest)


def test_an_answer_that_is_missing_without_the_compiler_counts_as_asked_too() -> None:
    bad = ("wrong",)
    answers = {
        0: Answer("x", 3, "x", bad),
        1: Answer("y", 0, "y", bad),
        2: Answer("z", 1, "z", ("right",)),
        3: Answer("x", 2, "x", (None,)),
    }
    (contest,) = eager_contests((Pair(replayer=2, target=1),), answers, {1: (0, 1, 2, 3)})
    assert (contest.absent, contest.majority, contest.outvoted) == ((3,), None, ())


@pytest.mark.parametrize(("mine", "elsewhere", "alone"), [(1, 0, False), (1, 1, True), (3, 0, True)])
def test_all_ranks_judge_a_nonfinite_audit_by_one_depth_whoever_has_several_micro_batches(
    mine: int, elsewhere: int, alone: bool
) -> None:
    comm = SimpleNamespace(total=lambda counts: [sum(counts) + elsewhere])
    footing = SimpleNamespace(compiled=lambda: False)
    group: Any = SimpleNamespace(_comm=comm, _footing=footing)
    assert Examiner.only_finiteness(group, mine) is alone
