"""The code package of all functions, built by pip on this machine: no Docker.

In: `lambdas/`, the agent's wire format and pictures, pinned `lambdas/requirements.txt`. Out: one asset.
Next: `functions.py`. boto3 is bundled because the runtime's own may be older than StartClusterHealthCheck
(botocore 1.43); of its service models only those in use stay.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import jsii
from aws_cdk import aws_lambda as lambda_

from .config import Architecture, Deployment

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "lambdas" / "requirements.txt"
SERVICES = frozenset(
    {"cloudwatch", "dynamodb", "eks", "events", "lambda", "sagemaker", "sns", "stepfunctions", "sts"}
)  # in botocore/data
OF_THE_AGENT = ("contract", "pictures")  # all that the functions import of it
# RECORD holds the checksums of scripts in bin, and those the path of this machine's Python.
JUNK = ("**/__pycache__", "**/*.pyi", "bin", "**/tests", "*.dist-info/RECORD", "*.dist-info/direct_url.json")
PLATFORMS = {Architecture.ARM64: "manylinux2014_aarch64", Architecture.X86_64: "manylinux2014_x86_64"}


class BundlingError(RuntimeError):
    """pip could not build the package; the message holds its last lines."""


def code(config: Deployment) -> lambda_.Code:
    """The asset that every function shares. Without `bundle` it holds our own sources only."""
    source = str(ROOT / "lambdas")
    excluded = ["**/__pycache__", "**/*.pyc"]
    if not config.bundle:
        return lambda_.Code.from_asset(source, exclude=excluded)
    return lambda_.Code.from_asset(
        source,
        exclude=excluded,
        asset_hash_type=cdk.AssetHashType.OUTPUT,  # of the source it would hide a bundle that changed
        bundling=cdk.BundlingOptions(
            image=cdk.DockerImage.from_registry("unused"), local=PipBundling(config)
        ),
    )


@jsii.implements(cdk.ILocalBundling)
class PipBundling:
    """CDK's hook for bundling without Docker."""

    def __init__(self, config: Deployment) -> None:
        self._config = config

    def try_bundle(self, output_dir: str, *_: Any, **__: Any) -> bool:
        """Fill `output_dir`; always True, for there is no Docker image to fall back to."""
        build(Path(output_dir), PLATFORMS[self._config.architecture], self._config.python_version)
        return True


def build(target: Path, platform: str | None, python_version: str | None) -> None:
    """Install the pinned requirements for `platform` (None: this machine) and copy our code beside them.

    Raises
    ------
    BundlingError
        When pip fails. Its exit code decides: what it writes about this environment's conflicts is harmless.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-compile",
    ]
    command += [
        "--requirement",
        str(REQUIREMENTS),
        "--target",
        str(target),
        "--only-binary=:all:",
        "--require-hashes",
    ]
    if platform and python_version:
        command += ["--platform", platform, "--implementation", "cp", "--python-version", python_version]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BundlingError(
            f"pip could not install {REQUIREMENTS.relative_to(ROOT)} for {platform or 'this machine'}:\n"
            + "\n".join(result.stderr.splitlines()[-5:])
        )
    _prune(target)
    shutil.copytree(ROOT / "lambdas", target / "lambdas", ignore=shutil.ignore_patterns("__pycache__"))
    # Without its __init__ the agent is a namespace here.
    for part in OF_THE_AGENT:
        source = ROOT / "training_agent" / part
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, target / "training_agent" / part, ignore=ignore)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)  # whatever this machine's umask says


def fingerprint(folder: Path) -> str:
    """SHA-256 over the sorted names, modes and bytes of all files: equal bundles are equal here."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        digest.update(
            f"{path.relative_to(folder).as_posix()}\0{path.stat().st_mode:o}\0{len(content)}\0".encode()
        )
        digest.update(content)
    return digest.hexdigest()


def _prune(target: Path) -> None:
    for service in (target / "botocore" / "data").iterdir():
        if service.is_dir() and service.name not in SERVICES:
            shutil.rmtree(service)
    for pattern in JUNK:
        for path in target.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
