"""How many tokens prompts have: as the server's tokenizer counts, where it has one, else from their bytes."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from common.records import Message
from common.settings import GenerationSettings
from consumers.client.fields import as_dict, as_int, as_list, decode
from consumers.client.http import InferenceClient
from consumers.client.info import ServerInfo
from consumers.client.request import build_request
from consumers.client.transport import Reply
from ops.preflight.survey import Survey, prompt_bytes, texts, thinned
from producer.parse import Prompt

BYTES_PER_TOKEN: Final = 3.5
"""Of English, code and Chinese alike 3 to 4.5; taken where no tokenizer can be asked."""

COUNTED: Final = 8
"""Prompts of the sample that are counted exactly, to learn the input's own bytes per token."""

TEMPLATE_TOKENS: Final = 8
"""What a chat template adds to a message and to the whole, about."""

_OK: Final = 200
_TIMEOUT_S: Final = 5.0


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How the sampled prompts fit into a context. All numbers are tokens.

    A prompt needs itself, its own limit of new tokens, and what the server keeps free for drafts. `over` of
    `of` sampled prompts need more than there is; `counted` is whether the server's tokenizer was asked.
    """

    limit: int | None
    longest: int
    longest_need: int
    typical_need: int
    reserved: int
    over: int
    of: int
    counted: bool


async def count_tokens(
    client: InferenceClient, info: ServerInfo, messages: list[Message], *, timeout_s: float = _TIMEOUT_S
) -> int | None:
    """The tokens of a conversation as the server counts them; `None` where it cannot be asked."""
    text = "\n".join(text for message in messages for text in texts(message))
    asked: tuple[tuple[dict[str, Any], int], ...] = (
        ({"model": info.model, "messages": messages}, 0),
        ({"model": info.model, "prompt": text, "content": text}, TEMPLATE_TOKENS * (1 + len(messages))),
    )
    for body, template in asked:
        reply = await client.fetch("POST", "/tokenize", body=body, timeout_s=timeout_s)
        if not isinstance(reply, Reply):
            return None
        if reply.status == _OK:
            found = as_dict(decode(reply.body))
            count = as_int(found.get("count")) or len(as_list(found.get("tokens")))
            if count > 0:
                return count + template
    return None


async def fit(
    client: InferenceClient, info: ServerInfo, found: Survey, generation: GenerationSettings
) -> Fit | None:
    """Measure the sample against the server's context; `None` where there is nothing to measure."""
    counted: dict[int, int] = {}

    async def count(prompt: Prompt) -> None:
        tokens = await count_tokens(client, info, _sent(prompt, info, generation))
        if tokens is not None:
            counted[id(prompt)] = tokens

    await asyncio.gather(*(count(prompt) for prompt in (*found.longest, *thinned(found.sample, COUNTED))))
    return fit_of(found, info, generation, counted)


def fit_of(
    found: Survey, info: ServerInfo, generation: GenerationSettings, counted: dict[int, int]
) -> Fit | None:
    """How the sample fits, with some prompts' exact counts by `id`; the rest by the ratio that these show."""
    everything = [*found.sample, *found.longest]
    if not everything:
        return None
    sizes = {id(prompt): prompt_bytes(_sent(prompt, info, generation)) for prompt in everything}
    exact = sum(counted.values())
    ratio = sum(sizes[key] for key in counted) / exact if exact else BYTES_PER_TOKEN

    def tokens(prompt: Prompt) -> int:
        estimated = round(sizes[id(prompt)] / max(ratio, 0.1)) + (0 if exact else TEMPLATE_TOKENS * 2)
        return counted.get(id(prompt), estimated)

    def need(prompt: Prompt) -> int:
        limit = build_request(prompt.job(), generation, info).params.get("max_output_tokens")
        return tokens(prompt) + info.reserved_tokens + (limit if isinstance(limit, int) else 0)

    needs = sorted(need(prompt) for prompt in found.sample or found.longest)
    limit = info.context_length
    most = info.max_prompt_tokens
    over = [
        prompt
        for prompt in found.sample
        if (limit is not None and need(prompt) > limit) or (most is not None and tokens(prompt) > most)
    ]
    return Fit(
        limit=limit,
        longest=max(tokens(prompt) for prompt in everything),
        longest_need=max(need(prompt) for prompt in everything),
        typical_need=needs[len(needs) // 2],
        reserved=info.reserved_tokens,
        over=len(over),
        of=len(found.sample),
        counted=bool(exact),
    )


def _sent(prompt: Prompt, info: ServerInfo, generation: GenerationSettings) -> list[Message]:
    return build_request(prompt.job(), generation, info).messages
