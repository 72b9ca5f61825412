"""One peer's whole job, run by that peer's own Python: `job_worker.py NAME SERVER PROMPTS FOLDER AT-ONCE`.

Each does what its own documentation shows for a server that speaks OpenAI's API, with AT-ONCE requests in
flight, and ends when the data set is on disk as `FOLDER/data.jsonl`. Prints its version as JSON at the end.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any

MODEL = "qwen3.6-27b"
MAX_TOKENS = 4096


def datatrove(server: str, prompts: str, folder: str, at_once: int) -> None:
    """The inference runner with an endpoint."""
    run = importlib.import_module("datatrove.pipeline.inference.run_inference")
    readers = importlib.import_module("datatrove.pipeline.readers")
    writers = importlib.import_module("datatrove.pipeline.writers")
    executor = importlib.import_module("datatrove.executor")

    async def ask(document: Any, generate: Any) -> Any:
        messages = [{"role": "user", "content": document.text}]
        return await generate({"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0.6})

    path = Path(prompts)
    config = run.InferenceConfig(
        server_type="endpoint",
        endpoint_url=server,
        model_name_or_path=MODEL,
        max_concurrent_generations=at_once,
    )
    executor.LocalPipelineExecutor(
        pipeline=[
            readers.JsonlReader(str(path.parent), glob_pattern=path.name, text_key="prompt"),
            run.InferenceRunner(
                rollout_fn=ask,
                config=config,
                output_writer=writers.JsonlWriter(folder, output_filename="data.jsonl", compression=None),
            ),
        ],
        logging_dir=f"{folder}/logs",
        tasks=1,
    ).run()


def curator(server: str, prompts: str, folder: str, at_once: int) -> None:
    """The LLM class with an OpenAI endpoint."""
    curator = importlib.import_module("bespokelabs.curator")

    class Ask(curator.LLM):  # type: ignore[misc, name-defined]  # the peer's own class, of its own package
        """One answer a prompt."""

        def prompt(self, row: dict[str, Any]) -> str:
            return str(row["prompt"])

        def parse(self, row: dict[str, Any], response: Any) -> dict[str, Any]:
            return {"id": row["id"], "prompt": row["prompt"], "response": response}

    ask = Ask(
        model_name=MODEL,
        backend="openai",
        backend_params={
            "base_url": f"{server}/v1",
            "api_key": "none",
            "max_concurrent_requests": at_once,
            "max_requests_per_minute": 10_000_000,
            "max_tokens_per_minute": 10_000_000_000,
        },
        generation_params={"max_tokens": MAX_TOKENS, "temperature": 0.6},
    )
    rows = [json.loads(line) for line in Path(prompts).read_text().splitlines()]
    ask(rows, working_dir=f"{folder}/work").dataset.to_json(f"{folder}/data.jsonl")


def distilabel(server: str, prompts: str, folder: str, at_once: int) -> None:
    """A pipeline of one text generation step: a batch is what is in flight."""
    pipeline = importlib.import_module("distilabel.pipeline")
    steps = importlib.import_module("distilabel.steps")
    tasks = importlib.import_module("distilabel.steps.tasks")
    models = importlib.import_module("distilabel.models")
    rows = [json.loads(line) for line in Path(prompts).read_text().splitlines()]
    with pipeline.Pipeline(name="bench", cache_dir=f"{folder}/cache") as made:
        load = steps.LoadDataFromDicts(
            data=rows, batch_size=at_once, output_mappings={"prompt": "instruction"}
        )
        llm = models.OpenAILLM(
            model=MODEL,
            base_url=f"{server}/v1",
            api_key="none",
            generation_kwargs={"max_new_tokens": MAX_TOKENS, "temperature": 0.6},
        )
        load >> tasks.TextGeneration(llm=llm, input_batch_size=at_once)
    made.run(use_cache=False)["default"]["train"].to_json(f"{folder}/data.jsonl")


def speculators(server: str, prompts: str, folder: str, at_once: int) -> None:
    """The command that regenerates responses, without torch, which it does not use.

    The package's `__init__` and that of its commands import torch for the sake of the other commands, so both
    are passed by. The tokenizer that it decodes with is one of whole words, made here.
    """
    home = Path(importlib.import_module("importlib.util").find_spec("speculators").origin).parent
    for name, path in (("speculators", home), ("speculators.cli", home / "cli")):
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    tokenizers = importlib.import_module("tokenizers")
    vocabulary = {f"reply-{n}" if n < 100_000 else f"w{n}": n for n in range(101_000)}
    words = tokenizers.models.WordLevel(vocabulary, unk_token="w100000")
    model = f"{folder}/model"
    importlib.import_module("transformers").PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(words),
        unk_token="w100000",
    ).save_pretrained(model)
    importlib.import_module("speculators.cli.regenerate_responses").regenerate_responses(
        endpoint=f"{server}/v1/chat/completions",
        model=model,
        dataset=prompts,
        concurrency=at_once,
        max_tokens=MAX_TOKENS,
        sampling_params='{"temperature": 0.6, "top_p": 0.95}',
        outfile=f"{folder}/data.jsonl",
    )


PACKAGE = {"curator": "bespokelabs-curator"}


if __name__ == "__main__":
    name, *rest, at_once = sys.argv[1:]
    globals()[name](*rest, int(at_once))
    print("\n" + json.dumps({"version": version(PACKAGE.get(name, name))}), flush=True)
