"""Whether a server answers now, asked with the client that consumers use."""

from __future__ import annotations

import os

from consumers.client.http import InferenceClient


async def ready(url: str) -> bool:
    """Whether the server takes work at this moment; one that cannot be reached does not."""
    async with InferenceClient(url, api_key=os.environ.get("SGLANG_API_KEY")) as client:
        return (await client.probe()).ready
