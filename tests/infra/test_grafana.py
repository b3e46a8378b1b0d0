"""The Grafana dashboard: importable, of names that exist, current."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema

from infra import dashboard as cloudwatch
from infra.grafana import COLUMNS, FILE, dashboard, text
from lambdas.domain.telemetry import Measure
from training_agent.contract import Metric
from training_agent.contract.prometheus import prometheus_name

SCHEMA = json.loads((Path(__file__).parent / "grafana_schema.json").read_text())
GRAPHS = [p for p in dashboard()["panels"] if p["type"] == "timeseries"]


def test_the_file_is_current() -> None:
    assert FILE.read_text() == text(), "run python -m infra.grafana"


def test_it_is_a_dashboard_that_grafana_imports() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(FILE.read_text()), SCHEMA)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= COLUMNS
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_queries_name_metrics_that_the_agent_or_dcgm_has_and_all_of_the_agents() -> None:
    known = {prometheus_name(m) for m in Metric} | {m.value for m in Measure}
    used = {n for p in GRAPHS for t in p["targets"] for n in re.findall(r"\b(?:sdc|DCGM)_\w+", t["expr"])}
    used -= {"sdc_job"}  # a label
    assert used <= known
    assert {prometheus_name(m) for m in Metric} <= used


def test_every_query_has_balanced_parentheses_and_is_of_the_chosen_jobs() -> None:
    for panel in GRAPHS:
        for target in panel["targets"]:
            query = target["expr"]
            assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
            assert "DCGM" in query or 'cluster=~"$cluster",sdc_job=~"$job"' in query


def test_it_shows_what_the_cloudwatch_dashboard_shows_of_a_job() -> None:
    shown = " ".join(t["expr"] for p in GRAPHS for t in p["targets"])
    assert [m.value for _, m, _ in cloudwatch.PER_JOB if prometheus_name(m) not in shown] == []


def test_the_runbook_says_of_every_graph_what_to_look_for() -> None:
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
    table = text.split("## What to look for on the dashboards")[1].split("\n## ")[0]
    first = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| "))
    titles = [t for t, *_ in (*cloudwatch.PER_JOB, *cloudwatch.OF_ALL_INCIDENTS)]
    titles += [p["title"] for p in GRAPHS]
    assert [t for t in titles if t not in first] == []
