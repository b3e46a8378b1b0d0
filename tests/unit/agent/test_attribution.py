"""Single rules of attribution, each with the smallest alarm that shows it."""

from __future__ import annotations

from tests.unit.agent.places import even_map, rank_map
from training_agent.attribution import (
    MAX_CONTESTED,
    Contested,
    ambiguous_at_start,
    attribute,
    contested_targets,
)
from training_agent.contest import reproduced_by_peers
from training_agent.contract import Finding, FindingKind, Pair, SecondConfirmation, Verdict

SIX = even_map(6, 2)


def results(wrong: dict[int, str], voters: int = 6) -> dict[int, str]:
    return {rank: wrong.get(rank, "right") for rank in range(voters)}


def test_persistent_target_is_a_culprit_by_both_its_comparisons() -> None:
    pairs = [Pair(replayer=2, target=4), Pair(replayer=4, target=0)]
    contests = [
        Contested(4, 2, results({4: "bad"}), "bad", "right"),
        Contested(0, 4, results({4: "worse"}), "right", "worse"),
    ]
    found = attribute(SIX, pairs, contests)
    (finding,) = found.findings
    assert (finding.kind, finding.rank, finding.majority) == (FindingKind.CULPRIT, 4, True)
    assert finding.place == SIX.places[4]
    assert finding.verdict is Verdict.PERSISTENT
    assert [c.majority for c in found.contests] == ["right", "right"]
    assert found.contests[0].target_repeats is True
    assert {v.rank: v.role for v in found.contests[0].votes}[2] == "replayer"


def test_a_culprit_whose_own_micro_batch_is_not_contested_has_no_verdict() -> None:
    contests = [
        Contested(4, 2, results({2: "bad"}), "right", "bad"),
        Contested(0, 2, results({2: "bad"}), "right", "bad"),
    ]
    (finding,) = attribute(SIX, [Pair(2, 4), Pair(2, 0)], contests).findings
    assert (finding.kind, finding.rank, finding.verdict) == (FindingKind.CULPRIT, 2, None)


def test_transient_when_the_target_agrees_on_second_asking() -> None:
    contest = Contested(4, 2, results({4: "bad"}), "right", "right")
    (finding,) = attribute(SIX, [Pair(2, 4)], [contest]).findings
    assert (finding.kind, finding.rank, finding.verdict) == (FindingKind.PAIR, 4, Verdict.TRANSIENT)
    assert finding.majority and finding.second_confirmation is None


def test_persistent_when_the_target_is_wrong_again_even_with_other_bits() -> None:
    contest = Contested(4, 2, results({4: "bad"}), "other bad", "right")
    found = attribute(SIX, [Pair(2, 4)], [contest])
    assert found.findings[0].verdict is Verdict.PERSISTENT
    assert "with other bits" in found.findings[0].evidence
    assert found.contests[0].target_repeats is False


def test_unanswered_second_question_is_not_called_persistent() -> None:
    contest = Contested(4, 2, results({4: "bad"}), None, None)
    found = attribute(SIX, [Pair(2, 4)], [contest])
    assert found.findings[0].verdict is Verdict.TRANSIENT
    assert "could not be asked again" in found.findings[0].evidence
    assert found.contests[0].target_repeats is None


def test_replayer_named_instead_of_its_target() -> None:
    for again, second in (
        ("bad", SecondConfirmation.REPEATS),
        ("other bad", SecondConfirmation.REPEATS),
        ("right", SecondConfirmation.AGREES),
        (None, SecondConfirmation.UNAVAILABLE),
    ):
        contest = Contested(4, 2, results({2: "bad"}), "right", again)
        (finding,) = attribute(SIX, [Pair(2, 4)], [contest]).findings
        assert (finding.rank, finding.verdict) == (2, Verdict.REPLAYER)
        assert finding.second_confirmation is second


def test_two_gpus_detect_and_name_nobody() -> None:
    two = even_map(2, 1)
    pairs = [Pair(0, 1), Pair(1, 0)]
    contests = [Contested(1, 0, {0: "a", 1: "b"}, "b", "a"), Contested(0, 1, {0: "a", 1: "b"}, "a", "b")]
    (finding,) = attribute(two, pairs, contests).findings
    assert (finding.kind, finding.verdict, finding.rank) == (FindingKind.PAIR, Verdict.UNATTRIBUTABLE, None)
    assert finding.involved == two.places


