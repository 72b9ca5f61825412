"""A tiny tokenizer with a chat template in the manner of Qwen3, made on the spot."""

from __future__ import annotations

from pathlib import Path

CORPUS = [
    "Let me think about this question step by step, then write the answer that was asked for.",
    "The quick brown fox jumps over the lazy dog while 0123456789 words are counted.",
    "def add(a, b):\n    return a + b\n",
] * 20

_HEAD = """\
{%- set ns = namespace(query=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.query = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' -}}{%- endif -%}
{%- for message in messages -%}
{%- set content = message.content -%}
{%- if message.role == 'assistant' -%}
"""
_KEEP_THINKING = """\
{%- set thought = '' -%}
{%- if message.reasoning_content is string -%}
{%- set thought = message.reasoning_content -%}
{%- elif '</think>' in content -%}
{%- set thought = content.split('</think>')[0].split('<think>')[-1] -%}
{%- set content = content.split('</think>')[-1] -%}
{%- endif -%}
{%- if loop.index0 > ns.query and (loop.last or thought) -%}
{%- set content = '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') -%}
{%- endif -%}
"""
_TAIL = """\
{%- endif -%}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}
PREFILL{%- endif -%}
{%- endif -%}
"""
QWEN3 = _HEAD + _KEEP_THINKING + _TAIL.replace("PREFILL", "")
"""The model opens its thinking itself."""
QWEN36 = _HEAD + _KEEP_THINKING + _TAIL.replace("PREFILL", "{%- else -%}{{- '<think>\\n' -}}")
"""The prompt opens the thinking."""
THOUGHTLESS = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""Thinking never reaches the tokens."""


def make_tokenizer(folder: Path, template: str) -> str:
    """Train a byte-level BPE in Qwen's manner and save it; returns its path."""
    # Optional parts, which not every machine that runs the tests has.
    from tokenizers import (  # noqa: PLC0415 - see above
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - see above

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(words), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return str(folder)
