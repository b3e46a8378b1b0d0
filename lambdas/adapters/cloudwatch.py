"""CloudWatch numbers: ours, for alarms; the jobs' own, to see who is silent and whose metric fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from training_agent.contract import METRIC_NAMESPACE, Metric

from .aws import client, translated

PER_CALL = 500  # queries of one GetMetricData
Query = dict[str, object]


class CloudWatch:
    """Implements `ports.Numbers` for one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def put(self, numbers: Mapping[str, float]) -> None:
        mine = [{"Name": "Cluster", "Value": self._cluster}]
        data = [{"MetricName": n, "Dimensions": mine, "Value": float(v)} for n, v in numbers.items()]
        with translated("PutMetricData"):
            client("cloudwatch").put_metric_data(Namespace=METRIC_NAMESPACE, MetricData=data)

    def above_zero(self, metrics: Sequence[Metric], since: datetime, until: datetime) -> frozenset[Metric]:
        found = self._newest([_query(i, m, self._cluster) for i, m in enumerate(metrics)], since, until)
        return frozenset(metrics[i] for i in found)

    def jobs_with(
        self, metric: Metric, jobs: Sequence[str], since: datetime, until: datetime
    ) -> dict[str, datetime]:
        queries = [_query(i, metric, self._cluster, job) for i, job in enumerate(jobs)]
        return {jobs[i]: at for i, at in self._newest(queries, since, until).items()}

    def _newest(self, queries: Sequence[Query], since: datetime, until: datetime) -> dict[int, datetime]:
        """When each query last gave more than zero; those that never did are left out."""
        found: dict[int, datetime] = {}
        for start in range(0, len(queries), PER_CALL):
            page: dict[str, str] = {}
            while True:
                with translated("GetMetricData"):
                    answer = client("cloudwatch").get_metric_data(
                        MetricDataQueries=queries[start : start + PER_CALL],
                        StartTime=since,
                        EndTime=until,
                        **page,
                    )
                for result in answer["MetricDataResults"]:
                    which = int(result["Id"][1:])
                    for at, value in zip(result["Timestamps"], result["Values"], strict=True):
                        if value > 0:
                            found[which] = max(at, found.get(which, at))
                if not answer.get("NextToken"):
                    break
                page = {"NextToken": answer["NextToken"]}
        return found


def _query(number: int, metric: Metric, cluster: str, job: str = "") -> Query:
    """One metric a minute, of the cluster or of one job in it."""
    names = {"Cluster": cluster} | ({"Job": job} if job else {})
    dimensions = [{"Name": name, "Value": value} for name, value in names.items()]
    one = {"Namespace": METRIC_NAMESPACE, "MetricName": metric.value, "Dimensions": dimensions}
    return {
        "Id": f"q{number}",
        "MetricStat": {"Metric": one, "Period": 60, "Stat": "Sum"},
        "ReturnData": True,
    }
