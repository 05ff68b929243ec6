"""Topics, groups and offsets: rules, versions, files."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from contrailmq.broker.state import config_files
from contrailmq.broker.state.attributes import TOPIC_ATTRIBUTES, AttributeChangeError, altered, read_changes
from contrailmq.broker.state.config_files import ConfigFileError
from contrailmq.broker.state.groups import Group, GroupError, GroupTable
from contrailmq.broker.state.offsets import OffsetTable
from contrailmq.broker.state.topics import (
    INHERIT,
    READ,
    WRITE,
    Topic,
    TopicError,
    TopicTable,
    check_topic_values,
    system_topics,
)

GOLDEN = Path(__file__).parents[1] / "golden"


def now() -> int:
    return 1_700_000_000_000


@pytest.fixture
def topics() -> TopicTable:
    table = TopicTable(now_ms=now)
    table.add_system_topics(
        system_topics(
            cluster="C", broker="b", default_queues=8, auto_create=True, is_trace_enabled=False, trace_topic="X"
        )
    )
    return table


def golden_file(name: str, tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / "store-5.5.0-clean.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # 3.11.4 has it
        archive.extract(f"store/config/{name}", tmp_path)
    return tmp_path / "store" / "config" / name


def test_a_new_topic_takes_the_smaller_number_of_queues_and_loses_inherit(topics: TopicTable) -> None:
    topic = topics.create_for_send("New", template="TBW102", queues_wanted=4)
    assert topic is not None
    assert (topic.read_queues, topic.write_queues, topic.perm) == (4, 4, READ | WRITE)
    many = topics.create_for_send("Many", template="TBW102", queues_wanted=100)
    assert many is not None
    assert many.write_queues == 8


def test_an_unknown_or_uninheritable_template_makes_no_topic_but_a_retry_topic(topics: TopicTable) -> None:
    assert topics.create_for_send("New", template="nothing", queues_wanted=4) is None
    topics.put(Topic("TBW102", perm=READ | WRITE))
    assert topics.create_for_send("New", template="TBW102", queues_wanted=4) is None
    retry = topics.create_for_send("%RETRY%g", template="TBW102", queues_wanted=4)
    assert retry is not None
    assert retry.write_queues == 1


def test_a_template_of_an_earlier_run_makes_no_topic_where_that_is_switched_off(topics: TopicTable) -> None:
    """topics.json keeps TBW102 with its INHERIT bit; the setting decides (TopicConfigManager of Java)."""
    topics.auto_create = False
    assert topics.create_for_send("New", template="TBW102", queues_wanted=4) is None
    topics.put(Topic("Model", perm=READ | WRITE | INHERIT))
    assert topics.create_for_send("New", template="Model", queues_wanted=4) is not None, "an operator's own template"


def test_each_change_advances_the_version_and_is_told(topics: TopicTable) -> None:
    told: list[Topic | None] = []
    topics.listen(told.append)
    before = topics.version.counter
    topics.put(Topic("T"))
    topics.put(Topic("T"))
    topics.put(Topic("T", perm=4))
    assert topics.delete("T")
    assert not topics.delete("T")
    assert topics.version.counter == before + 3
    assert [topic and topic.perm for topic in told] == [6, 4, None]


def test_the_text_of_the_table_is_that_of_its_json_also_after_changes(topics: TopicTable) -> None:
    for topic in (Topic("A", attributes={"queue.type": "BatchCQ"}), Topic('odd "name"'), Topic("A", perm=4)):
        topics.put(topic)
        assert topics.text_snapshot()() == config_files.pretty(topics.to_json())
    empty = TopicTable(now_ms=now)
    assert empty.text_snapshot()() == config_files.pretty(empty.to_json())


def test_cluster_and_broker_names_are_system_topics(topics: TopicTable) -> None:
    assert all(topics.is_system(name) for name in ("C", "b", "TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_any"))
    assert not topics.is_system("Orders")
    assert topics.get("C") == Topic("C", read_queues=16, write_queues=16, perm=READ | WRITE | INHERIT)


def test_topics_of_the_reference_are_read_and_written_back_equal(tmp_path: Path) -> None:
    path = golden_file("topics.json", tmp_path)
    table = TopicTable(now_ms=now)
    table.load(path)
    assert table.version.counter == 20
    golden = table.get("GoldenBulk")
    assert golden is not None
    assert golden.read_queues == 3
    assert table.to_json() == config_files.parse(path.read_text())


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("message.type=FIFO", "write \\+name"),
        ("+message.type", "write \\+name"),
        ("=", "write \\+name"),
        ("+colour=red", "is not known"),
        ("+message.type=RED", "use DELAY"),
        ("+reserve.time=soon", "whole number"),
        ("+reserve.time=--5", "whole number"),
        ("+reserve.time=-2", "-1 to 9223372036854775807"),
        ("+reserve.time=9999999999999999999", "-1 to 9223372036854775807"),
        ("-message.type", "does not exist yet"),
    ],
)
def test_a_bad_attribute_is_refused_by_name(change: str, hint: str) -> None:
    with pytest.raises(AttributeChangeError, match=hint):
        altered({}, read_changes(change), known=TOPIC_ATTRIBUTES, is_new=True)


def test_attributes_are_set_and_removed() -> None:
    def changed(current: dict[str, str], change: str, *, is_new: bool) -> dict[str, str]:
        return altered(current, read_changes(change), known=TOPIC_ATTRIBUTES, is_new=is_new)

    fresh = {"message.type": "FIFO", "reserve.time": "5"}
    assert changed({}, "+message.type=FIFO,+reserve.time=5", is_new=True) == fresh
    assert changed({"message.type": "FIFO"}, "-message.type", is_new=False) == {}


@pytest.mark.parametrize(
    "topic",
    [Topic("T", read_queues=-1), Topic("T", write_queues=10**6), Topic("T", perm=8), Topic("T", filter_type="X")],
)
def test_values_that_no_client_can_use_are_refused(topic: Topic) -> None:
    with pytest.raises(TopicError, match="of topic T"):
        check_topic_values(topic)


def test_order_topics_are_marked(topics: TopicTable) -> None:
    topics.put(Topic("T"))
    topics.set_order_topics(["T", "unknown"])
    topic = topics.get("T")
    assert topic is not None
    assert topic.order


def test_unknown_groups_are_made_with_defaults_when_allowed() -> None:
    table = GroupTable(now_ms=now)
    group = table.find_or_create("g")
    assert group == Group("g")
    assert group is not None
    assert group.retry_max_times == 16
    assert table.find_or_create("bad name!") is None
    table.auto_create = False
    assert table.find_or_create("other") is None
    assert table.find_or_create("CID_RMQ_SYS_X") is not None


def test_groups_of_the_reference_are_read_and_written_back_equal(tmp_path: Path) -> None:
    path = golden_file("subscriptionGroup.json", tmp_path)
    table = GroupTable(now_ms=now)
    table.load(path)
    assert "Golden_cg_plain" in table
    assert table.to_json() == config_files.parse(path.read_text())


def test_a_bad_group_value_names_its_key() -> None:
    with pytest.raises(GroupError, match="retryMaxTimes='many'"):
        Group.from_json({"groupName": "g", "retryMaxTimes": "many"})
    with pytest.raises(GroupError, match="groupName"):
        Group.from_json({"retryMaxTimes": 3})


def test_a_group_can_be_forbidden_a_topic_and_allowed_again() -> None:
    table = GroupTable(now_ms=now)
    table.put(Group("g"))
    table.set_readable("g", "T", is_readable=False)
    assert table.is_forbidden("g", "T")
    copy = GroupTable(now_ms=now)
    copy.read(table.to_json())
    assert copy.is_forbidden("g", "T")
    table.set_readable("g", "T", is_readable=True)
    assert not table.is_forbidden("g", "T")
    assert table.delete("g")
    assert not table.delete("g")


def test_offsets_are_committed_queried_and_may_go_back() -> None:
    table = OffsetTable(now_ms=now)
    assert table.query("g", "T", 0) is None
    table.commit("g", "T", 0, 10)
    table.commit("g", "T", 0, 5)
    assert table.query("g", "T", 0) == 5
    assert table.queues("g", "T") == {0: 5}
    assert table.groups_of_topic("T") == {"g"}
    assert table.topics_of_group("g") == {"T"}


def test_a_reset_wins_over_commits_until_the_next_pull() -> None:
    table = OffsetTable(now_ms=now)
    table.commit("g", "T", 0, 100)
    table.reset("g", "T", 0, 7)
    table.commit("g", "T", 0, 101)
    assert table.query("g", "T", 0) == 7
    assert table.take_reset("g", "T", 0) == 7
    assert table.take_reset("g", "T", 0) is None
    table.commit("g", "T", 0, 8)
    assert table.query("g", "T", 0) == 8


def test_offsets_are_cloned_removed_and_compared() -> None:
    table = OffsetTable(now_ms=now)
    table.commit("g", "T", 0, 10)
    table.commit("h", "T", 0, 4)
    table.clone("g", "copy", "T")
    assert table.queues("copy", "T") == {0: 10}
    assert table.min_offsets("T", without_groups=["h"]) == {0: 10}
    assert table.min_offsets("T", without_groups=[]) == {0: 4}
    table.remove_group("g")
    assert table.query("g", "T", 0) is None
    table.remove_topic("T")
    assert table.groups_of_topic("T") == set()


def test_offsets_of_the_reference_are_read_with_bare_integer_keys(tmp_path: Path) -> None:
    table = OffsetTable(now_ms=now)
    table.load(golden_file("consumerOffset.json", tmp_path))
    assert table.query("Golden_cg_lite", "GoldenBulk", 1) == 133
    assert table.topics_of_group("Golden_cg_retry") == {"GoldenRetry", "%RETRY%Golden_cg_retry"}


def test_a_save_that_was_cut_off_between_its_two_names_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    config_files.save(path, config_files.pretty({"a": 1}))
    (tmp_path / "t.json.bak").hardlink_to(path)  # one file under both names: rename(2) does nothing then
    config_files.save(path, config_files.pretty({"a": 2}))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["t.json", "t.json.bak"]
    assert config_files.load(path, dict) == {"a": 2}


def test_saving_keeps_the_previous_version_and_loading_falls_back_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "config" / "t.json"
    config_files.save(path, config_files.pretty({"a": 1}))
    config_files.save(path, config_files.pretty({"a": 2}))
    assert config_files.load(path, dict) == {"a": 2}
    path.write_text("{ torn")
    assert config_files.load(path, dict) == {"a": 1}
    assert "its previous version is taken" in caplog.text
    path.with_name("t.json.bak").write_text("")
    with pytest.raises(ConfigFileError, match=r"t\.json: .*empty"):
        config_files.load(path, dict)
    assert config_files.load(tmp_path / "absent.json", dict) is None


BROKEN = [
    ("topics", '{"topicConfigTable":{"a":5}}', "'a' in topicConfigTable must be an object and is a int"),
    ("topics", '{"topicConfigTable":[]}', "topicConfigTable must be an object and is a list"),
    ("topics", '{"topicConfigTable":{"a":{"perm":6}}}', "topicName=None of a topic"),
    ("topics", '{"dataVersion":{"counter":"x"},"topicConfigTable":{}}', "'x'"),
    ("topics", '{"dataVersion":{"counter":1.5},"topicConfigTable":{}}', "1.5 where a whole number is needed"),
    ("topics", '{"a":' * 100_000, "recursion"),
    ("groups", '{"subscriptionGroupTable":{"g":[]}}', "'g' in subscriptionGroupTable must be an object"),
    ("groups", '{"forbiddenTable":{"g":5}}', "'g' in forbiddenTable must be an object"),
    ("groups", '{"forbiddenTable":{"g":{"T":"x"}}}', "'x' in forbiddenTable"),
    ("offsets", '{"offsetTable":{"t@g":{"0":"x"}}}', "'x'"),
    ("offsets", '{"offsetTable":[1]}', "offsetTable must be an object and is a list"),
    ("offsets", '{"offsetTable":{"t@g":[5]}}', "'t@g' in offsetTable must be an object"),
    ("offsets", '{"offsetTable":{"t@g":{"0":NaN}}}', "nan where a whole number is needed"),
]


@pytest.mark.parametrize(("table", "text", "hint"), BROKEN)
def test_a_table_that_makes_no_sense_is_refused_or_its_previous_version_taken(
    table: str, text: str, hint: str, tmp_path: Path
) -> None:
    """Never an empty table in silence: topics, groups or offsets would be forgotten at the next save."""

    def load() -> TopicTable | GroupTable | OffsetTable:
        fresh = {"topics": TopicTable, "groups": GroupTable, "offsets": OffsetTable}[table](now_ms=now)
        fresh.load(path)
        return fresh

    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ConfigFileError) as refused:
        load()
    assert hint in str(refused.value)
    assert "mend the file, or remove it" in str(refused.value)
    good = {"dataVersion": {"counter": 7, "stateVersion": 0, "timestamp": 1}}
    path.with_name("t.json.bak").write_text(config_files.pretty(good))
    assert load().version.counter == 7


def test_strings_that_look_like_bare_keys_are_left_alone() -> None:
    assert config_files.parse('{"x":"{1:2,3:4}",5:{-1 : "a\\",6:"}}') == {"x": "{1:2,3:4}", "5": {"-1": 'a",6:'}}
