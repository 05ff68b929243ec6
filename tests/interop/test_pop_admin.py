"""mqadmin's commands for POP against our broker."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from apache import Apache
from test_pop import GUARD_S, Consumer, ours, run

pytestmark = pytest.mark.program("mqadmin", "5.5.0")


def test_mqadmin_sets_the_mode_of_a_group_and_sees_its_progress_under_pop(rocketmq: Apache, tmp_path: Path) -> None:
    """setConsumeMode to PULL and to POP; consumerProgress counts what was acknowledged."""
    with rocketmq.namesrv() as namesrv, ours(tmp_path, namesrv.address) as broker:

        def mqadmin(*command: str) -> str:
            told = rocketmq.mqadmin(*command, namesrv=namesrv.address)
            assert "Exception" not in told, told
            return told

        mqadmin("updateTopic", "-b", broker.address, "-t", "T", "-r", "1", "-w", "1")
        mqadmin("updateSubGroup", "-b", broker.address, "-g", "g")
        for mode in ("PULL", "POP"):
            command = ("setConsumeMode", "-b", broker.address, "-t", "T", "-g", "g", "-m", mode, "-q", "0")
            assert "success" in mqadmin(*command)

        async def take_two_of_three(consumer: Consumer) -> None:
            await consumer.send("a", "b", "c")
            for _, _, handle in await consumer.pop(60_000, 2):
                await consumer.ack(handle)

        run(broker, take_two_of_three)
        deadline = time.monotonic() + GUARD_S
        told = ""
        while told.split()[4:5] != ["2"]:  # offsets move a moment later
            assert time.monotonic() < deadline, told
            shown = rocketmq.mqadmin("consumerProgress", "-g", "g", "-t", "T", namesrv=namesrv.address)
            told = next((line for line in shown.splitlines() if line.startswith("T ")), "")
        assert told.split()[3:7] == ["3", "2", "1", "0"], (
            f"broker offset, consumer offset, difference, in flight: {told}"
        )


def test_mqadmin_export_pop_record_is_refused_since_our_state_needs_no_export(rocketmq: Apache, tmp_path: Path) -> None:
    """It moves what Apache's broker keeps in RocksDB into its log: POP_ROLLBACK (200056), which ours has no use for."""
    with rocketmq.namesrv() as namesrv, ours(tmp_path, namesrv.address) as broker:
        told = rocketmq.mqadmin("exportPopRecord", "-b", broker.address, namesrv=namesrv.address)
        assert "200056" in told or "not supported" in told, told
