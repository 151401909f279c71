"""Every example of docs/guides and README.md does what its page says: its blocks run in their order against a broker.

A comment above each block of code says what becomes of the block:

    <!-- run -->                  The block runs as it stands, and must succeed.
    <!-- run: status 1 -->        The shell block must end with this status; the output includes standard error.
    <!-- run: keeps running -->  The Java program goes on until the end of the page.
    <!-- run: spark -->           The Python block runs where Spark runs.
    <!-- output -->               The block before printed this; `...` stands for any text.
    <!-- output: any order -->    The block before printed these lines in some order.
    <!-- file: NAME -->           The block is written to this file in the folder where the page's examples run.
    <!-- example: NAME -->        Another test runs the block (test_guide_streams.py, test_hooks.py).
    <!-- not run: REASON -->      The block is an illustration.

Shell blocks run in bash with `duolog` and `mqadmin` on the path, Python blocks share one namespace, and a Java block
becomes the body of `main` in a class of its own. The default addresses are replaced by those of the test's broker, and
port 8080 by a free one. A page may name the settings of its broker: `<!-- broker: SECTION.NAME=VALUE ... -->`.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.broker import Broker, free_ports
from tests.kit.eventually import eventually
from tests.wire.clients.jvm import JVM_OPTIONS, jars

pytestmark = pytest.mark.usefixtures("both_protocols")

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    *sorted(f"docs/guides/{path.name}" for path in (ROOT / "docs/guides").glob("*.md") if path.name != "index.md"),
]
BLOCK = re.compile(r"^(?:<!-- ([^\n]*?) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = re.compile(r"^<!-- broker: (.*?) -->$", re.MULTILINE)
WITHIN_S = 90
DEFAULT_PORTS = {"kafka": 9092, "rocketmq": 10911, "namesrv": 9876, "http": 9644}
KINDS = ("run", "output", "file", "example", "not run")
JAVA_PROGRAM = """
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.client.consumer.listener.*;
import org.apache.rocketmq.client.producer.*;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.*;

class Example {
    public static void main(String[] arguments) throws Exception {
%s    }
}
"""


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code of a page."""

    mark: str  # The comment above the block; empty if there is none.
    language: str
    code: str
    line: int

    @property
    def kind(self) -> str:
        return self.mark.partition(":")[0].strip()

    @property
    def argument(self) -> str:
        return self.mark.partition(":")[2].strip()


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for found in BLOCK.finditer(text):
        mark, language, code = found.groups()
        yield Block(mark or "", language, code, text.count("\n", 0, found.start(3)) + 1)


