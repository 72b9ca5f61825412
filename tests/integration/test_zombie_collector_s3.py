"""A collector that goes on after its lease passed on, on stores that keep conditions and that ignore them."""

from __future__ import annotations

import threading

import pytest
from support.arena import settings_of
from support.faulty_s3 import Fault
from support.wait import wait_for

from common import keys
from common.parts import part_name
from common.storage import open_storage
from consumers.collector.collect import RunCollector


@pytest.mark.parametrize("conditions", ["kept", "ignored"])
def test_a_zombie_in_the_middle_of_its_upload_changes_no_object(arena, s3_server, faulty_s3, conditions):
    """Its request is on the way, past every look of ours, when the heir stores and commits the part."""
    arena.run(count=10)
    hand = arena.hand()
    for claim in hand.claim(10):
        hand.complete(claim)
    arena.admit("r", 0, ended=True)
    settings = settings_of("r", output=s3_server.url())
    arena.store.take_lease("zombie", 60)
    zombie = RunCollector(arena.store, settings, "zombie", flush_s=0.0)
    faulty_s3.inject(Fault(kind="held", methods=("PUT",), match=part_name(0), times=1))
    if conditions == "ignored":
        zombie.storage._conditions = False  # its request names none, as if the store did not look at it
    failed: list[BaseException] = []

    def upload() -> None:
        try:
            zombie.make_parts(zombie.look())
        except Exception as error:  # noqa: BLE001  # whatever it meets, it must change nothing
            failed.append(error)

    thread = threading.Thread(target=upload)
    thread.start()
    wait_for(lambda: any(fault.struck for fault in faulty_s3._proxy.faults), "its upload")
    arena.client.delete(keys.LEASE)
    arena.store.take_lease("heir", 60)
    heir = RunCollector(arena.store, settings, "heir", flush_s=0.0)
    while heir.step("id"):
        arena.check()
    straight = open_storage(s3_server.url() + "/r")
    before = straight.read(part_name(0))
    assert thread.is_alive()
    faulty_s3.heal()
    thread.join()
    assert straight.read(part_name(0)) == before
    assert [info.name for info in straight.list("part-")] == [part_name(0)]
    arena.check()
    counts = arena.counts()
    assert (counts.completed, counts.stored) == (10, 10)
