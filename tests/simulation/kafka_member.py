"""A member of a Kafka consumer group (JoinGroup): it gets partitions, and commits offsets as a member.

The members share one group. After a takeover they join again by themselves, and the committed offsets never go back.
"""

import asyncio
from typing import Any, Final

from duolog.protocol.kafka.api_messages import ApiKey, ErrorCode
from tests.simulation.history import SHARED
from tests.simulation.kafka_clients import Client, Setting, Unanswered

GROUP: Final = "members"
SESSION_MS: Final = 6_000
REBALANCE_MS: Final = 1_000
JOINED_S: Final = 0.2  # Between two heartbeats.


class Member(Client):
    """One member."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._id, self._generation = "", -1
        self._partitions: list[int] = []

    async def run(self) -> None:
        while not self.setting.is_over:
            try:
                if self._generation < 0:
                    await self._join()
                else:
                    await self._live()
            except Unanswered:
                await self.pause()
            await asyncio.sleep(self.random.uniform(0, 2 * JOINED_S))
        self.leave()

    async def _join(self) -> None:
        """Join, and get partitions from the leader, which may be this member."""
        joined = await self.ask(
            ApiKey.JOIN_GROUP, 5, group_id=GROUP, session_timeout=SESSION_MS, rebalance_timeout=REBALANCE_MS,
            member_id=self._id, protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
        )  # fmt: skip
        if joined.error_code is ErrorCode.member_id_required:
            self._id = joined.member_id
            return
        if joined.error_code is not ErrorCode.none:
            await self._refused(joined.error_code)
            return
        self._id = joined.member_id
        assignments = []
        if joined.leader == joined.member_id:
            ids = sorted(each.member_id for each in joined.members)
            shares = [bytes(part for part in (0, 1) if ids[part % len(ids)] == each) for each in ids]
            assignments = [{"member_id": each, "assignment": share} for each, share in zip(ids, shares, strict=True)]
        who = self._who(joined.generation_id)
        synced = await self.ask(ApiKey.SYNC_GROUP, 3, group_id=GROUP, assignments=assignments, **who)
        if synced.error_code is not ErrorCode.none:
            await self._refused(synced.error_code)
            return
        self._generation, self._partitions = joined.generation_id, [*synced.assignment]

    async def _live(self) -> None:
        """Commit an offset of a partition that this member has, or say that it lives."""
        who = self._who(self._generation)
        if not self._partitions or self.random.random() < 0.5:
            answer = await self.ask(ApiKey.HEARTBEAT, 3, group_id=GROUP, **who)
            code = answer.error_code
        else:
            code = await self._commit(self.random.choice(self._partitions), who)
        if code is not ErrorCode.none:
            await self._refused(code)

    async def _commit(self, partition: int, who: dict[str, Any]) -> ErrorCode:
        """Commit a higher offset than that of the group."""
        asked = [{"name": SHARED, "partition_indexes": (partition,)}]
        least = self.history.members.answered(partition)  # What another member commits from here on may come later.
        found = await self.ask(ApiKey.OFFSET_FETCH, 7, group_id=GROUP, topics=asked)
        if found.error_code is not ErrorCode.none:
            return ErrorCode(found.error_code)
        offset = found.topics[0].partitions[0].committed_offset
        self.history.members.found(partition, offset, least)
        wanted = [{"partition_index": partition, "committed_offset": offset + 1, "committed_leader_epoch": -1}]
        answer = await self.ask(
            ApiKey.OFFSET_COMMIT, 8, group_id=GROUP, generation_id_or_member_epoch=who["generation_id"],
            member_id=self._id, topics=[{"name": SHARED, "partitions": wanted}],
        )  # fmt: skip
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        if code is ErrorCode.none:
            self.history.members.committed(partition, offset + 1)
        return code

    def _who(self, generation: int) -> dict[str, Any]:
        return {"generation_id": generation, "member_id": self._id}

    async def _refused(self, code: ErrorCode) -> None:
        """Join again, or ask another broker."""
        if code in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.rebalance_in_progress):
            self._generation = -1
            if code is ErrorCode.unknown_member_id:
                self._id = ""
        else:
            await self.pause()
