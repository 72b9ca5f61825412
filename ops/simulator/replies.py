"""Replies on the wire: whole bodies and streams, for each endpoint, engine and version. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ops.simulator.asks import fake_token_ids
from ops.simulator.placement import place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ops.simulator.answers import Answer, Draws
    from ops.simulator.asks import Ask
    from ops.simulator.settings import ServerSettings
    from ops.simulator.traits import Traits

_encode: Final = msgspec.json.Encoder().encode
_PIECES: Final = 64
_PIECE_TOKENS: Final = 32
_CACHED_NOTHING: Final = 0.4
_CACHED_MOST: Final = 0.3
_METADATA: Final = {"weight_version": "default"}
_VLLM_MESSAGE: Final = dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
_VLLM_TOP: Final = dict.fromkeys(
    (
        "service_tier",
        "system_fingerprint",
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    )
)
DONE: Final = b"data: [DONE]\n\n"


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """All that a reply is made from.

    Attributes:
        id: the request id that the reply carries.
        created: unix time.
        looping: whether the draft model found the text easy, as it does in a loop.
        ran: whether it got a slot; a request aborted before it did reports no prompt.
        latency_s: seconds from arrival to end.
    """

    ask: Ask
    settings: ServerSettings
    traits: Traits
    draws: Draws
    answers: Sequence[Answer]
    id: str
    created: int
    looping: bool = False
    ran: bool = True
    latency_s: float = 0.0

    @property
    def model(self) -> str:
        """The model name in the reply: SGLang echoes whatever was asked for."""
        return self.ask.model or "default" if self.settings.dialect == "sglang" else self.settings.model

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens as reported."""
        return self.ask.prompt_tokens if self.ran else 0

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache held."""
        if not self.settings.cache_report:
            return 0
        drawn = self.draws.uniform("cached")
        return 0 if drawn < _CACHED_NOTHING else int(self.prompt_tokens * drawn * _CACHED_MOST)


def body(reply: Reply) -> bytes:
    """The whole body of a reply that is not streamed."""
    if reply.ask.api == "generate":
        return _encode(_generated(reply, reply.answers[0], reply.answers[0].raw))
    document: dict[str, Any] = {
        "id": reply.id if reply.settings.dialect == "sglang" else f"chatcmpl-{reply.id}",
        "object": "chat.completion" if reply.ask.api == "chat" else "text_completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [_choice(reply, index, answer) for index, answer in enumerate(reply.answers)],
        "usage": usage(reply),
    }
    document.update(_extras(reply))
    return _encode(document)


def _choice(reply: Reply, index: int, answer: Answer) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": index}
    if reply.ask.api == "chat":
        choice["message"] = _message(reply, answer)
    else:
        choice["text"] = answer.raw
    choice["logprobs"] = None
    choice["finish_reason"] = answer.finish
    choice.update(_stop_detail(reply, answer))
    if reply.ask.meta_info and reply.traits.return_meta_info:
        choice["meta_info"] = meta_info(reply, answer)
    if reply.ask.token_ids and reply.traits.token_ids:
        choice["prompt_token_ids"] = fake_token_ids(reply.ask.texts[-1], reply.prompt_tokens)
        choice["response_token_ids"] = fake_token_ids(answer.raw.encode(), answer.tokens)
    return choice


def _message(reply: Reply, answer: Answer) -> dict[str, Any]:
    parser = reply.settings.reasoning_parser and reply.ask.separate
    placed = place(answer, reply.traits, parser=parser)
    message: dict[str, Any] = {"role": "assistant", "content": placed.content}
    if reply.settings.dialect == "llamacpp" and placed.reasoning is None:
        return message
    if reply.settings.dialect == "vllm":
        message.update(_VLLM_MESSAGE)
    message[reply.traits.reasoning_field] = placed.reasoning
    if reply.traits.tool_calls_key:
        message["tool_calls"] = None
    return message


def _stop_detail(reply: Reply, answer: Answer) -> dict[str, Any]:
    if reply.settings.dialect == "sglang":
        return {"matched_stop": answer.matched}
    if reply.settings.dialect == "vllm":
        stopped = answer.matched if isinstance(answer.matched, str) else None
        return {"stop_reason": stopped, "token_ids": None, "routed_experts": None}
    return {}


def usage(reply: Reply) -> dict[str, Any]:
    """The `usage` object."""
    made = sum(answer.tokens for answer in reply.answers)
    counts: dict[str, Any] = {
        "prompt_tokens": reply.prompt_tokens,
        "total_tokens": reply.prompt_tokens + made,
        "completion_tokens": made,
        "prompt_tokens_details": None,
    }
    cached = reply.cached_tokens
    if reply.settings.cache_report and (cached or reply.traits.cached_zero):
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    parsed = reply.settings.reasoning_parser
    reasoning = sum(answer.reasoning_tokens for answer in reply.answers) if parsed else 0
    if reply.settings.dialect == "sglang":
        counts["reasoning_tokens"] = reasoning
        if reply.traits.completion_details:
            counts["completion_tokens_details"] = {"reasoning_tokens": reasoning} if reasoning else None
    elif reply.traits.completion_details:
        # vLLM does not count the tags.
        tags = sum(answer.closed for answer in reply.answers) if parsed else 0
        told = parsed and reply.ask.api == "chat"
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning - tags} if told else None
    return counts


def _extras(reply: Reply) -> dict[str, Any]:
    """Top-level fields that only one engine has."""
    if reply.settings.dialect == "llamacpp":
        made = sum(answer.tokens for answer in reply.answers)
        cached = reply.cached_tokens
        return {
            "system_fingerprint": reply.settings.engine_version,
            "timings": {
                "cache_n": cached,
                "prompt_n": reply.prompt_tokens - cached,
                "predicted_n": made,
                "predicted_ms": round(1000 * reply.latency_s, 3),
                "predicted_per_second": round(reply.settings.tokens_per_s, 3),
            },
        }
    if reply.settings.dialect == "vllm":
        return {**_VLLM_TOP, "system_fingerprint": f"vllm-{reply.settings.engine_version}-664180be"}
    extras: dict[str, Any] = {"metadata": _metadata(reply)}
    details: dict[str, Any] = {}
    if reply.ask.spec_details and reply.traits.spec_details and reply.settings.speculative:
        details["spec_tokens_details"] = speculation(reply, reply.answers[0])
    if reply.ask.cached_details:
        details["cached_tokens_details"] = {"device": reply.cached_tokens, "host": 0}
    if details:
        extras["sglext"] = details
    return extras


def _metadata(reply: Reply) -> dict[str, Any]:
    """Which weights made the answer; of several choices the first one's tokens are told."""
    if not reply.traits.weight_versions:
        return _METADATA
    span = {"version": "default", "start": 0, "end": reply.answers[0].tokens}
    return {**_METADATA, "weight_versions": [span]}


