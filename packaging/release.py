"""The parts of `make release` that are not commands of other tools. Run it in the root of the repository.

python packaging/release.py check       say what stands in the way of a release, and end with status 1 if anything does
python packaging/release.py checksums   write dist/SHA256SUMS, which `sha256sum --check` reads
"""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUMS = ROOT / "dist" / "SHA256SUMS"
MANIFESTS = ROOT / "packaging" / "kubernetes" / "duolog.yaml"
GIT_ENVIRONMENT = ("PATH", "HOME", "XDG_CONFIG_HOME")  # Where git and its user's configuration are.


def unprepared(version: str) -> Iterator[str]:
    """Yield a line for each file that must be changed before this version can be released."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        yield f"pyproject.toml: {version!r} is not a version such as 1.2.3 or 1.2.3rc1"
    if not changes(version):
        yield f"CHANGELOG.md: no section '## {version}' with text"
    if f"/duolog:{version}\n" not in MANIFESTS.read_text():
        yield f"{MANIFESTS.relative_to(ROOT)}: the image has not the tag {version}"


def uncommitted(version: str) -> Iterator[str]:
    """Yield a line for each way in which the release would not be what the commit with its tag has."""
    if changed := git("status", "--porcelain"):
        yield f"uncommitted changes:\n{changed}"
    tagged = git("tag", "--list", f"v{version}", "--format", "%(objectname)")
    if tagged and git("rev-list", "-n1", f"v{version}") != git("rev-parse", "HEAD"):
        yield f"the tag v{version} names another commit; give pyproject.toml the next version"


def changes(version: str) -> str:
    """Return what CHANGELOG.md says of a version; empty if it says nothing."""
    sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    return next(
        (text.strip() for title, _, text in (each.partition("\n") for each in sections) if title == version), ""
    )


def write_checksums() -> None:
    """Write the SHA-256 sum of each file in dist/, in the form of `sha256sum`."""
    SUMS.unlink(missing_ok=True)
    lines = []
    for path in sorted(SUMS.parent.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    SUMS.write_text("".join(lines))


def git(*arguments: str) -> str:
    """Return what a command of git prints about this repository.

    Git gets only GIT_ENVIRONMENT: within a hook, variables such as GIT_DIR name the repository of the hook, and git
    would prefer it to the folder.
    """
    environment = {name: os.environ[name] for name in GIT_ENVIRONMENT if name in os.environ}
    done = subprocess.run(["git", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    if arguments == ["checksums"]:
        write_checksums()
        return 0
    if arguments != ["check"]:
        sys.stderr.write(__doc__ or "")
        return 2
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    found = [*unprepared(version), *uncommitted(version)]
    sys.stderr.write("".join(f"release {version}: {line}\n" for line in found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
