"""Check 3 between real gloo processes: 2 and 3 ranks, all scenarios in one launch each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from training_agent.checks.weights import GATHER_BYTES, Divergence, find_divergent_ranks, judge, vote
from training_agent.digest import digest

Spoil = Callable[[dict[str, Tensor], int], None]


def replica() -> dict[str, Tensor]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(7)
    return {
        "embed": torch.randn(300, 40, generator=generator),
        "norm": torch.ones(40),
        "head": torch.randn(40, 300, generator=generator).to(torch.bfloat16),
        "steps": torch.tensor(12),
        "empty": torch.empty(0),
    }


def flip_bit_22(copy: dict[str, Tensor], rank: int) -> None:
    if rank == 1:
        copy["embed"].view(torch.int32)[5, 6] ^= 1 << 22


def swap_two_weights(copy: dict[str, Tensor], rank: int) -> None:
    if rank == 0:
        copy["embed"].view(-1)[[3, 900]] = copy["embed"].view(-1)[[900, 3]]


def compensate(copy: dict[str, Tensor], rank: int) -> None:
    if rank == 0:
        bits = copy["embed"].view(torch.int32).view(-1)
        bits[3] += 4096
        bits[900] -= 4096


def two_ranks_in_two_tensors(copy: dict[str, Tensor], rank: int) -> None:
    if rank == 0:
        copy["norm"][0] = 2
    if rank == 2:
        copy["head"][0, 0] += 1


def all_different(copy: dict[str, Tensor], rank: int) -> None:
    copy["norm"][0] = rank


def same_nan(copy: dict[str, Tensor], rank: int) -> None:
    copy["norm"][0] = float("nan")


def negative_zero(copy: dict[str, Tensor], rank: int) -> None:
    copy["norm"][0] = -0.0 if rank == 1 else 0.0


def healthy(copy: dict[str, Tensor], rank: int) -> None:
    pass


SCENARIOS: tuple[Spoil, ...] = (
    healthy,
    flip_bit_22,
    swap_two_weights,
    compensate,
    two_ranks_in_two_tensors,
    all_different,
    same_nan,
    negative_zero,
)


def worker(rank: int, world: int, folder: str) -> None:
    """Run every scenario, then the healthy one counted, then one inside a sub-group."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    results: dict[str, Any] = {}
    for spoil in SCENARIOS:
        copy = replica()
        spoil(copy, rank)
        results[spoil.__name__] = asdict(find_divergent_ranks(copy))
    results["nothing"] = asdict(find_divergent_ranks({}))
    results["collectives"] = count_collectives(lambda: find_divergent_ranks(replica()))
    group = dist.new_group([world - 2, world - 1])
    if rank >= world - 2:
        copy = replica()
        all_different(copy, rank)
        results["sub-group"] = asdict(find_divergent_ranks(copy, group))
    Path(folder, f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def count_collectives(call: Callable[[], Divergence]) -> dict[str, int]:
    """How often `call` uses each collective, and how many bytes its all-reduces move."""
    seen = {"all_reduce": 0, "all_gather": 0, "bytes": 0}
    reduce, gather = dist.all_reduce, dist.all_gather

    def counted_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen["all_reduce"] += 1
        seen["bytes"] += tensor.numel() * tensor.element_size()
        return reduce(tensor, *args, **kwargs)

    def counted_gather(*args: Any, **kwargs: Any) -> Any:
        seen["all_gather"] += 1
        return gather(*args, **kwargs)

    dist.all_reduce, dist.all_gather = counted_reduce, counted_gather  # type: ignore[assignment]
    try:
        call()
    finally:
        dist.all_reduce, dist.all_gather = reduce, gather
    return seen


def launch(world: int, folder: Path) -> dict[str, Any]:
    mp.spawn(worker, args=(world, str(folder)), nprocs=world)
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    for name in ranks[0].keys() - {"sub-group"}:
        assert all(r[name] == ranks[0][name] for r in ranks), f"{name}: ranks disagree"
    return dict(ranks[-1])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(3, tmp_path_factory.mktemp("three"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return launch(2, tmp_path_factory.mktemp("two"))


BYTES = 300 * 40 * 4 + 40 * 4 + 300 * 40 * 2 + 8


def test_equal_replicas_pass_and_say_how_much_was_compared(three: dict[str, Any]) -> None:
    passed = Divergence(**three["healthy"])
    assert not passed
    assert (passed.bytes_compared, passed.tensors_compared) == (BYTES, 5)


def test_healthy_path_is_one_all_reduce_whatever_the_number_of_ranks(
    three: dict[str, Any], two: dict[str, Any]
) -> None:
    assert three["collectives"] == two["collectives"] == {"all_reduce": 1, "all_gather": 0, "bytes": 5 * 48}


def test_flipped_bit_names_its_rank(three: dict[str, Any]) -> None:
    found = three["flip_bit_22"]
    assert (found["tensors"], found["ranks"], found["involved"]) == (["embed"], [1], [])


@pytest.mark.parametrize("scenario", ["swap_two_weights", "compensate"])
def test_change_that_the_plain_sum_misses_names_its_rank(three: dict[str, Any], scenario: str) -> None:
    assert (three[scenario]["tensors"], three[scenario]["ranks"]) == (["embed"], [0])


def test_each_tensor_is_voted_on_by_itself(three: dict[str, Any]) -> None:
    found = three["two_ranks_in_two_tensors"]
    assert (found["tensors"], found["ranks"]) == (["norm", "head"], [0, 2])


def test_without_a_strict_majority_nobody_is_named(three: dict[str, Any], two: dict[str, Any]) -> None:
    assert (three["all_different"]["ranks"], three["all_different"]["involved"]) == ([], [0, 1, 2])
    assert (two["flip_bit_22"]["ranks"], two["flip_bit_22"]["involved"]) == ([], [0, 1])
    assert two["flip_bit_22"]["tensors"] == ["embed"]


def test_equal_nans_are_equal_and_negative_zero_is_not(three: dict[str, Any]) -> None:
    assert three["same_nan"]["tensors"] == []
    assert (three["negative_zero"]["tensors"], three["negative_zero"]["ranks"]) == (["norm"], [1])


def test_ranks_of_a_sub_group_are_global_ranks(three: dict[str, Any]) -> None:
    assert three["sub-group"]["involved"] == [1, 2]


def test_nothing_to_compare_is_not_a_pass_of_anything(three: dict[str, Any]) -> None:
    assert three["nothing"]["tensors_compared"] == 0


def test_vote_needs_more_than_half() -> None:
    a, b, c = (1, 1, 1), (2, 2, 2), (3, 3, 3)
    assert vote(torch.tensor([[a], [a], [b], [b]])) == (set(), {0, 1, 2, 3})
    assert vote(torch.tensor([[a], [a], [a], [b]])) == ({3}, set())
    assert vote(torch.tensor([[a], [a], [b], [c]])) == (set(), {0, 1, 2, 3})
    assert vote(torch.tensor([[a, a], [a, b], [b, c]])) == ({2}, {0, 1, 2})


class Simulated:
    """All ranks' tables in one process; counts what each rank would receive."""

    def __init__(self, tables: Tensor) -> None:
        self.tables, self.taken, self.largest = tables, 0, 0

    def gather(self, rows: Tensor) -> Tensor:
        if rows.shape[0] == 1 and not torch.equal(rows[0], self.tables[0, 0]):
            out = digest(list(self.tables)).unsqueeze(1)
        else:
            out = self.tables[:, self.taken : self.taken + len(rows)]
            self.taken += len(rows)
        self.largest = max(self.largest, out.nbytes)
        return out


def test_a_mismatch_in_a_job_of_16384_ranks_and_1000_tensors_stays_below_16_mb_a_rank() -> None:
    common = torch.arange(3000).view(1, 1000, 3)
    one_bad = Simulated(common.expand(16_384, 1000, 3))
    one_bad.tables = one_bad.tables.clone()
    one_bad.tables[4711, 3:] += 1
    assert judge(one_bad.tables[0], 16_384, one_bad.gather) == ({4711}, set())
    assert one_bad.taken == 0, "one row a rank was enough"
    assert one_bad.largest == 16_384 * 24


def test_without_a_common_table_tensors_are_judged_one_by_one_within_the_same_memory() -> None:
    """More than half of the ranks differ, each in another tensor: every one of them is outvoted there."""
    ranks = 2048
    job = Simulated(torch.arange(3000).view(1, 1000, 3).repeat(ranks, 1, 1))
    bad = set(range(0, ranks - 500))
    for rank in bad:
        job.tables[rank, rank % 997] += 1 + rank
    assert judge(job.tables[ranks - 1], ranks, job.gather) == (bad, set())
    assert job.taken == 1000 and job.largest <= GATHER_BYTES
