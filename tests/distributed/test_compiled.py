"""`torch.compile` inside DDP and around it: replays go through the user's own compiled callable.

The backend of the short runs needs no compiler and gives other bits than eager code; inductor is in `soak`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from tests.distributed.cases import COMPILED, INDUCTOR
from tests.distributed.conftest import runs_of
from tests.distributed.expect import the_alarm
from tests.distributed.test_models import BAD, RANKS, Results, assert_nothing_moved, same_end
from training_agent.contract import Check, Verdict

pytestmark = pytest.mark.timeout(900)  # the first test waits for all runs
SHORT = "decomposed around"
LONG = sorted({**COMPILED, **INDUCTOR})
COMPILER = shutil.which("g++") or shutil.which("clang++")
Runs = Callable[[str], Results]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """One run by name, one entry per rank; each kind of model is launched once."""
    known: dict[str, Results] = {}

    def get(name: str) -> Results:
        if name not in known:
            out = tmp_path_factory.mktemp("compiled")
            only = name.split(":")[0] + ":"
            known.update(runs_of("tests.distributed.models_worker", RANKS, out, only, timeout=600)[0])
        return known[name]

    return get


def assert_guarded(runs: Runs, name: str) -> None:
    clean = runs(f"{name}: clean")
    assert [r["error"] for r in clean] == [""] * RANKS
    for r in clean:
        m = r["manifest"]
        assert (m["audits_passed"], m["audits_skipped"], m["notes"]) == (3, 0, [])
    assert same_end(clean, runs(f"{name}: unguarded"))
    faulty = runs(f"{name}: x1000")
    alarm = the_alarm(faulty)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 4, (BAD,)), faulty[0]["error"]
    assert_nothing_moved(faulty, 4)
    assert the_alarm(runs(f"{name}: nan")).named_ranks == (BAD,)
    once = the_alarm(runs(f"{name}: once"))
    assert (once.step, once.named_ranks, once.findings[0].verdict) == (4, (BAD,), Verdict.TRANSIENT)


def test_what_is_compiled_around_ddp_is_audited_and_left_bit_identical(runs: Runs) -> None:
    assert_guarded(runs, SHORT)


@pytest.mark.soak
@pytest.mark.parametrize("name", [n for n in LONG if n != SHORT])
def test_every_way_to_compile(runs: Runs, name: str) -> None:
    if name in INDUCTOR and COMPILER is None:
        pytest.skip("inductor needs a C++ compiler: install g++")
    assert_guarded(runs, name)


def test_a_compiler_that_nobody_told_us_of_switches_replays_off_by_name(runs: Runs) -> None:
    clean = runs("hidden: clean")
    assert [r["error"] for r in clean] == [""] * RANKS
    for r in clean:
        m = r["manifest"]
        assert (m["audits_passed"], m["audits_skipped"], m["weight_checks_passed"]) == (0, 3, 4)
        (note,) = m["notes"]
        assert note.startswith("replay audits are off: no rank gets its own micro-batch's bits again")
    assert same_end(clean, runs("hidden: unguarded"))


@pytest.mark.parametrize(("name", "passed"), [("ragged", 2), ("one compiler", 0)])
def test_graphs_that_only_some_ranks_have_accuse_nobody(runs: Runs, name: str, passed: int) -> None:
    clean = runs(f"uneven: {name}: clean")
    assert [r["error"] for r in clean] == [""] * RANKS
    for r in clean:
        m = r["manifest"]
        assert (m["audits_passed"], m["audits_skipped"], m["weight_checks_passed"]) == (passed, 3 - passed, 4)


def test_a_fault_beside_graphs_that_only_some_ranks_have_is_named(runs: Runs) -> None:
    alarm = the_alarm(runs("uneven: ragged: x1000"))
    assert (alarm.step, alarm.named_ranks) == (4, (BAD,))


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ragged", "one compiler"])
@pytest.mark.parametrize(("fault", "step"), [("x1000", 4), ("start", 1), ("nan", 4)])
def test_every_fault_beside_graphs_that_only_some_ranks_have(
    runs: Runs, kind: str, fault: str, step: int
) -> None:
    alarm = the_alarm(runs(f"uneven, long: {kind}: {fault}"))
    assert (alarm.step, alarm.named_ranks) == (step, (BAD,))


def test_one_firing_that_another_graph_would_explain_is_skipped_and_counted(runs: Runs) -> None:
    for r in runs("uneven: ragged: once"):
        assert r["error"] == ""
        assert r["manifest"]["audits_skipped"] in (1, 2)  # the arbitration itself builds graphs


def test_check_1_works_under_a_hidden_compiler(runs: Runs) -> None:
    alarm = the_alarm(runs("hidden: nan"))
    assert (alarm.check, alarm.step, alarm.nonfinite_ranks) == (Check.NONFINITE, 5, (BAD,))


def test_a_fault_from_the_start_is_told_from_a_compiler(runs: Runs) -> None:
    results = runs("hidden: start")
    alarm = the_alarm(results)
    assert (alarm.check, alarm.step, alarm.named_ranks) == (Check.REPLAY, 1, (BAD,))
    assert [r["states"] for r in results] == [[]] * RANKS
