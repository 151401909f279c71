"""Publisher and reader on a real store, whose disk is in memory: what the tests of both stand on."""

from bridge import topic_configs
from bridge.config import Options
from bridge.ledger import Ledger
from bridge.metrics import Metrics
from bridge.producers import Producers
from bridge.publish import Publisher
from bridge.reading import Later, QueueReader
from bridge.topics import Topic, Topics, system_topics
from protocol.rocketmq.message import Message
from store.options import StoreOptions
from store.store import Store
from tests.kit.disk import CrashDisk

NOW = 1_700_000_000_000


class Door:
    """A broker without its network. `settle` writes and syncs, so that what was published is visible."""

    def __init__(self, disk: CrashDisk | None = None, store: StoreOptions | None = None, **sections: object) -> None:
        self.disk = disk or CrashDisk()
        options = Options(**sections)
        self.ledger = Ledger()
        self.topics = Topics(
            self.ledger,
            options.topics,
            system=system_topics("DefaultCluster", "duolog"),
            config_defaults=topic_configs.broker_defaults(options),
        )
        self.producers = Producers(self.ledger, options.kafka)
        self.store = Store.open(self.disk, store or StoreOptions(), self.ledger, NOW)
        self.ledger.attach(self.store)
        self.topics.attach(self.store, NOW, clean=self.store.clean)
        self.metrics = Metrics()
        self.publisher = Publisher(self.store, self.producers, self.metrics, options)
        self.reader = QueueReader(self.store, self.metrics, options)

    def topic(self, name: str = "orders", **configs: str) -> Topic:
        return self.topics.get(name) or self.topics.create(name, 2, _dotted(configs), NOW)[0]

    def kafka(self, topic: Topic, batch: bytes, now_ms: int = NOW):
        published = self.publisher.kafka(topic, 0, batch, now_ms)
        self.settle()
        return published

    def rocketmq(self, topic: Topic, *messages: Message, now_ms: int = NOW):
        appended = self.publisher.rocketmq(topic, 0, messages, now_ms)
        self.settle()
        return appended

    def settle(self) -> None:
        self.store.write()
        while task := self.store.sync_wanted(background=True):
            task.run()
            self.store.synced(task, None)

    def restarted(self) -> "Door":
        """The same after a kill."""
        return Door(self.disk.after_kill())


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


def _dotted(configs: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}
