"""HSDP over a 2-D mesh, 3 x 2 and 2 x 2 ranks: shards against their replicas, and guarded training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.conftest import launch

pytestmark = pytest.mark.timeout(300)
Results = list[dict[str, Any]]
BAD = 3


def launched(out: Path, ranks: int, form: str) -> Results:
    ended = launch("tests.distributed.hsdp_worker", ranks, str(out), form)
    assert [code for code, _ in ended] == [0] * ranks, ended[0][1][-3000:]
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launched(tmp_path_factory.mktemp("hsdp-3x2"), 6, "short")


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launched(tmp_path_factory.mktemp("hsdp-3x2-long"), 6, "long")


def alike(results: Results, name: str, key: str = "") -> Any:
    """What every rank found, which must be the same."""
    found = [r[name][key] if key else r[name] for r in results]
    assert found == [found[0]] * len(found)
    return found[0]


def the_alarm(results: Results, name: str) -> dict[str, Any]:
    """The alarm of a scenario, after which no rank had applied the step (but for a weight check)."""
    alarm: dict[str, Any] | None = alike(results, name, "alarm")
    assert alarm is not None
    if alarm["check"] != "weights" or alarm["pairs"]:
        assert all(r[name]["kept"] for r in results)
    return alarm


def findings(results: Results, name: str) -> tuple[Any, ...]:
    """Check, step, and of each finding kind, rank and verdict."""
    alarm = the_alarm(results, name)
    return alarm["check"], alarm["step"], [(f["kind"], f["rank"], f["verdict"]) for f in alarm["findings"]]


def healthy(results: Results, name: str) -> dict[str, Any]:
    """A guarded run: silent, compared something, and of the bits of an unguarded one. What it counted."""
    assert alike(results, f"healthy, {name}", "alarm") is None
    for rank in results:
        guarded, plain = rank[f"healthy, {name}"], rank[f"unguarded, {name}"]
        assert guarded["state"] == plain["state"]
        assert guarded["fired"] == plain["fired"] == 4
    counted: dict[str, Any] = results[0][f"healthy, {name}"]
    assert (counted["audits_passed"], counted["audits_skipped"]) == (2, 0)
    assert (counted["weight_checks_passed"], counted["state_tensors_compared"]) == (3, 48)
    assert counted["notes"] == []
    assert counted["assurance"]["bytes_of_weights"] == 3 * 3 * counted["whole"]  # checks, replicas
    return counted


def test_a_flipped_shard_is_named_among_three_replicas(six: Results) -> None:
    assert alike(six, "healthy") == {"tensors": [], "ranks": [], "involved": []}
    assert alike(six, "rank 3") == {"tensors": ["0.weight"], "ranks": [3], "involved": []}
    assert alike(six, "ranks 2 and 5") == {"tensors": ["0.weight"], "ranks": [2, 5], "involved": []}


def test_a_guarded_run_has_the_bits_of_an_unguarded_one(six: Results) -> None:
    assert healthy(six, "accumulation")["loss_audited"] is True


def test_every_rank_gives_the_same_manifest_and_leaves_out_what_each_has_of_its_own(six: Results) -> None:
    digests = alike(six, "healthy, accumulation", "digests")
    assert len([name for name in digests if "running" not in name]) == 18  # weights and counters
    assert not [name for name in digests if "running" in name]  # BatchNorm's statistics


def test_a_bad_gpu_is_named_by_replays_along_the_replicate_dimension(six: Results) -> None:
    assert findings(six, "persistent") == ("replay", 4, [("culprit", BAD, "persistent")])
    alarm = the_alarm(six, "persistent")
    assert [(p["replayer"], p["target"]) for p in alarm["pairs"]] == [(3, 1), (5, 3)]
    assert alarm["suspect_window"] == [3, 4]


def test_a_shard_flipped_in_training_is_named_by_the_weight_check(six: Results) -> None:
    assert findings(six, "flip") == ("weights", 4, [("weights", BAD, None)])
    assert the_alarm(six, "flip")["divergent_tensors"][0] == "blocks.1.up.weight"


def test_a_steady_buffer_flipped_on_one_rank_is_named_among_all(six: Results) -> None:
    assert findings(six, "table") == ("weights", 4, [("weights", BAD, None)])
    assert the_alarm(six, "table")["divergent_tensors"] == ["buffer table"]


def test_a_nan_in_a_stored_shard_accuses_its_holder_and_not_the_mates_that_gather_it(six: Results) -> None:
    assert findings(six, "NaN in a stored shard") == ("weights", 4, [("weights", BAD, None)])
    assert alike(six, "NaN in a stored shard", "alarm")["nonfinite_ranks"] == [2, 3]


def test_a_micro_batch_that_reduces_nothing_belongs_to_the_update_that_it_feeds(six: Results) -> None:
    name = "NaN in the first micro-batch"
    assert findings(six, name) == ("nonfinite", 3, [("nonfinite", None, None)])
    assert the_alarm(six, name)["nonfinite_ranks"] == [BAD]


def test_a_batch_that_one_rank_cannot_send_skips_the_audit_on_all_before_anybody_computes(
    six: Results,
) -> None:
    name = "a batch that cannot be sent"
    assert alike(six, name, "alarm") is None
    assert (alike(six, name, "audits_passed"), alike(six, name, "audits_skipped")) == (0, 2)


def test_layer_audits_are_off_by_name(six: Results) -> None:
    (note,) = alike(six, "a batch that cannot be sent", "notes")
    assert note.startswith("layer audits are off: under fully_shard ")


def test_weights_gathered_wrong_accuse_none_of_the_ranks_that_computed_with_them(six: Results) -> None:
    assert findings(six, "gathered weights") == ("replay", 4, [("pair", None, "unattributable")])
    (finding,) = the_alarm(six, "gathered weights")["findings"]
    assert [p["rank"] for p in finding["involved"]] == [2, 3]


def test_a_checkpoint_is_taken_over_and_a_damaged_one_is_not(six: Results) -> None:
    found = alike(six, "resumed")
    assert found["passed"] == ["replay", "weights", "optimizer state"]
    assert found["whole"] == 4
    assert found["one shard"] == ["alarm", [BAD]]
    assert found["everywhere"][0] == "refused" and "blocks.0.up.weight" in found["everywhere"][1]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("plain FSDP", "nothing to compare it with"),
        ("find, plain FSDP", "nothing to compare it with"),
        ("a part", "2.weight, 2.bias: outside of fully_shard"),
        ("not the outermost", "fully_shard(model, mesh=mesh) on the outermost module"),
        ("two meshes", "several device meshes"),
        ("compiled", "torch.compile under fully_shard is not guarded"),
        ("collectives", "communicates inside its own forward"),
        ("train", "write the loop yourself, with attach()"),
    ],
)
def test_what_is_not_guarded_is_refused_by_name_on_every_rank(six: Results, model: str, says: str) -> None:
    assert says in alike(six, "refusals", model)


def test_of_two_replicas_weights_name_nobody_and_replays_a_bad_gpu_among_all_four(tmp_path: Path) -> None:
    four = launched(tmp_path, 4, "two replicas")
    assert alike(four, "rank 3") == {"tensors": ["0.weight"], "ranks": [], "involved": [1, 3]}
    assert findings(four, "persistent") == ("replay", 4, [("culprit", BAD, "persistent")])
    assert findings(four, "flip") == ("weights", 4, [("weights", None, None)])


@pytest.mark.soak
@pytest.mark.parametrize("loop", ["module", "forward-only audits", "forced kernels"])
def test_long_a_guarded_run_has_the_bits_of_an_unguarded_one(long: Results, loop: str) -> None:
    assert healthy(long, loop)["loss_audited"] is (loop != "module")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("once", ("replay", 4, [("pair", BAD, "transient")])),
        ("replayer", ("replay", 4, [("pair", BAD, "replayer")])),
        ("forward-only", ("replay", 4, [("culprit", BAD, "persistent")])),
        ("moment", ("weights", 4, [("weights", BAD, None)])),
        ("NaN in the data", ("nonfinite", 3, [("nonfinite", None, None)])),
        ("NaN without audits", ("nonfinite", 3, [("nonfinite", None, None)])),
    ],
)
def test_long_each_kind_of_fault_ends_as_it_should(
    long: Results, scenario: str, expected: tuple[Any, ...]
) -> None:
    assert findings(long, scenario) == expected


@pytest.mark.soak
def test_long_a_step_that_was_wrong_once_is_computed_again(long: Results) -> None:
    assert alike(long, "retried", "alarm") is None
    assert alike(long, "retried", "steps_retried") == 1
    for rank in long:
        assert rank["retried"]["state"][0] == rank["unguarded, retried"]["state"][0]
