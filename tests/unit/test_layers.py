"""Proves that the code keeps to the picture in ARCHITECTURE.md, by reading the imports of every module.

An import counts wherever it stands: in a function, under TYPE_CHECKING.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Layer(NamedTuple):
    """What a package may import: of ours, of others'; and what of the standard library it may not."""

    ours: set[str]
    others: set[str]
    without: frozenset[str] = frozenset()


TIME_AND_NETWORK = frozenset({"asyncio", "http", "sched", "select", "selectors", "signal", "socket", "ssl", "time"})
OUTER_WORLD = TIME_AND_NETWORK | {
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "shutil",
    "subprocess",
    "threading",
}

LAYERS = {
    "protocol": Layer(set(), {"crc32c", "cramjam", "kio", "lark", "msgspec"}, OUTER_WORLD),
    "store": Layer(set(), {"crc32c"}, TIME_AND_NETWORK),
    "delay": Layer({"store"}, {"crc32c", "cronsim"}, OUTER_WORLD),
    "txn": Layer({"store"}, set(), OUTER_WORLD),
    "bridge": Layer(
        {"delay", "txn", "store", "protocol"},
        {"aiohttp", "crc32c", "kio", "msgspec", "prometheus_client", "rich", "typer", "uvloop", "yarl"},
    ),
    "spark": Layer({"protocol", "store"}, {"matplotlib", "py4j", "pyarrow", "pyspark", "rich", "typer"}),
}
IN_MEMORY = {"BytesIO"}  # Of `io`, what touches no file.
DATA_ALONE = {"tzdata"}  # `zoneinfo` reads it where the system has no time zones
ASKS_THE_TIME = "bridge/clock.py"
CLOCKS = {"monotonic", "monotonic_ns", "now", "time", "time_ns", "today", "utcnow"}


@pytest.mark.parametrize("package", LAYERS)
def test_a_package_imports_only_what_its_layer_allows(package: str) -> None:
    layer = LAYERS[package]
    allowed = {package} | layer.ours | layer.others | (sys.stdlib_module_names - layer.without)
    wrong = [f"{where} imports {name}" for where, name in imports(package) if name not in allowed]
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.parametrize("package", LAYERS)
def test_nobody_but_the_clock_asks_the_time(package: str) -> None:
    """`perf_counter` is free: it measures, and says nothing about when."""
    wrong = [
        f"{path}:{line} uses {name}"
        for path, tree in modules(package)
        if path != ASKS_THE_TIME
        for line, name in clocks(tree)
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {name.replace("-", "_") for name in project["dependencies"]}
    imported = {name for package in LAYERS if package != "spark" for _, name in imports(package)}
    assert declared - DATA_ALONE == imported - set(LAYERS) - sys.stdlib_module_names


# -- Reading modules


def modules(package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_bytes())


@cache
def imports(package: str) -> list[tuple[str, str]]:
    """(file:line, top-level name) of every import."""
    found = []
    for path, tree in modules(package):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                found += [(f"{path}:{node.lineno}", alias.name.partition(".")[0]) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}:{node.lineno}: relative import"
                assert node.module is not None
                if node.module == "io" and {alias.name for alias in node.names} <= IN_MEMORY:
                    continue
                found.append((f"{path}:{node.lineno}", node.module.partition(".")[0]))
    return found


def clocks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of every call like `loop.time()`, and every mention of `time.monotonic` and its like."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCKS:
                yield node.lineno, f"{name}()"
            case ast.Attribute(value=ast.Name(id="time" | "datetime" | "date"), attr=name) if name in CLOCKS:
                yield node.lineno, name
            case ast.ImportFrom(module="time", names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases if alias.name in CLOCKS)
