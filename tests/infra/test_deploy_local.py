"""What `make deploy-local` can be checked for without deploying."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.deploy.ministack import Ministack


def test_the_make_targets_relative_python_is_found_from_the_work_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target says `.venv-deploy/bin/python`, and the process starts in another folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    found = Ministack(Path("bin/python"), tmp_path / "elsewhere", {})._python
    assert found == tmp_path / "bin" / "python", "a link is not followed: it stands for its environment"
    assert os.access(found, os.X_OK)
