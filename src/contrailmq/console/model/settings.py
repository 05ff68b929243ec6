"""The members of a cluster and their settings: what each means, where brokers differ, and changing one.

Brokers say which value counts, not where it came from. Whether a setting can be changed while a broker runs is the
broker's to say: it refuses what it cannot change, with its reason.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from contrailmq.console.model.asking import MASTER_ID, Asking, BrokerPlace, Seen
from contrailmq.console.model.setting_meanings import MEANINGS
from contrailmq.message import ContrailError
from contrailmq.wire.admin_bodies import HaRuntimeInfo


@dataclass(frozen=True, slots=True)
class SettingRow:
    key: str
    value: str
    meaning: str
    others: str  # brokers of the same role that have another value, with it


@dataclass(frozen=True, slots=True)
class NameServerRow:
    address: str
    state: str


class Settings:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def name_servers(self) -> list[NameServerRow]:
        """Each one is asked for itself."""

        async def state(address: str) -> NameServerRow:
            one = Asking(namesrv=address, is_read_only=True, tls=self._asking.options.tls)
            try:
                count = len(await one.places())
                return NameServerRow(address, f"answers, knows {count} brokers")
            except ContrailError as exc:
                return NameServerRow(address, f"does not answer: {exc}")
            finally:
                await one.shutdown()

        return list(await asyncio.gather(*(state(address) for address in sorted(self._asking.namesrv_addresses))))

    async def places(self) -> list[BrokerPlace]:
        return await self._asking.places()

    async def replication(self) -> Seen[dict[BrokerPlace, HaRuntimeInfo]]:
        masters = [place for place in await self._asking.places() if place.broker_id == MASTER_ID]
        return await self._asking.of_each(masters, lambda place: self._asking.ha_status(place.address))

    async def of(self, place: BrokerPlace) -> Seen[list[SettingRow]]:
        """The settings of one broker, with those of its peers beside them where they differ."""
        peers = [
            other
            for other in await self._asking.places()
            if (other.broker_id == MASTER_ID) == (place.broker_id == MASTER_ID)
        ]
        seen = await self._asking.of_each(peers, lambda other: self._asking.broker_config(other.address))
        own = seen.value.get(place)
        if own is None:
            raise ContrailError("; ".join(seen.notes) or f"{place.label} is not registered any more")
        rows = []
        for key, value in sorted(own.items()):
            differs = [
                f"{other.label}: {table[key]}"
                for other, table in seen.value.items()
                if key not in OWN_TO_EACH and table.get(key, value) != value
            ]
            rows.append(SettingRow(key, value, MEANINGS.get(key, ""), ", ".join(differs)))
        return Seen(rows, seen.notes)

    async def change(self, place: BrokerPlace, key: str, value: str) -> None:
        if "\n" in value or "\r" in value:
            raise ContrailError("a value is one line: remove the line break")
        await self._asking.update_broker_config(place.address, {key: value})


# What no two brokers have in common.
OWN_TO_EACH: Final = frozenset(
    {
        "brokerName",
        "brokerId",
        "brokerIP1",
        "brokerIP2",
        "listenPort",
        "fastListenPort",
        "haListenPort",
        "haMasterAddress",
    }
    | {"storePathRootDir", "storePathCommitLog", "storePathConsumeQueue", "storePathIndex", "abortFile"}
)
