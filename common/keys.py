"""Every Redis key that promptmill reads or writes, named and documented. Nothing else spells a key.

`rq:*` keys are RQ's own, kept as RQ 3 keeps them so that every RQ tool reads them. `pm:*` keys are ours.
The Lua scripts in `common/lua` use the same names (`lib.lua` holds their spellings).

| key | type | holds |
|---|---|---|
| `pm:runs` | set | names of all runs in this Redis |
| `pm:active` | set | names of runs that are not finished |
| `pm:run:<run>:settings` | string | `RunSettings` as JSON, written once |
| `pm:run:<run>:counts` | hash | accepted, completed, dead, queued, in_flight, stored; tallies of events |
| `pm:run:<run>:position` | hash | how far the input is admitted: index, line, offset, chunk, ended |
| `pm:run:<run>:done` | bitmap | by unit: 1 when the unit is completed or dead |
| `pm:run:<run>:results` | stream | completions not yet in a part; field `r` is the record's line |
| `pm:run:<run>:dead` | hash | unit to `DeadLetter` JSON |
| `pm:run:<run>:window` | list | the last verdicts, newest first, as `verdict server id` |
| `pm:run:<run>:tally` | hash | the window's counts, by `verdict` and by `verdict server` |
| `pm:run:<run>:paused` | hash | `*` or a server's URL to why it is paused, as JSON |
| `pm:run:<run>:accepted` | set | verdicts that the guard was told to accept |
| `pm:run:<run>:held` | list | jobs taken off the queue while their run alone is paused |
| `pm:run:<run>:missing` | set | units whose job somebody deleted; the producer admits them again |
| `pm:run:<run>:seal` | string | what the next parts hold: last stream id, records, bytes, `full` or `rest` |
| `pm:run:<run>:parts` | list | `PartRow` JSON of every committed part, in order |
| `pm:lease` | string | token of the collector at work, with a time to live |
| `pm:consumer:<worker>` | string | a consumer's live figures as JSON, with a time to live |
| `pm:reaped` | string | when abandoned claims were last looked for, by the clock of Redis |
| `pm:unbalanced` | string | since when the counters disagree with the lists, if they do |
"""

from __future__ import annotations

from typing import Final

from common.settings import QUEUE_NAME

RUNS: Final = "pm:runs"
ACTIVE: Final = "pm:active"
LEASE: Final = "pm:lease"
CONSUMER_PREFIX: Final = "pm:consumer:"

RQ_SUSPENDED: Final = "rq:suspended"
QUEUE: Final = f"rq:queue:{QUEUE_NAME}"
STARTED: Final = f"rq:wip:{QUEUE_NAME}"
SCHEDULED: Final = f"rq:scheduled:{QUEUE_NAME}"
FINISHED: Final = f"rq:finished:{QUEUE_NAME}"
FAILED: Final = f"rq:failed:{QUEUE_NAME}"
QUEUE_WORKERS: Final = f"rq:workers:{QUEUE_NAME}"


def run_key(run: str, what: str) -> str:
    """The key of one of a run's own values, for example `run_key("a", "counts")`."""
    return f"pm:run:{run}:{what}"


def job_id(run: str, unit: int) -> str:
    """The RQ job id of one unit: RQ allows letters, digits, `_` and `-` only."""
    return f"{run}-{unit}"


def job_key(job: str) -> str:
    """The hash RQ keeps for a job id."""
    return f"rq:job:{job}"


def parse_job_id(job: str) -> tuple[str, int]:
    """The run and unit of a job id.

    Raises:
        ValueError: it is not a job id of ours.
    """
    run, _, unit = job.rpartition("-")
    if not run or not unit.isascii() or not unit.isdigit():
        raise ValueError(f"{job!r} is not the id of a promptmill job")
    return run, int(unit)


def worker_key(worker: str) -> str:
    """The hash RQ keeps for a worker."""
    return f"rq:worker:{worker}"


def worker_executions(worker: str) -> str:
    """The set RQ keeps of a worker's running executions, as `<job>:<execution>`."""
    return f"rq:worker:{worker}:executions"


def consumer_key(worker: str) -> str:
    """The live figures of one consumer."""
    return CONSUMER_PREFIX + worker
