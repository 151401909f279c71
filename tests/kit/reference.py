"""The generated parts of docs/reference: tables of APIs, settings, log lines, commands, routes and metrics.

Each page has hand-written text; a function of PARTS generates the text between two marks:

    <!-- generated: settings -->
    ...
    <!-- /generated -->

`pytest tests/unit/test_readme.py` fails if a page is not up to date, and with `--rewrite` updates all pages. FILES are
generated as a whole. To add a part, add a function to PARTS, and put the marks into a page.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import typer

from duolog.bridge import kafka
from duolog.bridge.cli.main import program
from duolog.bridge.config.options import Options, settings
from duolog.bridge.hooks import Hooks
from duolog.bridge.http.metrics import exposition
from duolog.bridge.http.openapi import document as openapi
from duolog.bridge.http.openapi.operations import OPERATIONS
from duolog.bridge.rocketmq import request_table
from duolog.bridge.state import topic_configs
from duolog.protocol.rocketmq.codes import RequestCode
from duolog.spark.commands import app as pipeline
from tests.kit import log_lines
from tests.kit.core import ManualCore
from tests.kit.notices import third_party

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


# -- Protocols


def kafka_apis() -> Iterator[str]:
    yield from _head("key", "API", "versions")
    for api in sorted(kafka.TABLE.values(), key=lambda api: api.key):
        first, last = api.advertised
        note = f" (served from {api.min_version})" if first != api.min_version else ""
        yield _row(str(int(api.key)), _camel(api.key.name), f"{first} to {last}{note}" if first != last else str(last))


def rocketmq_requests() -> Iterator[str]:
    """Yield a row for each file of handlers, in the order of the dispatch table."""
    by_module: dict[str, list[str]] = {}
    for code, row in request_table.TABLE.items():
        module = row.handler.__module__.removeprefix("duolog.bridge.rocketmq.").replace(".", "/")
        by_module.setdefault(module, []).append(f"{int(code)} {_code(RequestCode(code).name)}")
    yield from _head("in `bridge/rocketmq/`", "requests")
    for module, codes in by_module.items():
        yield _row(_code(module + ".py"), ", ".join(codes))


# -- Settings


def settings_tables() -> Iterator[str]:
    """Yield a table for each section."""
    section = ""
    for row in settings():
        if row.name.partition(".")[0] != section:
            section = row.name.partition(".")[0]
            kind = type(getattr(Options(), section))
            yield from ("", f"### {section}", "", _first_line(kind.__doc__), "")
            yield from _head("setting", "default", "what it is", "Kafka", "RocketMQ")
        yield _row(_code(row.name), _code(row.default), row.doc, _code(row.kafka), _code(row.rocketmq))


def topic_config_tables() -> Iterator[str]:
    """Yield the configs that have an effect, then the names of the others."""
    from_broker = topic_configs.broker_defaults(Options())
    unused = []
    yield from _head("config", "default", "what it is")
    for config in topic_configs.TABLE.values():
        if config.doc == topic_configs.TABLE["segment.bytes"].doc:
            unused.append(_code(config.name))
        else:
            default = "the broker's setting" if config.name in from_broker else _code(config.default)
            yield _row(_code(config.name), default, config.doc)
    yield from ("", f"Accepted without effect, because applications set them: {', '.join(unused)}.")


# -- Log lines


def log_events() -> Iterator[str]:
    """Yield a row for each event: the levels and components of its lines, and their texts."""
    lines: dict[str, list[log_lines.Line]] = {}
    for line in log_lines.all_lines():
        lines.setdefault(line.event, []).append(line)
    yield from _head("event", "level", "component", "text")
    for event, found in sorted(lines.items()):
        levels, components = (", ".join(sorted({each[at] for each in found})) for at in (1, 0))
        texts = dict.fromkeys(_code(re.sub(r"%[-.\d]*[a-z]", "...", each.template)) for each in found)
        yield _row(_code(event), levels, components, "; ".join(texts))


# -- Commands


def commands() -> Iterator[str]:
    yield from _commands("duolog", typer.main.get_command(program()))


def pipeline_jobs() -> Iterator[str]:
    yield from _commands("duolog pipeline run", typer.main.get_command(pipeline))


def _commands(path: str, command: Any) -> Iterator[str]:
    """Yield the description of a command, or of all commands of a group."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from _commands(f"{path} {name}", each)
        return
    shown = [each for each in command.params if not each.hidden and each.name != "help"]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    usage = [path, *(["[OPTIONS]"] if options else []), *map(_argument, arguments)]
    yield from ("", f"### {path}", "", _sentences(command.help), "", "```", " ".join(usage), "```")
    if any(each.help for each in arguments) or options:
        yield from ("", *_head("argument or option", "what it is"))
    for each in arguments:
        if each.help:
            yield _row(_code(_argument(each)), each.help)
    for each in options:
        names = ", ".join(_code(name) for name in [*each.opts, *each.secondary_opts])
        yield _row(f"{names} {_code(each.metavar or '')}".strip(), _default(each))
    if command.epilog:
        yield from ("", command.epilog)


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _default(option: Any) -> str:
    doc = option.help or ""
    is_said = option.default is None or isinstance(option.default, bool) or "[" in doc
    required = " (required)" if option.required else ""
    return doc + required if is_said else f"{doc} [{option.default}]"


