"""docs/reliability.md, from saved runs.

    python -m simulation.runs --seeds N --save runs.jsonl
    python -m simulation.runs --each --minutes 2 --seeds N --save runs.jsonl
    python -m simulation.runs --planted --minutes 2 --seeds N --save runs.jsonl
    python -m simulation.scoreboard runs.jsonl > docs/reliability.md

Counts come from the file; promises and what is not covered are stated here. A test looks up every test that is named.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from simulation.faults import ALL_KINDS, has_slaves
from simulation.planted import PLANTED

# What is promised, and the test that shows it beside the simulation.
PROMISES: Final = (
    (
        "An acknowledged message is in its queue once, at the acknowledged offset, with its body and properties",
        "tests/simulation/test_trial.py::test_a_seed_keeps_every_promise",
    ),
    (
        "Nothing appears that was not sent, nothing that was rolled back",
        "tests/broker/test_transaction_kill.py::"
        "test_a_killed_broker_shows_once_what_was_committed_and_never_what_was_rolled_back",
    ),
    (
        "With SYNC_FLUSH an acknowledged message survives a power cut at any instant; with ASYNC_FLUSH only the end of "
        "the log is lost",
        "tests/store/test_power_cut.py::test_after_a_power_cut_the_log_is_a_prefix_with_everything_acknowledged",
    ),
    (
        "A sync lies between each record and its acknowledgement, as the kernel sees it",
        "tests/store/test_processes.py::test_the_kernel_sees_a_sync_between_each_record_and_its_acknowledgement",
    ),
    (
        "A failed sync is final: no acknowledgement after it, and nothing acknowledged before it is lost",
        "tests/simulation/test_trial.py::test_a_failed_sync_is_final_and_nothing_that_was_acknowledged_is_lost",
    ),
    (
        "A full disk refuses, and serves again when there is room",
        "tests/simulation/test_trial.py::test_a_full_disk_refuses_and_serves_again_when_there_is_room",
    ),
    (
        "After a kill, queues and index equal a rebuild of the log",
        "tests/store/test_kill.py::test_after_a_kill_queues_and_index_equal_a_rebuild",
    ),
    (
        "A group gets every message at least once, and no stored offset runs ahead of it",
        "tests/simulation/test_trial.py::test_a_seed_keeps_every_promise",
    ),
    (
        "Orderly listeners and readers get a queue in its order",
        "tests/simulation/test_trial.py::test_a_seed_keeps_every_promise",
    ),
    (
        "Delayed messages and timers are never early, and transactions appear only as decided",
        "tests/simulation/test_trial.py::test_a_seed_keeps_every_promise",
    ),
    (
        "Kills make nothing unreachable, and repeat only what was delivered just before them",
        "tests/broker/test_crash_trial.py::test_kills_make_nothing_unreachable_and_repeat_only_what_is_young",
    ),
    (
        "An acknowledgement of POP that was confirmed in time is final; every other message comes again, counted, "
        "until it is a dead letter; FIFO is in order",
        "tests/broker/test_pop_kills.py::test_kills_lose_nothing_and_repeat_nothing_that_was_acknowledged",
    ),
    (
        "A seed repeats: histories and stores are the same, byte for byte",
        "tests/simulation/test_trial.py::"
        "test_a_seed_with_every_kind_of_fault_repeats_its_history_and_stores_byte_for_byte",
    ),
)
MEANINGS: Final = {
    "kill": "a broker is killed (SIGKILL), in most cases before or after a step with a file of it, and started again",
    "cut": "a broker's machine loses power, in many cases right after an answer or beside a step with a file: unsynced "
    "pages and sectors survive or not, as the dice say",
    "stop": "a clean stop",
    "twice": "a kill or cut, and another one while it recovers",
    "sync-error": "every sync fails, then the power goes",
    "stall": "no sync returns for up to 8 s",
    "full": "the disk is full",
    "read-error": "reads by call fail",
    "flip": "a bit turns in the body of an acknowledged record",
    "part": "two hosts cannot reach each other",
    "one-way": "one direction of a link is cut",
    "slow": "a link has up to 400 ms and 20 KB/s",
    "reset": "connections between two hosts are reset",
    "client-kill": "a client is killed and started again",
    "client-cut": "a client's machine falls silent (half-open connections)",
    "client-pause": "a client is stopped and goes on",
    "pause": "a broker is stopped and goes on (SIGSTOP)",
    "namesrv-kill": "the NameServer is killed and started again",
    "jump": "a broker's wall clock is set, by up to an hour in either direction",
    "drift": "a broker's clocks run up to 5% fast or slow",
    "group-kill": "a master and its slaves are killed at the same moment, and start in any order",
    "group-cut": "a master and its slaves lose power at the same moment, and start in any order",
    "switch": "the operator stops a master and starts a slave that has all of its log in its place",
    "masters-kill": "all masters are killed; the one with slaves comes back last",
}
PROCESSES: Final = (
    ("`kill -9` of a writing store", "tests/store/test_kill.py"),
    ("`kill -9` of a broker under sends, batches, delays, timers, transactions", "tests/broker/test_crash_trial.py"),
    ("`kill -9` between a topic's first message and its table", "tests/broker/test_new_topic_kill.py"),
    ("`kill -9` and what is delivered again", "tests/broker/test_repeats_after_kills.py"),
    ("power cut through the file layer, at every call of a sync", "tests/store/test_power_cut.py"),
    ("full disk and too many files through the file layer", "tests/store/test_standstill.py"),
    ("order of write, sync and answer by `strace`", "tests/store/test_processes.py"),
    ("bytes turned in every file of a store", "tests/store/test_flipped_bytes.py"),
)
# What was found in the package, how, and the test that shows it mended, or the commit.
FOUND: Final[tuple[tuple[str, str], ...]] = (
    (
        "a timer that was to roll, and that a slave handed to another group while it stood in for its master, came up "
        "to a second early: it went there with the begin of its tick (seed 88 of ten minutes, switch)",
        "tests/store/timer/test_timer_elsewhere.py::"
        "test_one_that_comes_too_late_for_its_slot_and_one_that_rolls_go_there_too",
    ),
    (
        "a master that came back lost a timer that was to roll on its wheel: the slave that had stood in for it, which "
        "took it in a second later, had it in a later slot, and what lay before where the slave stood counted as "
        "delivered (seed 104 of one minute, kills)",
        "tests/store/timer/test_timer_elsewhere.py::"
        "test_a_master_keeps_what_rolls_where_its_slave_may_have_it_in_a_later_slot",
    ),
    (
        "a start set a delay level back to the end of its queue, which a power cut had shortened, and did not save "
        "that: after the next kill the level stood beyond a retry that had come meanwhile, and it was lost (seed 136 "
        "of ten minutes, masters-kill and sync-error)",
        "tests/broker/test_level_journal.py::test_a_level_that_a_start_set_back_passes_over_nothing_after_a_kill",
    ),
    (
        "a message that was due to come again by POP while its queue could not be read was looked at by nobody until "
        "the next start: the error took it out of the table of what is due (read-error alone, seed 1 of two minutes)",
        "tests/broker/test_pop.py::test_a_message_whose_reading_failed_comes_again_when_it_can_be_read",
    ),
    (
        "an acknowledgement by POP of a FIFO group was confirmed and had no effect: the member had asked again with "
        "its attempt id, and when it had its messages, the pop that it no longer waited for was served too, which made "
        "its handles void (seed 330 of ten minutes, reset)",
        "tests/broker/test_pop_fifo.py::"
        "test_a_pop_that_nobody_waits_for_any_more_makes_no_acknowledgement_of_its_attempt_void",
    ),
    (
        "a power cut took the note of when the clock was set, and the older notes with it, since it had been renamed "
        "in their place without a sync: a timer that was acknowledged after its flush was then due hours later (seed "
        "412 of ten minutes, jump and sync-error)",
        "tests/store/test_store_clock.py::test_a_message_that_is_durable_has_its_time_durable_too",
    ),
    (
        "a message of POP that could not come again for a while, since the store took nothing after a failed sync, was "
        "taken for done by a start that had no picture of what is in flight, and never came again: the commit of the "
        "revive log had moved past it (seed 307 of ten minutes, sync-error)",
        "tests/broker/test_pop_restarts.py::"
        "test_what_cannot_come_again_yet_is_not_done_for_whoever_reads_the_log_alone",
    ),
    (
        "a power cut brought back the file of a batch queue that had been made anew, and its units, which pointed into "
        "other messages, were believed; and a queue whose only messages a power cut took went on behind offsets that "
        "nobody has (seed 71 of ten minutes, sync-error and cut)",
        "tests/store/test_batch_queues.py::test_a_unit_of_a_queue_that_was_empty_is_not_believed_either",
    ),
    (
        "a slave kept the queues of a topic that its master had deleted: it showed them, and handed offsets in them to "
        "the master, whose new topic of that name was passed over by as much (seen in a trial by hand; since then the "
        "operator makes topics again, and the queues of slaves are compared)",
        "tests/broker/test_deleted_at_slaves.py::test_the_queues_of_a_deleted_topic_go_at_the_slave_too",
    ),
    (
        "a read of the timer wheel failed, and the timers that were due were never delivered: the walk over the slots "
        "had ended with the error, and that was taken for the end of the slots (seed 123 of ten minutes, read-error)",
        "tests/store/timer/test_timer_damage.py::test_a_read_that_failed_passes_over_no_timer",
    ),
    (
        "a start took the half message at the very beginning of the log for committed when a copy of another message "
        "stood behind the last op message, and it was lost: copies that come again point at place 0 (the first "
        "seeds with POP, kill)",
        "tests/broker/test_transactions.py::test_a_copy_of_a_committed_message_ends_no_half_message",
    ),
    (
        "the begin of the journal of offsets survived a power failure that took the rest, and counted more than the "
        "table that was saved after it: groups went back, and what POP had acknowledged came again, under SYNC_FLUSH "
        "too (POP, cut)",
        "tests/broker/test_offset_journal.py::"
        "test_a_power_failure_leaves_no_journal_that_is_older_than_the_saved_table",
    ),
    (
        "a picture of what POP has in flight was newer than the offsets beside it after a power failure, which looked "
        "like a reset of the group (POP, cut)",
        "tests/broker/test_pop_restarts.py::test_a_power_failure_that_takes_the_journal_of_offsets_moves_no_group_back",
    ),
    (
        "a group passed over a message that its listener still held: with SYNC_FLUSH a slave had shown more than its "
        "master, which moved the consumer back to the end that it showed itself; the consumer committed that end "
        "(seed 20 of one minute, a slave that stands in for its master)",
        "tests/client/test_moved_offsets.py::"
        "test_a_consumer_that_is_moved_passes_over_nothing_that_its_listener_still_has",
    ),
    (
        "the journal of offsets was believed though the table was newer: a full disk had refused an entry and taken "
        "the table, and after a power failure a group went back to before what it had acknowledged by POP (seed 174 of "
        "ten minutes, full and sync-error)",
        "tests/broker/test_offset_journal.py::"
        "test_a_journal_that_lacks_what_the_disk_refused_does_not_undo_the_table_that_was_saved_after_it",
    ),
    (
        "a message that failed and came again by POP was lost under SYNC_FLUSH: a sync failed when its copy had been "
        "written, the tables were saved once more, and after the power failure, which took the copy, the saved picture "
        "of what is in flight said that it was dealt with (sync-error alone, seed 1 of one minute)",
        "tests/broker/test_pop_restarts.py::test_a_picture_that_knows_what_a_power_failure_took_does_not_count",
    ),
    (
        "messages of POP that were in flight did not come again when a slave was made the master: what its timer had "
        "handed to another group while it stood in, or had not to do yet by its own clock, was taken for delivered "
        "(seeds 641, 704 and 916 of ten minutes, switch)",
        "tests/broker/test_pop_restarts.py::"
        "test_what_a_slave_that_stood_in_handed_elsewhere_comes_again_when_it_is_made_the_master",
    ),
    (
        "a slave that lost power kept a record of which a sector was lost, in its properties, which have no checksum; "
        "it followed its master on, and as a master would have served an altered message (seed 272 of ten minutes)",
        "tests/store/test_torn_copies.py::test_a_slave_ends_before_the_record_that_lost_a_part_and_gets_it_again",
    ),
    (
        "after a promotion, timers that were stored while the old master's clock was off came early or late by as much "
        "(seed 641 of ten minutes, jump and switch)",
        "tests/broker/test_clock_at_slaves.py::"
        "test_after_the_masters_clock_was_set_its_slave_as_master_delivers_when_it_was_asked",
    ),
    (
        "a FIFO queue of POP waited by the wall clock: set back by an hour, its group got nothing for an hour, and set "
        "forward, somebody else got what a consumer still had (seed 42 of one minute, jump)",
        "tests/broker/test_pop_fifo.py::test_a_queue_waits_as_long_as_was_asked_whatever_is_done_to_the_wall_clock",
    ),
    (
        "where the clock of a broker was set, a recall of a timer that was due was confirmed and had no effect, since "
        "it was not known by which of the two clocks the time in its handle was meant (seed 131 of ten minutes, jump)",
        "tests/broker/test_clock_jumps.py::test_a_recall_on_a_broker_whose_clock_was_set_has_its_effect_or_is_refused",
    ),
    (
        "a recall was answered before its mark was synced, and a power cut then delivered what had been taken back "
        "(seen while recalls were brought into the workload; the planted bug that does the same is found by two seeds)",
        "ead4fdf",
    ),
    (
        "consumers asked a slave that had stood in for its master again and again, a thousand times a second, when the "
        "master was back, until they looked at their routes (seed 1001 of ten minutes)",
        "993af3c",
    ),
    ("after a kill the log ended at a record with a turned bit, and acknowledged ones after it were lost", "421c2d8"),
    (
        "a power cut took the end of the log and the journal of offsets, and groups stayed behind the messages that "
        "were stored next (seen while reading for failed seeds; no seed showed it)",
        "ce67d89",
    ),
)
FLUSHES: Final = ("SYNC_FLUSH", "ASYNC_FLUSH")
NOT_COVERED: Final = (
    "Long runs of the package as it is now: the seeds above were run at the commits that the table names. 20,000 seeds "
    "have not been run.",
    "Compiled modules: the simulation runs the plain sources. The same tests of the store and the broker run on both.",
    "A sector that a power cut took from the properties of a record which nobody was told is stored: a master serves "
    "it so (a slave takes it from its master again), for properties have no checksum unless enabledAppendPropCRC is "
    "set. In the trials a master's records are written at once, so this does not come up there.",
    "Bytes turned in properties, which have no checksum unless enabledAppendPropCRC is set, and in queues or the index "
    "while a broker runs; `flip` turns bits of bodies only.",
    "A turned bit and then a power failure: the log ends at the first hole that is newer than the checkpoint (a minute "
    "at most), since pages that were never written look the same.",
    "ASYNC_FLUSH and consumers that have read what a power cut took: offsets are used again, as in Apache's broker. A "
    "pull beyond the end of its queue is moved to the end; when the queue is already longer than before, the consumer "
    "goes on behind messages that it has not seen. The checker allows this for these messages alone.",
    "A SYNC_MASTER that loses power and comes back without what it had sent to its slaves and not synced: consumers "
    "may have read that from a slave, and its offsets are used again, also under SYNC_FLUSH (docs/replication.md). The "
    "checker allows it for these messages, and of such a broker it does not check the order of a queue.",
    "Errors of reads through a mapping (SIGBUS): `read-error` fails reads by call only.",
    "Torn writes while a broker runs: tearing happens at power cuts, by page (4 KiB) or sector (512 bytes).",
    "POP with tags, notifications, resets of its groups, and FIFO over a power failure or another master: its journal "
    "is not synced, so what was acknowledged may come again.",
    "Order locks: the orderly group has one consumer at a time, so nobody else asks for its queues. The group that "
    "reads by lite pull has one as well.",
    "Clean stops of clients: they are killed, cut off and paused; only brokers are stopped cleanly.",
    "What a NameServer says: that it forgets a broker that is gone, and names new queues. Clients try other brokers.",
    "Stored offsets that fall behind, before the end of a trial, or of lite pull, or where a power cut took messages "
    "or a bit turned. At the end, those of push consumers are to have come to the end of each queue.",
    "Answers to queries by key or id. Where something was done to the cluster: whether a reset of a group has its "
    "effect, and how late a delayed message is, as long as it comes within the 240 seconds.",
    "A reset of a group whose members have said nothing for so long that brokers have forgotten them, or that a broker "
    "had confirmed when it ended: members that are at work go on where they were, and commit over it, as with RocketMQ "
    "(seed 118 of ten minutes showed the first).",
    "TLS, ACL, SQL filters, light queues, "
    "and cleaning of old files (no trial lasts that long) are not part of the workload; tests of their own cover those "
    "that exist.",
    "Memory while a trial runs: sockets, tasks, threads and the bytes of a broker's objects are counted at its end.",
    "Clients run our asyncio code only; the blocking clients and Spark are not in the simulation.",
    "A process between two of its own instructions: threads interleave where they take a lock or call the file layer, "
    "and brokers end at random moments and before and after each kind of step with a file.",
)


def main() -> None:
    lines = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    runs = [line for line in lines if "planted" not in line]
    seeds = list({_plan_of(line): line for line in runs}.values())
    bugs = {line["planted"]: line for line in lines if "planted" in line}
    print("\n".join([*_head(seeds), *_promises(), *_table(seeds), *_planted(bugs), *_found(seeds), *_rest()]))


def _plan_of(line: dict[str, Any]) -> tuple[object, ...]:
    """What tells two plans apart. The last run of each counts."""
    alone = (line["alone"], line["flush"], bool(line["slaves"])) if line.get("alone") else ()
    return line["seed"], _minutes_of(line), *alone


def _minutes_of(line: dict[str, Any]) -> float:
    return float(line.get("minutes", 10.0))


def _head(seeds: list[dict[str, Any]]) -> list[str]:
    counts = {name: sum(one[name] for one in seeds) for name in ("acknowledged", "refused", "deliveries")}
    faults, failed = sum(len(one["faults"]) for one in seeds), sum(bool(one["problems"]) for one in seeds)
    calm, alone = sum(not one["faults"] for one in seeds), sum(bool(one.get("alone")) for one in seeds)
    return [
        "# Reliability",
        "",
        "Generated by `tests/simulation/scoreboard.py` from saved runs; do not edit by hand.",
        "",
        "A NameServer, two brokers and six clients run unchanged in one process, on virtual time, over simulated",
        "disks, links and clocks; everything that happens follows from a seed (`tests/simulation/`). Producers",
        "send single messages, batches (to a batch topic too), by key, with delay levels and timers, and in",
        "transactions; push consumers (concurrent and orderly) and a lite pull consumer read; an operator adds",
        "queues, makes and deletes topics and sets groups back. In half of the seeds POP consumers take part,",
        "message by message and FIFO: they acknowledge, keep messages longer, fail, and rest. In half of the seeds",
        "timers of more than three seconds roll: they go through the log again on their way. Load comes in",
        "bursts of seconds with rests of up to 90 seconds in between, when the timers of a process end together",
        "every five seconds; most faults strike in a burst. Brokers are killed and lose their power at random moments,",
        "at the worst ones that are known, and before and after each kind of step with a file. When the faults are",
        "over, everything must arrive within 240 virtual seconds. Then the brokers stop, and their stores are read and",
        "verified. In a third of the seeds the first broker has one or two slaves; in four of ten of those a slave",
        "stands in for its master while that is gone (`enableSlaveActingMaster`).",
        "",
        "With the plans before these 2,320 seeds were run, 1,000 of them in one go, at one commit, in 41 minutes",
        "beside two other programs on two cores, at 273 to 1 without slaves and 188 to 1 with them. Thirteen failed at",
        "first: nine showed faults of the package (below), the others two of the checker, one of the admin client and",
        "one of the simulation; all were mended. Of the seeds that are counted here two failed at first: 88 showed a",
        "fault of the package (below), and 30 one of the checker, which gave a group that is set back late too little",
        "time. They ran beside tests.",
        "",
        "| | |",
        "|---|---|",
        f"| Seeds | {len(seeds):,} of {_minutes(seeds)} virtual minutes, of which {calm} without faults and {alone} "
        f"with one kind of fault alone; {failed} failed |",
        f"| Package at | {_origins(seeds)} |",
        *(f"| Speed | {sentence} |" for sentence in _speeds(seeds)),
        f"| Faults | {faults:,} |",
        f"| Messages | {counts['acknowledged']:,} acknowledged, {counts['refused']:,} refused or unanswered, "
        f"{counts['deliveries']:,} deliveries |",
        "",
        "`make simulate SEEDS=N` runs seeds 1 to N, a process for each core; `make simulate FIRST=SEED SEEDS=1` "
        "repeats one; `SAVE=FILE` keeps the results and goes on after an interruption. `make test` runs 16 seeds of "
        "two minutes and a few planted bugs, `.ci/run` 200 of one minute; `make test-long` each kind of fault by "
        "itself with both ways to flush, every planted bug and 20,000 seeds.",
        "",
    ]


def _origins(lines: Iterable[dict[str, Any]]) -> str:
    """Commits and days, the most frequent first."""
    found = Counter((one.get("commit") or "unknown", one.get("date") or "unknown") for one in lines)
    return "; ".join(f"commit {commit}, {date}: {count:,}" for (commit, date), count in found.most_common())


def _speeds(seeds: list[dict[str, Any]]) -> Iterator[str]:
    """Virtual seconds for each second of CPU, which does not depend on what else the machine does."""
    kinds: dict[tuple[float, bool], list[dict[str, Any]]] = defaultdict(list)
    for one in seeds:
        kinds[_minutes_of(one), bool(one["slaves"]) if "slaves" in one else has_slaves(one["seed"])].append(one)
    for (minutes, in_groups), them in sorted(kinds.items(), reverse=True):
        virtual_s, cpu_s = sum(one["virtual_s"] for one in them), sum(one["cpu_s"] for one in them)
        yield (
            f"{len(them):,} seeds of {minutes:g} minutes {'with' if in_groups else 'without'} slaves: "
            f"{virtual_s / 3600:.1f} virtual hours in {cpu_s / 60:.1f} min of CPU, {virtual_s / cpu_s:.0f} to 1"
        )


def _minutes(seeds: list[dict[str, Any]]) -> str:
    *some, last = (f"{minutes:g}" for minutes in sorted({_minutes_of(one) for one in seeds}))
    return " and ".join([", ".join(some), last]) if some else last


def _promises() -> list[str]:
    rows = [f"| {promise} | `{test}` |" for promise, test in PROMISES]
    return ["## Promises", "", "| Promise | Test, besides the simulation |", "|---|---|", *rows, ""]


def _table(seeds: list[dict[str, Any]]) -> list[str]:
    """Of each kind and way to flush: how often it struck, in how many seeds, and in how many of those alone."""
    faults: dict[str, Counter[str]] = defaultdict(Counter)
    had: dict[str, Counter[str]] = defaultdict(Counter)
    alone: dict[str, Counter[str]] = defaultdict(Counter)
    failed: Counter[str] = Counter()
    for one in seeds:
        kinds, flush = set(one["faults"]), one["flush"]
        faults[flush].update(one["faults"])
        had[flush].update(kinds)
        alone[flush].update(kinds if one.get("alone") else ())
        failed.update(kinds if one["problems"] else ())
    rows = []
    for kind in ALL_KINDS:
        counts = [(faults[flush][kind], had[flush][kind], alone[flush][kind]) for flush in FLUSHES]
        cells = " | ".join(f"{number:,} in {seeds}, {lone}" for number, seeds, lone in counts)
        was_there = any(number for number, _, _ in counts)
        result = (
            f"{failed[kind]} seeds failed" if failed[kind] else "all promises kept" if was_there else "did not come"
        )
        rows.append(f"| {kind} | {MEANINGS[kind]} | {cells} | {result} |")
    head = "| Fault | What happens | SYNC_FLUSH | ASYNC_FLUSH | Result |"
    said = "How often each struck, in how many seeds, and how many of those had no other kind of fault."
    return ["## Table R: faults", "", said, "", head, "|---|---|---|---|---|", *rows, ""]


def _planted(bugs: dict[str, dict[str, Any]]) -> list[str]:
    rows, found = [], 0
    usual = Counter(line.get("commit") or "unknown" for line in bugs.values()).most_common(1)[0][0] if bugs else ""
    for bug in PLANTED:
        line = bugs.get(bug.name)
        seeds = "not run" if line is None else _until_found(line, usual)
        found += line is not None and line["seeds"] > 0
        rows.append(f"| {bug.name} | `{bug.where}` | {', '.join(bug.kinds) or 'any'} | {seeds} |")
    return [
        "## Planted bugs",
        "",
        f"{found} of {len(PLANTED)} were found, {sum(bug.name not in bugs for bug in PLANTED)} were not run.",
        "Rows that name a commit are of an older run.",
        "Each is planted alone, and seeds are run until one finds it. A bug",
        "that only shows under a certain fault is looked for in seeds with that fault; each has a minute or two.",
        "The flush that ends at a border was first planted in a milder form, which synced the next file as well:",
        f"40 seeds missed that one, and it was replaced. Run at {_origins(bugs.values())}.",
        "",
        "| Bug | Where | Faults | Seeds until it was found |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


def _until_found(line: dict[str, Any], usual: str) -> str:
    """With the commit, where it is not the one at which most were run."""
    count, commit = str(line["seeds"] or "missed"), line.get("commit") or "unknown"
    return count if commit == usual else f"{count} (at {commit})"


def _found(seeds: list[dict[str, Any]]) -> list[str]:
    failed = [str(one["seed"]) for one in seeds if one["problems"]]
    said = "None of the seeds that are counted above failed."
    if failed:
        said = f"Open: of {', '.join(failed)} it is not known yet whether the package or the checker is wrong."
    said += (
        " With earlier plans three seeds failed through settings of the trials, which were changed: a full disk took "
        "the oldest log files by force (13 and 14), and a half message was given up before its producer could be known "
        "again (94)."
    )
    listed = [f"- {what} (`{test_or_commit}`)" for what, test_or_commit in FOUND]
    more = [] if FOUND or failed else ["No fault of the package has been found by this workload so far."]
    return ["## Found in our own code", "", *listed, *more, "", said.strip(), ""]


def _rest() -> list[str]:
    return [
        "## Faults of real processes",
        "",
        "What a simulation cannot show stays with real processes and files:",
        "",
        "| What | Tests |",
        "|---|---|",
        *(f"| {what} | `{path}` |" for what, path in PROCESSES),
        "",
        "## Open",
        "",
        "- Seed 174 of one minute (full, read-error, sync-error) failed once, on an earlier state of the package, and "
        "passes now: consumers of POP never got a committed message. The loss after a failed sync, above, ends like "
        "that; whether it was the same is not known.",
        "",
        "## Not covered",
        "",
        *(f"- {sentence}" for sentence in NOT_COVERED),
    ]


if __name__ == "__main__":
    main()
