from __future__ import annotations

from pathlib import Path

import pytest

from contrailmq.namesrv.kv_config import KvConfig, KvConfigError, load, save


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
    path.with_name("kvConfig.json.bak").write_bytes(b'{"configTable":{"n":{"k":"v"}}}')
    assert load(path).get("n", "k") == "v"


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
