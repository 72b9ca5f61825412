"""The model's own tokenizer and chat template, and what of a rendered turn is the template's."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from common.errors import UsageError
from ops.export.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.records import Message, Record
    from ops.export.tokens import Answer

_HUB_SECONDS: Final = 5
_PROBE_USER: Final = "qprobe"
_PROBE_THOUGHT: Final = "tprobe"
_PROBE_ANSWER: Final = "aprobe"


class Scaffold(msgspec.Struct, frozen=True):
    """The template's own text in a turn: before thinking, between it and the answer, at the end."""

    before: str
    between: str
    end: str


class Scaffolds(msgspec.Struct, frozen=True):
    """A template's scaffold with and without thinking; `thinking` is None where it loses thinking."""

    plain: Scaffold
    thinking: Scaffold | None

    def between(self, *, has_thought: bool) -> set[str]:
        """What may stand before the answer, white space aside; with no thought, an empty block of it."""
        if self.thinking is None:
            return {""}
        close = _squeeze(self.thinking.between)
        if has_thought:
            return {close}
        return {"", close, _squeeze(self.thinking.before) + close}


class Rendered(msgspec.Struct, frozen=True):
    """A turn as text: what the server was sent, and what the model produced as the template writes it.

    `own_texts` are the model's own words in `produced`, without the `spaces` white space characters that were
    at their ends. `trimmed` says that the template took some of these off.
    """

    prompt: str
    produced: str
    own_texts: list[str]
    spaces: int
    trimmed: bool


class Chat:
    """A tokenizer with a chat template that can be asked for both halves of a turn.

    `scaffold_tokens` is how many tokens of a turn are the template's own, at most.

    Raises:
        UsageError: the tokenizer cannot be loaded, has no chat template, or cannot tell a turn's halves.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tokenizer = _load(name)
        if not self._tokenizer.chat_template:
            raise UsageError(
                f"the tokenizer {name} has no chat template: give that of the model that made the run"
            )
        self._normalizer = self._tokenizer.backend_tokenizer.normalizer
        plain = self._probe(thinking=False)
        if plain is None:
            raise UsageError(f"the chat template of {name} does not continue its own prompt with the answer")
        self._scaffolds = Scaffolds(plain, self._probe(thinking=True))
        parts = self._scaffolds.thinking or plain
        self.scaffold_tokens = sum(
            len(self.encode(text)) for text in (parts.before, parts.between, parts.end)
        )
        whole = f"{_PROBE_USER} one\n{_PROBE_ANSWER} two"
        if self.encode(whole) != self.encode(f"{_PROBE_USER} one\n") + self.encode(f"{_PROBE_ANSWER} two"):
            raise UsageError(
                f"the tokenizer {name} reads a text otherwise at its start than in the middle, so a turn's "
                "tokens cannot be told apart: use --format sharegpt and the trainer's own tokenisation"
            )

    @property
    def digest(self) -> str:
        """What makes two tokenizers the same."""
        parts = [self._tokenizer.backend_tokenizer.to_str(), str(self._tokenizer.chat_template)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with no token added."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, with no token added."""
        # The fast form does not work out where each token came from, which nobody asks here.
        found = self._tokenizer.backend_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        text: str = self._tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def normalize(self, text: str) -> str:
        """A text as the tokenizer reads it: many put it into a Unicode normal form first."""
        if self._normalizer is None or text.isascii():
            return text
        return str(self._normalizer.normalize_str(text))

    def render(self, record: Record, answer: Answer) -> Rendered:
        """Render one answer on its history.

        Raises:
            ExportError: the template does not give the answer back whole, with the reason as a clause.
        """
        params = record.params
        options = {
            "enable_thinking": params.get("thinking") is not False,
            **params.get("chat_template_kwargs", {}),
        }
        tools = params.get("tools")
        history = [_as_template_takes(message) for message in answer.history]
        thought, said = answer.response.reasoning_content or "", answer.response.content or ""
        # Thinking of nothing but white space is none: a prompt that closes its thinking could not take it.
        prompt, tail = self._halves(
            history, thought if thought.strip() else "", said, tools=tools, options=options
        )
        if thought.strip() and self._scaffolds.thinking is None:
            raise ExportError("lose their thinking in the chat template")
        return _cut(prompt, tail, thought, said, self._scaffolds, ended=_has_ended(record, answer))

    def _halves(
        self, history: list[dict[str, Any]], thought: str, said: str, *, tools: Any, options: dict[str, Any]
    ) -> tuple[str, str]:
        # An empty reasoning_content is given too: without one, templates look for </think> in the answer.
        turn = {"role": "assistant", "content": said, "reasoning_content": thought}
        try:
            prompt = self._apply(history, tools=tools, options={**options, "add_generation_prompt": True})
            whole = self._apply([*history, turn], tools=tools, options=options)
        except Exception as error:  # templates raise what they like
            raise ExportError(f"cannot be rendered by the chat template ({type(error).__name__})") from error
        if not whole.startswith(prompt):
            raise ExportError("do not begin with their own prompt in the chat template")
        return prompt, whole[len(prompt) :]

    def _apply(self, messages: list[dict[str, Any]], *, tools: Any, options: dict[str, Any]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            messages, tokenize=False, tools=tools or None, **options
        )
        return text

    def _probe(self, *, thinking: bool) -> Scaffold | None:
        """Learn the template's own text from a turn whose words are known; None if the words get lost."""
        history = [{"role": "user", "content": _PROBE_USER}]
        thought = _PROBE_THOUGHT if thinking else ""
        try:
            _, tail = self._halves(
                history, thought, _PROBE_ANSWER, tools=None, options={"enable_thinking": thinking}
            )
        except ExportError:
            return None
        before, found, rest = tail.partition(thought) if thought else ("", True, tail)
        between, also, end = rest.partition(_PROBE_ANSWER)
        if not (found and also):
            return None
        mark = self._tokenizer.eos_token
        end = end[: end.index(mark) + len(mark)] if mark and mark in end else end.rstrip()
        return Scaffold(before, between, end)


