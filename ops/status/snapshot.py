"""From one look at Redis to one `Status`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from common.settings import redact_url
from common.store.claims import CLAIM_TTL_S
from common.store.look import RunLook, Surroundings, look_around, look_at
from common.store.runs import RunStore
from ops.status.speed import MINUTE_S, Meter, Rate, forecast, whole_run
from ops.status.values import Consumer, Memory, Pause, Queue, RunStatus, State, Status

EVENTS: Final = (
    "retries",
    "redeliveries",
    "second_finishes",
    "handed_back",
    "restored",
    "revived",
    "adopted",
)

WAITING_FOR_SERVER: Final = "waiting for server"
DRAINING: Final = "draining"


class Watch:
    """Takes one status after the other and remembers what rates are told from."""

    def __init__(self, store: RunStore) -> None:
        """Watch the runs of `store`."""
        self.store = store
        self._meters: dict[str, Meter] = {}

    def take(self, runs: Iterable[str] | None = None) -> Status:
        """The status now, of these runs, or of all active ones, or of all where none is active.

        Raises:
            RunNotFoundError: one of the runs is not there.
            QueueError: Redis does not answer.
        """
        around = look_around(self.store)
        names = list(runs) if runs is not None else around.active or around.runs
        looks = look_at(self.store, names, around.at)
        for look in looks:
            self._meter(look).add(around.at, look.counts.completed, _tokens(look))
        measured = {look.settings.run: self._meter(look).rate() for look in looks}
        return status_of(around, looks, measured)

    def _meter(self, look: RunLook) -> Meter:
        return self._meters.setdefault(look.settings.run, Meter())


def status_of(around: Surroundings, looks: Iterable[RunLook], measured: Mapping[str, Rate | None]) -> Status:
    """Put a status together. `measured` has rates by run where a watch could tell them."""
    looks = list(looks)
    consumers = sorted(
        (consumer_of(name, figures, looks) for name, figures in around.consumers.items()),
        key=lambda consumer: (consumer.server, consumer.worker),
    )
    told = told_rate(consumers, around.at)
    return Status(
        at=_iso(around.at),
        runs=[run_status(look, around, consumers, measured.get(look.settings.run), told) for look in looks],
        consumers=consumers,
        silent=[one for one in around.silent if one.seconds > CLAIM_TTL_S],
        stock_workers=around.strangers,
        collector=around.collector,
        suspended=around.suspended,
        queue=Queue(around.listed, around.scheduled, around.started, around.failed),
        memory=Memory(around.used_memory, around.max_memory),
        disk_ok=around.disk_ok,
    )


def consumer_of(worker: str, figures: Mapping[str, Any], looks: Iterable[RunLook]) -> Consumer:
    """A consumer from its figures; its state says so where the guard has paused its server."""
    try:
        consumer = msgspec.convert(figures, Consumer, strict=False)
    except msgspec.ValidationError:
        return Consumer(worker=worker, state="of another version")
    word = consumer.state
    if word == "paused" or any(consumer.server in look.paused for look in looks):
        word = "paused by guard"
    elif word == "full":
        word = "waiting for output"
    return msgspec.structs.replace(consumer, state=word)


def told_rate(consumers: Iterable[Consumer], at: float) -> Rate | None:
    """The rate of the last minute as the consumers tell it; `None` where there is none."""
    found = list(consumers)
    if not found:
        return None
    completions = sum(consumer.last_minute.completions_per_s for consumer in found)
    tokens = sum(consumer.last_minute.output_tokens_per_s for consumer in found)
    seen = sum(
        consumer.last_minute.completions_per_s * min(MINUTE_S, max(1.0, at - consumer.started))
        for consumer in found
    )
    return Rate(completions, tokens, seen)


def run_status(
    look: RunLook,
    around: Surroundings,
    consumers: list[Consumer],
    measured: Rate | None,
    told: Rate | None,
) -> RunStatus:
    """One run's status."""
    settings, counts = look.settings, look.counts
    active = settings.run in around.active
    total = settings.fingerprint.lines * settings.generation.samples
    shared = measured is None and len(around.active) > 1
    rate = (measured or told) if active else None
    elapsed = around.at - dt.datetime.fromisoformat(settings.created_at).timestamp()
    whole = whole_run(counts.completed, _tokens(look), elapsed) if active else None
    # The consumers' sum is of all runs: it says nothing on when one of several will be done.
    eta = forecast(total - counts.completed - counts.dead, whole if shared else rate)
    return RunStatus(
        run=settings.run,
        state=state_of(look, around, consumers),
        active=active,
        total=total,
        accepted=counts.accepted,
        completed=counts.completed,
        stored=min(counts.stored, counts.completed),
        dead=counts.dead,
        queued=counts.queued,
        in_flight=counts.in_flight,
        rate_per_s=None if rate is None else round(rate.completions, 3),
        output_tokens_per_s=None if rate is None else round(rate.tokens, 3),
        rate_of_all_runs=shared and rate is not None,
        whole_run_rate_per_s=None if whole is None else round(whole.completions, 3),
        whole_run_output_tokens_per_s=None if whole is None else round(whole.tokens, 3),
        eta_s=None if eta is None else round(eta.seconds, 1),
        eta_low_s=None if eta is None else round(eta.low, 1),
        eta_high_s=None if eta is None else round(eta.high, 1),
        output_tokens=_tokens(look),
        verdicts=_largest_first(counts.tally("verdict")),
        dead_by_reason=_largest_first(counts.tally("dead")),
        events={name: counts.other[name] for name in EVENTS if counts.other.get(name)},
        paused=[pause_of(scope, why) for scope, why in sorted(look.paused.items())],
        missing=look.missing,
        waiting=look.waiting,
        waiting_bytes=max(0, counts.other.get("waiting_bytes", 0)),
        waiting_oldest_s=None if look.oldest_s is None else round(look.oldest_s, 1),
        parts=look.parts,
        last_part=look.last_part.key if look.last_part else None,
        output=redact_url(settings.destination) if "://" in settings.destination else settings.destination,
        created_at=settings.created_at,
    )


