"""Which tokens may read topics from the log's files: a table of tokens and topics, and of invalid token files."""

from pathlib import Path

import pytest

from duolog.bridge.config import ConfigError
from duolog.bridge.http.access.readers import MayNotRead, Readers, UnknownReader
from duolog.bridge.state.topic_table import Topic
from tests.kit.memory_log import MemoryLog
from tests.unit.bridge.replayed_state import NOW, open_state

PATTERNS = {"few": ["orders", "shop.*"], "rocketmq": ["shop|*"], "all": ["*"], "none": []}


@pytest.fixture
def topics() -> dict[str, Topic]:
    made = open_state(MemoryLog()).topics
    return {name: made.create(name, 1, {}, NOW)[0] for name in ("orders", "shop.eu", "shop|us")}


@pytest.mark.parametrize(
    ("caller", "asked", "refusal"),
    [
        ("Bearer few", ["orders", "shop.eu", "shop|us"], None),
        ("bearer  few ", ["orders"], None),
        ("Bearer all", ["orders", "shop.eu"], None),
        ("Bearer rocketmq", ["shop|us"], None),
        ("Bearer rocketmq", ["shop|us", "orders"], MayNotRead),
        ("Bearer none", ["orders"], MayNotRead),
        ("Bearer else", ["orders"], UnknownReader),
        ("Bearer", [], UnknownReader),
        ("Basic few", [], UnknownReader),
        ("", [], UnknownReader),
    ],
)
def test_caller_reads_what_its_patterns_name(
    topics: dict[str, Topic], caller: str, asked: list[str], refusal: type[Exception] | None
) -> None:
    wanted = [topics[name] for name in asked]
    Readers(None).check(caller, wanted)  # Without a table anyone reads all.
    if refusal is None:
        Readers(PATTERNS).check(caller, wanted)
    else:
        with pytest.raises(refusal):
            Readers(PATTERNS).check(caller, wanted)


@pytest.mark.parametrize("text", ['"few" = "orders"', '"few" = [1]', "[few]\nx = 1", "few"])
def test_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "readers.toml"
    with pytest.raises(ConfigError, match=r"http\.readers_file: .*No such file"):
        Readers.load(str(file))
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"http\.readers_file: .*readers\.toml"):
        Readers.load(str(file))