def test_half_of_the_votes_is_no_majority() -> None:
    four = even_map(4, 1)
    contest = Contested(1, 0, {0: "a", 1: "b", 2: "a", 3: "c"}, "b", "a")
    (finding,) = attribute(four, [Pair(0, 1)], [contest]).findings
    assert finding.verdict is Verdict.UNATTRIBUTABLE
    assert attribute(four, [Pair(0, 1)], [contest]).contests[0].majority is None


def test_ranks_that_each_have_a_result_of_their_own_are_software() -> None:
    """Found with code that asks for its rank inside the loss: all nodes of a healthy job were held."""
    for n in (3, 4, 5):
        ranks = even_map(n, 1)
        pairs = [Pair((t + 1) % n, t) for t in range(n)]
        own = {r: f"of {r}" for r in range(n)}
        contests = [Contested(t, (t + 1) % n, own, own[t], own[(t + 1) % n]) for t in range(n)]
        (finding,) = attribute(ranks, pairs, contests).findings
        assert (finding.kind, finding.rank, finding.involved) == (FindingKind.SOFTWARE, None, ranks.places)
        assert "depends on the rank" in finding.evidence and "several GPUs at once" in finding.evidence


def test_where_two_ranks_agree_in_one_contest_or_too_few_answer_it_is_not_called_software() -> None:
    four, three = even_map(4, 1), even_map(3, 1)
    apart, agreed = {0: "a", 1: "b", 2: "c", 3: "d"}, {0: "a", 1: "b", 2: "b", 3: "d"}
    both = [Contested(1, 0, apart, "b", "a"), Contested(2, 1, agreed, "b", "b")]
    (finding,) = attribute(four, [Pair(0, 1), Pair(1, 2)], both).findings
    assert (finding.kind, finding.verdict) == (FindingKind.PAIR, Verdict.UNATTRIBUTABLE)
    (finding,) = attribute(four, [Pair(0, 1)], [Contested(1, 0, agreed, "b", "a")]).findings
    assert finding.verdict is Verdict.UNATTRIBUTABLE  # two healthy ones that agree, beside two wrong ones
    (finding,) = attribute(three, [Pair(0, 1)], [Contested(1, 0, {0: "a", 1: "b"}, "b", "a", (2,))]).findings
    assert finding.verdict is Verdict.UNATTRIBUTABLE


def test_named_rank_explains_its_undecided_pairs() -> None:
    four = even_map(4, 1)
    pairs = [Pair(0, 1), Pair(1, 2)]
    contests = [
        Contested(1, 0, {0: "r", 1: "b", 2: "r", 3: "r"}, "b", "r"),
        Contested(2, 1, {0: "r", 1: "b", 2: "r", 3: "c"}, "r", "b"),
    ]
    (finding,) = attribute(four, pairs, contests).findings
    assert finding.rank == 1


def test_arbiter_outvoted_in_every_contest_is_named_too() -> None:
    contest = Contested(4, 2, results({4: "bad", 1: "odd"}), "bad", "right")
    named = attribute(SIX, [Pair(2, 4)], [contest]).findings
    assert {f.rank: f.verdict for f in named} == {1: Verdict.REPLAYER, 4: Verdict.PERSISTENT}
    again = Contested(5, 3, results({5: "bad", 1: "odd"}), "bad", "right")
    named = attribute(SIX, [Pair(2, 4), Pair(3, 5)], [contest, again]).findings
    assert {f.rank: f.kind for f in named}[1] is FindingKind.CULPRIT


def test_arbiter_outvoted_only_sometimes_is_not_named() -> None:
    contests = [
        Contested(4, 2, results({4: "bad", 1: "odd"}), "bad", "right"),
        Contested(5, 3, results({5: "bad"}), "bad", "right"),
    ]
    named = attribute(SIX, [Pair(2, 4), Pair(3, 5)], contests).findings
    assert {f.rank for f in named} == {4, 5}


