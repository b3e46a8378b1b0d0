"""An execution's history as a story."""

from __future__ import annotations

from datetime import timedelta

from training_agent.cli.reading import chapters
from training_agent.cli.story import tell

from .histories import START, entered, exited

POLLS = [
    entered(0, "locate"),
    exited(1, "locate", "ranks 3 are on hyperpod-i-1"),
    entered(1, "after locate", "ChoiceStateEntered"),
    exited(1, "after locate", kind="ChoiceStateExited"),
    entered(1, "confirm"),
    exited(2, "confirm", "the check runs"),
    entered(2, "wait for confirm", "WaitStateEntered"),
    exited(62, "wait for confirm", kind="WaitStateExited"),
    entered(62, "confirm"),
    exited(63, "confirm", "the deep health check passed"),
    entered(63, "request_approval"),
]


def test_polls_of_one_step_are_one_line_with_all_their_time() -> None:
    story = tell(POLLS)
    now = START + timedelta(seconds=90)
    assert [c.step for c in story] == ["locate", "confirm", "request_approval"]
    assert [c.seconds(now) for c in story] == [1, 62, 27]
    assert (story[1].visits, story[1].text) == (2, "the deep health check passed")
    assert story[2].ended is None


def test_the_lines_say_since_when_how_long_and_what_came_of_it() -> None:
    assert chapters(tell(POLLS), START + timedelta(seconds=90)) == [
        "      0.0 s  locate                  1.0 s  ranks 3 are on hyperpod-i-1",
        "      1.0 s  confirm            1 min 02 s  the deep health check passed (2 looks)",
        " 1 min 03 s  request_approval       27.0 s  so far; under way",
    ]


def test_a_step_that_failed_and_an_execution_that_was_stopped_say_so() -> None:
    at = START + timedelta(seconds=9)
    failed = {
        "type": "ExecutionFailed",
        "timestamp": at,
        "executionFailedEventDetails": {"error": "States.Runtime", "cause": "no such path"},
    }
    story = tell([entered(0, "decide"), entered(3, "resume"), failed])
    assert story[0].text == "did not end by itself" and story[0].ended is not None
    assert story[-1].text == "ExecutionFailed: States.Runtime no such path"


def test_a_step_that_is_come_back_to_has_a_chapter_of_its_own() -> None:
    steps = ["contain", "decide", "contain", "decide"]
    story = tell([e for n, s in enumerate(steps) for e in (entered(n, s), exited(n + 0.5, s, s))])
    assert [c.step for c in story] == steps
