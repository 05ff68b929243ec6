"""A record from outside of recently written memory is checked when it is first read, whatever reads it, and then kept
in mind as sound until it leaves memory or its queue changes."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.message.codec import decode_record
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.base.status import GetResult
from contrailmq.store.message_store import Drive

COUNT = 40
HIT = 17
IN_BODY = 88 + 12 + 5  # of a record with one IPv6 host or none
LIGHT = "%LMQ%light"
IPV6 = bytes(15) + b"\1" + (10911).to_bytes(4, "big")


class Kernel(Files):
    """Has dropped from memory what it is told to have dropped."""

    is_dropped = False

    def sync(self, descriptor: int) -> None:
        pass

    def is_resident(self, mapping: mmap.mmap, start: int, size_bytes: int) -> bool:
        return not self.is_dropped


class TagIs:
    """A filter of which both stages say the same."""

    def __init__(self, code: int | None) -> None:
        self.code = code

    def match_unit(self, tags_code: int, ext: object) -> bool:
        return self.code is None or tags_code == self.code

    def match_record(self, record: memoryview) -> bool:
        return True


def settings(path: Path, **others: object) -> StoreConfig:
    sizes = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 400}
    return StoreConfig(path, enable_lmq=True, enable_multi_dispatch=True, **(sizes | others))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that was closed: T alone, then U and V by turns, all of whose messages of U are in a light queue too."""
    path = tmp_path_factory.mktemp("written")
    with MessageStore(settings(path), files=Kernel()) as store:
        for number in range(COUNT):
            store.put(Message("T", b"body %d " % number * 20, tags="AB"[number % 2]))
        for number in range(COUNT):
            both = Message("U", b"body %d " % number * 20, tags="AB"[number % 2])
            both.properties["INNER_MULTI_DISPATCH"] = LIGHT
            store.put(both)
            store.put(Message("V", b"between"))
        for number in range(COUNT):
            store.put(Message("W", b"body %d " % number * 20), born_host=IPV6 if number % 3 else b"")
    return path


@pytest.fixture
def root(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "store"))


def opened(path: Path, **others: object) -> MessageStore:
    return MessageStore(settings(path, **others), files=Kernel(), clock=ManualClock(), drive=Drive.LOOP)