def state_of(look: RunLook, around: Surroundings, consumers: list[Consumer]) -> State:  # noqa: PLR0911  # one per state
    """The one word for a run: what keeps it from its end, if anything does."""
    counts = look.counts
    settled = counts.queued == 0 and counts.in_flight == 0
    if settled and look.ended and look.settings.run not in around.active:
        return State.FINISHED
    if "*" in look.paused:
        return State.PAUSED
    if settled and look.ended:
        return State.STORING
    if around.suspended:
        return State.SUSPENDED
    if not consumers:
        return State.ENQUEUEING if not look.ended else State.NO_CONSUMER
    if all(consumer.state == DRAINING for consumer in consumers):
        return State.DRAINING
    if all(consumer.state == WAITING_FOR_SERVER for consumer in consumers):
        return State.NO_SERVER
    return State.RUNNING if counts.accepted else State.ENQUEUEING


def pause_of(scope: str, why: Mapping[str, Any]) -> Pause:
    """A pause from what the guard wrote; fields of another kind are left out."""
    samples = why.get("samples")
    return Pause(
        scope=scope,
        sentence=str(why.get("sentence", "")),
        verdict=str(why.get("verdict", "")),
        samples=[str(name) for name in samples] if isinstance(samples, list) else [],
        at=str(why["at"]) if why.get("at") else None,
    )


def _tokens(look: RunLook) -> int:
    return look.counts.other.get("output_tokens", 0)


def _largest_first(tally: dict[str, int]) -> dict[str, int]:
    return dict(sorted(tally.items(), key=lambda pair: -pair[1]))


def _iso(at: float) -> str:
    return dt.datetime.fromtimestamp(at, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
