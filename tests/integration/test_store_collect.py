"""Sealing, committing and taking over parts, with collectors that come back from the dead."""

from __future__ import annotations

import msgspec
import pytest
from support.arena import record_line, settings_of

from common import keys
from common.adopt import adopt_part, adopt_parts
from common.errors import QueueError, RunNotFoundError, StorageError
from common.parts import MANIFEST, PROGRESS, iter_lines, part_name, read_manifest
from common.records import PartRow
from common.storage import open_storage
from common.store import RedisUnavailableError
from consumers.collector import assembly
from consumers.collector.collect import RunCollector
from consumers.collector.decide import next_part, next_seal, part_bytes


@pytest.fixture
def worked(arena):
    """Ten prompts, six of them completed."""
    arena.run(count=10)
    hand = arena.hand()
    for claim in hand.claim(6):
        hand.complete(claim)
    return arena


def collector_of(arena, tmp_path, token, **more):
    settings = msgspec.structs.replace(settings_of("r", output=str(tmp_path)), **more)
    return RunCollector(arena.store, settings, token, flush_s=0.0)


def new_lease(arena, token):
    arena.client.delete(keys.LEASE)
    assert arena.store.take_lease(token, 60)


def units_of(data):
    return [
        int(line.split(b'"index":')[1].split(b",")[0])
        for block in iter_lines(data, name="x")
        for line in block
    ]


# Seal and commit


def rows_of(arena):
    return [row.records for row in arena.store.parts("r")]


def test_a_seal_stands_until_its_parts_are_committed_whoever_asks(worked):
    sealed = worked.seal("r", records=10)
    worked.check()
    assert sealed.seal.rest
    hand = worked.hand()
    for claim in hand.claim(4):
        hand.complete(claim)
    # Ten would make a full part by now, but six were promised.
    new_lease(worked, "second")
    assert worked.seal("r", "second", records=10) == sealed
    assert sealed.part.records == 6
    assert worked.commit("r", sealed)
    worked.check()
    assert not worked.commit("r", sealed)
    worked.check()
    assert worked.counts().stored == 6
    assert worked.waiting() == [6, 7, 8, 9]
    assert worked.client.get(keys.run_key("r", "seal")) is None


def test_only_the_lease_holder_seals_and_what_it_has_seen(worked):
    new_lease(worked, "first")
    seal = next_seal(worked.store.results_waiting("r"), 5)

    def promise(token, number=0, standing="", seal=seal):
        return worked.store.seal("r", token, number, standing, seal, wait_ms=1)

    with pytest.raises(QueueError, match="NOTLEASED"):
        promise("second")
    with pytest.raises(QueueError, match="NOTNEXT the next part is 0"):
        promise("first", number=1)
    with pytest.raises(QueueError, match="NOTSTANDING"):
        promise("first", standing=str(seal))
    with pytest.raises(QueueError, match="NOTTHERE"):
        promise("first", seal=msgspec.structs.replace(seal, last="1-1"))
    assert worked.client.get(keys.run_key("r", "seal")) is None
    promise("first")
    with pytest.raises(QueueError, match="NOTSTANDING"):
        promise("first")
    promise("first", standing=str(seal))
    worked.check()


def test_a_part_is_bounded_in_bytes_but_never_empty(worked):
    size = len(record_line("r", 0))
    assert worked.seal("r", max_bytes=2 * size).part.records == 2
    worked.client.delete(keys.run_key("r", "seal"))
    assert worked.seal("r", max_bytes=1).part.records == 1


def test_a_seal_for_full_parts_grows_and_changes_none_of_them(worked):
    first = worked.seal("r", records=4)
    assert (first.seal.rest, first.part.records) == (False, 4)
    assert worked.commit("r", first)
    assert worked.sealed("r", first.seal) is None  # two are left, which make no part
    hand = worked.hand()
    for claim in hand.claim(4):
        hand.complete(claim)
    # Its rule stays, whatever a part would hold by other settings.
    second = worked.seal("r", records=2)
    assert (second.seal.records, second.seal.rest, second.part.records) == (4, False, 4)
    assert not worked.commit("r", second._replace(seal=first.seal))
    assert worked.commit("r", second)
    rest = worked.seal("r", records=4)
    assert (rest.seal.rest, rest.part.records) == (True, 2)
    assert worked.commit("r", rest)
    worked.check()
    assert worked.waiting() == []
    assert worked.client.get(keys.run_key("r", "seal")) is None


