"""The Lambda entry points of the pipeline: one small function per step, wiring only.

In: SQS batches (`register`, `ingest`) or `{"incident_id": ...}` from the state machine. Out: what
`lambdas.steps` answers. The functions stand in the order of the flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import steps, wiring
from .domain.errors import NoApproverError, PermanentError, PipelineError
from .observability import MetricUnit, logger, measure, metrics
from .steps import release
from .steps.outcome import Recorder, StepResult, to_human

Event = dict[str, Any]


@logger.inject_lambda_context
def register(event: Event, context: Any) -> Event:
    """Job start: verify and store who runs where."""
    needs = wiring.needs("register", steps.register.Needs)
    return _batch(
        event, lambda body: logger.info("registration", extra={"result": steps.register.run(needs, body)})
    )


@logger.inject_lambda_context
@metrics.log_metrics
def ingest(event: Event, context: Any) -> Event:
    """Alarm: validate, drop duplicates, open incidents, start executions."""
    needs = wiring.needs("ingest", steps.ingest.Needs)
    metrics.set_default_dimensions(Cluster=needs.settings.cluster_name)

    def take(body: str) -> None:
        result = steps.ingest.run(needs, body)
        metrics.add_metric("AlarmsRejected", MetricUnit.Count, 1 if result.rejected else 0)
        metrics.add_metric("IncidentsOpened", MetricUnit.Count, len(result.opened))
        logger.info(
            "alarm",
            extra={"opened": result.opened, "appended": result.appended, "rejected": result.rejected[:200]},
        )

    metrics.add_metric("AlarmsReceived", MetricUnit.Count, len(event.get("Records", [])))
    return _batch(event, take)


@logger.inject_lambda_context
def locate(event: Event, context: Any) -> Event:
    """Ranks -> node -> instance -> GPU, and the gate."""
    needs = wiring.needs("locate", steps.locate.Needs)
    return _step(needs, event, lambda: steps.locate.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def contain(event: Event, context: Any) -> Event:
    """Hold, cordon, evict, as the decision row says."""
    needs = wiring.needs("contain", steps.contain.Needs)
    return _step(needs, event, lambda: steps.contain.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def decide(event: Event, context: Any) -> Event:
    """The decision table, with what is known by now."""
    needs = wiring.needs("decide", steps.decide.Needs)
    return _step(needs, event, lambda: steps.decide.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def confirm(event: Event, context: Any) -> Event:
    """History, the agent's second confirmation, the deep health check."""
    needs = wiring.needs("confirm", steps.confirm.Needs)
    return _step(needs, event, lambda: steps.confirm.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def request_approval(event: Event, context: Any) -> Event:
    """The mail with the link; also the notice to a human and the timeout branch."""
    needs = wiring.needs("request_approval", steps.request_approval.Needs)
    return _step(needs, event, lambda: steps.request_approval.run(needs, event["incident_id"], event))


@logger.inject_lambda_context
def replace(event: Event, context: Any) -> Event:
    """One node, one call, after an approval."""
    needs = wiring.needs("replace", steps.replace.Needs)
    return _step(needs, event, lambda: steps.replace.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def verify(event: Event, context: Any) -> Event:
    """Old id gone, a new one Running."""
    needs = wiring.needs("verify", steps.verify.Needs)
    return _step(needs, event, lambda: steps.verify.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def resume(event: Event, context: Any) -> Event:
    """Release what is ours and exonerated, see the job back, close; or release by hand what has ended."""
    needs = wiring.needs("resume", steps.resume.Needs)
    if "release" in event:
        return _step(needs, event, lambda: release.run(needs, event["incident_id"], event["release"]))
    return _step(needs, event, lambda: steps.resume.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def replace_by_label(event: Event, context: Any) -> Event:
    """The same by HyperPod's label, where the operator chose so."""
    needs = wiring.needs("replace_by_label", steps.replace_by_label.Needs)
    return _step(needs, event, lambda: steps.replace_by_label.run(needs, event["incident_id"]))


@logger.inject_lambda_context
def reconcile(event: Event, context: Any) -> Event:
    """Every five minutes: what is stuck, silent or lost; or events of the default bus."""
    needs = wiring.needs("reconcile", steps.reconcile.Needs)
    if "Records" in event:
        return _batch(
            event,
            lambda body: logger.info("heard", extra={"result": steps.cluster_events.hear(needs, body)}),
        )
    numbers = steps.reconcile.run(needs)
    logger.info("reconciled", extra={"numbers": numbers})
    return dict(numbers)


@logger.inject_lambda_context
def drill(event: Event, context: Any) -> Event:
    """A synthetic alarm that walks the whole path and can never replace."""
    job_uid = steps.drill.run(wiring.needs("drill", steps.drill.Needs))
    logger.info("fire drill", extra={"job_uid": job_uid})
    return {"job_uid": job_uid}


def _step(needs: Recorder, event: Event, run: Callable[[], StepResult]) -> Event:
    """Run a step; what calling again cannot help becomes the outcome "human", with the reason kept.

    A task that waits for its token cannot answer, so there the error has to stand for itself.
    """
    incident_id = str(event["incident_id"])
    try:
        result = run()
    except PermanentError as e:
        result = to_human(needs, incident_id, e)
        if "task_token" in event or "notice" in event:  # nobody is left to tell: the state machine fails
            logger.error("cannot ask", extra={"incident_id": incident_id, "reason": str(e)})
            raise e if isinstance(e, NoApproverError) else PermanentError(str(e)) from None
    if result.took is not None:
        measure(result.took.name, result.took.seconds, result.took.cluster)
    logger.info("step", extra={"incident_id": incident_id, "outcome": result.outcome, "story": result.story})
    return result.plain(incident_id)


def _batch(event: Event, take: Callable[[str], None]) -> Event:
    """One SQS batch; a message that failed comes again, and at last goes to the dead-letter queue."""
    failed = []
    for message in event.get("Records", []):
        try:
            take(str(message["body"]))
        except PipelineError as e:
            logger.warning(
                "delivered again later", extra={"message_id": message["messageId"], "reason": str(e)}
            )
            failed.append({"itemIdentifier": message["messageId"]})
    return {"batchItemFailures": failed}
