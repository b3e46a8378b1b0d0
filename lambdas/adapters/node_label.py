"""Replacement by label: HyperPod's auto recovery replaces a node that carries it. One patch, sent once."""

from __future__ import annotations

from training_agent.contract import NODE_NAME_PREFIX

from ..domain.errors import ConflictError, OutcomeUnknownError, UnavailableError
from ..domain.world import ReplaceAnswer
from .eks import HEALTH_LABEL, REPLACE_VALUE, EksCluster


class NodeLabel:
    """Implements `ports.Replacer`."""

    def __init__(self, hyperpod_cluster: str) -> None:
        self._cluster = EksCluster(hyperpod_cluster)

    def replace(self, instance_id: str) -> ReplaceAnswer:
        name = f"{NODE_NAME_PREFIX}{instance_id}"
        try:
            node = self._cluster.node(name)
        except UnavailableError as e:
            return ReplaceAnswer(False, "NotReached", str(e))  # nothing was sent yet
        if node is None:
            return ReplaceAnswer(False, "InstanceIdNotFound", f"no node {name}")
        try:
            self._cluster.label_node(node, {HEALTH_LABEL: REPLACE_VALUE})
        except ConflictError as e:
            return ReplaceAnswer(False, "InstanceIdInUse", str(e))
        except UnavailableError as e:
            raise OutcomeUnknownError(str(e)) from e
        return ReplaceAnswer(accepted=True)
