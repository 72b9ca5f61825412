"""The example prompts: made by their generator, all usable, as varied as they say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

from producer.scan import read_prompts, scan
from producer.source import Source

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPTS = EXAMPLES / "prompts.jsonl"


def test_the_generator_makes_the_committed_file():
    command = [sys.executable, str(EXAMPLES / "make_prompts.py"), "--stdout"]
    made = subprocess.run(command, check=True, capture_output=True).stdout
    assert made == PROMPTS.read_bytes()
    assert len(made) < 2_500_000


def test_every_example_is_usable_and_none_is_there_twice():
    source = Source(name="prompts.jsonl", path=str(PROMPTS))
    report = scan(source)
    assert report.invalid == []
    assert report.usable >= 2400
    with read_prompts(source, report) as reader:
        prompts = list(reader)
    assert len({tuple(message.content for message in prompt.messages) for prompt in prompts}) >= 2400
    sizes = [sum(len(message.content) for message in prompt.messages) for prompt in prompts]
    assert min(sizes) == 1
    assert sum(size > 2000 for size in sizes) >= 50
    assert sum(len(prompt.messages) > 2 for prompt in prompts) >= 150
    assert sum(bool(prompt.params) for prompt in prompts) >= 200


def test_the_examples_show_every_shape_and_many_scripts():
    text = PROMPTS.read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    shapes = Counter(
        shape for line in lines for shape in ("prompt", "messages", "conversations", "body") if shape in line
    )
    assert min(shapes.values()) >= 200
    assert len(shapes) == 4
    assert sum("metadata" in line for line in lines) >= 200
    assert sum("id" not in line and "custom_id" not in line for line in lines) >= 200
    for sign in "的あاहжéßñã🎲":
        assert sign in text
