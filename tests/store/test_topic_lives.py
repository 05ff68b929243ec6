"""A topic that was deleted and made again: `verify` finds nothing wrong, `rebuild` and recovery give the same queues.

The log still has the records of the first life, and the second may have queues of the other kind.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from test_batch_queues import SMALL
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.message import Message
from contrailmq.store import MessageStore, PutStatus, StoreConfig, StoreView, rebuild_store, verify_store
from replica_trial import queue_files

ORDINARY, BATCH = "consumequeue", "batchconsumequeue"
KINDS = [ORDINARY, BATCH]
IDS = {ORDINARY: "ordinary", BATCH: "batch"}
LIVES = list(itertools.product(KINDS, KINDS))
LIFE_IDS = [f"{IDS[first]} then {IDS[second]}" for first, second in LIVES]


def live(store: MessageStore, kind: str, records: int, *, queues: int = 1, topic: str = "T") -> None:
    """Every second record of a batch topic is an inner batch of three."""
    for queue_id, number in itertools.product(range(queues), range(records)):
        body = b"%d of %d" % (number, queue_id)
        if kind == BATCH and number % 2:
            put = store.put_inner_batch(topic, [Message(topic, body, tags="b")] * 3, queue_id)
        else:
            put = store.put(Message(topic, body, tags="a"), queue_id)
        assert put.status is PutStatus.PUT_OK


def lived_twice(root: Path, kinds: tuple[str, str], records: tuple[int, int], queues: tuple[int, int] = (1, 1)) -> Path:
    batch_topics: set[str] = set()
    with MessageStore(StoreConfig(root, **SMALL), batch_topics=batch_topics) as store:
        for kind, count, queue_count in zip(kinds, records, queues, strict=True):
            store.delete_topics(["T"])
            batch_topics.clear()
            batch_topics.update(["T"] if kind == BATCH else [])
            live(store, kind, count, queues=queue_count)
            live(store, ORDINARY, count, topic="Other")
    assert (root / kinds[1] / "T").exists()
    assert kinds[0] == kinds[1] or not (root / kinds[0] / "T").exists()
    return root


def problems(root: Path) -> list[str]:
    with StoreView(StoreConfig(root, **SMALL)) as view:
        return [f"{finding.where} {finding.offset}: {finding.problem}" for finding in verify_store(view).findings]


def both_kinds(root: Path) -> dict[str, bytes]:
    return {f"{kind}/{name}": data for kind in KINDS for name, data in queue_files(root, kind).items()}


@pytest.mark.parametrize("records", [(2, 5), (5, 2), (9, 9)])
@pytest.mark.parametrize("kinds", LIVES, ids=LIFE_IDS)
def test_a_topic_made_again_is_verified_and_rebuilt_as_it_stands(
    kinds: tuple[str, str], records: tuple[int, int], tmp_path: Path
) -> None:
    root = lived_twice(tmp_path, kinds, records)
    before = both_kinds(root)
    assert problems(root) == []
    rebuild_store(StoreConfig(root, **SMALL))
    assert both_kinds(root) == before
    assert problems(root) == []


@pytest.mark.parametrize("kinds", LIVES, ids=LIFE_IDS)
def test_queues_that_were_not_made_again_are_not_missed(kinds: tuple[str, str], tmp_path: Path) -> None:
    assert problems(lived_twice(tmp_path, kinds, (5, 2), queues=(3, 1))) == []


@pytest.mark.parametrize("kinds", LIVES, ids=LIFE_IDS)
def test_a_rebuild_after_the_number_of_queues_shrank_brings_back_the_old_ones_alone(
    kinds: tuple[str, str], tmp_path: Path
) -> None:
    """The broker removes those at its start (adoption.py)."""
    root = lived_twice(tmp_path, kinds, (5, 2), queues=(2, 1))
    before = both_kinds(root)
    rebuild_store(StoreConfig(root, **SMALL))
    after = both_kinds(root)
    assert {name: after.get(name) for name in before} == before
    assert {name.split("/")[-2] for name in after.keys() - before.keys()} == {"1"}
    assert problems(root) == []


@pytest.mark.parametrize("kinds", LIVES, ids=LIFE_IDS)
def test_damage_to_the_second_life_is_still_found(kinds: tuple[str, str], tmp_path: Path) -> None:
    root = lived_twice(tmp_path, kinds, (5, 3))
    file = min((root / kinds[1] / "T" / "0").iterdir())
    data = bytearray(file.read_bytes())
    data[16] ^= 1  # the tags code of the first unit
    file.write_bytes(data)
    assert [problem.split(":")[0] for problem in problems(root)] == ["T/0 0"]


@pytest.mark.parametrize("first", KINDS, ids=IDS.values())
def test_a_missing_unit_of_a_batch_queue_made_again_is_still_found(first: str, tmp_path: Path) -> None:
    root = lived_twice(tmp_path, (first, BATCH), (5, 3))
    file = min((root / BATCH / "T" / "0").iterdir())
    file.write_bytes(file.read_bytes()[: 2 * 46] + bytes(2 * 46))
    assert [problem.partition(" of the")[0] for problem in problems(root)] == ["T/0 4: the unit"]


def test_inner_batches_without_any_queue_are_still_missed(tmp_path: Path) -> None:
    """An ordinary queue does not speak for what came after its last message."""
    root = lived_twice(tmp_path, (ORDINARY, BATCH), (2, 5))
    with MessageStore(StoreConfig(tmp_path / "ordinary", **SMALL)) as store:
        live(store, ORDINARY, 2)
    shutil.copytree(tmp_path / "ordinary" / ORDINARY / "T", root / ORDINARY / "T")
    shutil.rmtree(root / BATCH)
    (root / "queues.ledger").unlink()
    missing = [problem.split(":")[0] for problem in problems(root) if problem.endswith("is missing")]
    assert {"T/0 1", "T/0 5"} <= set(missing)


def test_the_commands_end_well_for_a_topic_made_again_with_batch_queues(tmp_path: Path) -> None:
    root = lived_twice(tmp_path, (ORDINARY, BATCH), (5, 2))
    for command in ("verify", "rebuild", "verify"):
        result = CliRunner().invoke(app, ["store", command, str(root)])
        assert result.exit_code == 0, (command, result.output)
