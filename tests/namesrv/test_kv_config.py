from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contrailmq.namesrv.kv_config import KvConfig, KvConfigError, load, save, save_settings
from contrailmq.wire.properties import read_properties


def test_what_was_saved_is_loaded_and_the_version_before_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    table = KvConfig()
    table.put("ORDER_TOPIC_CONFIG", "T", "a:4")
    save(path, table.to_json())
    table.put("ORDER_TOPIC_CONFIG", "T", "a:8")
    save(path, table.to_json())
    assert load(path).get("ORDER_TOPIC_CONFIG", "T") == "a:8"
    path.unlink()
    assert load(path).get("ORDER_TOPIC_CONFIG", "T") == "a:4"


def test_a_broken_file_gives_way_to_its_backup_and_two_broken_files_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    assert load(path).namespace("any") is None
    path.write_bytes(b'{"configTable":{"n":{"k"')
    with pytest.raises(KvConfigError, match=r"kvConfig\.json"):
        load(path)
    backup = path.with_name("kvConfig.json.bak")
    backup.write_bytes(b'{"configTable":{"n":{"k":"v"}}}')
    found = load(path)
    assert found.get("n", "k") == "v"
    save(path, found.to_json())
    assert load(backup).get("n", "k") == "v"  # the broken one has not taken its place
    assert path.with_name("kvConfig.json.broken").read_bytes() == b'{"configTable":{"n":{"k"'


def test_a_file_that_one_user_may_read_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text("tls.server.keyPassword=secret\n")
    path.chmod(0o600)
    save_settings(path, {"orderMessageEnable": "true"})
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_properties(path) == {"tls.server.keyPassword": "secret", "orderMessageEnable": "true"}


def test_two_processes_that_share_a_file_do_not_break_it(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    writers = []
    for name in ("a", "b"):
        table = {"n": {name: "x" * 100_000}}
        script = f"""
from pathlib import Path
from contrailmq.namesrv.kv_config import KvConfig, save
for _ in range(40):
    save(Path({str(path)!r}), KvConfig({table!r}).to_json())
"""
        writers.append(subprocess.Popen([sys.executable, "-c", script], env={"PYTHONPATH": os.pathsep.join(sys.path)}))
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(load(path).namespace("n") or {}) == 1
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")] == []


def test_a_save_that_was_cut_off_between_its_two_names_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    save(path, b'{"configTable":{"n":{"k":"1"}}}')
    os.link(path, tmp_path / "kvConfig.json.bak")  # one file under both names: rename(2) does nothing then
    save(path, b'{"configTable":{"n":{"k":"2"}}}')
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["kvConfig.json", "kvConfig.json.bak"]
    assert load(path).get("n", "k") == "2"
    assert load(tmp_path / "kvConfig.json.bak").get("n", "k") == "1"


def test_a_file_as_java_writes_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{\n\t"configTable":{\n\t\t"ORDER_TOPIC_CONFIG":{\n\t\t\t"T":"a:2"\n\t\t}\n\t}\n}')
    assert load(path).namespace("ORDER_TOPIC_CONFIG") == {"T": "a:2"}


def test_deleting_leaves_the_namespace() -> None:
    table = KvConfig({"n": {"k": "v"}})
    table.delete("n", "k")
    table.delete("n", "k")
    table.delete("nowhere", "k")
    assert table.namespace("n") == {}
    assert table.namespace("nowhere") is None


def test_a_place_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KvConfigError, match="cannot be written"):
        save(tmp_path / "file" / "kvConfig.json", b"{}")


def test_a_write_that_fails_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kvConfig.json"
    save(path, b"{}")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KvConfigError, match="No space left on device.*in memory only"):
        save(path, b'{"configTable":{}}')
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]
