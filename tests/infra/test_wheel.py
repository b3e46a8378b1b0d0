"""`pip install` of the wheel into an image that has a torch of its own leaves that torch alone. Offline."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from packaging.requirements import Requirement

from infra.bundling import ROOT

TORCHES = ("2.4.0", "2.11.0+cu130", "3.0.0")  # the floor, an image's own build, one to come
TORCH_METADATA = "Metadata-Version: 2.1\nName: torch\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(python: Path, *arguments: str | Path) -> str:
    """As on a machine without settings of its own."""
    return run(sys.executable, "-m", "pip", "--isolated", "--python", python, *arguments)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The agent's wheel, built from a copy: building leaves folders behind."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md"):
        copy(ROOT / name, source)
    copytree(ROOT / "training_agent", source / "training_agent", ignore=ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, source)
    (made,) = out.glob("*.whl")
    return made


def fake_torch(folder: Path, version: str) -> Path:
    """A wheel that is called torch."""
    path, info = folder / f"torch-{version}-py3-none-any.whl", f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": TORCH_METADATA.format(version=version),
        f"{info}/WHEEL": WHEEL,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return path


def test_the_wheel_holds_every_file_of_the_package_that_is_no_code(wheel: Path) -> None:
    package = ROOT / "training_agent"
    other = {
        p.relative_to(ROOT).as_posix()
        for p in package.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        assert sorted(other - set(archive.namelist())) == []


def test_the_wheel_leaves_another_torch_alone(wheel: Path, tmp_path: Path) -> None:
    version = "2.11.0+cu130"
    venv.create(tmp_path / "image", with_pip=False)
    python = tmp_path / "image" / "bin" / "python"
    pip(python, "install", "--no-index", "--no-deps", fake_torch(tmp_path, version))
    (torch,) = (tmp_path / "image").rglob("torch/__init__.py")
    before = torch.stat()
    pip(python, "install", "--no-index", wheel)  # as a user does it, dependencies and all
    after = torch.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert run(python, "-c", "import torch; print(torch.__version__)").strip() == version
    assert "No broken requirements" in pip(python, "check")
    run(python, "-I", "-c", "import training_agent, training_agent.contract")


def test_what_the_wheel_requires_any_torch_from_the_floor_on_satisfies(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    required = [Requirement(text) for text in metadata.get_all("Requires-Dist") or []]
    always = [r for r in required if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert {r.name for r in always} <= {"torch"}
    assert all(r.specifier.contains(v.split("+")[0]) for r in required if r.name == "torch" for v in TORCHES)
