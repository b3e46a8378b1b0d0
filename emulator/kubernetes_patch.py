"""The three patch formats of the Kubernetes API and its selectors, on plain JSON. Pure.

Sources: RFC 7386 (merge), RFC 6902 (JSON patch), the API conventions (strategic merge: lists with a merge
key).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

MERGE_KEYS = {"taints": ("key", "effect"), "conditions": ("type",), "addresses": ("type",)}


class PatchError(ValueError):
    """The patch does not fit the object; the text says where."""


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge_patch(target: Any, patch: Any) -> Any:
    """Merge patch, except that lists with a merge key merge element by element."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            continue  # directives such as $setElementOrder only matter for order
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list) and key in MERGE_KEYS:
            result[key] = _merge_list(result.get(key) or [], value, MERGE_KEYS[key])
        elif isinstance(value, dict):
            result[key] = strategic_merge_patch(result.get(key), value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902 with add, replace, remove and test.

    Raises:
        PatchError: a test failed or a path does not exist.
    """
    result = copy.deepcopy(target)
    if not isinstance(operations, list):
        raise PatchError("a JSON patch is a list of operations")
    for operation in operations:
        try:
            _apply(result, operation)
        except (KeyError, IndexError, TypeError, ValueError) as e:
            raise PatchError(f"{operation.get('op')} {operation.get('path')}: {e}") from e
    return result


PATCHES: dict[str, Callable[[Any, Any], Any]] = {
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_merge_patch,
    "application/json-patch+json": json_patch,
}


def selected(obj: dict[str, Any], label_selector: str, field_selector: str) -> bool:
    """Whether an object matches equality selectors (`a=b`, `a==b`, `a!=b`, `a`, `!a`), comma separated."""
    labels = obj["metadata"].get("labels") or {}
    return all(_matches(labels.get, part) for part in _parts(label_selector)) and all(
        _matches(lambda path: _field(obj, path), part) for part in _parts(field_selector)
    )


def _parts(selector: str) -> list[str]:
    return [p.strip() for p in selector.split(",") if p.strip()]


def _matches(value_of: Callable[[str], Any], part: str) -> bool:
    if "!=" in part:
        key, value = part.split("!=", 1)
        return str(value_of(key) or "") != value
    if "=" in part:
        key, value = part.replace("==", "=").split("=", 1)
        return str(value_of(key) if value_of(key) is not None else "") == value
    return value_of(part[1:]) is None if part.startswith("!") else value_of(part) is not None


def _field(obj: Any, path: str) -> Any:
    for key in path.split("."):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _merge_list(current: list[Any], patch: list[Any], keys: tuple[str, ...]) -> list[Any]:
    result = list(current)
    for item in patch:
        # A deletion names the merge key proper, the first one; taints are unique by key and effect.
        deleted = item.get("$patch") == "delete"
        by = keys[:1] if deleted else keys
        result = [c for c in result if any(c.get(k) != item.get(k) for k in by)]
        if not deleted and "$patch" not in item:
            result.append(copy.deepcopy(item))
    return result


def _apply(root: Any, operation: dict[str, Any]) -> None:
    op, path = operation["op"], operation["path"]
    keys = [k.replace("~1", "/").replace("~0", "~") for k in path.split("/")[1:]]
    parent = root
    for key in keys[:-1]:
        parent = parent[int(key)] if isinstance(parent, list) else parent[key]
    last: Any = keys[-1]
    if isinstance(parent, list):
        last = len(parent) if last == "-" else int(last)
    if op == "test":
        if parent[last] != operation["value"]:
            raise ValueError(f"is {parent[last]!r}")
    elif op == "remove":
        del parent[last]
    elif op == "add" and isinstance(parent, list):
        parent.insert(last, operation["value"])
    elif op in ("add", "replace"):
        if op == "replace" and last not in parent:
            raise KeyError(last)
        parent[last] = operation["value"]
    else:
        raise ValueError("unknown operation")
