"""The port does what was published and fails where that is known to fail; the docs hold its output."""

from __future__ import annotations

import pytest

from tests.matrix.markdown import section
from tests.published import simulation
from tests.published.comparison import Measured, lines, measure
from tests.published.naming import name
from tests.published.trials import TRIALS


@pytest.fixture(scope="module")
def short() -> Measured:
    """One launch of six ranks, the rows and trials of the short form."""
    return measure("short", timeout=240)


def test_the_port_passes_the_published_table(short: Measured) -> None:
    assert short.table and not {name: wrong for name, wrong in short.table.items() if wrong}


def test_a_data_nan_isolates_a_healthy_node_only_in_the_published_design(short: Measured) -> None:
    published, ours = short.trials["NaN in the data of rank 3"]
    assert "names [3]" in published and "names []" in ours


def test_hooks_of_the_user_fire_twice_only_in_the_published_design(short: Measured) -> None:
    published, ours = short.trials["a user's post-accumulate hook"]
    assert published == "fires 2 times a step" and ours == "fires 1 times a step"


def test_two_gpus_with_identical_bits_in_real_processes(short: Measured) -> None:
    """They sit where the published third GPU is the other bad one."""
    published, ours = short.trials["ranks 1 and 3 wrong with identical bits"]
    assert "names [" in published and "names [1, 3]" not in published
    assert "names [1, 3]" in ours


@pytest.mark.parametrize(("ranks", "wrong", "positions"), [(6, 6, 15), (8, 12, 28), (12, 24, 66)])
def test_wrong_names_are_those_that_were_published(ranks: int, wrong: int, positions: int) -> None:
    assert simulation.wrong_names(ranks) == (wrong, 0, positions)


def test_two_sums_miss_lane_patterns_that_ours_sees() -> None:
    for lanes, share in ((4, 0.05), (8, 0.01)):
        published, ours = simulation.missed_lanes(lanes, trials=200)
        assert published / 200 > share and ours == 0


def test_one_pair_is_judged_by_the_third_gpu_and_the_target() -> None:
    def judged(third_says: str, again: str) -> str:
        (found,) = name([(1, 3)], lambda _p: ("o", "r"), lambda w, t: again if w == t else third_says, 2, 6)
        return f"{found.rank} {found.verdict}"

    assert judged("o", "o") == "1 replayer"
    assert judged("r", "o") == "3 persistent"
    assert judged("r", "r") == "3 transient"
    assert judged("x", "o") == "None unattributable"


def test_the_comparison_in_the_docs_has_the_lines_of_the_command() -> None:
    written = [row.split("|")[1].strip() for row in section("comparison").splitlines()[2:]]
    nothing = Measured({}, dict.fromkeys(TRIALS, ("", "")))
    assert written == [line.what for line in lines(nothing, trials=1)]


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_the_whole_comparison() -> None:
    found = measure()
    assert not {name: wrong for name, wrong in found.table.items() if wrong}
    assert len(found.table) >= 20 and set(found.trials) == set(TRIALS)
    assert found.trials["autocast opened by the loop, no fault"][1] == "no alarm"
    published, ours = found.trials["unused parameters that differ by rank"]
    assert "DDP reducer" in published and ours == "no alarm"
    published, ours = found.trials["a moment of rank 3 flipped before the save"]
    assert published == "saved, tagged as passed" and "names [3]" in ours
    assert found.trials["torch.compile around DDP, no fault"][1] == "no alarm"