def test_parts_are_committed_in_order_alone(worked):
    seal = worked.seal("r", records=2).seal
    entries = worked.store.results("r", "", seal.last, 500)
    row = PartRow(part_name(0), 2, "0" * 64)
    first, second = (next_part(entries[2 * n : 2 * n + 2], seal, n)[0] for n in (0, 1))

    def commit(part, number):
        return worked.store.commit("r", seal, msgspec.structs.replace(part, number=number), row)

    assert not commit(second, 1)
    assert not commit(second, 0)
    assert commit(first, 0)
    assert not commit(first, 0)
    assert not commit(first, 1)
    assert commit(second, 1)
    worked.check()
    assert worked.counts().stored == 4
    assert worked.waiting() == [4, 5]


def test_an_heir_goes_on_with_what_its_forerunner_sealed(worked, tmp_path):
    new_lease(worked, "dead")
    assert worked.commit("r", worked.seal("r", "dead", records=2))
    new_lease(worked, "heir")
    heir = collector_of(worked, tmp_path, "heir", batch_size=3)
    heir._checked_for = "id"
    while heir.step("id"):
        worked.check()
    assert rows_of(worked) == [2, 2, 2]
    assert worked.counts().stored == 6


def test_seals_of_the_earlier_form_are_gone_on_with(worked, tmp_path):
    ids = [entry for entry, _ in worked.store.waiting_lines("r")]
    worked.client.set(keys.run_key("r", "seal"), f"0 {ids[0]} {ids[1]} 2\n1 {ids[2]} {ids[3]} 2")
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=2)
    assert collector.make_parts(collector.look())
    assert rows_of(worked) == [2, 2]
    while collector.step("id"):
        worked.check()
    assert rows_of(worked) == [2, 2, 2]


def test_a_part_that_is_there_with_other_bytes_voids_the_ones_after_it(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=2)
    lines = [line for _, line in worked.store.waiting_lines("r")]
    collector.storage.create(part_name(0), part_bytes(lines[:3]))
    collector._checked_for = "id"
    while collector.step("id"):
        worked.check()
    assert rows_of(worked) == [3, 2, 1]
    assert worked.counts().stored == 6


# Nothing is written that a loss of Redis's last second could make otherwise


def test_nothing_is_made_when_redis_loses_everything_between_look_and_upload(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t")
    real = worked.store.seal
    worked.store.seal = lambda *args, **more: bool(worked.client.flushall()) and real(*args, **more)
    with pytest.raises(QueueError):
        collector.make_parts(collector.look())
    assert list(open_storage(f"{tmp_path}/r").list()) == []


def test_nothing_is_written_before_the_seal_is_on_disk(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=2)
    real = worked.store.seal
    worked.store.seal = lambda *args, **more: bool(real(*args, **more)) and False
    with pytest.raises(RedisUnavailableError, match="has not written to its disk"):
        collector.make_parts(collector.look())
    assert list(open_storage(f"{tmp_path}/r").list()) == []
    worked.store.seal = real
    assert collector.make_parts(collector.look())
    worked.check()
    assert worked.counts().stored == 6


def test_the_wait_for_the_disk_is_one_for_the_seal(worked):
    """On another connection than its own it would be for nothing, and over at once."""
    worked.store.take_lease("collector", 60)
    seal = next_seal(worked.store.results_waiting("r"), 4)
    worked.client.config_set("appendfsync", "no")
    try:
        assert not worked.store.seal("r", "collector", 0, "", seal, wait_ms=50)
    finally:
        worked.client.config_set("appendfsync", "everysec")
    assert worked.store.seal("r", "collector", 0, str(seal), seal, wait_ms=5000)


def test_a_collector_that_is_told_to_stop_begins_no_other_part(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=2)
    collector.stopping = lambda: True
    assert collector.make_parts(collector.look())
    worked.check()
    assert worked.counts().stored == 2
    # What is left under the seal needs no other promise.
    worked.store.seal = None
    collector.stopping = lambda: False
    assert collector.make_parts(collector.look())
    assert worked.counts().stored == 6


def test_what_waits_to_be_written_is_bounded_and_nothing_follows_a_part_that_failed(
    worked, tmp_path, monkeypatch
):
    monkeypatch.setattr(assembly, "AHEAD_BYTES", 1)
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=1)
    read, real = [], worked.store.results
    worked.store.results = lambda *args: (read.append(args), real(*args))[1]

    def fail(name, data, **more):
        raise StorageError("no", transient=True)

    collector.storage.create = fail
    with pytest.raises(StorageError):
        collector.make_parts(collector.look())
    assert len(read) == 2  # the part that failed, and the one that was read meanwhile
    worked.check()
    assert rows_of(worked) == []


# Zombies


