"""No setting is only decoration."""

from __future__ import annotations

import ast
import dataclasses
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_a_known_setting_without_effect_says_so_once_when_the_store_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    texts = {"useReentrantLockWhenPutMessage": "true", "maxHashSlotNum": "10", "maxIndexNum": "100"}
    with MessageStore(StoreConfig.from_properties(texts, path=tmp_path)) as store:
        store.tick()
    told = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    (line,) = told
    assert line.startswith("setting useReentrantLockWhenPutMessage has no effect here: ")
    assert WITHOUT_EFFECT["useReentrantLockWhenPutMessage"] in line


def test_opening_a_store_lifts_the_soft_limit_of_descriptors_to_the_hard_one(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from contrailmq.store import MessageStore, StoreConfig\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 700))\n"
        "with MessageStore(StoreConfig(sys.argv[1], max_hash_slot_num=10, max_index_num=100)):\n"
        "    print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["700", "700"]


OF_THE_SYSTEM = {"os", "mmap", "fcntl", "shutil", "ctypes", "resource", "io", "tempfile"}
HARMLESS = {"os.getpid", "os.sysconf"}
OF_PATHS = {
    "exists", "is_dir", "is_file", "iterdir", "glob", "rglob", "mkdir", "rmdir", "read_bytes", "rename", "stat",
    "touch", "unlink", "write_bytes", "write_text",
}  # fmt: skip


def is_past_the_door(call: ast.Call) -> bool:
    """A function of a module that asks the system, the built-in open, or a method that looks like a Path's."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id == "open"
    if not isinstance(function, ast.Attribute):
        return False
    owner = ast.unparse(function.value)
    if owner in OF_THE_SYSTEM:
        return f"{owner}.{function.attr}" not in HARMLESS
    is_method_of_ours = owner in {"self", "super()", "cls", "MappedFile"} or owner.endswith("descriptors")
    return function.attr in OF_PATHS and not (is_method_of_ours or "files" in owner.split(".")[-1])


def test_the_file_layer_is_the_only_door_to_the_disk() -> None:
    """Settings are read from a text before there is a store; all else goes through files.py."""
    store = CONFIG.parent
    found = [
        f"{path.relative_to(store)}:{node.lineno}: {ast.unparse(node)}"
        for path in sorted(store.rglob("*.py"))
        if path.name != "files.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and is_past_the_door(node)
    ]
    assert found == []
