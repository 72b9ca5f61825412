"""The shape of a chat completion on the wire: read strictly where it is as promised, leniently where not."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from common.records import Speculation, Usage
from consumers.client.fields import as_dict, as_float, as_int, as_list, as_str


class WireMessage(msgspec.Struct, frozen=True):
    """The assistant's message. vLLM calls the thinking `reasoning`, the others `reasoning_content`."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class WireChoice(msgspec.Struct, frozen=True):
    """One choice. SGLang says what stopped it in `matched_stop`, vLLM in `stop_reason`."""

    message: WireMessage
    finish_reason: str
    matched_stop: int | str | None = None
    stop_reason: int | str | None = None
    meta_info: dict[str, Any] | None = None


class WireUsage(msgspec.Struct, frozen=True):
    """Token counts. The count of thinking tokens stands in either of two places."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    completion_tokens_details: dict[str, Any] | None = None
    prompt_tokens_details: dict[str, Any] | None = None

    def read(self) -> Usage:
        """The counts as the record keeps them."""
        thinking = self.reasoning_tokens
        if thinking is None and self.completion_tokens_details:
            thinking = as_int(self.completion_tokens_details.get("reasoning_tokens"))
        return Usage(self.prompt_tokens, self.completion_tokens, thinking)

    @property
    def cached_tokens(self) -> int | None:
        """How many of the prompt's tokens were cached, where the server reports it."""
        return as_int(as_dict(self.prompt_tokens_details).get("cached_tokens"))


class WireCompletion(msgspec.Struct, frozen=True):
    """A completion, as far as it matters here."""

    choices: list[WireChoice]
    model: str | None = None
    usage: WireUsage | None = None
    sglext: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


_decoder: Final = msgspec.json.Decoder(WireCompletion)


def decode_completion(body: bytes) -> WireCompletion | None:
    """A completion that is as promised; `None` for all else."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def lenient_completion(document: Any) -> WireCompletion | None:
    """A completion with some fields of unpromised types, those left out; `None` where there are no choices.

    Text that is not text must not pass for absent text: its choice loses its finish reason, without which no
    completion counts.
    """
    top = as_dict(document)
    if not isinstance(top.get("choices"), list):
        return None
    usage = as_dict(top.get("usage"))
    return WireCompletion(
        choices=[_choice(as_dict(choice)) for choice in as_list(top["choices"])],
        model=as_str(top.get("model")),
        usage=WireUsage(
            prompt_tokens=as_int(usage.get("prompt_tokens")),
            completion_tokens=as_int(usage.get("completion_tokens")),
            reasoning_tokens=as_int(usage.get("reasoning_tokens")),
            completion_tokens_details=as_dict(usage.get("completion_tokens_details")),
            prompt_tokens_details=as_dict(usage.get("prompt_tokens_details")),
        ),
        sglext=as_dict(top.get("sglext")),
        timings=as_dict(top.get("timings")),
    )


def _choice(choice: dict[str, Any]) -> WireChoice:
    message = as_dict(choice.get("message"))
    texts = [message.get(name) for name in ("content", "reasoning_content", "reasoning")]
    sound = all(text is None or isinstance(text, str) for text in texts)
    return WireChoice(
        message=WireMessage(*texts) if sound else WireMessage(),
        finish_reason=(as_str(choice.get("finish_reason")) or "") if sound else "",
        matched_stop=_stop(choice.get("matched_stop")),
        stop_reason=_stop(choice.get("stop_reason")),
        meta_info=as_dict(choice.get("meta_info")),
    )


def _stop(value: Any) -> int | str | None:
    return value if isinstance(value, str) else as_int(value)


def speculation_of(completion: WireCompletion, choice: WireChoice) -> Speculation | None:
    """Draft figures from SGLang's extension or meta info, or from llama.cpp's timings."""
    details = as_dict((completion.sglext or {}).get("spec_tokens_details")) or choice.meta_info or {}
    steps = as_int(details.get("spec_verify_ct"))
    if steps:
        return Speculation(
            accept_length=as_float(details.get("spec_accept_length")),
            accept_rate=as_float(details.get("spec_accept_rate")),
            verify_steps=steps,
        )
    return _from_timings(completion.timings) if completion.timings else None


def _from_timings(timings: dict[str, Any]) -> Speculation | None:
    drafted, accepted = as_int(timings.get("draft_n")), as_int(timings.get("draft_n_accepted"))
    if not drafted or accepted is None:
        return None
    made = as_int(timings.get("predicted_n"))
    steps = made - accepted if made is not None else 0  # each step adds one token of the model's own
    return Speculation(
        accept_length=made / steps if made and steps > 0 else None,
        accept_rate=accepted / drafted,
        verify_steps=steps if steps > 0 else None,
    )
