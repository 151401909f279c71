"""Writes THIRD_PARTY.md: the licences of third-party files in the wheel, and of the packages that the wheel needs.

`NAME.LICENSE` is the licence of the files in its folder whose names begin with NAME: `uPlot.LICENSE` is for
`uPlot.min.js`. The packages are those of requirements.lock; their licences are read from their installed metadata.
"""

import re
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("bridge", "delay", "protocol", "spark", "store", "txn")
INTRODUCTION = """\
# Third-party notices

`make third-party` writes this page. Duolog itself is under the Apache License 2.0, see LICENSE.
"""
PACKAGES = """\
## Packages that Duolog needs

The wheel does not contain them; `pip` installs them beside it, with their licences in their `.dist-info` directories.
The image contains them in `/opt/duolog`, in these versions, and Debian's packages with their licences in
`/usr/share/doc`.

| package | version | licence |
|---|---|---|
"""
_PINNED = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
_VERSION = re.compile(r"(?<![\d.])\d+\.\d+\.\d+")
_LICENSE_MAX = 60  # A longer text in the field License is a whole licence, not a name.


def third_party() -> str:
    """Return the text of THIRD_PARTY.md. Raises PackageNotFoundError for a locked package that is not installed."""
    rows = (
        f"| {name} | {version} | {_licence(about)} |\n"
        for name, version in _PINNED.findall((ROOT / "requirements.lock").read_text())
        if name != "setuptools"  # Setuptools builds the C extension and is not needed at run time.
        for about in [metadata(name)]
    )
    return "\n".join([INTRODUCTION, *_vendored(), PACKAGES]) + "".join(rows)


def _vendored() -> Iterator[str]:
    """Yield a heading and the licence for each NAME.LICENSE in the folders of the product."""
    licences = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.LICENSE"))]
    if not licences:
        yield "The wheel contains no files of others.\n"
        return
    yield "## Files of others in the wheel\n"
    for licence in licences:
        files = sorted(path for path in licence.parent.glob(f"{licence.stem}.*") if path != licence)
        scripts = [path for path in files if path.suffix == ".js"]
        found = _VERSION.search(scripts[0].read_text())
        assert found is not None, f"{scripts[0]} does not say its version"
        yield f"### {licence.stem} {found[0]}\n"
        yield ", ".join(f"`{path.relative_to(ROOT)}`" for path in files) + "\n"
        yield f"```text\n{licence.read_text().strip()}\n```\n"


def _licence(about: PackageMetadata) -> str:
    """Return the name of a package's licence: its SPDX expression, the field License, or its classifiers."""
    given = about.json
    for name in (given.get("license_expression"), given.get("license")):
        if isinstance(name, str) and name and "\n" not in name and len(name) <= _LICENSE_MAX:
            return name
    names = [each.split(" :: ")[-1] for each in given.get("classifier", []) if each.startswith("License ::")]
    assert names, f"{about['Name']} does not name its licence"
    return ", ".join(names)
