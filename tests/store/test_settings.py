"""No setting is only decoration."""

from __future__ import annotations

import ast
import dataclasses
import enum
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import contrailmq.store.config
from contrailmq.message import Message
from contrailmq.store import Files, MessageStore, StoreConfig
from contrailmq.store.base.errors import StoreConfigError
from contrailmq.store.config import WITHOUT_EFFECT, rocketmq_key

CONFIG = Path(contrailmq.store.config.__file__)


def test_every_setting_is_read_somewhere_or_says_that_it_has_no_effect() -> None:
    sources = [path for path in CONFIG.parents[1].rglob("*.py") if path != CONFIG]
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))
    own = set(re.findall(r"self\.(\w+)", CONFIG.read_text()))
    names = {field.name for field in dataclasses.fields(StoreConfig)}
    assert names - words - own == set()
    assert {rocketmq_key(name) for name in names} & set(WITHOUT_EFFECT) == set()


# MessageStoreConfig of RocketMQ 5.5.0, as it stands in its source; sizes are what a new store gets.
DEFAULTS = """
mappedFileSizeCommitLog=1073741824 mappedFileSizeConsumeQueue=6000000 mapperFileSizeBatchConsumeQueue=13800000
enableConsumeQueueExt=false mappedFileSizeConsumeQueueExt=50331648 mappedFileSizeTimerLog=104857600
maxHashSlotNum=5000000 maxIndexNum=20000000 storeType=default
maxMessageSize=4194304 osPageCacheBusyTimeOutMills=1000 maxMsgsNumBatch=64 autoMessageVersionOnTopicLen=true
enabledAppendPropCRC=false forceVerifyPropCRC=false checkCRCOnRecover=true
enableLmq=false enableMultiDispatch=false maxLmqConsumeQueueNum=20000
flushDiskType=ASYNC_FLUSH flushIntervalCommitLog=500 flushCommitLogLeastPages=4 flushCommitLogThoroughInterval=10000
commitIntervalCommitLog=200 commitCommitLogLeastPages=4 commitCommitLogThoroughInterval=200
flushIntervalConsumeQueue=1000 flushConsumeQueueThoroughInterval=60000 syncFlushTimeout=5000
transientStorePoolEnable=false transientStorePoolSize=5 fastFailIfNoBufferInStorePool=false
warmMapedFileEnable=false flushLeastPagesWhenWarmMapedFile=4096
wakeFlushWhenPutMessage=false wakeCommitWhenPutMessage=true
deleteWhen=04 fileReservedTime=72 deleteFileBatchMax=10 cleanResourceInterval=10000
destroyMapedFileIntervalForcibly=120000 redeleteHangedFileInterval=120000
diskMaxUsedSpaceRatio=75 diskSpaceWarningLevelRatio=90 diskSpaceCleanForciblyRatio=85 cleanFileForciblyEnable=true
maxTransferBytesOnMessageInMemory=262144 maxTransferCountOnMessageInMemory=32
maxTransferBytesOnMessageInDisk=65536 maxTransferCountOnMessageInDisk=8
accessMessageInMemoryMaxRatio=40 maxFilterMessageSize=16000 messageIndexEnable=true offsetCheckInSlave=false
readUnCommitted=false dataReadAheadEnable=true brokerRole=ASYNC_MASTER haListenPort=10912
flushDelayOffsetInterval=10000 timerWheelEnable=true timerPrecisionMs=1000 timerRollWindowSlot=172800
timerMaxDelaySec=259200 timerFlushIntervalMs=1000 timerCongestNumEachSlot=2147483647
timerStopEnqueue=false timerStopDequeue=false timerEnableCheckMetrics=true timerCheckMetricsWhen=05
"""


