"""What is in dist/ installs by pip, pipx and uv, and the installed broker serves stock clients.

`make test-install` builds dist/ before. One way of installing takes the lowest version of each dependency; the unit
tests run with these versions, too. The others take what the package index has today.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.kit.broker import Broker
from tests.kit.command import DUOLOG

ROOT = Path(__file__).parents[2]
RELEASE_TOOLS = ROOT / ".venv-release/bin"
PRODUCT = ("bridge", "delay", "protocol", "spark", "store", "txn")
NOT_PACKAGED = (".c", ".so", ".pyc")
WITHIN_S = 600


def of_dist(pattern: str) -> Path:
    """Return the one file in dist/ that has this form."""
    found = list((ROOT / "dist").glob(pattern))
    assert len(found) == 1, f"dist/ has {found}; make dist builds it"
    return found[0]


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# -- What is in the files


def test_the_wheel_has_all_files_of_the_product_and_is_tagged_for_what_it_has() -> None:
    wheel = of_dist("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = {path for folder in PRODUCT for path in (ROOT / folder).rglob("*") if path.is_file()}
    wanted = {f"duolog/{path.relative_to(ROOT)}" for path in files if path.suffix not in NOT_PACKAGED}
    assert wanted - names == set()
    assert {"duolog/py.typed", "duolog/protocol/kafka/_records.abi3.so"} <= names
    assert {"LICENSE", "THIRD_PARTY.md"} <= {name.partition("/licenses/")[2] for name in names}
    assert "-cp311-abi3-manylinux" in wheel.name


def test_the_sdist_has_what_a_build_needs() -> None:
    with tarfile.open(of_dist("*.tar.gz")) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"setup.py", "pyproject.toml", "LICENSE", "THIRD_PARTY.md", "protocol/kafka/_records.c"} <= names


# -- Ways of installing; each returns the interpreter that has Duolog


def by_pip(folder: Path, *requirements: str | Path) -> Path:
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin/pip", "install", "-q", *requirements)
    return folder / "bin/python"


def with_lowest_versions(folder: Path) -> Path:
    by_pip(folder, "--require-hashes", "--only-binary", ":all:", "-r", ROOT / "requirements-lowest.lock")
    run(folder / "bin/pip", "install", "-q", "--no-deps", of_dist("*.whl"))
    run(folder / "bin/pip", "check")
    return folder / "bin/python"


def with_newest_versions(folder: Path) -> Path:
    return by_pip(folder, of_dist("*.whl"))


def from_the_sdist(folder: Path) -> Path:
    return by_pip(folder, of_dist("*.tar.gz"))


def by_pipx(folder: Path) -> Path:
    places = {"PIPX_HOME": f"{folder}/home", "PIPX_BIN_DIR": f"{folder}/bin", "PIPX_MAN_DIR": f"{folder}/man"}
    run(RELEASE_TOOLS / "pipx", "install", "--python", sys.executable, of_dist("*.whl"), **places)
    return folder / "home/venvs/duolog/bin/python"


def by_uv(folder: Path) -> Path:
    places = {"UV_TOOL_DIR": f"{folder}/tools", "UV_TOOL_BIN_DIR": f"{folder}/bin"}
    run(RELEASE_TOOLS / "uv", "tool", "install", "--python", sys.executable, of_dist("*.whl"), **places)
    return folder / "tools/duolog/bin/python"


@pytest.mark.parametrize(
    "install",
    [with_lowest_versions, with_newest_versions, from_the_sdist, by_pipx, by_uv],
    ids=lambda way: way.__name__,
)
def test_an_installed_broker_serves_clients(install: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = tmp_path / "installed"
    python = install(folder)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(folder / "bin/duolog", "version") == f"duolog {version}\n"
    with Broker(tmp_path / "data", command=(str(python), *DUOLOG[1:])) as broker:
        assert "no C extension" not in broker.log.read_text()
        assert produced_and_consumed(broker.kafka) == [b"0", b"1", b"2"]
        run(folder / "bin/duolog", "demo", "--http", broker.http)


def produced_and_consumed(kafka: str) -> list[bytes]:
    """Send three messages, each with another compression, by librdkafka, and return what a consumer gets."""
    for number, codec in enumerate(("gzip", "lz4", "zstd")):
        producer = Producer({"bootstrap.servers": kafka, "compression.type": codec})
        producer.produce("installed", str(number).encode(), partition=0)
        assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "installed", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe(["installed"])
        messages = (consumer.poll(30) for _ in range(3))
        return [message.value() or b"" for message in messages if message is not None]
    finally:
        consumer.close()


def test_unit_tests_pass_with_the_lowest_versions(tmp_path: Path) -> None:
    """The test tools come from this environment; what the lowest versions contain is found before them."""
    python = with_lowest_versions(tmp_path / "installed")
    packages = next((tmp_path / "installed/lib").glob("python3*/site-packages"))
    (packages / "test_tools.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    installed = ["-o", "pythonpath=.", "-p", "no:cacheprovider"]  # Without src, so that `duolog` is the wheel's.
    folders = [f"tests/unit/{name}" for name in ("bridge", "protocol", "delay", "store", "txn")]
    selected = ["-m", "not soak and not slow", *folders]
    run(python, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *installed, *selected)
