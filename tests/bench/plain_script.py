"""What many write for themselves: asyncio, aiohttp, a semaphore, a line a completion.

`plain_script.py SERVER PROMPTS OUT AT-ONCE`. No retry, no resume, nothing looked at: the floor of this way.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TextIO

import aiohttp


async def ask_all(server: str, lines: list[str], file: TextIO, at_once: int) -> None:
    """Ask for all, and write each answer as it comes."""
    free = asyncio.Semaphore(at_once)
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def one(line: str) -> None:
            row = json.loads(line)
            body = {
                "model": "qwen3.6-27b",
                "messages": [{"role": "user", "content": row["prompt"]}],
                "max_tokens": 4096,
                "temperature": 0.6,
                "top_p": 0.95,
            }
            async with free, session.post(f"{server}/v1/chat/completions", json=body) as reply:
                answer = await reply.json()
            row["response"] = answer["choices"][0]["message"]
            row["usage"] = answer["usage"]
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

        await asyncio.gather(*(one(line) for line in lines))


def main() -> None:
    server, prompts, out, at_once = sys.argv[1:]
    lines = Path(prompts).read_text(encoding="utf-8").splitlines()
    with Path(out).open("w", encoding="utf-8") as file:
        asyncio.run(ask_all(server, lines, file, int(at_once)))


if __name__ == "__main__":
    main()
