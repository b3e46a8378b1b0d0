"""The launcher of these tests: forked ranks end as interpreters do, and a rank that hangs is one failure."""

from __future__ import annotations

import signal

import pytest

from tests.distributed.conftest import launch


def test_a_launch_that_hangs_fails_with_the_ranks_and_their_last_words() -> None:
    for seconds in (2, 8, 32, 128):  # rank 0 ends by itself, as late as a busy machine lets it
        with pytest.raises(pytest.fail.Exception) as failed:
            launch("tests.distributed.hanging_job", 2, timeout=seconds)
        text = str(failed.value)
        if "ranks [1] had" in text:
            break
    assert text.startswith(f"tests.distributed.hanging_job: ranks [1] had not ended after {seconds} s")
    assert "rank 1, last output --\nI hang" in text


FRESH = {"PYTHONWARNINGS": "error"}  # a variable that an interpreter reads when it starts


@pytest.mark.parametrize("env", [{}, FRESH], ids=["forked", "fresh"])
@pytest.mark.parametrize(
    ("how", "code", "last"),
    [
        ("well", 0, "handler ran"),
        ("code", 3, "handler ran"),
        ("error", 1, "handler ran"),
        ("hook", 7, "random"),
        ("killed", -signal.SIGKILL, "random"),
    ],
)
def test_a_rank_ends_as_its_own_interpreter_would(
    how: str, code: int, last: str, env: dict[str, str]
) -> None:
    ended = launch("tests.distributed.ends_job", 2, how, SAID="something", **env)
    assert [c for c, _ in ended] == [code, code]
    lines = [out.splitlines() for _, out in ended]
    for rank, text in enumerate(lines):
        assert text[0].startswith(f"__main__ ['{how}'] {rank} something hash ")
        assert text[-1].startswith(last)
        assert ("RuntimeError: my own end" in text) is (how == "error")
    assert lines[0][0].split()[-1] != lines[1][0].split()[-1], "the same string hashes alike in both ranks"
    assert lines[0][1] != lines[1][1], "both ranks draw the same random numbers"
