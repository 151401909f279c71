"""The last release, from the history of the repository: its source, and an interpreter that runs it.

The release is the newest tag `v*` that names a commit before the one at hand, not one of another branch. Before the
first release, its place has the first commit with the present version of the data format.
"""

from __future__ import annotations

import os
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
    lines = _git(repository, "tag", "--merged", "HEAD", "--list", "v*").splitlines()
    tags = [found for line in lines if (found := TAG.fullmatch(line))]
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
    with tarfile.open(fileobj=BytesIO(git_output(repository, "archive", release.commit))) as archive:
        archive.extractall(folder / "source", filter="data")
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    others = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "release.pth").write_text("\n".join([str(folder / "source" / "src"), *others]))
    python = folder / "venv" / "bin" / "python"
    said = subprocess.check_output([python, "-I", "-c", "import duolog.store; print(duolog.store.__file__)"], text=True)
    assert Path(said.strip()).resolve().is_relative_to(folder.resolve()), f"another Duolog is imported: {said}"
    return python


def git_output(repository: Path, *words: str) -> bytes:
    """Return what a command of git prints about this repository, and no other one.

    Within a hook, variables such as GIT_DIR name the repository of the hook, and git prefers it to the folder. Where
    the folder has no repository, git would take the one around it.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment["GIT_CEILING_DIRECTORIES"] = str(repository.resolve().parent)
    return subprocess.check_output(["git", "-C", repository, *words], env=environment, stderr=subprocess.PIPE)


def _git(repository: Path, *words: str) -> str:
    try:
        return git_output(repository, *words).decode().strip()
    except FileNotFoundError:
        skip_or_fail("no history: there is no git")
    except subprocess.CalledProcessError as error:
        skip_or_fail(f"no history: {error.stderr.decode().strip()}")
