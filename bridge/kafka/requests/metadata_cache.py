"""The encoded bodies of Metadata answers, kept for the same question until a topic changes.

Encoding takes some 10 us for each partition, and clients ask again every few minutes, all at once after a restart.
"""

CACHED_BODY_BYTES_MAX = 16 << 20  # The size of one cached body, which describes about 500,000 partitions.
CACHED_BYTES_MAX = 64 << 20  # The size of all cached bodies and their keys.


class MetadataCache:
    """Encoded bodies by question, all of the same version of the topics."""

    def __init__(self) -> None:
        self._topics_version = -1
        self._bytes = 0  # Invariant: the size of all bodies and questions.
        self._bodies: dict[tuple[object, ...], list[bytes]] = {}

    def get(self, topics_version: int, question: tuple[object, ...]) -> list[bytes] | None:
        """Return the encoded body for a question about this version of the topics, or None."""
        if topics_version != self._topics_version:
            self._topics_version = topics_version
            self._bytes = 0
            self._bodies.clear()
        return self._bodies.get(question)

    def put(self, topics_version: int, question: tuple[object, ...], question_bytes: int, body: list[bytes]) -> None:
        """Keep a body of that version of the topics, if there is room and no topic has changed since."""
        size = question_bytes + sum(map(len, body))
        has_room = size <= CACHED_BODY_BYTES_MAX and self._bytes + size <= CACHED_BYTES_MAX
        if has_room and topics_version == self._topics_version and question not in self._bodies:
            self._bytes += size
            self._bodies[question] = body
