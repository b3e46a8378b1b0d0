"""The Kubernetes Job that replays an alarm's capsule on the cordoned node, ready but for words in CAPITALS.

In: a question or an incident, and its alarm. Out: lines for a shell. Pinned by `nodeName`, so that the cordon
stays as it is; the Job's receipt comes back as a "SDC Targeted Audit Result". Used by `mails` and the page.
"""

from __future__ import annotations

import json
import re

from training_agent.contract import Alarm, CapsuleRef, Place

from .messages import one_line

REPEATS = 20
DEADLINE_SECONDS = 3600
_INCIDENT = re.compile(r"[0-9a-f]{16}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def capsule_for(alarm: Alarm, ranks: tuple[int, ...]) -> CapsuleRef | None:
    """The capsule of an accused rank's own micro-batch, else the first; None without any.

    A path that `sdc replay` would read as an option is none.
    """
    sound = [c for c in alarm.capsules if _SHA256.fullmatch(c.sha256) and not c.path.startswith("-")]
    return next((c for c in sound if c.rank in ranks), sound[0] if sound else None)


def replay_job(incident_id: str, node: str, ranks: tuple[int, ...], alarm: Alarm | None) -> tuple[str, ...]:
    """`kubectl apply` with the manifest; empty where there is no node or no capsule."""
    capsule = None if alarm is None else capsule_for(alarm, ranks)
    if alarm is None or capsule is None or not node or _INCIDENT.fullmatch(incident_id) is None:
        return ()
    arguments = [capsule.path, "--model", "MODULE:FUNCTION", "--repeat", str(REPEATS)]
    arguments += ["--incident", incident_id, "--publish"]
    gpu = _gpu(alarm, node, ranks)
    return (
        "kubectl apply -f - <<'MANIFEST'",
        "apiVersion: batch/v1",
        "kind: Job",
        f"metadata: {{name: sdc-replay-{incident_id}, namespace: {_quoted(alarm.job.namespace)}}}",
        "spec:",
        "  backoffLimit: 0",
        f"  activeDeadlineSeconds: {DEADLINE_SECONDS}",
        "  template:",
        "    spec:",
        f"      nodeName: {_quoted(node)}",
        "      restartPolicy: Never",
        "      serviceAccountName: SERVICE-ACCOUNT",
        "      tolerations: [{operator: Exists}]",
        "      containers:",
        "        - name: replay",
        "          image: IMAGE",
        "          command: [sdc, replay]",
        f"          args: [{', '.join(_quoted(a) for a in arguments)}]",
        "          env:",
        "            - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}",
        f"            - {{name: SDC_CLUSTER, value: {_quoted(alarm.cluster)}}}",
        "            - {name: SDC_EVENT_BUS, value: EVENT-BUS-NAME}",
        *([f"            - {{name: CUDA_VISIBLE_DEVICES, value: {_quoted(gpu)}}}"] if gpu else []),
        '            - {name: CUBLAS_WORKSPACE_CONFIG, value: ":4096:8"}',
        "          resources: {limits: {nvidia.com/gpu: 8}}  # all of them, so that the accused one is there",
        "          volumeMounts: [{name: shared, mountPath: /shared}]",
        "      volumes: [{name: shared, persistentVolumeClaim: {claimName: SHARED-CLAIM}}]",
        "MANIFEST",
    )


def _gpu(alarm: Alarm, node: str, ranks: tuple[int, ...]) -> str:
    """The accused GPU's UUID as the alarm claims it; "" where none or several are accused."""
    places = [f.place for f in alarm.findings if _accused(f.place, node, ranks)]
    known = {p.gpu_uuid for p in places if p is not None and p.gpu_uuid}
    return known.pop() if len(known) == 1 else ""


def _accused(place: Place | None, node: str, ranks: tuple[int, ...]) -> bool:
    return place is not None and place.node == node and place.rank in ranks


def _quoted(text: str) -> str:
    """A YAML string on one line, whatever came over the wire."""
    return json.dumps(one_line(text, 1000))