@pytest.mark.parametrize("default", DEFAULTS.split())
def test_a_setting_has_rocketmqs_name_and_default(default: str, tmp_path: Path) -> None:
    """The name is read from a properties file; the same text as the default changes nothing."""
    key, _, text = default.partition("=")
    untouched = StoreConfig.from_properties({}, path=tmp_path).resolved(Files())
    given = StoreConfig.from_properties({key: text}, path=tmp_path).resolved(Files())
    assert given == untouched
    (name,) = [field.name for field in dataclasses.fields(StoreConfig) if rocketmq_key(field.name) == key]
    value = getattr(untouched, name)
    shown = value.value if isinstance(value, enum.Enum) else value
    assert (str(shown).lower() if isinstance(shown, bool) else str(shown)) == text
    assert not untouched.unused_keys


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("mappedFileSizeCommitLog", "0", "at least 1"),
        ("maxHashSlotNum", "-1", "must not be negative"),
        ("flushIntervalCommitLog", "0", "1 to 31622400000 ms"),
        ("flushIntervalCommitLog", "-1", "1 to 31622400000 ms"),
        ("syncFlushTimeout", "9" * 19, "1 to 31622400000 ms"),
        ("maxTransferCountOnMessageInMemory", "0", "1 to 2147483647 messages"),
        ("diskMaxUsedSpaceRatio", "101", "0 to 100 %"),
        ("messageDelayLevel", "1s -5s", "levels like"),
        ("messageDelayLevel", "1s 5", "levels like"),
        ("messageDelayLevel", f"{'9' * 5000}d", "levels like"),
        ("deleteWhen", "99", "hours from 00 to 23"),
        ("timerCheckMetricsWhen", "05;noon", "hours from 00 to 23"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_its_key(key: str, value: str, remedy: str, tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError, match=f"{key}.*{remedy}"):
        StoreConfig.from_properties({key: value}, path=tmp_path)


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(StoreConfig) if field.type == "int"])
def test_no_number_is_negative(field: str, tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError, match=rf"{rocketmq_key(field)}=-1: .*\d"):
        StoreConfig(tmp_path, **{field: -1})


@pytest.mark.parametrize(
    "field",
    [
        field.name
        for field in dataclasses.fields(StoreConfig)
        if field.type == "int"
        and re.search("interval(?!.*forcibly)|time_?out", field.name)
        and "thorough" not in field.name
    ],
)
def test_no_wait_is_nothing(field: str, tmp_path: Path) -> None:
    """A thread that waits for nothing is a loop without a pause; a time-out of nothing fails every message."""
    with pytest.raises(StoreConfigError, match=rf"{rocketmq_key(field)}=0: 1 to "):
        StoreConfig(tmp_path, **{field: 0})


def test_the_size_of_a_queue_file_is_rounded_up_to_whole_units(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path, mapped_file_size_consume_queue=1_201).resolved(Files())
    assert config.mapped_file_size_consume_queue == 1_220


def test_a_query_gives_at_most_what_its_setting_allows(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, max_msgs_num_batch=3, max_hash_slot_num=10, max_index_num=100)) as store:
        for _ in range(5):
            store.put(Message("T", b"x", keys="same"))
        assert len(store.query("T", "same", 10)) == 3


def test_a_known_setting_without_effect_says_so_once_when_the_store_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    texts = {"useReentrantLockWhenPutMessage": "true", "topicQueueLockNum": "8"}
    texts |= {"maxHashSlotNum": "10", "maxIndexNum": "100"}
    with MessageStore(StoreConfig.from_properties(texts, path=tmp_path)) as store:
        store.tick()
    told = [record.getMessage() for record in caplog.records if "without effect here" in record.getMessage()]
    assert told == ["settings of RocketMQ's without effect here: topicQueueLockNum, useReentrantLockWhenPutMessage"]


def test_opening_a_store_lifts_the_soft_limit_of_descriptors_to_the_hard_one(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "from contrailmq.store import Files, MessageStore, StoreConfig\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 700))\n"
        "with MessageStore(StoreConfig(sys.argv[1], max_hash_slot_num=10, max_index_num=100)):\n"
        "    print(*resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["700", "700"]


OF_THE_SYSTEM = {"os", "mmap", "fcntl", "shutil", "ctypes", "resource", "io", "tempfile"}
HARMLESS = {"os.getpid", "os.register_at_fork", "os.sysconf", "resource.getrlimit"}
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


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("diskSpaceWarningLevelRatio", "0.99", "a whole number of percent is needed: 99"),
        ("diskMaxUsedSpaceRatio", "0.75", "a whole number of percent is needed: 75"),
        ("fileReservedTime", "0.5", "a whole number is needed"),
        ("diskMaxUsedSpaceRatio", "much", "a whole number is needed"),
        ("diskMaxUsedSpaceRatio", "75.5", "a whole number is needed"),
    ],
)
def test_what_is_no_whole_number_is_told_what_to_write(key: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError, match=f"{key}='{text}': {said}$"):
        StoreConfig.from_properties({key: text}, path=tmp_path)
