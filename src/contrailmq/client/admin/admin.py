"""Administration: what the command line and the console do, as typed methods.

    async with aio.Admin(namesrv="127.0.0.1:9876") as admin:
        await admin.topics()
        await admin.progress("billing")

Parts: topics (`admin_topics.py`), groups (`admin_groups.py`), their offsets (`admin_offsets.py`), messages
(`admin_messages.py`), dead letters (`admin_dead_letters.py`); brokers are here.
Structs that come back are the wire's own bodies: they have every field that the broker sent.
"""

from __future__ import annotations

from collections.abc import Mapping

from contrailmq.client.admin.admin_dead_letters import AdminDeadLetters
from contrailmq.wire import properties
from contrailmq.wire.admin_bodies import BrokerStatsData, HaRuntimeInfo
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.codes import RequestCode


class Admin(AdminDeadLetters):
    """Looks at and changes a cluster."""

    async def broker_stats(self, address: str) -> dict[str, str]:
        """The broker's runtime figures, RocketMQ's keys."""
        answer = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(decode_body(answer.body, KVTable).table.items()))

    async def broker_config(self, address: str) -> dict[str, str]:
        """The broker's settings, RocketMQ's keys."""
        answer = await self._ask(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(answer.body)

    async def update_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings while the broker runs; it refuses what it cannot change."""
        await self._ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=format_properties(changes))

    async def namesrv_config(self) -> dict[str, str]:
        body = (await self._ask_namesrv(RequestCode.GET_NAMESRV_CONFIG)).body
        return properties.parse_properties(body.decode("utf-8", "replace"))

    async def update_namesrv_config(self, changes: Mapping[str, str]) -> None:
        body = properties.format_properties(changes).encode()
        await self._tell_namesrvs(RequestCode.UPDATE_NAMESRV_CONFIG, {}, body)

    async def stats_item(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One counter of the broker over the last minute, hour and day, such as TOPIC_PUT_NUMS of a topic."""
        answer = await self._ask(address, RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})
        return decode_body(answer.body, BrokerStatsData)

    async def ha_status(self, address: str) -> HaRuntimeInfo:
        """How far the broker's slaves are."""
        return decode_body((await self._ask(address, RequestCode.GET_BROKER_HA_STATUS)).body, HaRuntimeInfo)

    async def wipe_write_permission(self, broker_name: str) -> int:
        """Take a broker out of writing before maintenance; returns how many topics were changed."""
        answer = await self._ask_namesrv(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": broker_name})
        return int(answer.ext.get("wipeTopicCount", 0))

    async def add_write_permission(self, broker_name: str) -> int:
        """The way back from `wipe_write_permission`."""
        answer = await self._ask_namesrv(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": broker_name})
        return int(answer.ext.get("addTopicCount", 0))

    async def clean_unused_topics(self, address: str) -> None:
        await self._ask(address, RequestCode.CLEAN_UNUSED_TOPIC)

    async def clean_expired_queues(self, address: str) -> None:
        await self._ask(address, RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)

    async def delete_expired_files(self, address: str) -> None:
        await self._ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG)


def parse_properties(body: bytes) -> dict[str, str]:
    """`key=value` lines; comments and blank lines are skipped."""
    lines = (line.strip() for line in body.decode("utf-8", "replace").splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _, value in pairs}


def format_properties(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()
