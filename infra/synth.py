"""Template out of settings: `synthesize` for tests and the local cloud, `build` for app.py.

In: cdk.json, the variable CDK_CONTEXT_JSON (the CDK CLI sets it), the caller's overrides.
Out: a cloud assembly; works offline, without an account. Next: `cdk deploy`, or the local cloud.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from .config import Deployment, SettingsError, read_settings
from .stack import TrainingSdcStack

CDK_JSON = Path(__file__).resolve().parent.parent / "cdk.json"
CONTEXT_VARIABLE = "CDK_CONTEXT_JSON"


def read_context(overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """cdk.json, then the CLI's context, then `overrides`; later ones win.

    Without the CLI nothing is deployed, so that `bundle` is off unless somebody says otherwise.
    """
    from_cli = os.environ.get(CONTEXT_VARIABLE)
    try:
        from_file = json.loads(CDK_JSON.read_text(encoding="utf-8"))["context"]
        given = json.loads(from_cli) if from_cli else {"bundle": False}
    except (OSError, KeyError, ValueError) as error:
        raise SettingsError(
            f"The context of {CDK_JSON.name} or {CONTEXT_VARIABLE} cannot be read: {error!r}"
        ) from error
    return {**from_file, **given, **(overrides or {})}


def build(context: Mapping[str, Any], out_dir: Path | None = None) -> tuple[cdk.App, Deployment]:
    """The app with its one stack, not yet synthesized."""
    config = read_settings(context)
    flags = {key: value for key, value in context.items() if ":" in key or "/" in key}
    app = cdk.App(
        outdir=str(out_dir) if out_dir else None,
        context=flags,
        analytics_reporting=False,  # no metadata resource: the template says what is deployed
        tree_metadata=False,
    )
    TrainingSdcStack(app, config)
    return app, config


def synthesize(out_dir: Path, context: Mapping[str, Any] | None = None) -> Path:
    """Write the assembly into `out_dir`, without bundling unless `context` asks for it; returns the template.

    Raises
    ------
    SettingsError
        When a setting is unknown or not usable; the message names it.
    """
    app, config = build(read_context({"bundle": False, **(context or {})}), out_dir)
    return Path(app.synth().get_stack_by_name(config.stack).template_full_path)