class Examples:
    """Runs the blocks of one page, one after the other."""

    def __init__(self, broker: Broker, folder: Path, local_port: int) -> None:
        self._addresses = {f"127.0.0.1:{port}": getattr(broker, name) for name, port in DEFAULT_PORTS.items()}
        # A server of the example's own, as a URL and as Python's pair.
        self._addresses["127.0.0.1:8080"] = f"127.0.0.1:{local_port}"
        self._addresses['"127.0.0.1", 8080'] = f'"127.0.0.1", {local_port}'
        self._http = broker.http
        self._folder = folder
        self._kept: list[subprocess.Popen[str]] = []  # Java programs that run until the end of the page.
        self._names: dict[str, Any] = {"__name__": "__main__"}  # What the Python blocks share.

    def run(self, block: Block, output: Block | None) -> None:
        """Run one block, and check what it printed if the page shows that."""
        printed = self._run(block, output)
        if output is not None:
            assert shows(printed, output), f"line {block.line} printed\n{printed}\nnot\n{output.code}"

    def _run(self, block: Block, output: Block | None) -> str:
        code = self._at_this_broker(block.code)
        if block.language == "java":
            return self._java(code, output, keeps_running=block.argument == "keeps running")
        if block.language == "python":
            return self._python(code, block)
        assert block.language == "bash", f"no way to run {block.language!r}"
        return self._bash(code, block)

    def close(self) -> None:
        """End the clients of the Python blocks and the Java programs that go on, before their broker ends."""
        for process in self._kept:
            process.kill()
            process.wait()
        self._names.clear()
        gc.collect()

    def write(self, block: Block) -> None:
        (self._folder / block.argument).write_text(self._at_this_broker(block.code))

    def _at_this_broker(self, code: str) -> str:
        for shown, actual in self._addresses.items():
            code = code.replace(shown, actual)
        return code

    def _bash(self, code: str, block: Block) -> str:
        if "mqadmin" in code:
            self._install_mqadmin()
        path = f"{self._folder}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "DUOLOG_HTTP": self._http, "COLUMNS": "120"}
        wanted = int(block.argument.removeprefix("status ")) if block.argument.startswith("status ") else 0
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if wanted else subprocess.PIPE,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        assert done.returncode == wanted, f"status {done.returncode}, not {wanted}\n{done.stdout}{done.stderr or ''}"
        return done.stdout

    def _install_mqadmin(self) -> None:
        options = " ".join([*JVM_OPTIONS, f"-Duser.home={self._folder}", f"-Drocketmq.client.logRoot={self._folder}"])
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        script = self._folder / "mqadmin"
        script.write_text(f"#!/bin/sh\nexec java {options} -cp '{jars('rocketmq-tools-5.5')}/*' {main} \"$@\"\n")
        script.chmod(0o755)

    def _python(self, code: str, block: Block) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (block.line - 1) + code, "guide", "exec"), self._names)
        return printed.getvalue()

    def _java(self, code: str, output: Block | None, *, keeps_running: bool) -> str:
        """Run until the program ends, or has printed what is expected: a consumer does not end by itself.

        With `keeps_running`, the program goes on after its output until the end of the page.
        """
        source = self._folder / "Example.java"
        source.write_text(JAVA_PROGRAM % code)
        classpath = f"{jars('rocketmq-5.5')}/*"
        options = [*JVM_OPTIONS, f"-Duser.home={self._folder}", "-Drocketmq.client.logUseSlf4j=true"]
        with (self._folder / "java.err").open("w") as errors:
            process = subprocess.Popen(
                ["java", *options, "-cp", classpath, str(source)], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        lines: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lines.extend, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            if output is None:
                assert process.wait(WITHIN_S) == 0, (self._folder / "java.err").read_text()
            else:
                eventually(
                    "the output, or the end",
                    lambda: (shows("".join(lines), output), process.poll()),
                    lambda seen: seen[0] or seen[1] is not None,
                    WITHIN_S,
                )
                if "System.exit" in code:  # What it still has to send, it sends before its end.
                    process.wait(WITHIN_S)
                assert process.poll() in (None, 0), (self._folder / "java.err").read_text()
        finally:
            if keeps_running:
                self._kept.append(process)
            else:
                process.kill()
                process.wait()
                reader.join(5)
        return "".join(lines)


def shows(printed: str, output: Block) -> bool:
    """Tell whether the text is what a page shows."""
    if output.argument != "any order":
        return _matches(_trimmed(printed), _trimmed(output.code))
    lines = _trimmed(printed).splitlines()
    for wanted in _trimmed(output.code).splitlines():
        found = next((line for line in lines if _matches(line, wanted)), None)
        if found is None:
            return False
        lines.remove(found)
    return not lines


def _matches(text: str, shown: str) -> bool:
    return re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*?"), text, re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.fixture
def local_port() -> int:
    """Stands for port 8080 of the page."""
    return free_ports(1)[0]


@pytest.fixture
def own_broker(page: str, tmp_path: Path, local_port: int) -> Iterator[Broker]:
    found = SETTINGS.search((ROOT / page).read_text().replace("127.0.0.1:8080", f"127.0.0.1:{local_port}"))
    settings = dict(setting.split("=", 1) for setting in found[1].split()) if found else {}
    with Broker(tmp_path / "data", {"store.flush": "async"} | settings) as broker:
        yield broker


@pytest.mark.parametrize("page", PAGES)
def test_each_block_says_what_becomes_of_it(page: str) -> None:
    unclear = [block for block in blocks(page) if block.kind not in KINDS]
    assert not unclear, [(f"{page}:{block.line}", block.mark) for block in unclear]
    unargued = [block for block in blocks(page) if block.kind in ("file", "example", "not run") and not block.argument]
    assert not unargued, [f"{page}:{block.line}" for block in unargued]


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.kind == "run" for block in blocks(page))])
def test_examples_of_a_guide_do_what_the_page_says(
    page: str,
    own_broker: Broker,
    local_port: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "examples"
    folder.mkdir()
    monkeypatch.chdir(folder)  # Also for the threads of the examples.
    examples = Examples(own_broker, folder, local_port)
    request.addfinalizer(examples.close)
    all_blocks = list(blocks(page))
    for block, following in zip(all_blocks, [*all_blocks[1:], None], strict=True):
        if block.kind == "file":
            examples.write(block)
        if block.kind != "run":
            continue
        if block.argument == "spark":
            _ = request.getfixturevalue("spark").session  # Started now, so that the example finds it.
        print(f"{page}:{block.line} ({block.language})", file=sys.stderr)
        examples.run(block, following if following is not None and following.kind == "output" else None)