# -- The HTTP port


def http_operations() -> Iterator[str]:
    found = openapi.document(tuple(OPERATIONS))
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            yield from _operation(method.upper(), path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield from ("", f"### {method} {path}", "", operation["summary"])
    if "description" in operation:
        yield from ("", operation["description"])
    parameters = [each for each in operation.get("parameters", ()) if each["in"] != "path"]
    if parameters:
        yield from ("", *_head("parameter", "type", "what it is"))
    for each in parameters:
        header = " (header)" if each["in"] == "header" else ""
        required = " (required)" if each["required"] else ""
        yield _row(_code(each["name"]) + header, _schema(each["schema"]), each["description"] + required)
    if "requestBody" in operation:
        optional = "" if operation["requestBody"]["required"] else ", which is optional"
        yield from (
            "",
            f"Body{optional}: {_schema(operation['requestBody']['content']['application/json']['schema'])}.",
        )
    yield from ("", *_head("status", "what it means", "answer"))
    for status, answer in operation["responses"].items():
        if status != "default":
            ((_, content),) = answer["content"].items()
            yield _row(status, answer["description"], _schema(content["schema"]))


def http_types() -> Iterator[str]:
    """Yield the objects of bodies and answers by name."""
    for name, schema in sorted(openapi.document(tuple(OPERATIONS))["components"]["schemas"].items()):
        yield from ("", f"### {name}", "")
        if "description" in schema:
            yield from (" ".join(schema["description"].split()), "")
        required = set(schema.get("required", ()))
        yield from _head("field", "type", "what it is")
        for field, each in schema["properties"].items():
            optional = "" if field in required else " (optional)"
            yield _row(_code(field) + optional, _schema(each), each.get("description", ""))


def _schema(schema: dict[str, Any]) -> str:
    """Return a short text for a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_schema, schema["anyOf"])))
    if "enum" in schema:
        return " or ".join("null" if each is None else _code(str(each)) for each in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items")
        return f"array of {_schema(items)}" if isinstance(items, dict) else "array of integers"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"object of {_schema(values)}" if isinstance(values, dict) else "object"
    bounds = "".join(
        f", {word} {schema[name]}"
        for name, word in (("minimum", "from"), ("maximum", "up to"), ("default", "default"))
        if name in schema and schema[name] not in (0, False)
    )
    return str(kind) + bounds


def openapi_file() -> str:
    return msgspec.json.format(msgspec.json.encode(openapi.document(tuple(OPERATIONS))), indent=1).decode() + "\n"


# -- Metrics


def metrics_table() -> Iterator[str]:
    yield from _head("metric", "type", "unit", "labels", "what it is")
    context = ManualCore().http_context()
    hooks = cast(Hooks, SimpleNamespace(skipped={}))  # The metric of hooks exists only if hooks are installed.
    for family in exposition.families(replace(context, monitoring=replace(context.monitoring, hooks=hooks))):
        suffix = "_total" if family.type == "counter" else ""
        labels = ", ".join(map(_code, getattr(family, "_labelnames", ())))
        name = family.name + suffix
        yield _row(_code(name), family.type, _unit_of(name, family.documentation), labels, family.documentation)


def _unit_of(name: str, documentation: str) -> str:
    """Return the unit of a metric's values: the first word of its text, or the first of these parts of its name."""
    first_word = documentation.split()[0].lower()
    if first_word in ("milliseconds", "seconds", "bytes"):
        return first_word
    units = {
        "messages": "number",
        "bytes": "bytes",
        "position": "bytes",
        "storage_size": "bytes",
        "throughput": "bytes",
        "seconds": "seconds",
    }
    return next((unit for part, unit in units.items() if part in name), "number")


PARTS: dict[str, Callable[[], Iterable[str]]] = {
    "kafka-apis": kafka_apis,
    "rocketmq-requests": rocketmq_requests,
    "settings": settings_tables,
    "log-events": log_events,
    "topic-configs": topic_config_tables,
    "commands": commands,
    "pipeline-jobs": pipeline_jobs,
    "http-operations": http_operations,
    "http-types": http_types,
    "metrics": metrics_table,
}
FILES: dict[Path, Callable[[], str]] = {
    REFERENCE / "openapi.json": openapi_file,
    ROOT / "THIRD_PARTY.md": third_party,
}

_MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def parts_of(page: str) -> list[str]:
    """Return the names of the generated parts of a page."""
    return [found[2] for found in _MARKED.finditer(page)]


def renewed(page: str) -> str:
    """Return a page with its generated parts updated."""
    return _MARKED.sub(
        lambda found: found[1] + "\n" + "\n".join(PARTS[found[2]]()).strip("\n") + "\n\n" + found[3], page
    )


# -- Markdown


def _head(*cells: str) -> Iterator[str]:
    yield _row(*cells)
    yield "|" + "---|" * len(cells)


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]


def _sentences(doc: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (doc or "").strip().split("\n\n"))
