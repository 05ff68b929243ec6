"""Every record that Java wrote: decoded, compared with what Java says of it, encoded again, compared as bytes."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import golden_stores
from contrailmq.message import Host, StoredMessage
from contrailmq.message.codec import (
    CRC_PROPERTY_BYTES,
    Kind,
    check_record,
    decode_record,
    encode_blank,
    encode_record,
    scan_records,
)

# Records in each log up to its recovered end, from tests/golden/README.md.
RECORDS = {
    "clean": 686,
    "kill9": 1395,
    "kill9-recovered": 1395,
    "kill9-lag": 1395,
    "torn": 1394,
    "torn-half": 1394,
    "torn-mid": 1386,
    "direct": 61,
    "direct-crc": 60,
}


def records(name: str) -> Iterator[tuple[bytes, int, int]]:
    """(file content, position, physical offset) of every whole record of a golden log."""
    for base, content in golden_stores.log_files(name).items():
        for position in scan_records(content, 0, len(content), base_offset=base).positions:
            yield content, position, base + position


def encoded_again(message: StoredMessage, *, with_record_crc: bool) -> bytes:
    properties = message.encoded_properties
    return encode_record(
        message.topic,
        message.stored_body,
        properties[:-CRC_PROPERTY_BYTES] if with_record_crc else properties,
        queue_id=message.queue_id,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        born_host=message.born_host_bytes,
        store_host=message.store_host_bytes,
        born_time_ms=message.born_time_ms,
        store_time_ms=message.store_time_ms,
        flag=message.flag,
        sys_flag=message.sys_flag,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        with_record_crc=with_record_crc,
    )


def java_host(host: Host) -> str:
    """Java prints IPv6 without folding zeros and without brackets."""
    if ":" not in host.ip:
        return f"{host.ip}:{host.port}"
    packed = socket.inet_pton(socket.AF_INET6, host.ip)
    groups = [f"{int.from_bytes(packed[i : i + 2], 'big'):x}" for i in range(0, 16, 2)]
    return f"{':'.join(groups)}:{host.port}"


def as_java_tells(message: StoredMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size_bytes,
        "magic": message.magic,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_time_ms,
        "storeTimestamp": message.store_time_ms,
        "bornHost": java_host(message.born_host),
        "storeHost": java_host(message.store_host),
        "msgId": message.offset_message_id,
        "uniqKey": message.properties.get("UNIQ_KEY"),
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "storedBodyLength": len(message.stored_body),
        "storedBodySha256": hashlib.sha256(message.stored_body).hexdigest(),
        "bodyLength": len(message.body),
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "properties": message.properties,
    }


@pytest.mark.parametrize("name", golden_stores.NAMES)
def test_every_message_that_java_lists_decodes_to_the_same_fields(name: str) -> None:
    decoded = {offset: decode_record(content, position) for content, position, offset in records(name)}
    listed = golden_stores.expected(name)["messages"]
    assert listed
    for told in listed:
        assert as_java_tells(decoded[told["commitLogOffset"]]) == {"uniqKey": None, **told}


def test_every_record_encodes_again_to_the_same_bytes(request: pytest.FixtureRequest) -> None:
    """Whole logs, also the records that Java keeps out of its queues; shows the figure the project shows."""
    same = total = listed_same = listed_total = 0
    distinct: set[bytes] = set()
    for name in golden_stores.NAMES:
        listed = {told["commitLogOffset"]: told for told in golden_stores.expected(name)["messages"]}
        for content, position, offset in records(name):
            message = decode_record(content, position)
            assert message.physical_offset == offset
            stored = content[position : position + message.size_bytes]
            distinct.add(stored)
            total += 1
            same += encoded_again(message, with_record_crc=name.endswith("-crc")) == stored
            if told := listed.get(offset):
                listed_total += 1
                listed_same += as_java_tells(message) == {"uniqKey": None, **told}
    show(
        request,
        f"golden: {same:,} of {total:,} Java records ({len(distinct):,} distinct) decoded and re-encoded identically; "
        f"{listed_same:,} of them equal Java's list of fields, {total - listed_total} are in no list: re-encoded only",
    )
    assert same == total == sum(RECORDS.values()) == 9_166
    assert len(distinct) == 2_202  # kill9-recovered, kill9-lag and the torn ones are copies of kill9, cut or not
    assert listed_same == listed_total == 9_146  # ten records of direct and of direct-crc are compared as bytes only


def show(request: pytest.FixtureRequest, line: str) -> None:
    """A line that pytest does not capture: it stands in the output of a run that passes, under -q too."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    assert reporter is not None
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        reporter.write_line(f"\n{line}")


def test_a_quiet_run_shows_how_many_java_records_were_compared() -> None:
    test = f"{__file__}::{test_every_record_encodes_again_to_the_same_bytes.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", test],
        cwd=golden_stores.GOLDEN.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "golden: 9,166 of 9,166 Java records (2,202 distinct) decoded and re-encoded identically; " in done.stdout
    assert "; 9,146 of them equal Java's list of fields, 20 are in no list: re-encoded only" in done.stdout


@pytest.mark.parametrize("name", golden_stores.NAMES)
def test_the_walk_covers_the_log_up_to_the_offset_that_java_recovered(name: str) -> None:
    """From the first byte: whole records, each file ended by a BLANK, and the end is Java's maxPhyOffset."""
    end = 0
    for base, content in golden_stores.log_files(name).items():
        scan = scan_records(content, 0, len(content), base_offset=base)
        assert sum(scan.sizes) == scan.position
        end = base + scan.position
        if scan.verdict.kind is not Kind.BLANK:
            break
        assert content[scan.position : scan.position + 8] == encode_blank(len(content) - scan.position)
    assert end == golden_stores.expected(name)["maxPhyOffset"]


def test_the_crc_property_of_every_java_record_verifies() -> None:
    verdicts = [
        check_record(content, position, physical_offset=offset, check_record_crc=True).kind
        for content, position, offset in records("direct-crc")
    ]
    assert len(verdicts) == 60
    assert set(verdicts) == {Kind.WHOLE}


def test_a_record_without_the_crc_property_is_judged_by_its_body_when_the_property_is_asked_for() -> None:
    """It was stored before the property was turned on: refusing it would erase it at the next start."""
    content, position, offset = next(records("direct"))
    assert check_record(content, position, physical_offset=offset, check_record_crc=True).kind is Kind.WHOLE
    flipped = bytearray(content)
    flipped[position + 88] ^= 1
    verdict = check_record(flipped, position, physical_offset=offset, check_record_crc=True)
    assert verdict.kind is Kind.CORRUPT
    assert "body checksum" in verdict.reason
