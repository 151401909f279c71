"""All queues of the log, by key, and the files of their indexes."""

from collections.abc import Iterable, Iterator

from duolog.store.copy_on_write import CopyOnWrite
from duolog.store.entry import new_tuple
from duolog.store.errors import Corruption
from duolog.store.files import Files
from duolog.store.index.index_files import INDEX_DIRECTORY, IndexFiles
from duolog.store.index.queue import Queue, queue_key
from duolog.store.index.queue_index import QueueIndex
from duolog.store.log.control import QueueRow


class Queues:
    """All queues by key. A queue is created on first use and dropped with its topic."""

    def __init__(self, files: Files, *, durable: bool) -> None:
        self._files = files
        self._durable = durable  # Durability of a new queue, until the config of its topic is applied.
        self._by_key: dict[int, Queue] = {}
        self._by_topic: dict[int, dict[int, Queue]] = {}  # the same queues, by topic and key
        self.index_files = IndexFiles(files)
        self.dropped: dict[Queue, None] = {}  # Their index files are removed once a checkpoint no longer names them.
        self.touched: list[Queue] = []  # Queues that were appended to since the last write.
        self.moment: CopyOnWrite[int, QueueRow] = CopyOnWrite(
            self._row_of
        )  # The rows that the running checkpoint reads.

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: int) -> bool:
        return key in self._by_key

    def find(self, key: int) -> Queue | None:
        return self._by_key.get(key)

    def get(self, key: int) -> Queue:
        """Return the queue of this key, an empty new one if need be."""
        queue = self._by_key.get(key)
        if queue is None:
            queue = self._new(key, 0)
            self._put(queue)
        return queue

    def _put(self, queue: Queue) -> None:
        self._by_key[queue.key] = queue
        self._by_topic.setdefault(queue.topic, {})[queue.key] = queue

    def _new(self, key: int, start_offset: int) -> Queue:
        topic, queue_id = Queue.split(key)
        return Queue(
            key, QueueIndex(self.index_files, topic, queue_id), durable=self._durable, start_offset=start_offset
        )

    def drop_topic(self, topic: int) -> None:
        for queue in list(self._by_topic.get(topic, {}).values()):
            self.drop(queue)

    def drop(self, queue: Queue) -> None:
        self.moment.before_change(queue.key)
        del self._by_key[queue.key]
        queues = self._by_topic[queue.topic]
        del queues[queue.key]
        if not queues:
            del self._by_topic[queue.topic]
        self.dropped[queue] = None

    def restart(self, queue: Queue, offset: int) -> Queue:
        """Replace a queue by an empty one from `offset` on: the entries below were in segments that were removed."""
        fresh = self._new(queue.key, max(offset, queue.start_offset))
        queue.index.remove()
        self._put(fresh)
        return fresh

    # -- Checkpoints and recovery

    def capture(self) -> Iterator[QueueRow]:
        """Return the table of this moment, as a checkpoint keeps it, to be read until `moment.end`.

        Every change of a queue calls `moment` first: a drop, a trim, a flush, and the first append since the last
        write. Queues that were appended to since the last write are therefore copied here.
        """
        self.moment.begin(self._by_key)
        for queue in self.touched:
            self.moment.before_change(queue.key)
        return (row for _, row in self.moment.entries())

    def _row_of(self, key: int) -> QueueRow | None:
        queue = self._by_key.get(key)
        if queue is None:
            return None
        return new_tuple(QueueRow, (key, queue.start_offset, queue.end_offset, queue.index.written_row))

    def restore(self, rows: Iterable[QueueRow]) -> None:
        """Take the queues of a checkpoint; raises Corruption when rows of an index are missing."""
        for row in rows:
            topic, queue_id = Queue.split(row.key)
            index = QueueIndex.open(self.index_files, topic, queue_id, row.end_row)
            if index.end_offset > row.end_offset:
                raise Corruption(f"the index of {topic}/{queue_id} ends at {index.end_offset}, not {row.end_offset}")
            queue = Queue(row.key, index, durable=self._durable)
            queue.start_offset, queue.end_offset = row.start_offset, row.end_offset
            self._put(queue)

    def forget(self) -> None:
        """Drop the table and every index file: all of it will come from the log."""
        self._by_key.clear()
        self._by_topic.clear()
        self.dropped.clear()
        self.index_files.close()
        self.index_files = IndexFiles(self._files)
        self._remove_unknown()

    def show_all(self) -> None:
        """Make every queue visible up to its end: what was recovered is durable."""
        for queue in self:
            queue.visible_end = queue.end_offset
            queue.bytes_below_start = queue.bytes_below_blocking(queue.start_offset)
        self._remove_unknown()

    def _remove_unknown(self) -> None:
        """Remove the index directories that neither the table nor a checkpoint knows."""
        known = self._by_key.keys() | {queue.key for queue in self.dropped}
        for topic in filter(str.isdecimal, self._files.list(INDEX_DIRECTORY)):
            for queue_id in filter(str.isdecimal, self._files.list(f"{INDEX_DIRECTORY}/{topic}")):
                if queue_key(int(topic), int(queue_id)) not in known:
                    QueueIndex(self.index_files, int(topic), int(queue_id)).remove()
