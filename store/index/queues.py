"""The class Queues: all queues of the log by their keys, and their index files."""

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
    """All queues by their keys. A queue is created on first use and dropped when its topic is deleted."""

    def __init__(self, files: Files, *, level: int) -> None:
        self._files = files
        self._level = level  # The level of a new queue, until the config of its topic is applied.
        self._by_key: dict[int, Queue] = {}
        self._by_topic: dict[int, dict[int, Queue]] = {}  # Topic number -> queue key -> queue.
        self.index_files = IndexFiles(files)
        # Dropped queues whose index files still exist. A checkpoint without these queues allows their removal.
        self.dropped: dict[Queue, None] = {}
        self.touched: list[Queue] = []  # Queues to which units were appended since the last write.
        # The rows of the queues at the position of the running checkpoint.
        self.captured_rows: CopyOnWrite[int, QueueRow] = CopyOnWrite(self._row_of)

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_key.values())

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: int) -> bool:
        return key in self._by_key

    def find(self, key: int) -> Queue | None:
        """Return the queue with this key, if it exists."""
        return self._by_key.get(key)

    def get(self, key: int) -> Queue:
        """Return the queue with this key; an empty queue is created if there is none."""
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
        return Queue(key, QueueIndex(self.index_files, topic, queue_id), level=self._level, start_offset=start_offset)

    def drop_topic(self, topic: int) -> None:
        """Drop all queues of the topic with this number."""
        for queue in list(self._by_topic.get(topic, {}).values()):
            self.drop(queue)

    def drop(self, queue: Queue) -> None:
        """Drop a queue. Its index files are removed after the next checkpoint."""
        self.captured_rows.before_change(queue.key)
        del self._by_key[queue.key]
        queues = self._by_topic[queue.topic]
        del queues[queue.key]
        if not queues:
            del self._by_topic[queue.topic]
        self.dropped[queue] = None

    def restart(self, queue: Queue, offset: int) -> Queue:
        """Replace a queue by an empty one whose log start is at least `offset`, and return it. Blocks.

        Recovery calls it when the entries below `offset` were in segments that were removed.
        """
        fresh = self._new(queue.key, max(offset, queue.start_offset))
        queue.index.remove()
        self._put(fresh)
        return fresh

    # -- Checkpoints and recovery

    def capture(self) -> Iterator[QueueRow]:
        """Return the rows of all queues at this moment, for a checkpoint. They may be read until `captured_rows.end()`.

        `captured_rows.before_change` is called before each later change of a queue: by a drop, a trim, a flush, and by
        the first append after a write. Queues that were appended to since the last write are therefore copied here.
        """
        self.captured_rows.begin(self._by_key)
        for queue in self.touched:
            self.captured_rows.before_change(queue.key)
        return (row for _, row in self.captured_rows.entries())

    def _row_of(self, key: int) -> QueueRow | None:
        queue = self._by_key.get(key)
        if queue is None:
            return None
        return new_tuple(QueueRow, (key, queue.start_offset, queue.end_offset, queue.index.written_row))

    def restore(self, rows: Iterable[QueueRow]) -> None:
        """Create the queues of a checkpoint. Blocks. Raises Corruption if rows of an index are missing."""
        for row in rows:
            topic, queue_id = Queue.split(row.key)
            index = QueueIndex.open(self.index_files, topic, queue_id, row.end_row)
            if index.end_offset > row.end_offset:
                raise Corruption(
                    f"the index of queue {topic}/{queue_id} ends at offset {index.end_offset}; "
                    f"according to the checkpoint the queue ends at offset {row.end_offset}"
                )
            queue = Queue(row.key, index, level=self._level)
            queue.start_offset, queue.end_offset = row.start_offset, row.end_offset
            self._put(queue)

    def forget(self) -> None:
        """Drop all queues and remove all index files, because they will be built again from the log. Blocks."""
        self._by_key.clear()
        self._by_topic.clear()
        self.dropped.clear()
        self.index_files.close()
        self.index_files = IndexFiles(self._files)
        self._remove_unknown()

    def show_all(self) -> None:
        """Set the visible ends after a recovery, and remove what is left of other queues. Blocks."""
        self.show()
        self._remove_unknown()

    def show(self) -> None:
        """Set the visible end of every queue to its end offset, because the log is durable. Blocks."""
        for queue in self:
            queue.visible_end = queue.end_offset
            queue.bytes_below_start = queue.bytes_below_blocking(queue.start_offset)

    def _remove_unknown(self) -> None:
        """Remove the index directories of queues that neither exist nor are in `dropped`."""
        known = self._by_key.keys() | {queue.key for queue in self.dropped}
        for topic in filter(str.isdecimal, self._files.list(INDEX_DIRECTORY)):
            for queue_id in filter(str.isdecimal, self._files.list(f"{INDEX_DIRECTORY}/{topic}")):
                if queue_key(int(topic), int(queue_id)) not in known:
                    QueueIndex(self.index_files, int(topic), int(queue_id)).remove()
