"""What a job comes back on: checkpoints that several ranks write, in folders that all nodes share."""

from __future__ import annotations

from pathlib import Path

from tests.distributed.conftest import launch


def test_ranks_save_together_and_node_local_folders_are_refused(tmp_path: Path) -> None:
    ended = launch("tests.distributed.coming_back_job", 2, str(tmp_path))
    for rank, (code, out) in enumerate(ended):
        assert code == 0, out
        assert f"loaded [0.0, 1.0, 2.0, 3.0] [{float(rank)}, {float(rank)}]" in out
        assert "refused The checkpoint was not completed; rank 1: OSError: no space left" in out
        assert "newest 10" in out
        assert "unshared node hyperpod-i-00000000000000001 does not see what rank 0 wrote" in out
        assert "FSx for Lustre" in out and "SDC_ALLOW_NODE_LOCAL=1" in out
        assert "left over []" in out
    assert "SDC_ALLOW_NODE_LOCAL is set, so the job starts" in ended[0][1]
