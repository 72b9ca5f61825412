"""Settings: how completions are generated, and what a run is.

Precedence is flag, then environment, then the default written here. Secrets (`SGLANG_API_KEY`, S3 keys, a
Redis password in `RQ_REDIS_URL`) are never a field of these structs: the structs go into Redis, the manifest
and logs.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec

from common.errors import UsageError
from common.records import Fingerprint, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUE_NAME: Final = "completions"
DEFAULT_REDIS_URL: Final = "redis://127.0.0.1:6379/0"
RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

OnVerdict = Literal["keep", "retry", "dead"]
Regenerate = Literal["last", "all"]
Order = Literal["input", "longest-first", "prefix"]


class GenerationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How each completion is asked for. Names are the same in flags, environment and manifest."""

    model: str | None = None
    max_output_tokens: int = 4096
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    min_p: float = 0.0
    thinking: bool = True
    system: str | None = None
    stop: list[str] = []
    extra_body: dict[str, Any] = {}
    regenerate: Regenerate = "last"
    samples: int = 1


DEFAULT_POLICY: Final[Mapping[Verdict, OnVerdict]] = MappingProxyType(
    {
        Verdict.OK: "keep",
        # What the model wrote before it was cut is its own text: fit to train a drafter on, and paid for.
        Verdict.TRUNCATED: "keep",
        Verdict.TRUNCATED_THINKING: "keep",
        # A fault of how the server was started: another try gives the same, and the text can be put right.
        Verdict.PARSER_MISMATCH: "keep",
        # Chance made these, and chance may mend them.
        Verdict.EMPTY: "retry",
        Verdict.NO_ANSWER: "retry",
        Verdict.LOOPING: "retry",
        Verdict.BOILERPLATE: "retry",
        Verdict.ABORTED: "retry",
        Verdict.BROKEN: "retry",
    }
)
"""What becomes of a completion by its verdict, unless the run's `policy` says otherwise."""

DEFAULT_LIMITS: Final[Mapping[Verdict, float]] = MappingProxyType({Verdict.TRUNCATED: 0.5})
"""Limits that are at least this, whatever the run's: a cut answer is usable, half of them cut is an error."""

NEVER_RETRIED: Final = frozenset({Verdict.OK, Verdict.TRUNCATED, Verdict.TRUNCATED_THINKING})
"""Verdicts that another try under the same token limit would only buy again."""


class QualitySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a completion by its verdict, and when the guard stops the run.

    `policy` names verdicts that differ from `DEFAULT_POLICY`: `keep` stores the row, marked; `retry` asks
    again with another seed, up to `retries` times, and then makes it a dead letter; `dead` does so at once.

    The guard looks at the last `window` completions as they were judged, retried ones included. It pauses the
    run when the share of one verdict, or of all bad ones together, is above `limit` and at least `least`
    completions had it. `limits` gives single verdicts their own limit and takes them out of the sum; 1 means
    never.
    """

    policy: dict[Verdict, OnVerdict] = {}
    retries: int = 2
    guard: bool = True
    window: int = 500
    limit: float = 0.2
    limits: dict[Verdict, float] = {}
    least: int = 50


class ConsumerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How consumers treat servers and jobs. `concurrency` 0 is `auto`: the server's own limit decides."""

    concurrency: int = 0
    request_timeout: float = 3600.0
    max_attempts: int = 5
    max_deaths: int = 10


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is fixed when a run is created. Stored in Redis and in the manifest."""

    run: str
    output: str
    input_name: str
    fingerprint: Fingerprint
    created_at: str
    generation: GenerationSettings = GenerationSettings()
    quality: QualitySettings = QualitySettings()
    consumer: ConsumerSettings = ConsumerSettings()
    batch_size: int = 500
    high_water: int = 50_000
    skip_invalid: bool = False
    order: Order = "input"
    order_field: str | None = None

    @property
    def destination(self) -> str:
        """The folder or S3 prefix that this run's parts go to: `<output>/<run>`."""
        return f"{self.output.rstrip('/')}/{self.run}"


def check_run_name(name: str) -> str:
    """Return `name` if it can name a run.

    Raises:
        UsageError: it has characters that an RQ job id or an object key could not carry.
    """
    if not RUN_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a run: use 1 to 64 letters, digits, '-' and '_', first a letter or digit"
        )
    return name


def check_quality(settings: QualitySettings) -> QualitySettings:
    """Return `settings` if they can be followed.

    Raises:
        UsageError: a policy would retry what a retry cannot change, or a number is out of range.
    """
    for verdict, action in settings.policy.items():
        if verdict is Verdict.OK and action != "keep":
            raise UsageError(f"the policy for 'ok' is {action!r}: good completions can only be kept")
        if verdict in NEVER_RETRIED and action == "retry":
            raise UsageError(
                f"the policy for '{verdict}' is 'retry', but the same token limit would cut it again: "
                "raise --max-output-tokens, or choose 'keep' or 'dead'"
            )
    for name, share in (("limit", settings.limit), *settings.limits.items()):
        if not 0 < share <= 1:
            raise UsageError(f"the guard's limit {share} for '{name}' is not a share above 0 and up to 1")
    for name, number, lowest in (
        ("retries", settings.retries, 0),
        ("window", settings.window, 1),
        ("least", settings.least, 1),
    ):
        if number < lowest:
            raise UsageError(f"the quality setting '{name}' is {number}; it must be at least {lowest}")
    return settings


def derive_run_name(input_name: str) -> str:
    """Make a run name from an input's file name: `My prompts.jsonl.gz` becomes `My-prompts`."""
    base = PurePath(input_name).name
    for suffix in (".gz", ".zst", ".jsonl", ".json", ".ndjson"):
        base = base.removesuffix(suffix)
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "-", base).strip("-_")[:64]
    return cleaned or "run"


def redact_url(url: str) -> str:
    """The URL without user, password or query: fit for a log, `ps` or an error message."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    try:
        port = parts.port
    except ValueError:
        port = None
    netloc = f"{host}:{port}" if port else host
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))


def redis_url() -> str:
    """The Redis that the environment names, `RQ_REDIS_URL`, or the local default."""
    return os.environ.get("RQ_REDIS_URL") or DEFAULT_REDIS_URL