def test_a_zombie_that_sealed_before_it_stopped_changes_nothing(worked, tmp_path):
    new_lease(worked, "zombie")
    zombie = collector_of(worked, tmp_path, "zombie")
    sealed, seen = worked.seal("r", "zombie"), zombie.look()
    new_lease(worked, "heir")
    heir = collector_of(worked, tmp_path, "heir")
    while heir.step("id"):
        worked.check()
    storage = open_storage(f"{tmp_path}/r")
    before = storage.read(part_name(0))
    assert storage.create(part_name(0), sealed.data) is False
    assert not worked.commit("r", sealed)
    with pytest.raises(QueueError, match="NOTLEASED"):
        zombie.make_parts(seen)
    worked.check()
    assert storage.read(part_name(0)) == before == sealed.data
    assert worked.counts().stored == 6


def test_a_zombie_that_writes_an_old_manifest_has_it_written_again(worked, tmp_path):
    new_lease(worked, "zombie")
    zombie = collector_of(worked, tmp_path, "zombie")
    zombie.publish(now=True)
    # The run goes on and ends under another collector.
    hand = worked.hand()
    for claim in hand.claim(10):
        hand.complete(claim)
    worked.admit("r", 0, ended=True)
    storage = open_storage(f"{tmp_path}/r")
    real = zombie.storage.replace
    held = []
    zombie.storage.replace = lambda name, data: held.append((name, data))
    zombie.publish(now=True)
    new_lease(worked, "heir")
    heir = collector_of(worked, tmp_path, "heir")
    while heir.step("id"):
        pass
    assert worked.store.runs(active=True) == []
    # The zombie goes on in the middle of its writes.
    zombie.storage.replace = real
    for name, data in held:
        storage.replace(name, data)
    assert read_manifest(storage).parts == []
    zombie.storage.replace = lambda *_: None
    zombie.publish(now=True)
    assert worked.store.runs(active=True) == ["r"]
    again = collector_of(worked, tmp_path, "heir")
    while again.step("id"):
        pass
    manifest = read_manifest(storage)
    assert sum(row.records for row in manifest.parts) == 10
    assert manifest.finished_at
    worked.check()


def test_a_run_is_retired_only_when_all_of_it_is_stored(worked):
    assert not worked.store.retire("r")
    hand = worked.hand()
    for claim in hand.claim(10):
        hand.complete(claim)
    assert not worked.store.retire("r")
    worked.commit("r", worked.seal("r"))
    assert not worked.store.retire("r")  # the input may go on
    worked.admit("r", 0, ended=True)
    assert worked.store.retire("r")
    assert worked.store.runs(active=True) == []
    worked.check()


def test_a_dead_letter_that_lives_again_keeps_its_run_from_being_retired(worked):
    hand = worked.hand()
    claims = hand.claim(10)
    for claim in claims[1:]:
        hand.complete(claim)
    hand.bury(claims[0])
    worked.admit("r", 0, ended=True)
    worked.commit("r", worked.seal("r"))
    worked.store.revive("r", [6])
    (claim,) = hand.claim()
    assert not worked.store.retire("r")
    hand.complete(claim)
    assert not worked.store.retire("r")
    worked.commit("r", worked.seal("r"))
    assert worked.store.retire("r")
    worked.check()


# Taking over what the output holds


def lost_part(arena, tmp_path, units, number=0):
    """A part in the output that Redis does not know."""
    data = part_bytes([record_line("r", unit, "from the part") for unit in units])
    open_storage(f"{tmp_path}/r").create(part_name(number), data)
    return data


@pytest.mark.parametrize(
    "where", ["queued", "in_flight", "waiting", "dead", "not_admitted", "missing", "scheduled"]
)
def test_a_part_is_taken_over_wherever_its_prompts_stand(arena, tmp_path, where):
    run = arena.run(count=3)
    hand = arena.hand()
    unit = 0
    if where == "in_flight":
        hand.claim()
    elif where == "waiting":
        hand.complete(hand.claim()[0], "made again")
    elif where == "dead":
        hand.bury(hand.claim()[0])
    elif where == "not_admitted":
        unit = 7
    elif where == "scheduled":
        hand.again(hand.claim()[0], 60)
    elif where == "missing":
        arena.client.delete("rq:job:r-0")
        hand.claim()
        hand.hand_back(hand.held[0]) if hand.held else None
    arena.check(tidy=False)
    lost_part(arena, tmp_path, [unit])
    storage = open_storage(f"{tmp_path}/r")
    arena.adopted = {0}
    assert adopt_parts(arena.store, storage, run, 1) == 1
    arena.check(tidy=where != "dead")
    assert arena.waiting() == []
    counts = arena.counts()
    assert (counts.stored, counts.completed) == (1, 1)
    for claim in list(hand.held):
        assert not hand.complete(claim) or where == "missing"
        arena.check(tidy=where != "dead")
    assert adopt_parts(arena.store, storage, run, 1) == 0
    if where == "not_admitted":
        arena.admit(run, 7)
        arena.check()
        assert arena.counts().accepted == 10
        assert "r-7" not in arena.queue()


