"""All log lines of the broker, read from its code: where each is written, its level, its message before formatting."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from duolog.bridge.monitoring.logs import event_of, values_of

ROOT = Path(__file__).parents[2]
FOLDERS = ("bridge", "delay", "store", "txn")
LEVELS = {"exception": "error", "log": "any"} | {
    name: name for name in ("debug", "info", "warning", "error", "critical")
}


class Line(NamedTuple):
    """One call that writes a line. `template` is its message before formatting."""

    component: str
    level: str
    template: str
    place: str

    @property
    def event(self) -> str:
        return event_of(self.template)

    @property
    def fields(self) -> list[str]:
        return [value.field for value in values_of(self.template) if value.field]


def all_lines() -> Iterator[Line]:
    """Yield the lines in the order of the files. Raises AssertionError for a message that is not a constant."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            source = path.read_text()
            if "getLogger(" in source:
                yield from _lines_of(source, str(path.relative_to(ROOT)))


def _lines_of(source: str, place: str) -> Iterator[Line]:
    tree = ast.parse(source)
    loggers = {
        target.id: value.args[0].value
        for each in tree.body
        if isinstance(each, ast.Assign) and isinstance(target := each.targets[0], ast.Name)
        if isinstance(value := each.value, ast.Call) and ast.unparse(value.func) == "logging.getLogger"
        if value.args and isinstance(value.args[0], ast.Constant)
    }
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        owner, method = call.func.value, call.func.attr
        if isinstance(owner, ast.Name) and owner.id in loggers and method in LEVELS:
            message = call.args[1 if method == "log" else 0]
            at = f"{place}:{call.lineno}"
            assert isinstance(message, ast.Constant), f"{at}: the message is no constant"
            yield Line(str(loggers[owner.id]), LEVELS[method], str(message.value), at)
