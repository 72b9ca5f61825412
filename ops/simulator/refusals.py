"""Requests that the server will not run: the checks, and the error bodies of each engine. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from ops.simulator.asks import Ask
    from ops.simulator.settings import Dialect, ServerSettings
    from ops.simulator.traits import Traits

_encode: Final = msgspec.json.Encoder().encode

QUEUE_FULL: Final = "The request queue is full."
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
        return _encode({"error": flat} if nested else flat)


def unauthorized(dialect: Dialect) -> bytes:
    """The body of a 401: a string on SGLang and vLLM."""
    if dialect == "llamacpp":
        return Refusal(status=401, message="Invalid API Key").body(dialect)
    return _encode({"error": "Unauthorized"})


def queue_full() -> Refusal:
    """The 503 of a full queue."""
    return Refusal(status=503, message=QUEUE_FULL, type="503")


def check(ask: Ask, settings: ServerSettings, traits: Traits) -> Refusal | None:
    """Why this server would not run the request; `None` if it would."""
    if ask.empty:
        what = "Messages" if ask.api == "chat" else "Prompt"
        return Refusal(status=400, message=f"{what} cannot be empty")
    if settings.dialect == "vllm" and ask.model not in (settings.model, "default"):
        return wrong_model(ask.model)
    if settings.dialect == "sglang" and ask.effort is not None and ask.effort not in traits.reasoning_efforts:
        return Refusal(
            status=400,
            message=f"reasoning_effort: input should be one of {', '.join(traits.reasoning_efforts)}",
            type="Bad Request",
        )
    if ask.meta_info and ask.stream and traits.return_meta_info:
        return Refusal(status=400, message="return_meta_info is not supported with stream=true")
    return _check_sampling(ask) or _check_length(ask, settings)


def wrong_model(model: str) -> Refusal:
    """The 404 of a model that is not served."""
    return Refusal(
        status=404, message=f"The model `{model}` does not exist.", type="NotFoundError", param="model"
    )


_RANGES: Final[dict[str, tuple[float, float]]] = {
    "temperature": (0.0, float("inf")),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}


def _check_sampling(ask: Ask) -> Refusal | None:
    values = ask.sampling
    for name, (low, high) in _RANGES.items():
        value = values.get(name)
        if value is not None and not low <= value <= high:
            return _bad_value(name, f"must be in [{low}, {high}]", value)
    top_p = values.get("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        return _bad_value("top_p", "must be in (0, 1]", top_p)
    top_k = values.get("top_k")
    if top_k is not None and top_k < 1 and top_k != -1:
        return _bad_value("top_k", "must be -1 (disable), or at least 1", top_k)
    if ask.max_tokens is not None and ask.max_tokens < 1:
        return _bad_value("max_tokens", "must be at least 1", ask.max_tokens)
    return None


def _bad_value(name: str, rule: str, value: float) -> Refusal:
    return Refusal(status=400, message=f"{name} {rule}, got {value}.", param=name)


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
    if prompt + max(1, wanted) <= settings.context:
        return None
    message = (
        f"This model's maximum context length is {settings.context} tokens. However, you requested "
        f"{prompt + wanted} tokens ({prompt} in the messages, {wanted} in the completion)."
    )
    return Refusal(status=400, message=message)


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
            f"{wanted} tokens for the completion."
        )
    elif prompt > longest:
        message = f"Input length ({prompt} tokens) exceeds the maximum allowed length ({longest} tokens)."
    else:
        return None
    return Refusal(status=400, message=message)


def longest_prompt(settings: ServerSettings) -> int:
    """The longest prompt that SGLang's scheduler takes."""
    return min(settings.context - 1, settings.kv_tokens - 1) - 5
