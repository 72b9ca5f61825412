"""What is asked of a server for one turn: the body of `/v1/chat/completions`.

Servers fall back to a model's own generation_config, or to defaults of their own, for whatever is not sent;
so every sampling parameter is sent, always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from common.errors import UsageError
from common.records import Message, PromptJob
from common.settings import GenerationSettings
from consumers.client.fields import as_str
from consumers.client.info import Dialect, ServerInfo
from consumers.client.turns import history_for, turns_to_generate, with_system

PROTECTED: Final = frozenset({"messages", "n", "request_id", "rid", "stream", "stream_options"})
"""Fields that are the client's own business: one whole answer to one conversation under an id of its own."""

_SAME: Final = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "enable_thinking": "thinking",
    "repeat_penalty": "repetition_penalty",
}
"""Other names by which inputs spell our settings; where a line has several, the later in this table wins."""

_NOT_SENT: Final = frozenset(
    {"model", "system", "thinking", "max_output_tokens", "chat_template_kwargs", "extra_body"}
)
_PLUMBING: Final = frozenset(
    {"separate_reasoning", "reasoning_format", "return_meta_info", "return_spec_tokens_details"}
)
_RID_FIELD: Final = {Dialect.SGLANG: "rid", Dialect.VLLM: "request_id"}


class Form(msgspec.Struct, frozen=True):
    """A request without its conversation, shared by all requests made from it; `head` is its JSON, open."""

    body: dict[str, Any]
    params: dict[str, Any]
    thinking: bool
    system: str | None
    head: bytes


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One turn to generate. What is sent lacks only the request id, which is new for every attempt.

    `messages` and `params` are what the record says was sent; `thinking` is whether thinking was asked for.
    """

    form: Form
    messages: list[Message]
    rid_field: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        """What is sent, but for the request id."""
        return {**self.form.body, "messages": self.messages}

    @property
    def params(self) -> dict[str, Any]:
        """The record's `params`."""
        return self.form.params

    @property
    def thinking(self) -> bool:
        """Whether thinking was asked for."""
        return self.form.thinking


def check_extra_body(extra: Mapping[str, Any]) -> None:
    """See that a user's extra fields leave alone what the client decides.

    Raises:
        UsageError: a field is one of `PROTECTED`.
    """
    taken = sorted(PROTECTED.intersection(extra))
    if taken:
        raise UsageError(
            f"the extra body cannot set {', '.join(taken)}: the client sets these itself; leave them out"
        )


def build_request(
    job: PromptJob,
    generation: GenerationSettings,
    server: ServerInfo,
    *,
    messages: Sequence[Message] | None = None,
    seed: int | None = None,
) -> ChatRequest:
    """Build the request for one turn of `job`.

    Args:
        job: the prompt; its `params` override the run's settings.
        generation: the run's settings. Its `extra_body` overrides its other settings, a line's own overrides
            all.
        server: what is known of the server; dialect and version decide on a few fields.
        messages: the history to answer, where it is not simply the conversation up to its last answer.
        seed: a seed to use instead of any other, for another try at the same prompt.
    """
    varied = seed is not None or job.params or job.sample
    form = _form(job, generation, server, seed) if varied else _plain_form(generation, server)
    sent = with_system(history_of(job) if messages is None else messages, form.system)
    return ChatRequest(
        form=form,
        messages=sent,
        rid_field=_RID_FIELD.get(server.dialect),
    )


def encode(request: ChatRequest, rid: str) -> bytes:
    """The bytes of one attempt, under its own request id where the server takes one."""
    head, messages = request.form.head, msgspec.json.encode(request.messages)
    if request.rid_field is None:
        return b'%b,"messages":%b}' % (head, messages)
    return b'{"%b":"%b",%b,"messages":%b}' % (request.rid_field.encode(), rid.encode(), head[1:], messages)


def history_of(job: PromptJob) -> list[Message]:
    """The conversation that the job's last turn answers; the whole of it where nothing asks for an answer."""
    positions = turns_to_generate(job.messages, "last")
    return history_for(job.messages, positions[0], {}) if positions else list(job.messages)


_NOBODY: Final = PromptJob(index=0, id="", messages=[])
_FORMS_KEPT: Final = 32
_forms: dict[tuple[int, int], tuple[GenerationSettings, ServerInfo, Form]] = {}


