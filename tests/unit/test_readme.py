"""Proves that the documents say what the code says: generated parts, names of files.

`pytest tests/unit/test_readme.py --rewrite` renews the generated parts (`tests/kit/reference.py` makes them).
"""

import re
from pathlib import Path

import pytest

from tests.kit import reference

ROOT = reference.ROOT
PAGES = [page for page in sorted(reference.REFERENCE.glob("*.md")) if reference.parts_of(page.read_text())]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_generated_parts_are_what_the_code_says(page: Path, pytestconfig: pytest.Config) -> None:
    _renew(page, reference.renewed(page.read_text()), pytestconfig)


@pytest.mark.parametrize("name", reference.FILES)
def test_generated_files_are_what_the_code_says(name: str, pytestconfig: pytest.Config) -> None:
    _renew(reference.REFERENCE / name, reference.FILES[name](), pytestconfig)


def _renew(path: Path, text: str, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--rewrite"):
        path.write_text(text)
    else:
        assert path.read_text() == text, "it is out of date: pytest tests/unit/test_readme.py --rewrite renews it"


def test_each_generated_part_stands_on_one_page() -> None:
    found = [name for page in PAGES for name in reference.parts_of(page.read_text())]
    assert sorted(found) == sorted(reference.PARTS)


def test_files_that_a_document_names_exist() -> None:
    named = {(path, name) for path in DOCUMENTS for name in _files_in(path.read_text())}
    assert named, "no document names a file"
    missing = [f"{path.relative_to(ROOT)} names {name}" for path, name in sorted(named) if not (ROOT / name).is_file()]
    assert not missing, "\n".join(["", *missing])


def _files_in(text: str) -> list[str]:
    return re.findall(
        r"\b((?:bridge|protocol|store|delay|txn|tests|benchmarks|spark)/[\w/]+\.(?:py|c|go|java))\b", text
    )
