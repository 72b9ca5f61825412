"""Sealing, committing and taking over parts, with collectors that come back from the dead."""

from __future__ import annotations

import msgspec
import pytest
from support.arena import record_line, settings_of

from common import keys
from common.adopt import adopt_part, adopt_parts
from common.errors import QueueError, RunNotFoundError
from common.parts import MANIFEST, PROGRESS, iter_lines, part_name, read_manifest
from common.records import PartRow
from common.storage import open_storage
from common.store import RedisUnavailableError
from consumers.collector.collect import RunCollector
from consumers.collector.decide import part_bytes


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


def test_a_seal_stands_until_it_is_committed_whoever_asks(worked):
    seal = worked.seal("r", records=4)
    worked.check()
    assert worked.seal("r", records=2) == seal
    new_lease(worked, "second")
    assert worked.store.seal("r", "second", 0, records=500, max_bytes=1) == seal
    assert worked.part("r", seal) == worked.part("r", seal)
    assert worked.commit("r", seal)
    worked.check()
    assert not worked.commit("r", seal)
    worked.check()
    assert worked.counts().stored == 4
    assert worked.waiting() == [4, 5]


def test_only_the_lease_holder_seals(worked):
    new_lease(worked, "first")
    with pytest.raises(QueueError, match="NOTLEASED"):
        worked.store.seal("r", "second", 0, records=5, max_bytes=1 << 20)
    with pytest.raises(QueueError, match="NOTNEXT the next part is 0"):
        worked.store.seal("r", "first", 1, records=5, max_bytes=1 << 20)
    worked.check()


def test_a_seal_is_bounded_in_bytes_but_never_empty(worked):
    size = len(record_line("r", 0))
    assert worked.seal("r").records == 6
    worked.client.delete("pm:run:r:seal")
    worked.store.take_lease("collector", 60)
    assert worked.store.seal("r", "collector", 0, records=500, max_bytes=2 * size).records == 2
    worked.client.delete("pm:run:r:seal")
    assert worked.store.seal("r", "collector", 0, records=500, max_bytes=1).records == 1


def test_a_part_is_never_built_from_less_than_its_range(worked):
    seal = worked.seal("r")
    worked.commit("r", seal)
    with pytest.raises(QueueError, match="sealed with 6 records and 0 of them are left"):
        worked.store.sealed_lines("r", seal)


def test_nothing_is_made_when_redis_loses_everything_between_seal_and_upload(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t")
    real = worked.store.on_disk
    worked.store.on_disk = lambda ms: bool(worked.client.flushall()) and real(ms)
    with pytest.raises(QueueError):
        collector.make_part()
    assert list(open_storage(f"{tmp_path}/r").list()) == []


# Several parts at once


def seals_of(worked, token="collector", **more):
    new_lease(worked, token)
    more = {"records": 2, "max_bytes": 1 << 28, "parts": 16, **more}
    return worked.store.seals("r", token, worked.store.part_count("r"), **more)


def test_several_full_parts_are_sealed_at_once_and_none_that_is_not_full(worked):
    assert [(seal.number, seal.records) for seal in seals_of(worked, records=4)] == [(0, 4)]
    worked.client.delete(keys.run_key("r", "seal"))
    seals = seals_of(worked)
    assert [(seal.number, seal.records) for seal in seals] == [(0, 2), (1, 2), (2, 2)]
    lines = [line for seal in seals for line in worked.store.sealed_lines("r", seal)]
    assert lines == [line for _, line in worked.store.waiting_lines("r")]
    assert seals_of(worked, "heir", records=5) == seals


def test_no_more_parts_are_sealed_than_asked_for_and_bytes_bound_each(worked):
    assert len(seals_of(worked, parts=2)) == 2
    worked.client.delete(keys.run_key("r", "seal"))
    size = max(len(line) for _, line in worked.store.waiting_lines("r"))
    assert [seal.records for seal in seals_of(worked, records=500, max_bytes=2 * size)] == [2, 2]


def test_sealed_parts_are_committed_in_order_alone(worked):
    first, second, third = seals_of(worked)
    assert not worked.commit("r", second)
    assert worked.commit("r", first)
    assert not worked.commit("r", first)
    assert not worked.commit("r", third)
    assert seals_of(worked, "heir") == [second, third]
    assert worked.commit("r", second)
    assert worked.commit("r", third)
    worked.check()
    assert worked.counts().stored == 6
    assert seals_of(worked) == []


def test_an_heir_goes_on_with_what_its_forerunner_sealed(worked, tmp_path):
    seals = seals_of(worked, "dead")
    new_lease(worked, "heir")
    heir = collector_of(worked, tmp_path, "heir")
    while heir.step("id"):
        worked.check()
    assert [row.records for row in worked.store.parts("r")] == [seal.records for seal in seals]
    assert worked.counts().stored == 6


def test_a_part_that_is_there_with_other_bytes_voids_the_seals_after_it(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=2)
    lines = [line for _, line in worked.store.waiting_lines("r")]
    collector.storage.create(part_name(0), part_bytes(lines[:3]))
    collector._checked_for = "id"
    while collector.step("id"):
        worked.check()
    assert [row.records for row in worked.store.parts("r")] == [3, 2, 1]
    assert worked.counts().stored == 6


def test_nothing_is_written_before_the_seals_are_on_disk(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=2)
    asked = []
    worked.store.on_disk = asked.append
    with pytest.raises(RedisUnavailableError, match="has not written to its disk"):
        collector.make_parts(16)
    assert list(open_storage(f"{tmp_path}/r").list()) == []
    assert len(asked) == 4
    del worked.store.on_disk
    assert collector.make_parts(16)
    worked.check()
    assert worked.counts().stored == 6


def test_a_collector_that_is_told_to_stop_begins_no_other_part(worked, tmp_path):
    new_lease(worked, "t")
    collector = collector_of(worked, tmp_path, "t", batch_size=2)
    collector.stopping = lambda: True
    assert collector.make_parts(16)
    worked.check()
    assert worked.counts().stored == 2
    assert worked.store.part_count("r") == 1


# Zombies


def test_a_zombie_that_sealed_before_it_stopped_changes_nothing(worked, tmp_path):
    new_lease(worked, "zombie")
    zombie = collector_of(worked, tmp_path, "zombie")
    number = worked.store.part_count("r")
    seal = worked.store.seal("r", "zombie", number, records=500, max_bytes=1 << 28)
    lines = worked.store.sealed_lines("r", seal)
    new_lease(worked, "heir")
    heir = collector_of(worked, tmp_path, "heir")
    while heir.step("id"):
        worked.check()
    storage = open_storage(f"{tmp_path}/r")
    before = storage.read(part_name(0))
    data = part_bytes(lines)
    assert storage.create(part_name(0), data) is False
    assert not worked.store.commit("r", seal, PartRow(part_name(0), seal.records, "0" * 64))
    with pytest.raises(QueueError, match="NOTLEASED"):
        zombie.make_part()
    worked.check()
    assert storage.read(part_name(0)) == before == data
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