def _cut(prompt: str, tail: str, thought: str, said: str, scaffolds: Scaffolds, *, ended: bool) -> Rendered:
    """Cut what the template appended to the prompt down to what the model produced.

    A turn that was cut off has no end token, and one cut off in thinking no end of thinking either.
    """
    end_token = scaffolds.plain.end
    end = tail.rfind(end_token) if end_token else len(tail)
    core = tail[: max(end, 0)]
    mine, answer = thought.strip(), said.strip()
    start = _after(core, scaffolds.thinking.before) if mine and scaffolds.thinking else 0
    after_thought = start + len(mine)
    stop = len(core.rstrip()) if answer else len(core)
    last = stop - len(answer)
    whole = (
        end >= 0
        and not tail[end + len(end_token) :].strip()
        and core.startswith(mine, start)
        and after_thought <= last
        and core.endswith(answer, after_thought, stop)
        and _squeeze(core[after_thought:last]) in scaffolds.between(has_thought=bool(mine))
    )
    if not whole:
        raise ExportError("are changed by the chat template in more than the white space at their ends")
    cut_off = core if answer else core[:after_thought]
    produced = tail[: end + len(end_token)] if ended else cut_off
    trimmed = thought not in core or said not in core
    spaces = len(thought) + len(said) - len(mine) - len(answer)
    return Rendered(prompt, produced, [text for text in (mine, answer) if text], spaces, trimmed)


def _after(core: str, before: str) -> int:
    """Where the words begin after the template's own `before`, white space aside."""
    at = len(before.rstrip()) if core.startswith(before.rstrip()) else 0
    return at + len(core[at:]) - len(core[at:].lstrip())


def _squeeze(text: str) -> str:
    return "".join(text.split())


def _has_ended(record: Record, answer: Answer) -> bool:
    """Whether the model itself ended the turn. With stop strings set, it cannot be told."""
    return answer.finish_reason == "stop" and not record.params.get("stop")


def _as_template_takes(message: Message) -> dict[str, Any]:
    """A message as servers hand it to the template: no empty fields, tool arguments as objects."""
    found = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    found.setdefault("content", "")
    for call in found.get("tool_calls") or []:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            try:
                function["arguments"] = msgspec.json.decode(function["arguments"])
            except msgspec.DecodeError:
                continue
    return found


def _load(name: str) -> Any:
    try:
        # First, since transformers takes seconds to import.
        is_folder = Path(name).exists()
        asks_hub = not is_folder and _answers(name)
        if not (is_folder or asks_hub or _is_cached(name)):
            raise UsageError(
                f"the tokenizer {name} cannot be loaded: there is no such folder, the hub's local cache does "
                "not have it, and the hub cannot be reached"
            )
        from transformers import AutoTokenizer  # noqa: PLC0415 - an optional part, asked for by a flag
    except ImportError:
        raise UsageError(
            "--tokenize needs an optional part of promptmill: pip install 'promptmill[tokenize]'"
        ) from None
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=not asks_hub)
    except Exception as error:
        raise UsageError(f"the tokenizer {name} cannot be loaded: {str(error).splitlines()[0]}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise UsageError(f"the tokenizer {name} has no fast (tokenizers) form, which --tokenize needs")
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def _is_cached(name: str) -> bool:
    """Whether the hub's local cache has a tokenizer."""
    from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - it comes with the optional part

    try:
        return isinstance(try_to_load_from_cache(name, "tokenizer_config.json"), str)
    except ValueError:
        return False  # no possible name on the hub


def _answers(name: str) -> bool:
    """Whether there is a hub to ask for a tokenizer's files.

    One question tells. Where there is no hub, the loader asks for one file after the other, each several
    times and with a warning every time: most of a minute.
    """
    from huggingface_hub import HfApi  # noqa: PLC0415 - it comes with the optional part
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - the same

    try:
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except HfHubHTTPError:
        return True  # it is there: let the loader say what is wrong with the name
    except Exception:  # noqa: BLE001 - no network, offline mode, no possible name: of several libraries
        return False
    return True
