"""What a cold start of a function imports, counted: a number that creeps up is a slower answer for everybody.

Counts, not seconds: they are the same on a busy machine. Packages that only some functions need must come
when an adapter is made, not when the handler's module is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LISTED = """
import importlib, json, sys
before = set(sys.modules)
importlib.import_module({module!r})
print(json.dumps(sorted(set(sys.modules) - before)))
"""
LATER = {"boto3", "kubernetes", "jinja2", "urllib3", "requests", "yaml", "numpy", "torch"}
MODULES = {  # module of the handler -> modules that it may import, and what it needs of the packages above
    "lambdas.handlers": (370, set()),
    "lambdas.approval_page": (380, {"jinja2"}),
    "lambdas.approval_api": (340, set()),
}


@pytest.mark.parametrize("module", MODULES)
def test_a_cold_start_imports_no_more_than_it_needs(module: str) -> None:
    most, needed = MODULES[module]
    script = [sys.executable, "-c", LISTED.format(module=module)]
    imported = json.loads(subprocess.run(script, capture_output=True, check=True, timeout=120).stdout)
    packages = {name.split(".")[0] for name in imported}
    assert packages & LATER == needed
    assert len(imported) <= most, f"{len(imported)} modules: is each of them needed before the first event?"