def speculation(reply: Reply, answer: Answer) -> dict[str, Any]:
    """The speculative decoding figures of one answer, under the version's names."""
    drafts = max(2, reply.settings.draft_tokens)
    wanted = reply.settings.accept_length * (0.85 + 0.3 * reply.draws.uniform("accept"))
    length = float(drafts) if reply.looping else min(float(drafts), max(1.0, wanted))
    steps = max(1, round(answer.tokens / length))
    correct, proposed = max(0, answer.tokens - steps), steps * (drafts - 1)
    old = reply.traits.old_spec_names
    return {
        "spec_accept_rate": correct / proposed,
        "spec_accept_length": answer.tokens / steps,
        "spec_verify_ct": steps,
        "spec_accepted_drafts" if old else "spec_num_correct_drafts": correct,
        "spec_proposed_drafts" if old else "spec_num_proposed_drafts": proposed,
        "spec_accept_histogram" if old else "spec_correct_drafts_histogram": [steps // drafts] * drafts,
    }


def meta_info(reply: Reply, answer: Answer, *, ended: bool = True) -> dict[str, Any]:
    """SGLang's `meta_info`; a piece of a stream that has not `ended` has no finish reason."""
    finish: dict[str, Any] = {"type": answer.finish}
    if answer.finish == "stop":
        finish["matched"] = answer.matched
    elif answer.finish == "length":
        finish["length"] = answer.tokens
    else:
        finish.update({"message": "Aborted", "status_code": None, "err_type": None})
    info: dict[str, Any] = {
        "id": reply.id,
        "finish_reason": finish if ended else None,
        "completion_tokens": answer.tokens,
        "weight_version": "default",
        "total_retractions" if reply.traits.old_retractions else "num_retractions": 0,
        "e2e_latency": reply.latency_s,
    }
    if reply.ran:
        info["prompt_tokens"] = reply.prompt_tokens
        info["cached_tokens"] = reply.cached_tokens
        info["reasoning_tokens"] = answer.reasoning_tokens if reply.settings.reasoning_parser else 0
    if reply.settings.speculative:
        info.update(speculation(reply, answer))
    return info


def _generated(reply: Reply, answer: Answer, text: str, *, ended: bool = True) -> dict[str, Any]:
    ids = fake_token_ids(text.encode(), answer.tokens)
    return {"text": text, "output_ids": ids, "meta_info": meta_info(reply, answer, ended=ended)}


# Streams


class Event(msgspec.Struct, frozen=True):
    """One piece of a stream, due when `tokens` tokens have been made."""

    tokens: int
    data: bytes


def event(document: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(document) + b"\n\n"


def opening(reply: Reply) -> bytes:
    """What a stream begins with."""
    if reply.ask.api != "chat":
        return b""
    delta: dict[str, Any] = {"role": "assistant", "content": ""}
    if reply.settings.dialect != "vllm":
        delta[reply.traits.reasoning_field] = None
    return b"".join(_chunk(reply, index, delta) for index in range(len(reply.answers)))


def pieces(reply: Reply) -> Iterator[Event]:
    """The text of a stream, piece by piece."""
    for index, answer in enumerate(reply.answers):
        step = max(_PIECE_TOKENS, answer.tokens // _PIECES)
        made, sent = 0, ""
        for field, text in _fields(reply, answer):
            count = max(1, min(len(text), -(-answer.tokens // step)))
            size = -(-len(text) // count)
            for start in range(0, len(text), size):
                made += step
                part = text[start : start + size]
                sent += part
                tokens = min(made, answer.tokens)
                if reply.ask.api == "generate":
                    yield Event(tokens, event(_generated(reply, answer, sent, ended=False)))
                elif reply.ask.api == "completion":
                    yield Event(tokens, _chunk(reply, index, part))
                else:
                    bare = reply.settings.dialect == "vllm"
                    delta = {field: part} if bare else {reply.traits.reasoning_field: None, field: part}
                    yield Event(tokens, _chunk(reply, index, delta))


def _fields(reply: Reply, answer: Answer) -> list[tuple[str, str]]:
    if reply.ask.api != "chat":
        return [("text", answer.raw)]
    placed = place(answer, reply.traits, parser=reply.settings.reasoning_parser and reply.ask.separate)
    found = ((reply.traits.reasoning_field, placed.reasoning), ("content", placed.content))
    return [(field, text) for field, text in found if text]


def closing(reply: Reply) -> bytes:
    """What a stream ends with: the finish reasons, usage if asked for, and the end mark."""
    if reply.ask.api == "generate":
        return event(_generated(reply, reply.answers[0], reply.answers[0].raw)) + DONE
    ends = [
        _chunk(reply, index, {} if reply.ask.api == "chat" else "", answer)
        for index, answer in enumerate(reply.answers)
    ]
    if reply.ask.include_usage:
        ends.append(event({**_head(reply), "choices": [], "usage": usage(reply)}))
    return b"".join(ends) + DONE


def _head(reply: Reply) -> dict[str, Any]:
    return {
        "id": reply.id if reply.settings.dialect == "sglang" else f"chatcmpl-{reply.id}",
        "object": "chat.completion.chunk" if reply.ask.api == "chat" else "text_completion",
        "created": reply.created,
        "model": reply.model,
    }


def _chunk(reply: Reply, index: int, delta: dict[str, Any] | str, ended: Answer | None = None) -> bytes:
    choice: dict[str, Any] = {
        "index": index,
        "delta" if isinstance(delta, dict) else "text": delta,
        "logprobs": None,
        "finish_reason": ended.finish if ended else None,
    }
    if reply.settings.dialect == "sglang":
        choice["matched_stop"] = ended.matched if ended else None
    return event({**_head(reply), "choices": [choice]})
