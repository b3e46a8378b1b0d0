"""Partners for every layout, or a refusal that names the ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.agent.places import even_map, rank_map
from training_agent.contract import Independence
from training_agent.errors import ConfigurationError
from training_agent.placement import (
    EVERYBODY_VOTES,
    MAX_OFFSETS,
    QUORUM,
    RankMap,
    partners,
    quorum,
    replica_partners,
)

LAYOUTS = st.lists(st.integers(0, 5), min_size=2, max_size=24)


@given(LAYOUTS, st.integers(0, 40), st.booleans())
def test_any_layout_gets_a_permutation_across_nodes_or_a_refusal(
    nodes: list[int], audit: int, rotate: bool
) -> None:
    ranks = rank_map(nodes)
    node, largest = Counter(nodes).most_common(1)[0]
    if 2 * largest > len(nodes) and len(set(nodes)) >= 3:
        with pytest.raises(ConfigurationError) as refused:
            partners(ranks, audit, rotate)
        assert f"holds {largest} of {len(nodes)} ranks" in str(refused.value)
        assert f"ranks {nodes.index(node)}" in str(refused.value)
        return
    targets = partners(ranks, audit, rotate)
    assert sorted(targets) == list(range(len(nodes)))
    assert all(target != replayer for replayer, target in enumerate(targets))
    if 2 * largest <= len(nodes):
        assert all(ranks.node_of(t) != ranks.node_of(r) for r, t in enumerate(targets))


@given(LAYOUTS)
def test_rotation_uses_at_most_eight_assignments_and_moves_every_audit(nodes: list[int]) -> None:
    ranks = rank_map(nodes)
    try:
        rounds = [partners(ranks, audit) for audit in range(3 * MAX_OFFSETS)]
    except ConfigurationError:
        return
    distinct = len(set(rounds))
    assert distinct <= MAX_OFFSETS == 8
    assert rounds[:distinct] == rounds[distinct : 2 * distinct]
    assert len(set(rounds[:distinct])) == distinct


@given(st.integers(2, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 40))
def test_under_hsdp_each_rank_replays_its_counterpart_of_another_replica(
    count: int, shards: int, per_node: int, audit: int
) -> None:
    ranks = even_map(count * shards, per_node)
    replicas = [tuple(range(i * shards, (i + 1) * shards)) for i in range(count)]
    targets = replica_partners(ranks, replicas, audit)
    assert sorted(targets) == list(ranks.ranks)
    assert all(t % shards == r % shards and t // shards != r // shards for r, t in enumerate(targets))
    if count * shards >= 2 * per_node and (shards % per_node == 0 or per_node % shards == 0):
        shared = max(1, per_node // shards)  # replicas on one node
        if count % shared == 0 and count > shared:
            assert all(ranks.node_of(t) != ranks.node_of(r) for r, t in enumerate(targets))
    assert len({replica_partners(ranks, replicas, a) for a in range(40)}) <= MAX_OFFSETS
    assert replica_partners(ranks, replicas, 5, False) == replica_partners(ranks, replicas, 0)


def test_replicas_of_one_node_replay_each_other_where_there_is_no_other_way() -> None:
    assert replica_partners(even_map(4, 4), [(0, 1), (2, 3)], 0) == (2, 3, 0, 1)
    crossed = replica_partners(even_map(4, 2), [(0, 2), (1, 3)], 0)  # the mesh lies across the nodes
    assert crossed == (1, 0, 3, 2)


def test_fixed_partner_is_one_node_further_as_published() -> None:
    ranks = even_map(32, 8)
    assert all(
        partners(ranks, audit, rotate=False) == tuple((r + 8) % 32 for r in range(32)) for audit in (0, 1, 5)
    )


def test_rotation_on_three_nodes_of_two() -> None:
    ranks = even_map(6, 2)
    offsets = [partners(ranks, audit)[0] for audit in range(4)]
    assert offsets == [2, 3, 4, 2]


def test_large_even_layout_keeps_the_local_rank() -> None:
    """The same column of GPUs: their network rails match."""
    ranks = even_map(136, 8)
    for audit in range(MAX_OFFSETS):
        assert all(t % 8 == r % 8 for r, t in enumerate(partners(ranks, audit)))
    assert len({partners(ranks, audit) for audit in range(MAX_OFFSETS)}) == MAX_OFFSETS


def test_interleaved_ranks_are_paired_across_nodes() -> None:
    ranks = rank_map([0, 1, 0, 1, 0, 1])
    for audit in range(4):
        assert all(ranks.node_of(t) != ranks.node_of(r) for r, t in enumerate(partners(ranks, audit)))


def test_single_node_is_paired_by_gpu_and_says_so() -> None:
    ranks = even_map(4, 4)
    assert ranks.independence is Independence.GPU
    assert {partners(ranks, audit)[0] for audit in range(3)} == {1, 2, 3}


def test_two_uneven_nodes_fall_back_to_pairs_by_gpu() -> None:
    ranks = rank_map([0, 0, 0, 1])
    assert sorted(partners(ranks, 0)) == [0, 1, 2, 3]
    assert ranks.independence is Independence.GPU


def test_three_nodes_are_independent_by_node() -> None:
    assert even_map(3, 1).independence is Independence.NODE
    assert even_map(16, 8).independence is Independence.GPU


def test_node_with_more_than_half_of_three_is_refused_with_its_ranks() -> None:
    with pytest.raises(ConfigurationError, match=r"holds 3 of 5 ranks \(ranks 0, 2, 4\), more than half"):
        partners(rank_map([0, 1, 0, 2, 0]), 0)


def test_fewer_than_two_ranks_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="start at least two ranks"):
        partners(rank_map([0]), 0)


def test_ranks_that_share_a_gpu_are_refused_by_name() -> None:
    places = even_map(4, 2).places
    with pytest.raises(ConfigurationError, match=r"ranks \[0, 1\] claim the same local rank"):
        RankMap((places[0], replace(places[1], local_rank=0), *places[2:]))
    with pytest.raises(ConfigurationError, match=r"ranks \[2, 3\] claim the same GPU"):
        RankMap((*places[:3], replace(places[3], gpu_uuid=places[2].gpu_uuid)))
    for wrong in (places[::-1], (*places, places[-1])):
        with pytest.raises(ConfigurationError, match="expected each rank once, in order"):
            RankMap(wrong)


def test_replicas_on_a_part_of_the_ranks_keep_the_ranks_of_the_job() -> None:
    part = RankMap(even_map(8, 2).places[3:])
    assert part.ranks == (3, 4, 5, 6, 7) and part.place(5).rank == 5
    for index in range(5):
        targets = partners(part, index)
        assert sorted(targets) == list(part.ranks)
        assert all(part.node_of(a) != part.node_of(b) for a, b in zip(part.ranks, targets, strict=True))
    assert quorum(part, 4, 6) == part.ranks


def test_unknown_gpus_are_not_one_gpu() -> None:
    places = tuple(replace(p, gpu_uuid=None) for p in even_map(4, 2).places)
    assert RankMap(places).size == 4


def test_helpers() -> None:
    ranks = rank_map([1, 0, 1])
    assert ranks.nodes == (ranks.node_of(0), ranks.node_of(1))
    assert ranks.ranks_on(ranks.node_of(0)) == (0, 2)


def test_sixteen_thousand_ranks_have_a_partner_each() -> None:
    assert len(set(partners(even_map(16_384, 8), 3))) == 16_384


def test_in_a_small_job_everybody_votes() -> None:
    assert quorum(even_map(EVERYBODY_VOTES, 4), 1, 5) == tuple(range(EVERYBODY_VOTES))


@given(st.integers(0, 511), st.integers(0, 511))
def test_in_a_large_job_seven_voters_stand_on_distinct_nodes(target: int, replayer: int) -> None:
    ranks = even_map(512, 8)
    if ranks.node_of(target) == ranks.node_of(replayer):
        return
    voters = quorum(ranks, target, replayer)
    assert {target, replayer} <= set(voters)
    assert len({ranks.node_of(r) for r in voters}) == QUORUM
    assert len(voters) == QUORUM + 2  # and one node-mate each of target and replayer


def test_with_fewer_nodes_than_voters_other_gpus_vote() -> None:
    voters = quorum(even_map(24, 8), 3, 20)
    assert len(voters) == QUORUM + 2
    assert len(set(voters)) == len(voters)
