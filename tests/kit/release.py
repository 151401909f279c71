"""The last release, from the history of the repository: its source, and an interpreter that runs it.

The release is the newest tag `v*` that names another commit than the one at hand. Before the first release, its place
has the first commit with the present version of the data format.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import venv
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from tests.kit.lacking import skip_or_fail

ROOT = Path(__file__).parents[2]
FORMAT_FILE = "store/recovery/format_version.py"
TAG = re.compile(r"v(\d+)\.(\d+)\.(\d+)")


class Release(NamedTuple):
    """A tag, or the commit that has the place of one."""

    name: str
    commit: str


def last_release(repository: Path, format_version: int) -> Release:
    """Return the last release. Skips the test by the name `no history` where the history does not reach back to it."""
    head = _git(repository, "rev-parse", "HEAD")
    tags = [found for line in _git(repository, "tag", "--list", "v*").splitlines() if (found := TAG.fullmatch(line))]
    for tag in sorted(tags, key=lambda found: tuple(map(int, found.groups())), reverse=True):
        commit = _git(repository, "rev-parse", f"{tag[0]}^{{commit}}")
        if commit != head:
            return Release(tag[0], commit)
    if _git(repository, "rev-parse", "--is-shallow-repository") == "true":
        skip_or_fail("no history: the clone is shallow, and has no tag of a release")
    line = f"FORMAT_VERSION: Final = {format_version}"
    commits = _git(repository, "log", "--reverse", "--format=%H", f"-S{line}", "--", FORMAT_FILE).splitlines()
    if not commits or commits[0] == head:
        skip_or_fail(f"no history: no commit before this one has the data format {format_version}")
    return Release(f"the first commit with the data format {format_version}", commits[0])


def unpack(repository: Path, release: Release, folder: Path) -> Path:
    """Write the source of a release into a folder; return the path of an interpreter that runs it.

    The interpreter has the packages of this environment beside it.
    """
    packed = subprocess.run(["git", "-C", repository, "archive", release.commit], capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
        archive.extractall(folder / "source", filter="data")
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "release.pth").write_text("\n".join([str(folder / "source" / "src"), *others]))
    python = folder / "venv" / "bin" / "python"
    said = subprocess.check_output([python, "-I", "-c", "import duolog.store; print(duolog.store.__file__)"], text=True)
    assert Path(said.strip()).resolve().is_relative_to(folder.resolve()), f"another Duolog is imported: {said}"
    return python


def _git(repository: Path, *words: str) -> str:
    try:
        return subprocess.check_output(["git", "-C", repository, *words], text=True, stderr=subprocess.PIPE).strip()
    except FileNotFoundError:
        skip_or_fail("no history: there is no git")
    except subprocess.CalledProcessError as error:
        skip_or_fail(f"no history: {error.stderr.strip()}")
