"""A run while everything around it dies: nothing lost, nothing doubled, and the counts add up throughout."""

from __future__ import annotations

import json
import os
import time

import pytest
from support.chaos import Chaos
from support.oracle import CANARY, Watcher, leaks, read_ends, write_input
from support.world import KEY, RUN, SECRET, World

from common.storage import open_storage

HOPELESS = 20
SETTLE_S = 90.0


def drive(world: World, chaos: Chaos, *, jobs: int, kills: int, least_s: float, most_s: float) -> float:
    """Strike until there were enough kills, spread over the run; then wait for its end. Returns seconds."""
    begun = struck = time.monotonic()
    world.start()
    while True:
        world.look_after()
        now = time.monotonic()
        chaos.heal(all_of_it=chaos.kills >= kills)
        counts = world.counts()
        share = (counts.completed + counts.dead) / jobs if counts else 0.0
        if chaos.kills < kills:
            ahead = share * kills * 1.1 >= chaos.kills
            if now - struck >= (least_s if ahead else most_s):
                struck = now
                chaos.strike()
        elif world.done():
            return now - begun
        assert now - struck < SETTLE_S + 0.01 * jobs, (counts, world.folder)
        time.sleep(0.05)


@pytest.mark.timeout(420)
def test_5000_jobs_survive_50_kills(tmp_path, s3_server):
    run_chaos(tmp_path, s3_server, jobs=5000, kills=50, seed=int(os.environ.get("SEED", "1")))


@pytest.mark.long
def test_as_many_jobs_and_kills_as_asked_for(tmp_path, s3_server):
    jobs, kills = int(os.environ.get("JOBS", "50000")), int(os.environ.get("KILLS", "300"))
    run_chaos(tmp_path, s3_server, jobs=jobs, kills=kills, seed=int(os.environ.get("SEED", "1")))


def run_chaos(tmp_path, s3_server, *, jobs: int, kills: int, seed: int) -> None:
    big = jobs > 10_000
    prompts = write_input(tmp_path / "prompts.jsonl", jobs, hopeless=HOPELESS)
    speed = (
        "--median-tokens",
        "20",
        "--sigma",
        "0.4",
        "--time-scale",
        "20" if big else "2",
        "--tokens-per-s",
        "60",
    )
    world = World(
        tmp_path,
        prompts,
        s3=s3_server,
        simulate=("--slots", "64", "--context", "2048", *speed),
        enqueue=(
            "--no-guard",
            "--max-output-tokens",
            "256",
            "--batch-size",
            "500" if big else "100",
            "--request-timeout",
            "3",
        ),
        env={
            "PROMPTMILL_CONCURRENCY": "48" if big else "10",
            "PROMPTMILL_MAX_ATTEMPTS": "100",
            "PROMPTMILL_MAX_DEATHS": "200",
            "PROMPTMILL_HIGH_WATER": "20000" if big else "1000",
        },
    )
    with world:
        storage = open_storage(f"{world.output}/{RUN}")  # past the proxy: what is really there
        chaos = Chaos(world, seed, wipes=2)
        with Watcher(world, storage) as watcher:
            took = drive(world, chaos, jobs=jobs, kills=kills, least_s=0.4, most_s=3.0)
        ends = read_ends(storage, jobs)
        told = {
            "seed": seed,
            "jobs": jobs,
            "kills": chaos.kills,
            "misfortunes": dict(sorted(chaos.done.items())),
            "records": ends.records,
            "dead_letters": len(ends.dead),
            "lost": len(ends.lost),
            "doubled": len(ends.doubled),
            "second_finishes_dropped": watcher.second_finishes,
            "samples": watcher.samples,
            "seconds": round(took),
        }
        print(json.dumps(told))
        assert not ends.lost, ends.lost[:20]
        assert not ends.doubled, ends.doubled[:20]
        assert not ends.wrong, ends.wrong[:20]
        assert not watcher.broken, watcher.broken[:20]
        assert not watcher.changed_parts()
        assert watcher.samples > 20
        expected = dict.fromkeys(range(jobs - HOPELESS, jobs), "too_long")
        assert {n: why for n, why in ends.dead.items() if why != "rejected"} == expected
        assert not leaks(world, (CANARY, KEY, SECRET))
