"""`python -m bench replication` runs to its end with ours on both sides, and prints what it says that it measures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from bench.__main__ import app, tell_parts
from bench.groups import Group, Place, ours_command
from bench.mixed import NotDelivered
from bench.replication import SHAPES, Settings, beside, measure_replication
from contrailmq import Admin
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ResponseError

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator is C: no cc is here")


def test_figures_stand_side_by_side_with_their_ratio() -> None:
    assert beside([300.0, 200.0]) == "300 / 200 (1.50)"
    assert beside([30.04, 0.0]) == "30.0 / 0.0", "nothing is compared with nothing"
    assert beside([-4.0, 12.0], is_ratio=False) == "-4.0 / 12.0"
    assert beside([51.23]) == "51.2"


class BeginningLog(Admin):
    """Answers as Apache's slave does whose log has no file yet, so many times."""

    errors = 0

    def broker_stats(self, address: str) -> dict[str, str]:
        if self.errors:
            self.errors -= 1
            remark = "java.util.NoSuchElementException, java.util.LinkedList.getLast"
            raise ResponseError(1, remark, request_code=RequestCode.GET_BROKER_RUNTIME_INFO, address=address)
        return {"commitLogMaxOffset": "70", "dispatchBehindBytes": "20"}


def test_a_slave_whose_log_just_begins_is_asked_again(tmp_path: Path) -> None:
    group = Group("other", tmp_path / "other", ours_command)
    group.admin = admin = BeginningLog(namesrv=group.namesrv.address)
    admin.errors = 3
    group.until(lambda: group.place(group.slave) == Place(70, 50), "it answers")
    assert admin.errors == 0


def test_a_slave_that_never_answers_is_given_up_with_its_last_answer(tmp_path: Path) -> None:
    group = Group("other", tmp_path / "other", ours_command)
    group.admin = admin = BeginningLog(namesrv=group.namesrv.address)
    admin.errors = 10**9
    with pytest.raises(NotDelivered, match=r"other: waited 0 s until it answers; .*LinkedList\.getLast"):
        group.until(lambda: bool(group.place(group.slave)), "it answers", 0.0)


def failing_parts() -> Iterator[dict[str, object]]:
    yield {"first": "1 / 2"}
    yield {"second": "3 / 4"}
    raise NotDelivered("the third part failed")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_part_that_fails_takes_nothing_from_those_before_it(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as failed:
        tell_parts("replication", failing_parts(), as_json=as_json)
    out, err = capsys.readouterr()
    assert failed.value.exit_code == 1
    assert err == "error: the third part failed\n"
    if as_json:
        assert json.loads(out) == {"first": "1 / 2", "second": "3 / 4"}
    else:
        assert out.index("1 / 2") < out.index("3 / 4")


def test_an_unknown_part_is_refused_before_anything_is_started() -> None:
    result = CliRunner().invoke(app, ["replication", "--parts", "sync,asink"])
    assert result.exit_code == 2
    assert "asink" in result.output


@needs_cc
@pytest.mark.long
def test_every_part_is_measured_on_both_sides(tmp_path: Path) -> None:
    settings = Settings(
        tmp_path, rounds=1, seconds=2.0, warm_seconds=0.2, settle_seconds=0.0, mebibytes=4, directory=tmp_path
    )
    figures: dict[str, object] = {}
    for part in measure_replication(settings, theirs=lambda home: Group("other", home, ours_command)):
        figures |= part
    for shape in SHAPES:
        name = "{} x {}".format(*shape)
        for part in (f"async {name}, sends/s, no slave", f"async {name}, sends/s, a slave", f"sync {name}, sends/s"):
            assert min(values(figures[part])) > 0, part
        assert figures[f"sync {name}, not acknowledged"] == "0.0 / 0.0"
    assert min(values(figures["catch-up, MB"])) > 3.0
    assert min(values(figures["catch-up, MB/s until the log has it"])) > 0
    assert min(values(figures["catch-up, MB/s until queues and index have it"])) > 0
    assert all(10 < resident < 500 for resident in values(figures["idle slave, resident MB"]))


def values(text: object) -> list[float]:
    return [float(value) for value in str(text).partition(" (")[0].split(" / ")]
