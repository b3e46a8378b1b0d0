"""CloudWatch numbers: ours, for alarms; the jobs' own, to see who is silent and whose metric fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from training_agent.contract import METRIC_NAMESPACE, Metric

from .aws import client, translated

PER_CALL = 500  # queries of one GetMetricData


class CloudWatch:
    """Implements `ports.Numbers` for one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def put(self, numbers: Mapping[str, float]) -> None:
        mine = [{"Name": "Cluster", "Value": self._cluster}]
        data = [{"MetricName": n, "Dimensions": mine, "Value": float(v)} for n, v in numbers.items()]
        with translated("PutMetricData"):
            client("cloudwatch").put_metric_data(Namespace=METRIC_NAMESPACE, MetricData=data)

    def jobs_with(
        self, metric: Metric, jobs: Sequence[str], since: datetime, until: datetime
    ) -> frozenset[str]:
        found: set[str] = set()
        for start in range(0, len(jobs), PER_CALL):
            some = jobs[start : start + PER_CALL]
            queries = [self._query(f"j{i}", metric, job) for i, job in enumerate(some)]
            page: dict[str, str] = {}
            while True:
                with translated("GetMetricData"):
                    answer = client("cloudwatch").get_metric_data(
                        MetricDataQueries=queries, StartTime=since, EndTime=until, **page
                    )
                results = answer["MetricDataResults"]
                found |= {some[int(r["Id"][1:])] for r in results if any(v > 0 for v in r["Values"])}
                if not answer.get("NextToken"):
                    break
                page = {"NextToken": answer["NextToken"]}
        return frozenset(found)

    def _query(self, name: str, metric: Metric, job: str) -> dict[str, object]:
        dimensions = [{"Name": "Cluster", "Value": self._cluster}, {"Name": "Job", "Value": job}]
        one = {"Namespace": METRIC_NAMESPACE, "MetricName": metric.value, "Dimensions": dimensions}
        return {"Id": name, "MetricStat": {"Metric": one, "Period": 60, "Stat": "Sum"}, "ReturnData": True}
