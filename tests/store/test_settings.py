"""No setting is only decoration."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import contrailmq.store.config
from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.config import WITHOUT_EFFECT, rocketmq_key

CONFIG = Path(contrailmq.store.config.__file__)


def test_every_setting_is_read_somewhere_or_says_that_it_has_no_effect() -> None:
    sources = [path for path in CONFIG.parents[1].rglob("*.py") if path != CONFIG]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    own = set(re.findall(r"self\.(\w+)", CONFIG.read_text()))
    names = {field.name for field in dataclasses.fields(StoreConfig)}
    assert names - words - own == set()
    assert {rocketmq_key(name) for name in names} & set(WITHOUT_EFFECT) == set()


def test_a_query_gives_at_most_what_its_setting_allows(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, max_msgs_num_batch=3, max_hash_slot_num=10, max_index_num=100)) as store:
        for _ in range(5):
            store.put(Message("T", b"x", keys="same"))
        assert len(store.query("T", "same", 10)) == 3