def _plain_form(generation: GenerationSettings, server: ServerInfo) -> Form:
    """The form of jobs without params of their own: nearly all of them, so it is made once and kept.

    Kept by identity, for the settings hold dicts and have no hash; the entry keeps both alive.
    """
    key = (id(generation), id(server))
    kept = _forms.get(key)
    if kept is None:
        if len(_forms) >= _FORMS_KEPT:
            _forms.clear()
        kept = _forms[key] = (generation, server, _form(_NOBODY, generation, server, None))
    return kept[2]


def _form(job: PromptJob, generation: GenerationSettings, server: ServerInfo, seed: int | None) -> Form:
    wanted = _wanted(job, generation)
    if seed is not None:
        wanted["seed"] = seed
    template = {**wanted.get("chat_template_kwargs", {}), "enable_thinking": wanted["thinking"]}
    body: dict[str, Any] = {
        "model": wanted.get("model") or server.model or "default",
        "max_tokens": wanted["max_output_tokens"],
        **_dialect_fields(server, wanted),
        **{name: value for name, value in wanted.items() if name not in _NOT_SENT},
        "chat_template_kwargs": template,
    }
    return Form(
        body=body,
        params=_params(body, template),
        thinking=bool(template["enable_thinking"]),
        system=as_str(wanted["system"]),
        head=msgspec.json.encode(body)[:-1],
    )


def _wanted(job: PromptJob, generation: GenerationSettings) -> dict[str, Any]:
    """Every setting by our name: the run's, over it its extra body, the line's, the line's extra body."""
    wanted: dict[str, Any] = {
        "model": generation.model,
        "max_output_tokens": generation.max_output_tokens,
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "top_k": generation.top_k,
        "min_p": generation.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "thinking": generation.thinking,
        "system": generation.system,
        "stop": list(generation.stop),
    }
    line = job.params
    own = line.get("extra_body")
    for layer in (generation.extra_body, line, own if isinstance(own, dict) else {}):
        if layer:
            _lay_over(wanted, layer)
    if isinstance(wanted["stop"], str):
        wanted["stop"] = [wanted["stop"]]
    if not wanted["stop"]:
        del wanted["stop"]
    if isinstance(wanted["top_k"], int) and wanted["top_k"] <= 0:
        wanted["top_k"] = -1  # the one spelling of "no limit" that all of them take: SGLang refuses 0
    if job.sample and isinstance(wanted.get("seed"), int):
        wanted["seed"] += job.sample  # the samples of a prompt are to differ
    return wanted


def _lay_over(wanted: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Put a layer's settings over those in `wanted`, whatever name they go by."""
    renamed = {ours: layer[theirs] for theirs, ours in _SAME.items() if theirs in layer}
    plain = {name: value for name, value in layer.items() if name not in _SAME and name not in PROTECTED}
    found = {**renamed, **plain}
    kwargs = found.pop("chat_template_kwargs", None)
    if found.get("reasoning_effort") == "none":
        found.setdefault("thinking", False)
    if isinstance(kwargs, dict):
        found["thinking"] = kwargs.get("enable_thinking", found.get("thinking"))
        wanted["chat_template_kwargs"] = {**wanted.get("chat_template_kwargs", {}), **kwargs}
    # A nulled setting would leave the choice to the server: the run's own stands.
    wanted.update({name: value for name, value in found.items() if value is not None or name not in wanted})


def _dialect_fields(server: ServerInfo, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that one engine wants and another does not know."""
    if server.dialect is Dialect.SGLANG:
        fields = {"max_completion_tokens": wanted["max_output_tokens"], "separate_reasoning": True}
        if server.at_least(0, 5, 20):
            fields["return_spec_tokens_details"] = True
        elif server.at_least(0, 5, 13):
            fields["return_meta_info"] = True
        return fields
    if server.dialect is Dialect.VLLM:
        return {"max_completion_tokens": wanted["max_output_tokens"]}
    if server.dialect is Dialect.LLAMA_CPP:
        return {"repeat_penalty": wanted["repetition_penalty"], "reasoning_format": "deepseek"}
    return {}


_HIDDEN: Final = _PLUMBING | {
    "model",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "repeat_penalty",
    "chat_template_kwargs",
}


def _params(body: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """The record's `params`: what was sent, by our names, the same whichever engine it went to."""
    params: dict[str, Any] = {"max_output_tokens": body["max_tokens"]}
    params.update({name: value for name, value in body.items() if name not in _HIDDEN})
    params["thinking"] = template["enable_thinking"]
    more = {name: value for name, value in template.items() if name != "enable_thinking"}
    if more:
        params["chat_template_kwargs"] = more
    return params
