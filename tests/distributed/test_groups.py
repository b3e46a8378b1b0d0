"""DDP over a part of the ranks: ranks, nodes and votes are those of the whole job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.conftest import launch
from training_agent.contract import Alarm, Check, decode
from training_agent.quarantine import read_record

pytestmark = pytest.mark.timeout(300)
RANKS = 6


def test_two_groups_in_one_job_name_the_rank_of_the_job_and_leave_each_other_alone(tmp_path: Path) -> None:
    ended = launch("tests.distributed.groups_worker", RANKS, str(tmp_path))
    assert [code for code, _ in ended] == [0] * RANKS, "\n".join(text[-1500:] for _, text in ended)
    first, second = (
        [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in ranks]
        for ranks in (range(3), range(3, RANKS))
    )
    assert [(r["alarm"], r["step"], r["audits"]) for r in first] == [(None, 6, 3)] * 3  # it trains on
    assert all("one group of all ranks" in r["refused"] for r in first + second)  # by sdc bisect
    assert len({r["alarm"] for r in second}) == 1
    assert json.loads(second[0]["alarm"])["group"].startswith("3 ranks from 3 on")  # part of the delivery key
    alarm = decode(Alarm, second[0]["alarm"])
    assert (alarm.check, alarm.step, alarm.named_ranks, alarm.world_size) == (Check.REPLAY, 4, (4,), 3)
    (finding,) = alarm.findings
    assert finding.place is not None and finding.place.node == f"hyperpod-i-{2:017x}"
    assert "rank 4" in finding.evidence
    assert len(alarm.pairs) == 2
    assert {r for p in alarm.pairs for r in (p.replayer, p.target)} <= {3, 4, 5}
    assert [v.rank for v in alarm.contests[0].votes] == [3, 4, 5]
    assert [r["step"] for r in second] == [3] * 3  # step 4 was not applied
    # What rank 0 does for the job, the lowest rank does for its group, and a rank of another node sends too.
    (entry,) = read_record(tmp_path / "shared").entries
    assert entry.gpu_uuid == "GPU-2-0"
    assert [r["measured"] for r in first + second] == [True, False, False, True, False, False]
    assert ["SDC Alarm" in r["sent"] for r in first + second] == [False, False, False, True, True, False]
