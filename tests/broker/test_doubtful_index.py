"""A query that has to compare a whole index file first is a worker's; a damaged file is an error with a remedy."""

from __future__ import annotations

from broker.harness import Bench, Link, records
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.header import Command


def query(bench: Bench) -> Command:
    """Its answer, which does not come at once."""
    link = Link(1)
    fields = {"topic": "T", "key": "k1", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}

    async def ask() -> None:
        bench.handlers.handle(link, [bench.command(12, fields)])
        assert link.sent == []
        await link.replied(1)

    bench.run(ask())
    (answer,) = link.take()
    return answer


def test_a_doubtful_index_file_is_compared_by_a_worker_and_then_answers(bench: Bench) -> None:
    bench.send(body=b"found", properties={"KEYS": "k1"})
    index = bench.store._index
    assert index is not None
    index.flush()  # takes the checksum
    (file,) = index.index_files
    file.is_doubtful = True
    assert [message.body for message in records(query(bench).body)] == [b"found"]
    assert not file.is_doubtful


def test_a_damaged_index_file_is_told_with_its_path_and_what_becomes_of_it(bench: Bench) -> None:
    bench.send(body=b"found", properties={"KEYS": "k1"})
    index = bench.store._index
    assert index is not None
    index.flush()
    (file,) = index.index_files
    file.is_doubtful = True
    file.checksum ^= 1
    for _ in range(2):
        answer = query(bench)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(file.path) in (answer.remark or "")
        assert "rebuilt from the log at the next start" in (answer.remark or "")
