"""What the functions may do at the Kubernetes API: access entries here, RBAC in the manifest beside it.

In: the roles of the functions. Out: one EKS access entry for each role that talks to Kubernetes, if the
operator wants them from this stack (`eks_access_entries`). Next: `kubectl apply -f infra/eks_access/`, which
gives the groups their rights (rbac.yaml) and limits what a patch of a node may change (admission.yaml).
"""

from __future__ import annotations

from collections.abc import Mapping

from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from ..config import Deployment
from ..logical_ids import camel, fix

READERS = "training-sdc:readers"
CORDONERS = "training-sdc:cordoners"
LABEL_REPLACERS = "training-sdc:label-replacers"
GROUPS: Mapping[str, str] = {
    "register": READERS,
    "contain": CORDONERS,
    "confirm": READERS,
    "replace": READERS,
    "verify": READERS,
    "resume": CORDONERS,
    "reconcile": READERS,
    "replace_by_label": LABEL_REPLACERS,
}


class EksAccess(Construct):
    """Access entries; none unless asked for: they need authentication mode API or API_AND_CONFIG_MAP."""

    def __init__(self, scope: Construct, config: Deployment, roles: Mapping[str, iam.IRole]) -> None:
        super().__init__(scope, "EksAccess")
        if not config.eks_access_entries:
            return
        for name, group in GROUPS.items():
            if name not in roles:
                continue  # not deployed by these settings
            entry = eks.CfnAccessEntry(
                self,
                f"{camel(name)}AccessEntry",
                cluster_name=config.eks_cluster_name,
                principal_arn=roles[name].role_arn,
                kubernetes_groups=[group],
            )
            fix(entry, f"{camel(name)}AccessEntry")
