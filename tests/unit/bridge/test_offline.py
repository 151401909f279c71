"""Users and rules that commands change before the first start: they are there in the log at the next start."""

from pathlib import Path

from duolog.bridge.config import load
from duolog.bridge.offline import open_offline


def test_directory_that_no_broker_uses_can_be_opened_and_opened_again(tmp_path: Path) -> None:
    options = load(None, {"store.directory": str(tmp_path / "data"), "security.enabled": "true"})
    with open_offline(options) as core:
        made = core.topics.create("orders", 1, {}, core.clock.now_ms())[0]
        assert made.kafka_name == "orders"
    with open_offline(options) as core:
        assert core.topics.get("orders") is not None
