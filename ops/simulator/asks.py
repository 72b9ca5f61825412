"""What a request asks for: the bodies of the three generation endpoints, read into one `Ask`."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from ops.simulator.text import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ops.simulator.settings import ServerSettings

Api = Literal["chat", "completion", "generate"]

_COMPLETION_TOKENS: Final = 16
_GENERATE_TOKENS: Final = 128
_TEMPLATE_TOKENS: Final = 7
_MESSAGE_TOKENS: Final = 4


class WireMessage(msgspec.Struct):
    """One message; any other field is ignored."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class StreamOptions(msgspec.Struct):
    """What a stream ends with."""

    include_usage: bool = False


class Sampling(msgspec.Struct):
    """Fields that both OpenAI endpoints share. `None` means that the server's default holds."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: str | list[str] | None = None
    n: int | None = 1
    seed: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    rid: str | list[str] | None = None
    request_id: str | None = None


class ChatRequest(Sampling, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: list[WireMessage]
    max_completion_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    separate_reasoning: bool = True
    return_meta_info: bool = False
    return_spec_tokens_details: bool = False
    return_cached_tokens_details: bool = False
    return_token_ids: bool = False


class CompletionRequest(Sampling, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: str | list[int | str]


class GenerateSampling(msgspec.Struct):
    """The `sampling_params` of `/generate`."""

    max_new_tokens: int | None = _GENERATE_TOKENS
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False


class GenerateRequest(msgspec.Struct):
    """The body of `/generate`, one prompt only."""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: GenerateSampling | None = None
    stream: bool = False
    rid: str | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A request for text, whichever endpoint took it.

    Attributes:
        texts: roles and contents in order, which decide the answer.
        prompt: the text that is answered: the last message, or the whole prompt.
        sampling: the checked values by their wire names.
        empty: whether there is nothing to answer.
    """

    api: Api
    model: str | None
    texts: list[bytes]
    prompt: str
    prompt_tokens: int
    max_tokens: int | None
    thinking: bool
    separate: bool = True
    stop: Sequence[str] = ()
    n: int = 1
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    rid: str | None = None
    ignore_eos: bool = False
    effort: str | None = None
    sampling: dict[str, float | int | None]
    empty: bool = False
    meta_info: bool = False
    spec_details: bool = False
    cached_details: bool = False
    token_ids: bool = False


_CHAT: Final = msgspec.json.Decoder(ChatRequest)
_COMPLETION: Final = msgspec.json.Decoder(CompletionRequest)
_GENERATE: Final = msgspec.json.Decoder(GenerateRequest)


def read_ask(api: Api, body: bytes, settings: ServerSettings) -> Ask:
    """Read a body.

    Raises:
        msgspec.MsgspecError: it is no JSON, or a field has the wrong type.
    """
    if api == "chat":
        return _chat(_CHAT.decode(body), settings)
    if api == "completion":
        return _completion(_COMPLETION.decode(body))
    return _generate(_GENERATE.decode(body))


def _chat(request: ChatRequest, settings: ServerSettings) -> Ask:
    texts: list[bytes] = []
    prompt = ""
    for message in request.messages:
        prompt = _text_of(message.content)
        texts.append(message.role.encode())
        texts.append(prompt.encode())
    size = sum(map(len, texts))
    tokens = _tokens(size) + _TEMPLATE_TOKENS + _MESSAGE_TOKENS * len(request.messages)
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return Ask(
        api="chat",
        model=request.model,
        texts=texts,
        prompt=prompt,
        prompt_tokens=tokens,
        max_tokens=limit,
        thinking=_thinking(request, settings),
        separate=request.separate_reasoning,
        stop=_stops(request.stop),
        n=request.n or 1,
        seed=request.seed,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None and request.stream_options.include_usage,
        rid=_rid(request),
        ignore_eos=request.ignore_eos,
        effort=request.reasoning_effort,
        sampling=_sampling(request, limit),
        empty=not request.messages,
        meta_info=request.return_meta_info,
        spec_details=request.return_spec_tokens_details,
        cached_details=request.return_cached_tokens_details,
        token_ids=request.return_token_ids,
    )


def _completion(request: CompletionRequest) -> Ask:
    first = request.prompt[0] if isinstance(request.prompt, list) and request.prompt else request.prompt
    prompt = first if isinstance(first, str) else " ".join(map(str, request.prompt))
    text = prompt.encode()
    limit = _COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    return Ask(
        api="completion",
        model=request.model,
        texts=[text],
        prompt=prompt,
        prompt_tokens=max(1, _tokens(len(text))),
        max_tokens=limit,
        thinking=False,
        stop=_stops(request.stop),
        n=request.n or 1,
        seed=request.seed,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None and request.stream_options.include_usage,
        rid=_rid(request),
        ignore_eos=request.ignore_eos,
        sampling=_sampling(request, limit),
        empty=not request.prompt,
    )


def _generate(request: GenerateRequest) -> Ask:
    sampling = request.sampling_params or GenerateSampling()
    prompt = request.text if request.text is not None else " ".join(map(str, request.input_ids or ()))
    text = prompt.encode()
    return Ask(
        api="generate",
        model=None,
        texts=[text],
        prompt=prompt,
        prompt_tokens=max(1, _tokens(len(text))),
        max_tokens=sampling.max_new_tokens,
        thinking=False,
        stop=_stops(sampling.stop),
        stream=request.stream,
        rid=request.rid,
        ignore_eos=sampling.ignore_eos,
        sampling={
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
        },
        empty=not prompt,
    )


def _tokens(size: int) -> int:
    return int(-(-size // BYTES_PER_TOKEN))


def _text_of(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or ())


def _stops(stop: str | list[str] | None) -> Sequence[str]:
    return [stop] if isinstance(stop, str) else stop or ()


def _rid(request: Sampling) -> str | None:
    rid = request.rid if request.rid is not None else request.request_id
    return rid[0] if isinstance(rid, list) and rid else rid if isinstance(rid, str) else None


def _thinking(request: ChatRequest, settings: ServerSettings) -> bool:
    """Template arguments decide, then the effort, then the server's default."""
    chosen = (request.chat_template_kwargs or {}).get("enable_thinking")
    if chosen is not None:
        return bool(chosen)
    return settings.thinking if request.reasoning_effort is None else request.reasoning_effort != "none"


def _sampling(request: Sampling, limit: int | None) -> dict[str, float | int | None]:
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "max_tokens": limit,
    }


def fake_token_ids(text: bytes, count: int) -> list[int]:
    """`count` numbers that could be the token ids of `text`."""
    start = zlib.crc32(text)
    return [(start + 7919 * place) % 151_643 for place in range(count)]
