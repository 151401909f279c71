"""`duolog log dump`: shows units, entries and records of the log to a person, with their positions."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import typer

from duolog.bridge.cli.common import Refused, local_time, printable, shortened, show_json_line
from duolog.bridge.records import codec, frame_formats
from duolog.bridge.records.topics import TopicCreated
from duolog.protocol.errors import ProtocolError
from duolog.protocol.kafka.record_reader import records
from duolog.protocol.rocketmq.messages import message, properties
from duolog.protocol.rocketmq.messages.compression import inflate_body
from duolog.store.entry import CONTROL_FORM, STATE_FORM
from duolog.store.errors import Corruption
from duolog.store.files import ReadOnlyFiles
from duolog.store.index.queue import Queue
from duolog.store.log.control import ControlKind
from duolog.store.log.format import CLOSED_FLAG, OPENED_FLAG, POSITION_MAX, Entry
from duolog.store.recovery.damage import BadRange, Verification, scan_segment

if TYPE_CHECKING:
    from duolog.store.log.unit_walk import Unit

Row = dict[str, Any]

INFLATED_BYTES_MAX: Final = 256 << 20  # The decompressed size of a batch or message that is shown.
STATE_CHARACTERS_MAX: Final = 400  # The length of a state record in the text output; --json shows the whole record.


@dataclass(slots=True)
class Filter:
    """What to show: positions from `start` to `end`, and entries of one topic or queue."""

    start: int = 0
    end: int = POSITION_MAX
    topic: str | None = None
    queue: int | None = None
    names: dict[int, str] = field(default_factory=dict)  # Topic number -> name, as far as it is known.

    @property
    def is_of_queues(self) -> bool:
        return self.topic is not None or self.queue is not None

    def takes(self, entry: Entry) -> bool:
        """Return whether an entry is to be shown."""
        if not self.start <= entry.position < self.end:
            return False
        if not self.is_of_queues:
            return True
        if entry.form in (CONTROL_FORM, STATE_FORM):
            return False
        number, queue_id = Queue.split(entry.key)
        return self.topic in (None, self.names.get(number)) and self.queue in (None, queue_id)


def dump(files: ReadOnlyFiles, wanted: Filter, limit: int, *, is_served: bool, as_json: bool) -> None:
    """Print the units with entries that are wanted, up to `limit` units. Raises Refused for an unknown topic."""
    verification = Verification(files, is_served=is_served)
    for count, row in enumerate(_rows(files, verification, wanted)):
        if count == limit:
            typer.echo(f"... more follows: --limit is {limit}", err=True)
            return
        if as_json:
            show_json_line(row)
        else:
            _show(row)
    if wanted.topic is not None and wanted.topic not in wanted.names.values():
        raise Refused(f"the part of the log that was read does not name a topic {wanted.topic}")


def _rows(files: ReadOnlyFiles, verification: Verification, wanted: Filter) -> Iterator[Row]:
    """Yield a row for each unit and each bad range that is wanted."""
    known = verification.state
    for payload in () if known is None else known.records:
        learn_name(payload, wanted.names)
    # Without a state that names the topics, the records that name them are read from the beginning of the log.
    read_from = wanted.start if known is not None or not wanted.is_of_queues else 0
    for segment in verification.segments:
        end = verification.end_of(segment)
        if end <= read_from or segment.start >= wanted.end:
            continue
        for found in scan_segment(files, segment, end):
            at = found.start if isinstance(found, BadRange) else found.header.position
            if at >= wanted.end:
                return
            if isinstance(found, BadRange):
                # After the newest unit, blocks of zeros are reserved for the next ones.
                is_reserve = segment.end is None and verification.last_byte_from(found.start) == found.start
                if found.end > wanted.start and not is_reserve:
                    yield {"position": found.start, "bad_until": found.end, "reason": found.reason}
                continue
            row = _unit_row(found, wanted)
            if row is not None:
                yield row


def _unit_row(unit: "Unit", wanted: Filter) -> Row | None:
    header = unit.header
    entries: list[Row] = []
    for entry in unit.entries():
        if entry.form == STATE_FORM:
            learn_name(bytes(entry.frame), wanted.names)
        if wanted.takes(entry):
            entries.append(_entry_row(entry, wanted.names))
    is_marker = not header.entry_count and not wanted.is_of_queues and wanted.start <= header.position < wanted.end
    if not entries and not is_marker:
        return None
    return {
        "position": header.position,
        "size": header.size,
        "epoch": header.epoch,
        "durable": header.durable,
        "stored_ms": header.stored_ms,
        "opened": bool(header.flags & OPENED_FLAG),
        "closed": bool(header.flags & CLOSED_FLAG),
        "entries": entries,
    }


def learn_name(payload: bytes, names: dict[int, str]) -> None:
    """Remember the name of a topic if the state record creates one."""
    if codec.tag_of(payload) == TopicCreated.__struct_config__.tag:
        with suppress(codec.Undecodable):
            record = codec.decode(payload)
            assert isinstance(record, TopicCreated)
            names[record.number] = record.name


# -- Entries and records


def _entry_row(entry: Entry, names: dict[int, str]) -> Row:
    """Return an entry with what it contains; a part that cannot be decoded is named by its error."""
    row: Row = {"position": entry.position, "size": len(entry.frame)}
    try:
        if entry.form == CONTROL_FORM:
            return row | {"kind": "control", "content": ControlKind(entry.kind).name, "key": entry.key}
        if entry.form == STATE_FORM:
            return row | {"kind": "state", "content": repr(codec.decode(bytes(entry.frame)))}
        number, queue_id = Queue.split(entry.key)
        row |= {"topic": names.get(number, f"number {number}"), "queue": queue_id, "offset": entry.base_offset}
        row |= {"count": entry.count, "timestamp_ms": entry.timestamp_ms}
        if entry.form == frame_formats.KAFKA:
            row["kind"] = "kafka"
            row["records"] = [*_kafka_records(entry)]
        elif entry.form == frame_formats.ROCKETMQ:
            row["kind"] = "rocketmq"
            row["records"] = [_rocketmq_record(entry)]
        else:
            row["kind"] = f"frame format {entry.form}"
    except (ProtocolError, Corruption, ValueError) as error:
        row = {"kind": "?"} | row | {"error": str(error)}
    return row


def _kafka_records(entry: Entry) -> Iterator[Row]:
    for record in records(entry.frame, INFLATED_BYTES_MAX):
        headers = {name: _text(value) for name, value in record.headers}
        yield {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": headers,
        }


def _rocketmq_record(entry: Entry) -> Row:
    found = message.decode(entry.frame)
    return {
        "offset": entry.base_offset,
        "timestamp_ms": found.born_ms,
        "key": None,
        "value": _text(bytes(inflate_body(found.body, found.sys_flag, INFLATED_BYTES_MAX))),
        "headers": properties.parse(found.properties),
    }


def _text(content: bytes | None) -> str | None:
    """Return bytes as text; bytes that are not UTF-8 in hexadecimal digits after `0x`."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"0x{content.hex()}"


