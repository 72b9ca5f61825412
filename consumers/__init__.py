"""Everything between the queue and S3: the RQ worker, the inference client, the quality gate, the collector.

`rq worker completions` with `RQ_WORKER_CLASS=consumers.GenerationWorker` starts one consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from consumers.worker import GenerationWorker

__all__ = ["GenerationWorker", "generate"]


def generate(**_: Any) -> NoReturn:
    """The name that promptmill's jobs carry; only `GenerationWorker` knows how to run them.

    A stock RQ worker that was started on this queue by mistake ends up here.

    Raises:
        RuntimeError: always, with the command that was meant.
    """
    raise RuntimeError(
        "this is a promptmill job and a stock RQ worker cannot run it: start consumers with "
        "RQ_WORKER_CLASS=consumers.GenerationWorker SGLANG_URL=http://... rq worker completions"
    )


def __getattr__(name: str) -> Any:
    # The worker pulls in aiohttp and RQ, which the collector and stock workers do not need.
    if name == "GenerationWorker":
        from consumers.worker import GenerationWorker  # noqa: PLC0415  # see above

        return GenerationWorker
    raise AttributeError(name)
