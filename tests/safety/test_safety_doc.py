"""docs/safety.md names tests that exist, and the same guarantees as the table of mutants."""

from __future__ import annotations

import ast
import re

import pytest

from infra.bundling import ROOT
from tests.mutants.run import Mutant, mutants, stale

DOC = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")
NODE_IDS = sorted(set(re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)(?:\[\w+\])?`", DOC)))


@pytest.mark.parametrize("node_id", NODE_IDS)
def test_each_test_that_is_named_exists(node_id: str) -> None:
    path, _, name = node_id.partition("::")
    assert (ROOT / path).is_file()
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not name or name in defined


def test_the_guarantees_are_those_of_the_mutants() -> None:
    listed = re.findall(r"^\| (G\d+ [^|]+?) \| `([^`]+)` \|", DOC, re.M)
    assert listed == [(m.guarantee, m.test) for m in mutants() if m.guarantee.startswith("G")]


@pytest.mark.parametrize("mutant", mutants(), ids=lambda m: m.guarantee.split()[0])
def test_each_guard_still_stands_where_the_mutants_look_for_it(mutant: Mutant) -> None:
    assert stale(mutant) == ""
