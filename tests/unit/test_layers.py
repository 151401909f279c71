"""Proves that imports follow the picture in ARCHITECTURE.md and that sizes are within their limits, in every module.

An import counts wherever it stands: in a function, under TYPE_CHECKING.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.slow  # All modules are parsed. `make check` runs these tests.

ROOT = Path(__file__).parents[2]
OURS = "duolog"


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

EXTRA = {
    "opentelemetry"
}  # The packages of the extra `tracing`. Only one module imports them, and only a broker that traces loads it.
LAYERS = {
    "protocol": Layer(set(), {"crc32c", "cramjam", "kio", "lark", "msgspec"}, OUTER_WORLD),
    "store": Layer(set(), {"crc32c", "obstore"}, TIME_AND_NETWORK),
    "delay": Layer({"store"}, {"crc32c", "cronsim"}, OUTER_WORLD),
    "txn": Layer({"store"}, set(), OUTER_WORLD),
    "bridge": Layer(
        {"delay", "txn", "store", "protocol"},
        {
            *(
                "aiohttp",
                "crc32c",
                "cryptography",
                "jinja2",
                "jwt",
                "kio",
                "msgspec",
                "prometheus_client",
                "rich",
                "typer",
            ),
            *("uvloop", "yarl", *EXTRA),
        },
    ),
    "spark": Layer({"protocol", "store"}, {"matplotlib", "py4j", "pyarrow", "pyspark", "rich", "typer"}),
}
# The parts of `store/` that wait for an object store: they may import asyncio, and still ask nobody for the time.
AWAITING = ("store/objects/", "store/shared/")
# What a folder or a module of `bridge/` may import of the others. Modules that are not named here, such as `core.py`,
# may import all of them. The longest path counts: a module of `data/publishing` does not belong to `data`.
SHARED = {
    *("clock", "config", "monitoring", "net", "records", "security", "state", "tracing"),
    *("data", "data/publishing", "transactions"),
}
BRIDGE: dict[str, set[str]] = {
    "clock": set(),
    "config": set(),
    "records": set(),
    "running.service_manager": set(),
    "hooks": {"config"},
    "monitoring": {"config", "records"},
    "net": {"clock", "config", "monitoring"},
    "security": {"clock", "config", "records"},
    "tracing": {"config", "records"},
    "state": {"config", "records"},
    "maintenance": {"state"},
    "data": {"config", "monitoring", "records", "state"},
    "transactions": {"config", "data", "monitoring", "records", "state"},
    "data/publishing": SHARED - {"net"},
    "kafka": SHARED,
    "rocketmq": SHARED | {"hooks"},
    "cluster": SHARED | {"kafka", "rocketmq", "http"},
    "http": SHARED | {"hooks", "kafka", "maintenance", "rocketmq"},
    "console": {"clock", "config", "http"},
    "cli": {
        "broker",
        "clock",
        "config",
        "core",
        "net",
        "offline",
        "records",
        "rocketmq",
        "running.process",
        "security",
    },
}
COMMITS_WITH_FRAMES = {
    "data/delayed/delay_commands.py",
    "data/delayed/deliveries.py",
    "data/delayed/schedules.py",
    "data/publishing/publisher.py",
    "transactions/kafka_transactions.py",
}
FOLDER_MODULES_MAX, MODULE_LINES_MAX, CLASS_METHODS_MAX, CLASS_FIELDS_MAX = 15, 500, 20, 15
# What the docstring of a class above a limit must contain; or the comment before it, where the docstring is a text of
# the OpenAPI document.
REASON_FOR_METHODS = re.compile(r"\bmore than 20 methods\b[^.]*\bbecause\b")
REASON_FOR_FIELDS = re.compile(r"\bmore than (20 methods and )?15 fields\b[^.]*\bbecause\b")
IN_MEMORY = {"BytesIO"}  # The names of `io` that touch no file.
IMPORTED_AS = {"pyjwt": "jwt"}
DATA_ALONE = {"tzdata"}  # `zoneinfo` reads it where the system has no time zones
ASKS_THE_TIME = "bridge/clock.py"
CLOCKS = {"monotonic", "monotonic_ns", "now", "time", "time_ns", "today", "utcnow"}


@pytest.mark.parametrize("package", LAYERS)
def test_a_package_imports_only_what_its_layer_allows(package: str) -> None:
    layer = LAYERS[package]
    ours = {f"{OURS}.{name}" for name in {package} | layer.ours}
    allowed = ours | layer.others | (sys.stdlib_module_names - layer.without)
    imports = [each for _, found, _ in modules(package) for each in found]
    wrong = [f"{where} imports {name}" for where, name in imports if name not in allowed | awaits(where)]
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.parametrize("part", BRIDGE)
def test_a_part_of_bridge_imports_only_what_lies_below_it(part: str) -> None:
    wrong = [
        f"{importer} imports {imported}"
        for importer, all_imported in product_imports().items()
        for imported in all_imported
        if part_of(importer) == part and part_of(imported) not in BRIDGE[part] | {part, None}
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_only_the_publisher_appends_frames_that_have_limits() -> None:
    """The other commits with frames move what was accepted before; a new one must use `Publisher.append`."""
    found = {
        f"{path}"
        for path in product()
        for call in parsed(path).nodes
        if isinstance(call, ast.Call)
        and len(call.args) + len(call.keywords) > 2
        and re.search(r"state_log\.commit$", ast.unparse(call.func))
    }
    assert {name.partition("bridge/")[2] for name in found} == COMMITS_WITH_FRAMES


def test_imports_make_no_circle() -> None:
    wrong = circles(product_imports())
    assert not wrong, "\n".join(["", *map(" ".join, wrong)])


def awaits(where: str) -> set[str]:
    return {"asyncio"} if where.startswith(AWAITING) else set()


def crowded_folders() -> Iterator[str]:
    counts = Counter(path.parent for path in product())
    return (f"{folder} has {count} modules" for folder, count in counts.items() if count > FOLDER_MODULES_MAX)


def long_modules() -> Iterator[str]:
    counts = ((path, path.read_bytes().count(b"\n")) for path in product())
    return (f"{path} has {count} lines" for path, count in counts if count > MODULE_LINES_MAX)


def large_classes_without_a_reason() -> Iterator[str]:
    """Yield each class above a limit, together with its base classes, whose docstring has no reason for that limit."""
    by_name = {class_.name: class_ for _, class_ in classes()}
    for path, class_ in classes():
        methods, fields = members_of(class_, by_name)
        if len(methods) <= CLASS_METHODS_MAX and len(fields) <= CLASS_FIELDS_MAX:
            continue
        reasons = " ".join(f"{comment_before(path, class_)} {class_.docstring}".split())
        if len(methods) > CLASS_METHODS_MAX and not REASON_FOR_METHODS.search(reasons):
            yield f"{path}:{class_.line} {class_.name} has {len(methods)} methods, and says no reason for that"
        if len(fields) > CLASS_FIELDS_MAX and not REASON_FOR_FIELDS.search(reasons):
            yield f"{path}:{class_.line} {class_.name} has {len(fields)} fields, and says no reason for that"


def names_of_several_classes() -> Iterator[str]:
    counts = Counter(class_.name for _, class_ in classes() if not class_.name.startswith("_"))
    return (f"{name} names {count} classes" for name, count in counts.items() if count > 1)


@pytest.mark.parametrize(
    "exceeding", [crowded_folders, long_modules, large_classes_without_a_reason, names_of_several_classes]
)
def test_no_size_is_above_its_limit(exceeding: Callable[[], Iterator[str]]) -> None:
    wrong = [*exceeding()]
    assert not wrong, "\n".join(["", *wrong])


@pytest.mark.parametrize("package", LAYERS)
def test_nobody_but_the_clock_asks_the_time(package: str) -> None:
    """`perf_counter` is free: it measures, and says nothing about when."""
    wrong = [
        f"{path}:{line} uses {name}"
        for path, _, clocks in modules(package)
        if path != ASKS_THE_TIME
        for line, name in clocks
    ]
    assert not wrong, "\n".join(["", *wrong])


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.split("[^a-z0-9-]", name)[0] for name in project["dependencies"]]
    declared = {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}
    ours = [package for package in LAYERS if package != "spark"]
    imported = {name for package in ours for _, imports, _ in modules(package) for _, name in imports}
    ours_and_python = {f"{OURS}.{name}" for name in LAYERS} | sys.stdlib_module_names
    assert declared - DATA_ALONE == imported - ours_and_python - EXTRA
    importers = {
        where for package in ours for where, found, _ in modules(package) if EXTRA & {name for _, name in found}
    }
    assert importers == {"bridge/tracing/otlp.py"}


def test_the_tested_lowest_versions_are_the_lower_bounds() -> None:
    """A new dependency is written as `name>=VERSION`, and `make lock-lowest` then renews requirements-lowest.lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / "requirements-lowest.lock").read_text(), re.MULTILINE)
    assert {bound.replace(">=", "==") for bound in project["dependencies"]} <= set(pinned)