def test_an_arbiter_that_lost_one_vote_and_could_not_answer_the_other_question_is_not_named() -> None:
    contests = [
        Contested(4, 2, results({4: "bad", 1: "odd"}), "bad", "right"),
        Contested(5, 3, {r: v for r, v in results({5: "bad"}).items() if r != 1}, "bad", "right", (1,)),
    ]
    named = attribute(SIX, [Pair(2, 4), Pair(3, 5)], contests).findings
    assert {f.rank for f in named} == {4, 5}


def test_too_few_answers_do_not_say_that_no_healthy_peer_got_the_same_nan() -> None:
    """Data NaN on rank 4, a bad replayer, three arbiters without memory: 2 of 6 decide nothing."""
    contest = Contested(4, 2, {4: "nan", 2: "odd", 0: "nan"}, "nan", "odd", (1, 3, 5))
    assert reproduced_by_peers(4, (Pair(2, 4),), [contest]) is None
    assert reproduced_by_peers(4, (), []) is True
    assert reproduced_by_peers(4, (Pair(2, 4),), []) is False


def test_no_arbitration_names_only_the_rank_that_both_pairs_share() -> None:
    (finding,) = attribute(SIX, [Pair(2, 4), Pair(4, 0)], []).findings
    assert (finding.kind, finding.rank, finding.majority) == (FindingKind.CULPRIT, 4, False)
    (finding,) = attribute(SIX, [Pair(2, 4)], []).findings
    assert finding.verdict is Verdict.UNATTRIBUTABLE
    chain = attribute(SIX, [Pair(0, 2), Pair(2, 4), Pair(4, 1)], []).findings
    assert all(f.rank is None for f in chain)
    beside = attribute(SIX, [Pair(2, 4), Pair(4, 0), Pair(3, 5)], []).findings
    assert all(f.rank is None for f in beside), "a second fault is about: no neighbour can be trusted"


def test_camp_of_a_whole_node_is_software() -> None:
    pairs = [Pair(2, 4), Pair(3, 5), Pair(4, 0), Pair(5, 1)]
    odd = {4: "camp", 5: "camp"}
    contests = [Contested(t, r, results(odd), None, None) for r, t in ((2, 4), (3, 5), (4, 0), (5, 1))]
    (finding,) = attribute(SIX, pairs, contests).findings
    assert (finding.kind, finding.rank) == (FindingKind.SOFTWARE, None)
    assert finding.involved == SIX.places[4:]


def test_two_nodes_against_each_other_are_software() -> None:
    four = even_map(4, 2)
    contest = Contested(2, 0, {0: "a", 1: "a", 2: "b", 3: "b"}, "b", "a")
    assert attribute(four, [Pair(0, 2)], [contest]).findings[0].kind is FindingKind.SOFTWARE


def test_agreeing_node_against_two_that_disagree_is_not_software() -> None:
    four = even_map(4, 2)
    contest = Contested(2, 0, {0: "a", 1: "a", 2: "b", 3: "c"}, "b", "a")
    (finding,) = attribute(four, [Pair(0, 2)], [contest]).findings
    assert finding.verdict is Verdict.UNATTRIBUTABLE


def test_camp_needs_all_gpus_of_all_its_nodes() -> None:
    eight = even_map(8, 2)
    contest = Contested(2, 4, results({0: "odd", 1: "odd", 2: "odd"}, 8), "odd", "right")
    named = attribute(eight, [Pair(4, 2)], [contest]).findings
    assert [f.rank for f in named] == [0, 1, 2]


def test_gpu_alone_against_its_node_mates_is_hardware() -> None:
    for layout in ([0, 0, 1, 1, 2, 2], [0, 0, 0, 0, 0, 1], [0, 1, 2, 3, 4, 5]):
        contest = Contested(4, 2, results({4: "bad"}), "bad", "right")
        assert attribute(rank_map(layout), [Pair(2, 4)], [contest]).findings[0].rank == 4


def test_two_mates_with_different_wrong_bits_are_two_suspects() -> None:
    contests = [
        Contested(4, 2, results({4: "bad 4", 5: "bad 5"}), "bad 4", "right"),
        Contested(5, 3, results({4: "bad 4", 5: "bad 5"}), "bad 5", "right"),
    ]
    named = attribute(SIX, [Pair(2, 4), Pair(3, 5)], contests).findings
    assert {f.rank: f.kind for f in named} == {4: FindingKind.CULPRIT, 5: FindingKind.CULPRIT}


