"""Proves that the documents say what the code says: generated parts, names of files.

`pytest tests/unit/test_readme.py --rewrite` renews the generated parts (`tests/kit/reference.py` makes them).
"""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.kit import reference

ROOT = reference.ROOT
PAGES = [page for page in sorted(reference.REFERENCE.glob("*.md")) if reference.parts_of(page.read_text())]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_generated_parts_are_what_the_code_says(page: Path, pytestconfig: pytest.Config) -> None:
    _renew(page, reference.renewed(page.read_text()), pytestconfig)


@pytest.mark.parametrize("path", reference.FILES, ids=lambda path: path.name)
def test_generated_files_are_what_the_code_says(path: Path, pytestconfig: pytest.Config) -> None:
    _renew(path, reference.FILES[path](), pytestconfig)


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


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])  # MkDocs checks the links of docs/.
def test_links_of_documents_outside_the_site_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", (ROOT / name).read_text())
    assert links
    broken = [link for link in links if not _leads_somewhere(name, *link)]
    assert not broken, f"{name} links to {broken}"


def _leads_somewhere(name: str, target: str, anchor: str) -> bool:
    path = ROOT / (target or name)
    if not path.exists() or not anchor:
        return path.exists()
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150, "move what is about one task to docs/guides"


# -- Troubleshooting: the texts of the broker

TROUBLESHOOTING = ROOT / "docs" / "operating" / "troubleshooting.md"
OF_THE_BROKER = (
    "When the broker starts",
    "In the broker's log",
    "From commands and the HTTP API",
    "From all clients, about what a message asks for",
)


def _quoted_texts() -> list[str]:
    """Give the first cell of each row in the sections with texts of the broker."""
    sections = TROUBLESHOOTING.read_text().split("\n## ")[1:]
    rows = [row for each in sections if each.partition("\n")[0] in OF_THE_BROKER for row in each.splitlines()]
    return [found[1] or found[2] for row in rows if (found := re.match(r"\| (?:``(.+?)``|`([^`]+)`) \|", row))]


@cache
def _texts_of_the_code() -> tuple[str, ...]:
    """Give all texts in the code; what is filled in is NUL. Regular expressions read them, for `ast` takes a second."""
    sources = [
        re.sub(r'"\s*\n\s*f?"', "", path.read_text())  # Adjacent literals are one text.
        for folder in ("bridge", "delay", "protocol", "spark", "store", "txn")
        for path in (ROOT / folder).rglob("*.py")
    ]
    texts = [text for source in sources for pair in _LITERAL.findall(source) for text in pair]
    return tuple(re.sub(r"%[-.\d]*[a-z]|\{[^{}]*\}", "\0", text) for text in texts if text)


_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'')


@pytest.mark.parametrize("quoted", _quoted_texts())
def test_a_quoted_text_of_the_broker_is_in_the_code(quoted: str) -> None:
    assert _is_in_the_code(quoted), f"see {TROUBLESHOOTING}"


OF_OTHERS = {  # What guides quote from clients, Python and Spark, and commands.
    "The specified topic[a.b] contains illegal characters",
    "Failed to find data source: kafka",
    "Permission denied: ...",
    "No module named 'duolog'",
    "duolog txn list",
}


def _errors_of_guides() -> set[str]:
    """Give the quoted texts of the first cells under "Errors"; names of one word are codes and metrics."""
    sections = [page.read_text().partition("\n## Errors\n")[2] for page in (ROOT / "docs" / "guides").glob("*.md")]
    cells = [row.split(" | ")[0] for section in sections for row in section.splitlines() if row.startswith("| ")]
    quoted = {found[0] or found[1] for cell in cells for found in re.findall(r"``(.+?)``|`([^`]+)`", cell)}
    return {text for text in quoted if " " in text} - OF_OTHERS


def test_errors_that_guides_quote_are_in_the_code() -> None:
    quoted = _errors_of_guides()
    assert len(quoted) > 10
    missing = [each for each in sorted(quoted) if not _is_in_the_code(each)]
    assert not missing, f"guides quote {missing}"


def _is_in_the_code(quoted: str) -> bool:
    pieces = [piece for piece in quoted.split("...") if piece.strip(" :;,()=")]
    return bool(pieces) and any(all(piece in text for piece in pieces) for text in _texts_of_the_code())


def test_each_section_of_the_troubleshooting_page_is_compared() -> None:
    assert all(f"\n## {section}\n" in TROUBLESHOOTING.read_text() for section in OF_THE_BROKER)
    assert len(_quoted_texts()) > 30
