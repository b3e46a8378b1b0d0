"""The package: locked, complete, small, and importable where no other package is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra import bundling
from infra.bundling import PLATFORMS, REQUIREMENTS, SERVICES, BundlingError, build, fingerprint
from infra.config import Architecture
from infra.lock import locked
from infra.synth import synthesize
from tests.infra.reading import of_type


def test_the_lock_is_fresh() -> None:
    assert REQUIREMENTS.read_text() == locked(), "run: python -m infra.lock"


def test_the_models_of_all_services_in_use_are_bundled() -> None:
    sources = "".join(path.read_text() for path in (bundling.ROOT / "lambdas").rglob("*.py"))
    used = set(re.findall(r"""client\(["'](\w+)["']""", sources))
    assert used <= SERVICES
    assert {"dynamodb", "sagemaker"} <= used


def test_all_that_the_functions_import_of_the_agent_is_bundled() -> None:
    parts = bundling.OF_THE_AGENT
    folders = (bundling.ROOT / "lambdas", *(bundling.ROOT / "training_agent" / part for part in parts))
    sources = "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))
    assert set(re.findall(r"(?:from|import) training_agent\.(\w+)", sources)) == set(parts)


def test_a_failing_pip_is_reported_with_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = bundling.ROOT / "lambdas" / "no-such-requirements.txt"
    monkeypatch.setattr(bundling, "REQUIREMENTS", broken)
    with pytest.raises(BundlingError, match=r"pip could not install lambdas/no-such-requirements\.txt"):
        build(tmp_path, None, None)


def test_the_fingerprint_sees_names_modes_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    seen = {fingerprint(tmp_path)}
    (tmp_path / "a").chmod(0o755)
    seen.add(fingerprint(tmp_path))
    (tmp_path / "a").write_text("y")
    seen.add(fingerprint(tmp_path))
    (tmp_path / "a").rename(tmp_path / "b")
    seen.add(fingerprint(tmp_path))
    assert len(seen) == 4


def test_the_asset_is_named_by_what_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named by its sources, a bundle that changed on its own would hide."""
    context = {"bundle": True, "cluster_arn": "arn:aws:sagemaker:us-east-1:111122223333:cluster/abcdefghijkl"}

    def keys(content: str) -> set[str]:
        def build(target: Path, *_: object) -> None:
            (target / "package.py").write_text(content)

        monkeypatch.setattr(bundling, "build", build)
        path = synthesize(tmp_path / content, context)
        functions = of_type(json.loads(path.read_text())["Resources"], "AWS::Lambda::Function")
        return {function["Code"]["S3Key"] for function in functions.values()}

    one, other = keys("one"), keys("other")
    assert len(one) == len(other) == 1  # all functions share it
    assert one != other


@pytest.mark.soak
def test_two_bundles_from_empty_caches_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Needs a package index."""
    prints = []
    for name in ("one", "two"):
        monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / f"cache-{name}"))
        build(tmp_path / name, PLATFORMS[Architecture.ARM64], "3.12")
        prints.append(fingerprint(tmp_path / name))
    assert prints[0] == prints[1]
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path / "one")
    assert Path(archive).stat().st_size < 12e6  # of 50 MB that a direct upload takes


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