def test_more_than_eight_contested_is_software() -> None:
    many = even_map(24, 8)
    pairs = [Pair(r, (r + 8) % 24) for r in range(MAX_CONTESTED + 1)]
    assert contested_targets(pairs) is None
    (finding,) = attribute(many, pairs, []).findings
    assert (finding.kind, finding.rank) == (FindingKind.SOFTWARE, None)
    assert len(finding.involved) <= 16
    assert contested_targets(pairs[:-1]) == tuple(range(8, 16))


def test_nonfinite_rank_with_a_mismatch_takes_its_pair() -> None:
    contest = Contested(4, 2, results({4: "nan"}), "right", "right")
    (finding,) = attribute(SIX, [Pair(2, 4)], [contest], nonfinite=[4], reproduced={4: False}).findings
    assert (finding.kind, finding.rank, finding.verdict) == (FindingKind.PAIR, 4, Verdict.TRANSIENT)


def test_nonfinite_reproduced_by_peers_peers_names_nobody() -> None:
    (finding,) = attribute(SIX, [], [], nonfinite=[4], reproduced={4: True}).findings
    assert (finding.kind, finding.rank, finding.reproduced) == (FindingKind.NONFINITE, None, True)
    assert finding.involved == (SIX.places[4],)


def test_nonfinite_not_reproduced_and_without_a_pair_is_named() -> None:
    for reproduced in ({4: False}, {}):
        (finding,) = attribute(SIX, [], [], nonfinite=[4], reproduced=reproduced).findings
        assert (finding.kind, finding.rank) == (FindingKind.NONFINITE, 4)
        assert finding.reproduced is reproduced.get(4)


def test_nonfinite_data_beside_a_bad_replayer() -> None:
    contest = Contested(4, 2, results({2: "bad"}), "right", "bad")
    found = attribute(SIX, [Pair(2, 4)], [contest], nonfinite=[4], reproduced={4: True}).findings
    assert [(f.kind, f.rank) for f in found] == [(FindingKind.PAIR, 2), (FindingKind.NONFINITE, None)]


def test_a_gpu_alone_on_its_node_is_not_named_before_anything_has_passed() -> None:
    one_each, two_each = rank_map([0, 1, 2]), rank_map([0, 0, 1, 1, 2, 2])
    for ranks, named in ((one_each, None), (two_each, 1)):
        accused = Finding(FindingKind.CULPRIT, rank=1, place=ranks.places[1], majority=True, evidence="why")
        (finding,) = ambiguous_at_start(ranks, (accused,))
        assert finding.rank == named
        assert finding.evidence.startswith("why")
        if named is None:
            assert (finding.verdict, [p.rank for p in finding.involved]) == (Verdict.UNATTRIBUTABLE, [1])


def test_camps_are_judged_among_those_who_were_asked() -> None:
    ranks = rank_map([node for node in range(8) for _ in range(4)])
    results = {0: "x", 1: "x", 4: "a", 8: "a", 12: "a", 16: "a", 20: "a", 24: "a", 5: "a"}
    found = attribute(ranks, [Pair(4, 0)], [Contested(0, 4, results)])
    assert [f.kind for f in found.findings] == [FindingKind.SOFTWARE]
    alone = attribute(ranks, [Pair(4, 0)], [Contested(0, 4, results | {1: "a"})])
    assert alone.findings[0].rank == 0


def test_a_compiled_model_that_every_replay_differs_from_accuses_nobody() -> None:
    """torch.compile around DDP: all originals differ from all (eager) replays, and repeat so."""
    pairs = [Pair((t + 2) % 6, t) for t in range(6)]
    contests = [Contested(t, (t + 2) % 6, results({t: "compiled"}), "right", "right") for t in range(6)]
    (finding,) = attribute(SIX, pairs, contests).findings
    assert (finding.kind, finding.rank) == (FindingKind.SOFTWARE, None)
    assert "compiled model" in finding.evidence
