"""Proves that a command that loses the ownership of a stream ends with an error in one line."""

from pathlib import Path

import pytest

from duolog.bridge import offline_stream
from duolog.bridge.config import load
from duolog.bridge.net.addresses import StartError
from duolog.bridge.offline_stream import open_on_stream
from duolog.store.shared.requests import RequestsStopped


async def _deposed(stream: object) -> None:
    raise RequestsStopped


def test_command_that_is_deposed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file://{tmp_path}/bucket"
    options = load(None, {"shared.url": url, "store.directory": str(tmp_path / "data")})
    monkeypatch.setattr(offline_stream._Stream, "take_over", _deposed)
    expected = f"{url}: a broker has taken over the stream meanwhile: run it again"
    with pytest.raises(StartError, match=expected), open_on_stream(options):
        pytest.fail("it owns nothing")
