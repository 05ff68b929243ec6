"""Settings that would protect are not ignored, and those without effect are named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from contrailmq.broker.config import BrokerConfig, BrokerConfigError, read_configs
from contrailmq.broker.foreign_settings import PROMISES, WITHOUT_EFFECT
from contrailmq.namesrv import NamesrvConfig
from contrailmq.namesrv.config import WITHOUT_EFFECT as WITHOUT_EFFECT_IN_NAMESRV
from contrailmq.store import StoreConfig
from contrailmq.store.base.errors import StoreConfigError
from contrailmq.testing import LocalCluster
from contrailmq.wire.promises import UnsupportedError

ROOT = Path(__file__).parents[2]

# key -> a value that promises, RocketMQ's default
PROTECTING = {
    "aclEnable": ("true", "false"),
    "authenticationEnabled": ("TRUE", "false"),
    "authorizationEnabled": ("true", "false"),
    "rejectPullConsumerEnable": ("true", "false"),
    "allAckInSyncStateSet": ("true", "false"),
    "duplicationEnable": ("true", "false"),
    "enableDLegerCommitLog": ("true", "false"),
    "enableControllerMode": ("true", "false"),
    "configManagerVersion": ("v2", "v1"),
    "timerRocksDBEnable": ("true", "false"),
    "transRocksDBEnable": ("true", "false"),
    "popConsumerKVServiceEnable": ("true", "false"),
    "messageStorePlugIn": ("org.apache.rocketmq.tieredstore.TieredMessageStore", ""),
}


def test_the_table_has_every_key_that_protects() -> None:
    assert {promise.key for promise in PROMISES} == set(PROTECTING)


@pytest.mark.parametrize("key", PROTECTING)
def test_a_key_that_promises_what_is_not_there_refuses_the_start(key: str) -> None:
    value = PROTECTING[key][0]
    with pytest.raises(UnsupportedError, match=f"{key}={value} .*allowUnsupported=true"):
        BrokerConfig.from_properties({key: value})


@pytest.mark.parametrize("text", ["yes", "on", "1", "enabled", "true;"])
@pytest.mark.parametrize("key", [key for key, (_, default) in PROTECTING.items() if default == "false"])
def test_what_is_neither_true_nor_false_is_taken_for_a_wish(key: str, text: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{key}={text} "):
        BrokerConfig.from_properties({key: text})
    assert BrokerConfig.from_properties({key: " False "})[1] == []


def test_a_misspelt_key_that_would_protect_is_told_its_right_name() -> None:
    for wrong, right in {"aclEnabled": "aclEnable", "authenticationEnable": "authenticationEnabled"}.items():
        assert BrokerConfig.from_properties({wrong: "true"})[1] == [
            f"setting {wrong} is not known: did you mean {right}?"
        ]


@pytest.mark.parametrize("allowed", ["true", "false"])
def test_a_store_in_rocksdb_is_refused_whatever_is_allowed_and_nothing_else_is_said_to_help(
    allowed: str, tmp_path: Path
) -> None:
    with pytest.raises(StoreConfigError) as refused:
        read_configs({"storeType": "defaultRocksDB", "allowUnsupported": allowed}, path=tmp_path)
    assert "storeType='defaultRocksDB': there is no RocksDB here" in str(refused.value)
    assert "allowUnsupported" not in str(refused.value)


def test_all_of_them_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as refused:
        read_configs({key: value for key, (value, _) in PROTECTING.items()}, path=tmp_path)
    assert all(f"{key}={value} (" in str(refused.value) for key, (value, _) in PROTECTING.items())


def test_a_file_with_rocketmqs_defaults_is_taken_without_a_word(tmp_path: Path) -> None:
    _, _, warnings = read_configs({key: default for key, (_, default) in PROTECTING.items()}, path=tmp_path)
    assert warnings == []


def test_allow_unsupported_starts_with_a_warning_that_names_them(tmp_path: Path) -> None:
    said = {"aclEnable": "true", "enableControllerMode": "true", "allowUnsupported": "true"}
    config, _, warnings = read_configs(said, path=tmp_path)
    assert config.allow_unsupported
    (warning,) = warnings
    assert all(part in warning for part in ("aclEnable=true", "enableControllerMode=true"))


def test_keys_without_effect_are_named_in_one_line(tmp_path: Path) -> None:
    said = {"sendMessageThreadPoolNums": "4", "popPollingMapSize": "7", "asyncLearner": "true", "aclEnabel": "true"}
    _, store_config, warnings = read_configs(said | {"brokerName": "b", "fileReservedTime": "48"}, path=tmp_path)
    line = "settings of RocketMQ's without effect here: asyncLearner, popPollingMapSize, sendMessageThreadPoolNums"
    assert warnings[0] == line
    assert len(warnings) == 2
    assert "aclEnabel" in warnings[1]
    assert store_config.unused_keys == (), "the store would name its own again"


def test_no_key_has_an_effect_and_none() -> None:
    config, _, _ = read_configs({}, path="/nowhere")
    with_effect = set(config.to_properties()) | {
        key for key in StoreConfig.known_keys() if key not in WITHOUT_EFFECT and key not in PROTECTING
    }
    assert not with_effect & set(WITHOUT_EFFECT)
    assert not set(PROTECTING) & set(WITHOUT_EFFECT)


def test_the_guide_lists_every_key_without_effect_and_every_promise() -> None:
    guide = (ROOT / "docs" / "settings.md").read_text()

    def listed(title: str) -> list[str]:
        section = guide.split(f"\n## {title}\n")[1].split("\n## ")[0]
        return re.findall(r"`(\w+)`", section)

    found = listed("Settings without effect")
    assert sorted(found) == sorted([*WITHOUT_EFFECT, *WITHOUT_EFFECT_IN_NAMESRV])
    assert set(PROTECTING) <= set(listed("Settings that promise what is not there"))


def test_an_operator_who_sets_one_while_the_broker_runs_is_refused_with_the_reason() -> None:
    config, _ = BrokerConfig.from_properties({})
    with pytest.raises(BrokerConfigError, match="aclEnable='true': has no effect here: access control"):
        config.update({"aclEnable": "true"})


def test_a_local_cluster_refuses_too() -> None:
    with (
        pytest.raises(UnsupportedError, match="enableControllerMode=true"),
        LocalCluster(config={"enableControllerMode": "true"}),
    ):
        pytest.fail("a broker that no controller knows was started")


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "contrailmq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_commands_refuse_and_say_what_is_missing(tmp_path: Path) -> None:
    settings = tmp_path / "server.conf"
    settings.write_text(
        f"listenPort=0\nauthenticationEnabled=true\nenableControllerInNamesrv=true\nstorePathRootDir={tmp_path}"
    )
    broker = run_command("broker", "-c", str(settings))
    assert (broker.returncode, broker.stdout) == (1, "")
    assert "authenticationEnabled=true (access control is not built yet" in broker.stderr
    namesrv = run_command("namesrv", "-c", str(settings))
    assert (namesrv.returncode, namesrv.stdout) == (1, "")
    assert "enableControllerInNamesrv=true (no controller" in namesrv.stderr
    assert "authenticationEnabled=true (access control is not built yet" in namesrv.stderr


def test_the_environment_promises_as_much_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTRAILMQ_ACL_ENABLE", "true")
    where = ("--set", f"storePathRootDir={tmp_path}", "--set", "listenPort=0")
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    for arguments in (
        ("broker", *where),
        ("namesrv", "--set", "listenPort=0"),
        ("up", "--no-console", "--store", str(tmp_path), *ports),
    ):
        refused = run_command(*arguments)
        assert (refused.returncode, refused.stdout) == (1, ""), refused.stderr
        assert "aclEnable=true (access control is not built yet" in refused.stderr


def test_a_name_server_names_its_keys_without_effect_and_takes_defaults() -> None:
    said = {
        "serverWorkerThreads": "8",
        "clusterTest": "false",
        "enableControllerInNamesrv": "false",
        "aclEnable": "false",
    }
    _, warnings = NamesrvConfig.from_properties(said)
    assert warnings == ["settings of RocketMQ's without effect here: clusterTest, serverWorkerThreads"]
    _, warnings = NamesrvConfig.from_properties({"aclEnable": "true", "allowUnsupported": "true"})
    assert len(warnings) == 1
    assert "aclEnable=true" in warnings[0]