# -- Reading modules


@cache
def modules(package: str) -> list[tuple[str, list[tuple[str, str]], list[tuple[int, str]]]]:
    """Give of every file its imports, (file:line, name of the package), and where it asks the time, (line, name)."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        nodes = parsed(path).nodes
        found.append((name, list(imports_of(name, nodes)), list(clocks_of(nodes))))
    return found


class Class(NamedTuple):
    """A class at the top of a module, without what it inherits; `bases` are names without their modules."""

    name: str
    line: int
    bases: list[str]
    methods: set[str]
    fields: set[str]
    docstring: str | None


class Parsed(NamedTuple):
    """What the tests need of a module: its classes, its imports, and its nodes that name a clock or `commit`."""

    nodes: list[ast.AST]
    classes: list[Class]


@cache
def parsed(path: Path) -> Parsed:
    """Parse a module. The syntax tree itself is not kept: the garbage collector would go through all trees."""
    tree = ast.parse(path.read_bytes())
    return Parsed(
        [each for each in ast.walk(tree) if is_looked_at(each)],
        [class_of(each) for each in tree.body if isinstance(each, ast.ClassDef)],
    )


def is_looked_at(node: ast.AST) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Attribute(attr=name):
            return name in CLOCKS or name == "commit"
    return False


@cache
def product() -> list[Path]:
    """Give the modules of the product."""
    return sorted(path for package in LAYERS for path in (ROOT / package).rglob("*.py"))


def classes() -> Iterator[tuple[Path, Class]]:
    """Yield the classes at the top of each module."""
    return ((path, class_) for path in product() for class_ in parsed(path).classes)


def class_of(node: ast.ClassDef) -> Class:
    """Return the names of the methods and fields of a class.

    A field is an attribute that a method assigns to `self`, or a declaration in the class, as dataclasses have them.
    """
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    targets = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    fields = {each.attr for each in targets if isinstance(each.value, ast.Name) and each.value.id == "self"}
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if "ClassVar" not in ast.unparse(kind):
                fields.add(name)
    bases = [base.partition("[")[0].rpartition(".")[2] for base in map(ast.unparse, node.bases)]
    return Class(node.name, node.lineno, bases, methods, fields, ast.get_docstring(node))


def members_of(class_: Class, by_name: dict[str, Class]) -> tuple[set[str], set[str]]:
    """Return the names of the methods and fields of a class, with those of its base classes in the product."""
    methods, fields = set(class_.methods), set(class_.fields)
    for base in class_.bases:
        found = by_name.get(base)
        if found is not None and found is not class_:
            inherited_methods, inherited_fields = members_of(found, by_name)
            methods |= inherited_methods
            fields |= inherited_fields
    return methods, fields


def comment_before(path: Path, class_: Class) -> str:
    """Return the comment in the line before a class; empty if there is none."""
    line = path.read_text().splitlines()[class_.line - 2] if class_.line > 1 else ""
    return line if line.startswith("#") else ""


@cache
def product_imports() -> dict[str, set[str]]:
    """Return, by name, the modules of the product that each module of the product imports: `bridge.net.server`."""
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in product()
    }
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        imports: set[str] = set()
        for node in parsed(path).nodes:
            if isinstance(node, ast.Import):
                imports |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                modules = {each for each in members if each.removeprefix(f"{OURS}.") in names}
                imports |= modules | ({node.module} if members - modules else set())
        found[name] = {each.removeprefix(f"{OURS}.") for each in imports} & names.keys() - {name}
    return found


@cache
def part_of(module: str) -> str | None:
    """Give the part of `bridge/` that a module belongs to, as BRIDGE names it; None for a module of another folder."""
    package, *path = module.split(".")
    if package != "bridge":
        return None
    parts = ["/".join(path[:length]) for length in range(len(path), 0, -1)]
    return next((part for part in parts if part in BRIDGE), ".".join(path))


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or through others."""
    reached: dict[str, set[str]] = {}
    for module in imports:
        reached[module], ahead = set(), [module]
        while ahead:
            new = imports[ahead.pop()] - reached[module]
            reached[module] |= new
            ahead += new
    both = {frozenset(b for b in reached[a] if a in reached[b]) for a in imports if a in reached[a]}
    return [sorted(circle) for circle in both]


def imports_of(path: str, nodes: list[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((f"{path}:{node.lineno}", named(alias.name)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            if node.module == "io" and {alias.name for alias in node.names} <= IN_MEMORY:
                continue
            names = [node.module] if node.module != OURS else [f"{OURS}.{alias.name}" for alias in node.names]
            yield from ((f"{path}:{node.lineno}", named(name)) for name in names)


def named(module: str) -> str:
    """Give `duolog.store` for whatever is in there. A folder's name alone names nothing that is installed."""
    first, _, rest = module.partition(".")
    return f"{OURS}.{rest.partition('.')[0]}" if first == OURS else first


def clocks_of(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield every call like `loop.time()`, and every mention of `time.monotonic` and its like."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr=name)) if name in CLOCKS:
                yield node.lineno, f"{name}()"
            case ast.Attribute(value=ast.Name(id="time" | "datetime" | "date"), attr=name) if name in CLOCKS:
                yield node.lineno, name
            case ast.ImportFrom(module="time", names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases if alias.name in CLOCKS)
