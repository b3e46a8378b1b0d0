"""The benchmark's own arithmetic, and that the GPU script runs where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import figures, gpu, scale
from tests.bench.figures import Round
from tests.bench.subjects import AGAIN, FORWARD, GROUPS, OURS, OUTCOME, PLAIN, PUBLISHED, REDUCTION

ROOT = Path(__file__).resolve().parents[3]


def rounds(kind: str, count: int, **over: float) -> list[Round]:
    """Rounds of growing load; `over` by subject, in percent over plain."""
    names = {"again": AGAIN, "published": PUBLISHED, "ours": OURS, "forward": FORWARD}
    return [
        Round(kind, {PLAIN: i, **{names[n]: i * (1 + pct / 100) for n, pct in over.items()}})
        for i in range(1, count + 1)
    ]


def test_schedules_are_composed_from_paired_ratios_whatever_the_load() -> None:
    run = rounds("healthy", 5, again=0.1, published=14, ours=3, forward=3)
    run += rounds("weights", 3, again=0.3, published=34, ours=5, forward=5)
    run += rounds("audit", 3, again=0.2, published=164, ours=103, forward=43)
    found = figures.overhead(run)
    assert found["no_audit"] == {"ours_pct": 3.2, "published_pct": 16.0}
    assert found["audit_10_deterministic"] == {"ours_pct": 13.2, "published_pct": 31.0}
    assert found["audit_100_deterministic"]["ours_pct"] == 4.2
    assert found["audit_10_forward"] == {"ours_pct": 7.2, "published_pct": None}
    assert found["no_audit_lazy_naming"]["ours_pct"] is None, "no such subject in this run"
    assert figures.quiet(run) == pytest.approx(0.2)


def test_options_are_compared_with_ours_without_them() -> None:
    run = [
        Round(kind, {PLAIN: 1.0, AGAIN: 1.0, OURS: ours, OUTCOME: ours * 1.01})
        for kind, ours in (("healthy", 1.04), ("weights", 1.06), ("audit", 2.0))
    ]
    found = figures.options(run)
    assert found[OUTCOME]["healthy_pct"] == 5.04
    assert all(found[OUTCOME][f"{kind}_over_ours_pct"] == 1.0 for kind in figures.KINDS)
    assert set(found[REDUCTION].values()) == {None}, "no such subject in this run"


@pytest.mark.parametrize("case", [bench.FULL[0], bench.OPTIONS[0]], ids=["schedules", "options"])
def test_a_resumed_run_keeps_quiet_groups_of_the_same_subjects_alone(
    case: bench.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "CASES", tmp_path)
    assert bench.kept(case, "SMALL") is None, "nothing was measured"
    measured = dict.fromkeys(GROUPS[case.group])
    for void, subjects, kept in ((False, measured, True), (True, measured, False), (False, {OURS: 0}, False)):
        case.kept_in("SMALL").write_text(json.dumps({"void": void, "operations": subjects}))
        assert (bench.kept(case, "SMALL") is not None) is kept


def test_a_quick_run_leaves_the_groups_of_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "CASES", tmp_path)
    for size in ("TINY", "SMALL"):
        bench.FULL[0].kept_in(size).write_text("{}")
    bench.forget("TINY")
    assert [path.name for path in tmp_path.iterdir()] == [bench.FULL[0].kept_in("SMALL").name]


def test_the_scale_section_names_the_bad_ranks_of_a_small_job_and_sizes_their_alarm() -> None:
    found = scale.measure(ranks=64, tensors=10)
    assert (found["ranks"], found["tensors"]) == (64, 10)
    assert found["weights_one_bad_rank_bytes"] == 64 * 3 * 8, "one row a rank"
    assert found["alarm_bytes"] > 0


def test_the_gpu_script_runs_every_section_without_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.bench.gpu", "--dry"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"machine", "digest", "alone", "two processes"}
    assert set(found["digest"]["1 MB"]["ms"]) >= {"read", "copy", "digest", "digest_1000_tensors", "portable"}
    assert found["two processes"]["audits_passed"] == found["two processes"]["audited_steps"] // 4
    assert found["two processes"]["layer_audits_passed"] == found["two processes"]["audited_steps"]
    assert set(found["alone"]["over_plain_pct"]) == {"None", "immediate", "deferred"}
    assert set(found["alone"]["forced_kernels_over_plain_pct"]) == {"None", "forced"}
    assert found["alone"]["audit_flash_ms"] > 0
    assert json.loads((tmp_path / "out" / "bench-gpu.json").read_text()) == found


def test_a_section_that_hangs_is_cut_off_and_what_was_known_stays() -> None:
    found = {"alone": {"parameters": 953}}
    assert gpu.run("alone", 0.05, dry=True, found=found).startswith("killed: its 0.05 s were over")
    assert found == {"alone": {"parameters": 953}}


def test_a_section_that_fails_says_why() -> None:
    assert "KeyError: 'no such section'" in gpu.run("no such section", 60, dry=True, found={})


def test_a_section_that_dies_in_the_middle_of_a_line_takes_no_other_figure_with_it() -> None:
    for line in (
        '{"digest": {"16 MB": {"ms": {"re',
        '{"sdc":"warning","message":"no compiler"}',
        "a warning",
    ):
        assert gpu._figures(line) == {}
    assert gpu._figures('{"digest": {"16 MB": 1}}\n') == {"digest": {"16 MB": 1}}
