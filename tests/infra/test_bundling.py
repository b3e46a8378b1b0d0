"""The package: locked, complete, small, and importable where no other package is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra import bundling
from infra.bundling import REQUIREMENTS, SERVICES, BundlingError, build
from infra.lock import locked


def test_the_lock_is_fresh() -> None:
    assert REQUIREMENTS.read_text() == locked(), "run: python -m infra.lock"


def test_the_models_of_all_services_in_use_are_bundled() -> None:
    sources = "".join(path.read_text() for path in (bundling.ROOT / "lambdas").rglob("*.py"))
    used = set(re.findall(r"""client\(["'](\w+)["']""", sources))
    assert used <= SERVICES
    assert {"dynamodb", "sagemaker"} <= used


def test_a_failing_pip_is_reported_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = bundling.ROOT / "lambdas" / "no-such-requirements.txt"
    monkeypatch.setattr(bundling, "REQUIREMENTS", broken)
    with pytest.raises(BundlingError, match=r"pip could not install lambdas/no-such-requirements\.txt"):
        build(tmp_path, None, None)


@pytest.mark.soak
@pytest.mark.skipif(sys.version_info < (3, 11), reason="the lock is for Python 3.11 and newer")
def test_the_package_imports_without_anything_else(tmp_path: Path) -> None:
    """Needs a package index."""
    build(tmp_path, None, None)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*"))
    script = "; ".join(
        [
            "import sys, importlib",
            "sys.path = [p for p in sys.path if 'site-packages' not in p]",
            f"sys.path.insert(0, {str(tmp_path)!r})",
            "modules = [importlib.import_module(m) for m in ('lambdas.handlers', 'lambdas.approval_page')]",
            f"assert all(m.__file__.startswith({str(tmp_path)!r}) for m in modules)",
            "import boto3, kubernetes.client, training_agent.contract",
            "boto3.client('sagemaker', region_name='us-east-1').start_cluster_health_check",
        ]
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, timeout=120)
    assert {path.name for path in (tmp_path / "botocore" / "data").iterdir() if path.is_dir()} == SERVICES
    assert not (tmp_path / "training_agent" / "__init__.py").exists()
    assert size < 50e6  # of 250 MB that Lambda takes