# -- Text


def _show(row: Row) -> None:
    if "bad_until" in row:
        typer.echo(f"{row['position']}..{row['bad_until']} no valid unit: {row['reason']}")
        return
    marks = "".join(f" {name}" for name in ("opened", "closed") if row[name])
    typer.echo(
        f"{row['position']} unit size={row['size']} epoch={row['epoch']} durable={row['durable']} "
        f"stored={local_time(row['stored_ms'])}{marks}"
    )
    for entry in row["entries"]:
        _show_entry(entry)


def _show_entry(entry: Row) -> None:
    start = f"  {entry['position']} {entry['kind']} size={entry['size']}"
    if "topic" in entry:
        start += f" {entry['topic']}/{entry['queue']} offset={entry['offset']} count={entry['count']}"
    if "content" in entry:
        start += f" {shortened(entry['content'], STATE_CHARACTERS_MAX)}"
    if "error" in entry:
        start += f" error: {entry['error']}"
    typer.echo(printable(start))
    for record in entry.get("records", ()):
        line = f"    {record['offset']} {local_time(record['timestamp_ms'])}"
        if record["key"] is not None:
            line += f" key={_cell(record['key'])}"
        line += f" value={_cell(record['value'])}"
        line += "".join(f" {name}={_cell(value)}" for name, value in record["headers"].items())
        typer.echo(printable(line))


def _cell(text: str | None) -> str:
    return "null" if text is None else shortened(text)
