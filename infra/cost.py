"""Cost of the pipeline as a computation: `python -m infra.cost` prints the table of docs/operate.md.

In: how often things happen (`Use`), what they cost (`Prices`, US dollars). Out: dollars a month at rest, and
dollars for each incident. Nothing here is read from AWS: change the inputs to yours.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

OPERATE = Path(__file__).resolve().parent.parent / "docs" / "operate.md"
BEGIN, END = "<!-- cost -->\n", "<!-- /cost -->"
MINUTES_A_MONTH = 30 * 24 * 60
HOURS_A_MONTH = MINUTES_A_MONTH / 60


@dataclass(frozen=True, slots=True)
class Prices:
    """List prices in US dollars."""

    kms_key_month: float = 1.0
    alarm_month: float = 0.10
    dashboard_month: float = 3.0
    custom_metric_month: float = 0.30  # each metric with each dimension set
    put_metric_data: float = 0.01 / 1000
    metric_read: float = 0.01 / 1000  # by GetMetricData
    lambda_gb_second: float = 0.0000133334  # arm64
    lambda_request: float = 0.20 / 1e6
    state_transition: float = 0.025 / 1000
    event: float = 1.0 / 1e6
    write_unit: float = 0.625 / 1e6
    read_unit: float = 0.125 / 1e6
    sqs_request: float = 0.40 / 1e6
    kms_request: float = 0.03 / 10_000
    log_gb: float = 0.50
    mail: float = 2.0 / 100_000


@dataclass(frozen=True, slots=True)
class Use:
    """What happens; the first group is this stack's own."""

    alarms: int = 23
    metrics_of_the_pipeline: int = 12  # of a quiet reconciler
    metrics_of_a_job: int = 26  # thirteen metrics, each with {Cluster} and with {Cluster, Job}
    memory_gb: float = 0.5
    reconcile_seconds: float = 3.0
    metrics_read: int = 4  # at each of its looks, and one for each job
    jobs: int = 2  # guarded at the same time
    puts_a_minute_and_job: float = 1.0
    nodes: int = 32  # registrations at a job's start
    job_starts_a_month: int = 20
    transitions: int = 60  # of one incident that waits, verifies and resumes
    step_seconds: float = 2.0
    rows_written: int = 80
    rows_read: int = 200
    approvers: int = 3
    metrics_of_an_incident: int = 17  # that are put only then: its states, its end, durations, arrivals
    hours_open: float = 4.0


def at_rest(use: Use, price: Prices) -> dict[str, float]:
    """Dollars a month without an incident."""
    reconciles = MINUTES_A_MONTH / 5
    registrations = use.nodes * use.job_starts_a_month
    polls = 3 * 3600 * 24 * 30 / 20 * 5  # three queues, long polls of 20 s, five pollers each
    return {
        "KMS key": price.kms_key_month,
        "alarms": use.alarms * price.alarm_month,
        "dashboard": price.dashboard_month,
        "metrics": (use.metrics_of_the_pipeline + use.jobs * use.metrics_of_a_job)
        * price.custom_metric_month,
        "PutMetricData of the jobs": use.jobs
        * use.puts_a_minute_and_job
        * MINUTES_A_MONTH
        * price.put_metric_data,
        "reconciler": reconciles
        * (use.reconcile_seconds * use.memory_gb * price.lambda_gb_second + price.lambda_request),
        "GetMetricData of the reconciler": reconciles * (use.metrics_read + use.jobs) * price.metric_read,
        "empty receives of the queues": polls * price.sqs_request,
        "registrations": registrations * (price.event + 4 * price.write_unit + price.lambda_request),
    }


def of_an_incident(use: Use, price: Prices) -> dict[str, float]:
    """Dollars for one incident; the node that is replaced is not in it."""
    return {
        "state transitions": use.transitions * price.state_transition,
        "functions": use.transitions
        * (use.step_seconds * use.memory_gb * price.lambda_gb_second + price.lambda_request),
        "rows": use.rows_written * price.write_unit + use.rows_read * price.read_unit,
        "key": (use.rows_written + use.rows_read) * price.kms_request,
        "metrics": use.metrics_of_an_incident * use.hours_open / HOURS_A_MONTH * price.custom_metric_month,
        "mails": use.approvers * 2 * price.mail,
        "logs": 1e-3 * price.log_gb,
    }


def table(use: Use | None = None, price: Prices | None = None) -> str:
    """Both as Markdown, each line with its own number, the inputs below."""
    use, price = use or Use(), price or Prices()
    lines = ["| what | US dollars |", "|---|---|"]
    for title, parts in (
        ("a month at rest", at_rest(use, price)),
        ("an incident", of_an_incident(use, price)),
    ):
        lines += [f"| {name} | {dollars:.4f} |" for name, dollars in parts.items()]
        lines.append(f"| **{title}** | **{sum(parts.values()):.3f}** |")
    inputs = ", ".join(f"{name} {getattr(use, name):g}" for name in Use.__slots__)
    return "\n".join([*lines, "", f"Inputs: {inputs}."]) + "\n"


def rendered(text: str) -> str:
    """docs/operate.md with the current table."""
    before, rest = text.split(BEGIN, 1)
    return before + BEGIN + table() + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    OPERATE.write_text(rendered(OPERATE.read_text()))
    sys.stdout.write(table())
