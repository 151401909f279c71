"""Proves that README.md and ARCHITECTURE.md say what the code says: generated tables, names of files.

`pytest tests/unit/test_readme.py --rewrite` renews the tables between their markers.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from duolog.bridge import kafka, rocketmq
from duolog.bridge.config import Options, settings
from duolog.bridge.state import topic_configs
from duolog.protocol.rocketmq.codes import RequestCode

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"


# -- The tables


def settings_table() -> Iterator[str]:
    yield from _head("setting", "default", "what it is", "Kafka", "RocketMQ")
    for row in settings():
        yield _row(_code(row.name), _code(row.default), row.doc, _code(row.kafka), _code(row.rocketmq))


def topic_configs_table() -> Iterator[str]:
    """Only what is heeded; the others are named below the table."""
    from_broker = topic_configs.broker_defaults(Options())
    unused = []
    yield from _head("config", "default", "what it is")
    for config in topic_configs.TABLE.values():
        if config.doc == topic_configs.TABLE["segment.bytes"].doc:
            unused.append(_code(config.name))
        else:
            default = "the broker's setting" if config.name in from_broker else _code(config.default)
            yield _row(_code(config.name), default, config.doc)
    yield from ("", f"Accepted because applications set them, without effect: {', '.join(unused)}.")


def kafka_apis_table() -> Iterator[str]:
    yield from _head("key", "API", "versions")
    for api in sorted(kafka.TABLE.values(), key=lambda api: api.key):
        first, last = api.advertised
        note = f" (served from {api.min_version})" if first != api.min_version else ""
        yield _row(str(int(api.key)), _camel(api.key.name), f"{first} to {last}{note}" if first != last else str(last))


def rocketmq_codes_table() -> Iterator[str]:
    """One row for each file of handlers, in the order of the dispatch table."""
    client_protocols: dict[str, list[str]] = {}
    for code, row in rocketmq.TABLE.items():
        family = row.handler.__module__.removeprefix(rocketmq.__name__ + ".").replace(".", "/")
        client_protocols.setdefault(family, []).append(f"{int(code)} {_code(RequestCode(code).name)}")
    yield from _head("in `bridge/rocketmq/`", "requests")
    for family, codes in client_protocols.items():
        yield _row(_code(family + ".py"), ", ".join(codes))


TABLES: dict[str, Callable[[], Iterable[str]]] = {
    "settings": settings_table,
    "topic-configs": topic_configs_table,
    "kafka-apis": kafka_apis_table,
    "rocketmq-codes": rocketmq_codes_table,
}


def _head(*cells: str) -> Iterator[str]:
    yield _row(*cells)
    yield "|" + "---|" * len(cells)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


# -- The tests


@pytest.mark.parametrize("name", TABLES)
def test_table_in_readme_is_what_the_code_says(name: str, pytestconfig: pytest.Config) -> None:
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    before, rest = README.read_text().split(begin)
    shown, after = rest.split(end)
    table = "\n" + "\n".join(TABLES[name]()) + "\n"
    if pytestconfig.getoption("--rewrite"):
        README.write_text(before + begin + table + end + after)
    else:
        assert shown == table, "pytest tests/unit/test_readme.py --rewrite renews the table"


@pytest.mark.parametrize("document", [README, ARCHITECTURE], ids=lambda document: document.name)
def test_files_that_a_document_names_exist(document: Path) -> None:
    named = set(
        re.findall(r"\b((?:bridge|protocol|store|delay|tests|benchmarks|spark)/[\w/]+\.py)\b", document.read_text())
    )
    assert named, f"{document.name} names no file"
    assert not [name for name in sorted(named) if not (ROOT / name).is_file()]


def test_readme_has_the_place_of_the_matrix() -> None:
    text = README.read_text()
    assert 0 < text.find("<!-- matrix -->") < text.find("<!-- /matrix -->")
