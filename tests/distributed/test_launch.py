"""The launcher of these tests: a rank that hangs is one clear failure."""

from __future__ import annotations

import pytest

from tests.distributed.conftest import launch


def test_a_launch_that_hangs_fails_with_the_ranks_and_their_last_words() -> None:
    with pytest.raises(pytest.fail.Exception) as failed:
        launch("tests.distributed.hanging_job", 2, timeout=3)
    text = str(failed.value)
    assert text.startswith("tests.distributed.hanging_job: ranks [1] had not ended after 3 s")
    assert "rank 1, last output --\nI hang" in text
