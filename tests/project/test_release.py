"""The wheel and the sdist are complete: built, installed and tried in a new environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import package
from tests.source_tree import ROOT


@pytest.mark.slow
def test_a_release_is_built_installed_and_used(tmp_path: Path) -> None:
    """Kills: a file or a dependency that only the source tree has."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.package", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == package.UNREACHED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert {file.suffix for file in tmp_path.iterdir()} == {".whl", ".gz"}


def test_only_a_version_with_a_dated_section_is_released() -> None:
    """Kills: a release whose changes are still listed as unreleased."""
    text = "# Changes\n\n## Unreleased\n\n## 1.2.0 - not released yet\n\n## 1.1.0 - 2026-01-31\n"
    assert package.release_date(text, "1.1.0") == "2026-01-31"
    for version, problem in (
        ("1.2.0", "CHANGELOG.md has no date for version 1.2.0: not released yet"),
        ("1.1", "CHANGELOG.md has no section for version 1.1"),
    ):
        with pytest.raises(package.Wrong) as refused:
            package.release_date(text, version)
        assert str(refused.value) == problem