def garble(store: MessageStore, topic: str, offset: int) -> None:
    at = store.read_units(topic, 0, offset, 1)[0][0] + IN_BODY
    with (store.config.path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(at)
        file.write(b"!")


@pytest.fixture
def store(root: Path) -> Iterator[MessageStore]:
    with opened(root) as store:
        yield store


@pytest.fixture(params=["T", "U", "W", LIGHT])
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def warm(store: MessageStore, topic: str, offset: int, count: int, **others: object) -> GetResult:
    found = store.get_slices_warm(topic, 0, offset, count, **others)
    assert found is not None
    return found


WAYS: dict[str, Callable[[MessageStore, str, int], GetResult]] = {
    "warm": lambda store, topic, offset: warm(store, topic, offset, 32),
    "bulk": lambda store, topic, offset: warm(store, topic, offset, 1_000, bulk_bytes=1 << 20),
    "few bytes": lambda store, topic, offset: warm(store, topic, offset, 32, max_bytes=1_000),
    "one": lambda store, topic, offset: warm(store, topic, offset, 1),
    "filter that takes all": lambda store, topic, offset: warm(store, topic, offset, 32, filter=TagIs(None)),
    "filter": lambda store, topic, offset: warm(store, topic, offset, 32, filter=TagIs(ord("B"))),
    "cold": lambda store, topic, offset: store.get_slices_cold(topic, 0, offset, 32),
    "cold filter": lambda store, topic, offset: store.get_slices_cold(topic, 0, offset, 32, filter=TagIs(ord("B"))),
    "sound": lambda store, topic, offset: store.get_slices_sound(topic, 0, offset, 32),
}


def bodies(found: GetResult) -> list[bytes]:
    """Of slices that may hold several records each."""
    data = b"".join(found.slices)
    found.release()
    texts = []
    while data:
        record = decode_record(data[: int.from_bytes(data[:4], "big")])
        texts.append(record.body)
        data = data[record.size_bytes :]
    return texts


def read_all(store: MessageStore, topic: str, way: str, offset: int = 0, end: int = COUNT) -> list[bytes]:
    texts: list[bytes] = []
    while offset < end:
        found = WAYS[way](store, topic, offset)
        assert found.next_offset > offset
        offset = found.next_offset
        texts += bodies(found)
    return texts


def expected(topic: str, way: str, *left_out: int) -> list[bytes]:
    is_filtered = way in ("filter", "cold filter") and topic != "W"  # whose messages have no tag
    numbers = [number for number in range(COUNT) if not is_filtered or number % 2]
    if way in ("filter", "cold filter") and topic == "W":
        numbers = []
    return [b"body %d " % number * 20 for number in numbers if number not in left_out]


@pytest.mark.parametrize("way", WAYS)
def test_a_damaged_record_is_never_given_when_it_is_first_read(store: MessageStore, topic: str, way: str) -> None:
    garble(store, topic, HIT)
    assert read_all(store, topic, way) == expected(topic, way, HIT)
    assert read_all(store, topic, way) == expected(topic, way, HIT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", ["warm", "cold", "filter that takes all"])
def test_nor_when_its_neighbours_were_checked_before(store: MessageStore, topic: str, way: str, first: str) -> None:
    garble(store, topic, HIT)
    for begin, end in ((0, HIT), (HIT + 1, COUNT)):
        offset = begin
        while offset < end:
            read = store.get_slices_cold if first == "cold" else store.get_slices_warm
            found = read(topic, 0, offset, end - offset, filter=TagIs(None) if first.startswith("filter") else None)
            assert found is not None
            assert found.damaged == 0
            offset = found.next_offset
            found.release()
    assert store.damaged_places() == []
    assert read_all(store, topic, way) == expected(topic, way, HIT)


@pytest.mark.parametrize("way", ["warm", "bulk", "filter that takes all", "filter"])
def test_what_was_found_sound_is_not_checked_again_while_it_is_in_memory(
    store: MessageStore, topic: str, way: str
) -> None:
    """Bytes that change under a running broker without leaving memory show that nobody looked."""
    read_all(store, topic, "warm")
    garble(store, topic, HIT)
    for _ in range(2):
        texts = read_all(store, topic, way)
        assert len(texts) == len(expected(topic, way))
    assert store.damaged_places() == []


def test_with_all_every_read_checks(root: Path, topic: str) -> None:
    with opened(root, check_crc_on_read="all") as store:
        read_all(store, topic, "warm")
        garble(store, topic, HIT)
        assert read_all(store, topic, "bulk") == expected(topic, "bulk", HIT)


@pytest.mark.parametrize("way", ["warm", "bulk", "filter that takes all", "filter"])
def test_what_left_memory_is_checked_when_it_comes_back(store: MessageStore, topic: str, way: str) -> None:
    kernel, clock = store.files, store.clock
    assert isinstance(kernel, Kernel)
    assert isinstance(clock, ManualClock)
    read_all(store, topic, "few bytes")  # in steps that no later read takes, so that none is answered from recent ones
    garble(store, topic, HIT)
    kernel.is_dropped = True
    clock.advance(1_000)
    assert store.get_slices_warm(topic, 0, 3, 4) is None
    store.get_slices_cold(topic, 0, 3, 4).release()
    kernel.is_dropped = False  # a read ahead brought the rest
    assert read_all(store, topic, way) == expected(topic, way, HIT)


def test_what_was_checked_by_one_process_is_checked_by_the_next(root: Path) -> None:
    with opened(root) as store:
        assert read_all(store, "T", "warm") == expected("T", "warm")
        garble(store, "T", HIT)
    with opened(root) as store:
        assert read_all(store, "T", "warm") == expected("T", "warm", HIT)
