"""Publisher and reader on a real store, whose disk is in memory: what the tests of both stand on."""

from duolog.bridge.config import Options
from duolog.bridge.data.reading.later import Later
from duolog.bridge.data.stamps import WAITING_STAMP
from duolog.bridge.records import frame_formats
from duolog.bridge.state.topic_table import Topic
from duolog.protocol.kafka import record_batch
from duolog.protocol.rocketmq.messages.message import Message
from duolog.store.options import StoreOptions
from duolog.store.unit import Frame
from tests.kit.core import ManualCore
from tests.kit.disk import CrashDisk

NOW = 1_700_000_000_000


class PublishBench(ManualCore):
    """A broker without its network. `settle` writes and syncs, so that what was published is visible."""

    def __init__(self, disk: CrashDisk | None = None, store: StoreOptions | None = None, **sections: object) -> None:
        super().__init__(Options(**sections), disk, store)

    def kafka(self, topic: Topic, batch: bytes, now_ms: int = NOW):
        published = self.publisher.publish_batch(topic, 0, batch, now_ms)
        self.settle()
        return published

    def store_unchecked(self, topic: Topic, batch: bytes) -> None:
        """Append a batch that the publisher would refuse, as an earlier version may have done."""
        header = record_batch.read_header(batch)
        count, timestamp_ms = header.record_count, header.max_timestamp
        frame = Frame(topic.queues[0], frame_formats.KAFKA, batch, count, timestamp_ms, 0, WAITING_STAMP)
        self.store.append([frame], NOW)
        self.settle()

    def rocketmq(self, topic: Topic, *messages: Message, now_ms: int = NOW):
        appended = self.publisher.publish_messages(topic, 0, messages, now_ms)
        self.settle()
        return appended

    def restarted(self) -> "PublishBench":
        """The same after a kill."""
        return PublishBench(self.disk.after_kill())


def message(body: bytes = b"body", properties: bytes = b"UNIQ_KEY\x01U\x02", **fields: object) -> Message:
    return Message("", body, properties, born_ms=NOW, **fields)


def now(result: object) -> object:
    """The result of a read, also of one that waits for the disk: here nothing is ever long in coming."""
    if not isinstance(result, Later):
        return result
    found: list[object] = []
    result.start(found.append)
    assert len(found) == 1, "done is called once"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
