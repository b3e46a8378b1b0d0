"""JSON Schema of the wire format, for readers in other languages: `python -m training_agent.contract.schema`.

In: the dataclasses. Out: `schema.json` beside this file, one definition per message and part; a test fails
when it is stale. Unknown fields are allowed, as every 1.x reader ignores them.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any

from .alarm import Alarm
from .audit_result import TargetedAuditResult
from .names import SCHEMA_VERSION
from .quarantine import QuarantineFile
from .registration import NodeRegistration

FILE = Path(__file__).with_name("schema.json")
MESSAGES = (Alarm, NodeRegistration, TargetedAuditResult, QuarantineFile)
_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def schema() -> dict[str, Any]:
    """The schema as a dictionary (draft 2020-12); each message is `#/$defs/<its class>`."""
    definitions: dict[str, Any] = {}
    for message in MESSAGES:
        _of(message, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"training.sdc wire format {SCHEMA_VERSION}",
        "anyOf": [{"$ref": f"#/$defs/{m.__name__}"} for m in MESSAGES],
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """What `schema.json` holds."""
    return json.dumps(schema(), indent=2) + "\n"


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind, definitions)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in arguments if a is not type(None))
        return {"anyOf": [_of(inner, definitions), {"type": "null"}]}
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return {"type": "array", "items": _of(arguments[0], definitions)}
    if origin is tuple:
        items = [_of(a, definitions) for a in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(arguments[1], definitions)}
    if issubclass(kind, Enum):
        return {"enum": [m.value for m in kind]}
    return {"type": _SCALARS[kind]}


def _of_dataclass(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    name = kind.__name__
    if name not in definitions:
        definitions[name] = {}  # first, so that a cycle would end
        hints = typing.get_type_hints(kind)
        fields = dataclasses.fields(kind)
        required = [
            f.name
            for f in fields
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        definitions[name] = {
            "type": "object",
            "properties": {f.name: _of(hints[f.name], definitions) for f in fields},
            "required": required,
        }
    return {"$ref": f"#/$defs/{name}"}


if __name__ == "__main__":
    FILE.write_text(text())
