"""The demo refuses what it cannot run, with a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.demo.settings import MARKER, DemoSettings
from training_agent.errors import ConfigurationError


def test_defaults_are_the_documented_ones() -> None:
    s = DemoSettings.from_env({})
    assert (s.nodes, s.gpus, s.fault, s.deep_check, s.interactive) == (3, 2, "forward-x1000", "pass", False)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"NODES": "2"}, "Set NODES=3 or more"),
        ({"GPUS": "0"}, "Set GPUS=1 or more"),
        ({"FAULT_RANK": "6"}, "ranks 0 to 5"),
        ({"FAULT_RANK": "-1"}, "ranks 0 to 5"),
        ({"NODES": "three"}, "not a whole number"),
        ({"DEEP_CHECK": "maybe"}, "pass, fail, stuck"),
    ],
)
def test_bad_input_is_refused_with_cause_and_remedy(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        DemoSettings.from_env(environ)


def test_the_default_rank_exists_in_the_smallest_layout() -> None:
    assert DemoSettings.from_env({"NODES": "3", "GPUS": "1"}).fault_rank == 2


def test_empty_variables_are_the_defaults() -> None:
    s = DemoSettings.from_env({"FAULT": "", "OUT": "", "DEEP_CHECK": ""})
    assert (s.fault, s.out.name, s.deep_check) == ("forward-x1000", "demo-out", "pass")


def test_a_folder_that_the_demo_did_not_make_is_never_emptied(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(ConfigurationError, match="would be deleted"):
        DemoSettings.from_env({"OUT": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="would be deleted"):
        DemoSettings.from_env({"OUT": "."})
    (tmp_path / MARKER).touch()
    assert DemoSettings.from_env({"OUT": str(tmp_path)}).out == tmp_path
