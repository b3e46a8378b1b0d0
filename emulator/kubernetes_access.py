"""Who may do what at the fake Kubernetes: RBAC and admission policies, from manifests as kubectl applies
them.

In: the documents of infra/eks_access, a caller's groups, a request. Out: nothing, or a `Denied` with the API
server's code and message. Expressions are evaluated as CEL, after the object would have been changed and also
for a dry run, as ValidatingAdmissionPolicy says. Only what those manifests use is read: roles bound to
groups and service accounts, `matchConditions`, `variables`, `validations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

try:
    import cel
except ImportError:  # Python 3.10, for which there is no package
    cel = None  # type: ignore[assignment]

Document = Mapping[str, Any]
ADMINISTRATORS = "system:masters"  # bound to everything, as in every cluster
VERBS = {"GET": "get", "PATCH": "patch", "PUT": "update", "POST": "create", "DELETE": "delete"}


class DeniedError(Exception):
    """RBAC (403) or an admission policy (422) says no."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class ClusterAccess:
    """The rules that stand in the cluster now, by (kind, name)."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], Document] = {}

    def apply(self, documents: Iterable[Document]) -> None:
        """As `kubectl apply`: new or replaced."""
        self._documents |= {(d["kind"], d["metadata"]["name"]): d for d in documents}

    def delete(self, kind: str, name: str) -> Document:
        """As `kubectl delete`; the document, to apply it again."""
        return self._documents.pop((kind, name))

    def authorize(
        self, groups: Iterable[str], verb: str, resource: str, user: str = "", namespace: str | None = None
    ) -> None:
        """RBAC: the caller, or one of its groups, is bound to a role with this verb on this resource.

        Args:
            user: a service account's "system:serviceaccount:<namespace>:<name>", or anybody.
            namespace: of the resource; roles of that namespace count as well.

        Raises:
            DeniedError: none is.
        """
        who = {*groups, user}
        if ADMINISTRATORS in who:
            return
        bindings = self._of("ClusterRoleBinding")
        bindings += [b for b in self._of("RoleBinding") if b["metadata"].get("namespace") == namespace]
        for binding in bindings:
            if not who & {_subject(s) for s in binding["subjects"]}:
                continue
            reference = binding["roleRef"]
            role = self._documents.get((reference["kind"], reference["name"]), {"rules": ()})
            if any(verb in rule["verbs"] and resource in rule["resources"] for rule in role["rules"]):
                return
        raise DeniedError(403, "Forbidden", f"{resource} is forbidden: {sorted(who)} cannot {verb} it")

    def admit(
        self, groups: Iterable[str], operation: str, before: Document, after: Document, subresource: str = ""
    ) -> None:
        """Each bound admission policy that matches agrees to this change of a node.

        Raises:
            DeniedError: with the message of the first validation that does not.
        """
        for name, message in self.denials(groups, operation, before, after, subresource):
            text = f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {message}"
            raise DeniedError(422, "Invalid", f'nodes "{before["metadata"]["name"]}" is invalid: {text}')

    def denials(
        self, groups: Iterable[str], operation: str, before: Document, after: Document, subresource: str = ""
    ) -> list[tuple[str, str]]:
        """(policy, message) of all validations that say no."""
        request = {"operation": operation, "subResource": subresource, "userInfo": {"groups": list(groups)}}
        found = []
        for binding in self._of("ValidatingAdmissionPolicyBinding"):
            policy = self._documents.get(("ValidatingAdmissionPolicy", binding["spec"]["policyName"]))
            if policy is None or "Deny" not in binding["spec"]["validationActions"]:
                continue
            name, spec = policy["metadata"]["name"], policy["spec"]
            if cel is None:
                found += _without_cel(name, spec, groups, before, after)
                continue
            scope: dict[str, Any] = {"object": after, "oldObject": before, "request": request}
            if not all(cel.evaluate(c["expression"], scope) for c in spec["matchConditions"]):
                continue
            scope["variables"] = {}
            for variable in spec.get("variables", ()):
                scope["variables"][variable["name"]] = cel.evaluate(variable["expression"], scope)
            found += [
                (name, v["message"])
                for v in spec["validations"]
                if cel.evaluate(v["expression"], scope) is not True
            ]
        return found

    def _of(self, kind: str) -> list[Document]:
        return [d for (k, _), d in self._documents.items() if k == kind]


def _subject(subject: Mapping[str, str]) -> str:
    if subject["kind"] == "ServiceAccount":
        return f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return subject["name"]


def _without_cel(
    name: str, spec: Document, groups: Iterable[str], before: Document, after: Document
) -> list[tuple[str, str]]:
    """Python 3.10 only: of all rules, the one that the pipeline probes before it touches a node."""
    named = any(f"'{group}'" in c["expression"] for group in groups for c in spec["matchConditions"])
    relabelled = before["metadata"].get("labels") != after["metadata"].get("labels")
    return [(name, "labels are not the cordoners'")] if named and relabelled and "cordoners" in name else []


def documents(folder: Path) -> list[Document]:
    """All documents of a folder of manifests, as `kubectl apply -f FOLDER` reads them."""
    texts = (path.read_text() for path in sorted(folder.glob("*.yaml")))
    return [d for text in texts for d in yaml.safe_load_all(text) if d]
