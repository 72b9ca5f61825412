"""Requests that the server will not run: the checks, and the error bodies of each engine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ops.simulator.limits import Limit, limits_of

if TYPE_CHECKING:
    from ops.simulator.asks import Ask
    from ops.simulator.settings import Dialect, ServerSettings
    from ops.simulator.traits import Traits

_encode: Final = msgspec.json.Encoder().encode

QUEUE_FULL: Final = "The request queue is full."
VLLM_FULL: Final = (
    "The engine is currently busy and cannot accept new requests. "
    "Please try again later or on a different instance."
)
_STREAM_TYPES: Final = {503: "SERVICE_UNAVAILABLE"}
_LLAMA_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    500: "server_error",
    503: "unavailable_error",
}


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error reply: its status and what its body says."""

    status: int
    message: str
    type: str = "BadRequestError"
    param: str | None = None
    retry_after: float | None = None
    more: dict[str, Any] = {}

    def body(self, dialect: Dialect, *, nested: bool = False) -> bytes:
        """The body: flat on SGLang (nested in its streams), nested elsewhere."""
        if dialect == "llamacpp":
            kind = self.more.get("type") or _LLAMA_TYPES.get(self.status, "server_error")
            fields = {"code": self.status, "message": self.message, **self.more, "type": kind}
            return _encode({"error": fields})
        fields = {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        if dialect == "vllm":
            return _encode({"error": fields})
        flat = {"object": "error", **fields}
        if not nested:
            return _encode(flat)
        return _encode({"error": {**flat, "type": _STREAM_TYPES.get(self.status, self.type)}})


def unauthorized(dialect: Dialect) -> bytes:
    """The body of a 401: a string on SGLang and vLLM."""
    if dialect == "llamacpp":
        return Refusal(status=401, message="Invalid API Key").body(dialect)
    return _encode({"error": "Unauthorized"})


def queue_full(dialect: Dialect) -> Refusal:
    """The 503 of a full queue."""
    if dialect == "vllm":
        return Refusal(status=503, message=VLLM_FULL, type="Service Unavailable")
    return Refusal(status=503, message=QUEUE_FULL, type="503")


def draining() -> Refusal:
    """What vLLM says to every new request once it was told to end."""
    words = "cannot schedule new futures after shutdown"
    return Refusal(status=500, message=words, type="InternalServerError")


def wrong_media_type(dialect: Dialect) -> Refusal:
    """The refusal of a body that is not called JSON."""
    words = "Unsupported Media Type: Only 'application/json' is allowed"
    if dialect == "sglang":
        fault = f"{{'loc': ['header', 'content-type'], 'msg': \"{words}\", 'type': 'value_error'}}"
        words = f"{fault} [{fault}]"
    return Refusal(status=400, message=f"1 validation error:\n  {words}", type="Bad Request")


def check(ask: Ask, settings: ServerSettings, traits: Traits) -> Refusal | None:
    """Why this server would not run the request; `None` if it would."""
    if ask.empty:
        return Refusal(status=400, message=_nothing_to_answer(ask, settings.dialect))
    if settings.dialect == "vllm" and ask.model not in (settings.model, None):
        return wrong_model(ask.model, settings.model)
    if settings.dialect == "sglang" and ask.effort is not None and ask.effort not in traits.reasoning_efforts:
        return Refusal(
            status=400,
            message=f"reasoning_effort: input should be one of {', '.join(traits.reasoning_efforts)}",
            type="Bad Request",
        )
    if ask.meta_info and ask.stream and traits.return_meta_info:
        return Refusal(status=400, message="return_meta_info is not supported with stream=true")
    return check_sampling(ask, settings.dialect) or _check_length(ask, settings)


def _nothing_to_answer(ask: Ask, dialect: Dialect) -> str:
    if ask.api != "chat":
        return "Prompt cannot be empty."
    if dialect == "vllm":
        return "Cannot apply chat template to an empty conversation. Provide at least one message."
    return "Messages cannot be empty."


def wrong_model(model: str | None, served: str) -> Refusal:
    """The 404 of a model that is not served."""
    words = f"The model `{model}` does not exist. Valid aliases: {served}."
    return Refusal(status=404, message=words, type="NotFoundError", param="model")


def check_sampling(ask: Ask, dialect: Dialect) -> Refusal | None:
    """The first sampling value that is out of its range, in the engine's words."""
    for limit in limits_of(dialect):
        value = ask.sampling.get(limit.name)
        if value is not None and not limit.holds(value):
            return _bad_value(limit, value, dialect)
    return None


def _bad_value(limit: Limit, value: float, dialect: Dialect) -> Refusal:
    words = f"{limit.name} {limit.rule}, got {value}."
    if dialect == "vllm" and limit.names_parameter:
        return Refusal(
            status=400, message=f"{words} (parameter={limit.name}, value={value})", param=limit.name
        )
    return Refusal(status=400, message=words)


def _check_length(ask: Ask, settings: ServerSettings) -> Refusal | None:
    """Whether a request is too long for the context or the cache, in the engine's words."""
    checks = {"sglang": _sglang_length, "vllm": _vllm_length, "llamacpp": _llamacpp_length}
    return checks[settings.dialect](ask.prompt_tokens, ask.max_tokens or 0, settings)


def _llamacpp_length(prompt: int, _wanted: int, settings: ServerSettings) -> Refusal | None:
    if prompt < settings.context:
        return None
    message = "the request exceeds the available context size, try increasing it"
    more = {"type": "exceed_context_size_error", "n_prompt_tokens": prompt, "n_ctx": settings.context}
    return Refusal(status=400, message=message, more=more)


def _vllm_length(prompt: int, wanted: int, settings: ServerSettings) -> Refusal | None:
    """An answer that would not fit is no reason: its limit is lowered to what is left."""
    context = settings.context
    if wanted > context:
        message = (
            f"max_tokens={wanted} cannot be greater than max_model_len={context}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={wanted})"
        )
        return Refusal(status=400, message=message, param="max_tokens")
    if prompt < context:
        return None
    if prompt == context:
        message = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
        return Refusal(status=400, message=message, param="max_tokens")
    # The tokenizer stops at one too many, so the true length is not told.
    message = (
        f"This model's maximum context length is {context} tokens. However, your prompt contains at least "
        f"{context + 1} input tokens, which exceeds this limit even without any output tokens. "
        f"Please reduce the length of the input prompt. (parameter=input_tokens, value={context + 1})"
    )
    return Refusal(status=400, message=message, param="input_tokens")


def _sglang_length(prompt: int, wanted: int, settings: ServerSettings) -> Refusal | None:
    """The four refusals of SGLang; what drafts need is counted as part of the input."""
    context, held, longest = settings.context, prompt + settings.reserved_tokens, longest_prompt(settings)
    if held >= context:
        message = f"The input ({held} tokens) is longer than the model's context length ({context} tokens)."
    elif settings.context_flag and wanted > context:
        message = (
            f"max_completion_tokens is too large: {wanted}. This model supports at most {context} tokens."
        )
    elif held + wanted > context:
        message = (
            f"Requested token count exceeds the model's maximum context length of {context} tokens. "
            f"You requested a total of {held + wanted} tokens: {held} tokens from the input messages and "
            f"{wanted} tokens for the completion. Please reduce the number of tokens in the input messages "
            "or the completion to fit within the limit."
        )
    elif prompt > longest:
        message = f"Input length ({prompt} tokens) exceeds the maximum allowed length ({longest} tokens)."
    else:
        return None
    return Refusal(status=400, message=message)


def longest_prompt(settings: ServerSettings) -> int:
    """The longest prompt that SGLang's scheduler takes."""
    return min(settings.context - 1, settings.kv_tokens - 1) - 5