def test_a_completion_that_comes_while_a_part_is_taken_over_is_not_in_two_parts(arena, tmp_path):
    run = arena.run(count=3)
    hand = arena.hand()
    claims = hand.claim(3)
    hand.complete(claims[2])
    lost_part(arena, tmp_path, [0, 1])
    real, left = arena.store.adopt_part, list(claims[:2])

    def adopt(*args, **kwargs):
        # Between the look at what waits and the script, a consumer completes what the part holds.
        if left:
            assert hand.complete(left.pop(), "made again")
        return real(*args, **kwargs)

    arena.store.adopt_part = adopt
    assert adopt_part(arena.store, open_storage(f"{tmp_path}/r"), run, 0, 1)
    arena.check()
    assert arena.waiting() == [2]
    assert (arena.counts().completed, arena.counts().stored) == (3, 2)


def test_a_part_name_that_is_taken_is_taken_over_and_its_prompts_are_not_stored_again(worked, tmp_path):
    """Redis was emptied behind everybody's back, and units of an old part were made again."""
    before = lost_part(worked, tmp_path, [0, 1, 2, 9])
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t")
    collector._checked_for = "id"
    while collector.step("id"):
        worked.check(tidy=False)
    storage = open_storage(f"{tmp_path}/r")
    assert storage.read(part_name(0)) == before
    assert units_of(storage.read(part_name(1))) == [3, 4, 5]
    worked.check()
    counts = worked.counts()
    assert (counts.completed, counts.stored, counts.queued) == (7, 7, 3)


def test_a_collector_that_takes_over_a_part_while_redis_is_emptied_leaves_no_trace(arena, tmp_path):
    run = arena.run(count=3)
    lost_part(arena, tmp_path, [0, 1])
    real = arena.store.waiting_lines
    arena.store.waiting_lines = lambda *args, **kwargs: (arena.client.flushall(), real(*args, **kwargs))[1]
    storage = open_storage(f"{tmp_path}/r")
    with pytest.raises(RunNotFoundError, match="run r is gone"):
        adopt_part(arena.store, storage, run, 0, 1)
    assert arena.store.restore(run, [0]) == 0
    assert arena.client.keys("*") == []


def test_a_run_made_anew_counts_nothing_that_late_processes_left_under_its_name(arena, tmp_path):
    arena.client.setbit("pm:run:r:done", 2, 1)
    arena.client.rpush("pm:run:r:parts", "{}")
    arena.client.sadd("pm:run:r:missing", 1)
    arena.client.hset("pm:run:r:counts", "verdict:ok", 9)
    run = arena.run(count=3)
    arena.check()
    assert arena.counts(run).accepted == 3
    assert arena.counts(run).other == {}
    assert arena.store.missing(run) == []


def test_a_gap_between_parts_is_an_error_that_says_what_to_do(arena, tmp_path):
    run = arena.run(count=3)
    lost_part(arena, tmp_path, [0], number=1)
    with pytest.raises(Exception, match=r"no part-000000.jsonl.zst: restore that object"):
        adopt_parts(arena.store, open_storage(f"{tmp_path}/r"), run, 1)
    arena.check()


def test_everything_lost_is_rebuilt_and_nothing_is_stored_twice(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t")
    while collector.step("id"):
        pass
    late = worked.hand()
    old = late.claim(2)
    worked.client.flushall()
    assert not late.complete(old[0])
    run = worked.run()
    storage = open_storage(f"{tmp_path}/r")
    assert adopt_parts(worked.store, storage, run, 1) == 1
    worked.check()
    worked.admit(run, 10, ended=True)
    worked.check()
    assert worked.counts().queued == 4
    hand = worked.hand()
    claims = hand.claim(10)
    assert late.complete(old[1])
    for claim in claims:
        hand.complete(claim)
        worked.check()
    new_lease(worked, "u")
    collector = collector_of(worked, tmp_path, "u")
    while collector.step("id2"):
        worked.check()
    found = [unit for n in (0, 1) for unit in units_of(storage.read(part_name(n)))]
    assert sorted(found) == list(range(10))
    assert {info.name for info in storage.list()} >= {part_name(0), part_name(1), MANIFEST, PROGRESS}
