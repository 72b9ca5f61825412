"""Ordinary texts that repeat themselves as honest ones do: what the loop detector must leave alone.

Everything is made here or read from the running interpreter's library; the same seed gives the same texts.
"""

from __future__ import annotations

import base64
import csv
import inspect
import io
import json
import sysconfig
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def _words(text: str) -> list[str]:
    return text.split()


NOUNS = _words(
    "river lamp engine garden letter winter market window captain harbour bridge orchard signal mirror"
)
VERBS = _words(
    "carries opens follows measures paints repairs crosses answers watches gathers lifts remembers"
)
ADJECTIVES = _words("quiet broken early narrow golden heavy distant patient sudden hollow bright familiar")

BALLAD = """The tide came in at Marrow Bay, the nets were hung to dry,
    And home, boys, home, said the lantern on the hill.
The cook had burned the barley bread, the cat had stolen the pie,
    And home, boys, home, said the lantern on the hill.

We sailed to fetch the silver fish that nobody had seen,
    And home, boys, home, said the lantern on the hill.
We came on nothing but the fog, the grey upon the green,
    And home, boys, home, said the lantern on the hill.

The mate grew old, the mast grew moss, the captain lost his hat,
    And home, boys, home, said the lantern on the hill.
We traded it for seven plums, and what do you think of that?
    And home, boys, home, said the lantern on the hill.

O row, row, row, my brothers, row, the harbour's drawing near,
O row, row, row, my sisters, row, there's bread and there is beer,
O row, row, row, my children, row, your mothers wait to hear,
    And home, boys, home, said the lantern on the hill.
"""

CHINESE = """\
清晨,老周推开窗户,看见院子里的石榴树又开了花。他想起三十年前搬到这里的那一天,也是这样的天气。
那时候孩子们还小,整天在巷子里跑来跑去。现在他们都去了别的城市,只有过年的时候才回来。
老周把茶泡好,坐在门口读报纸。邻居经过时问他:“今天去不去下棋?”他笑着回答:“等我喝完这杯茶。”
下午下了一阵雨,路面上的水映出灰色的天空。卖菜的人收起摊子,骑着车慢慢地走了。
我们先看第一个条件,再看第二个条件。如果两个数的和是偶数,那么它们要么都是偶数,要么都是奇数。
因此答案取决于第一个数的奇偶性。接下来验证一个例子:三加五等于八,八是偶数,符合结论。
"""

JAPANESE = """\
駅前の古い本屋は、今年の春に店を閉めた。店主は七十を過ぎていたが、最後の日まで棚の埃を払っていた。
わたしは子どものころ、そこで初めて自分のお金で本を買った。表紙には青い船の絵が描いてあった。
雨の日には客が少なく、店主はよくラジオで野球を聞いていた。「今日も負けそうだよ」と笑うのが口癖だった。
まず問題を整理しよう。与えられた数列は三つおきに値が変わるので、余りで場合分けすると見通しがよい。
余りが零のときは定義からすぐにわかる。余りが一のときは、前の項に二を足せば求める値になる。
"""


def sentence(random: Random) -> str:
    """A sentence of five to sixteen words from a small stock."""
    words: list[str] = []
    for _ in range(random.randint(1, 3)):
        words += ["the", random.choice(ADJECTIVES), random.choice(NOUNS), random.choice(VERBS), "a"]
        words += [random.choice(NOUNS)]
    return " ".join(words).capitalize() + random.choice([".", ".", ".", "?", "!"])


def prose(random: Random, size: int) -> str:
    """Paragraphs of sentences, `size` characters of them."""
    pieces: list[str] = []
    length = 0
    while length < size:
        pieces.append(sentence(random) + random.choice([" ", " ", " ", "\n\n"]))
        length += len(pieces[-1])
    return "".join(pieces)[:size]


def library_sources(count: int, random: Random) -> Iterator[str]:
    """Pieces of the standard library's own source files, of 1,000 to 60,000 characters."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    for path in random.sample(files, min(count, len(files))):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        size = random.choice([1_000, 4_000, 8_000, 16_000, 60_000])
        start = random.randint(0, max(0, len(text) - size))
        if len(text) > 200:
            yield text[start : start + size]


DOCUMENTED = _words(
    "argparse asyncio collections datetime decimal email.message inspect logging pathlib pickle random re "
    "statistics string tarfile"
)


def library_docstrings() -> Iterator[str]:
    """All docstrings of well-known modules, one text per module."""
    for name in DOCUMENTED:
        module = import_module(name)
        docs = [inspect.getdoc(value) or "" for _, value in inspect.getmembers(module, callable)]
        # Aliases share one docstring, which would then stand there several times in a row.
        yield "\n\n".join(dict.fromkeys([inspect.getdoc(module) or "", *docs]))


def tables(random: Random) -> Iterator[str]:
    """Tables of many kinds, most cells of which look alike."""
    yield "\n".join("  ".join(f"{i:2} x {j:2} = {i * j:3}" for j in range(1, 6)) for i in range(1, 60))
    yield "\n".join(f"{i} times {j} is {i * j}." for i in range(1, 21) for j in range(1, 21))
    yield "| n | n² | even | odd |\n|---|---|---|---|\n" + "".join(
        f"| {n} | {n * n} | {'no' if n % 2 else 'yes'} | {'no' if n % 2 * n % 3 * n % 5 else '?'} |\n"
        for n in range(2, 200)
    )
    yield "| p | q | r | s | t | p and q | r or s | not t |\n" + "".join(
        "| "
        + " | ".join("T" if bit == "1" else "F" for bit in f"{n:05b}{n % 7 & 1}{n % 3 & 1}{n & 1}")
        + " |\n"
        for n in range(32)
    )
    yield "".join(
        f"| {random.choice(NOUNS):12} | {random.randint(0, 9)} | {random.choice(['low', 'high'])} |  |\n"
        for _ in range(250)
    )
    yield "\n".join(
        "+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+\n"
        f"|{random.choice(NOUNS).title():^31}|{random.choice(NOUNS).title():^31}|"
        for _ in range(24)
    )
    yield "\n".join(" ".join(random.choice("0000001") for _ in range(40)) for _ in range(60))
    yield "\\begin{pmatrix}\n" + "\n".join(
        " & ".join(str(random.choice([0, 0, 0, 1, -1])) for _ in range(12)) + r" \\" for _ in range(60)
    )


def lists(random: Random) -> Iterator[str]:
    """Long lists, numbered and not, of items that are built alike."""
    yield "\n".join(f"{n}. {sentence(random)}" for n in range(1, 200))
    yield "\n".join(f"{n}. {random.choice(NOUNS).title()}" for n in range(1, 400))
    yield "\n".join(f"- **{a.title()} {b}**: {sentence(random)}" for a in ADJECTIVES for b in NOUNS)
    yield "\n".join(f"The {a} {b} is {random.choice(ADJECTIVES)}." for a in ADJECTIVES for b in NOUNS)
    yield ", ".join(str(n) for n in range(1, 3_000))
    yield "\n".join("Fizz" * (n % 3 == 0) + "Buzz" * (n % 5 == 0) or str(n) for n in range(1, 1_000))
    yield "\n".join(random.choice(["positive", "negative", "neutral"]) for _ in range(800))
    yield "\n".join(f"{n}: {random.choice(['yes', 'no'])}" for n in range(1, 800))
    yield "\n".join(f"Q: Is the {noun} {adj}?\nA: Yes." for noun in NOUNS for adj in ADJECTIVES)


def data(random: Random) -> Iterator[str]:
    """JSON, CSV, hex, base64, SQL, logs and markup."""
    rows = [
        {
            "id": n,
            "name": random.choice(NOUNS),
            "active": random.random() < 0.9,
            "score": random.randint(0, 5),
            "tags": random.sample(ADJECTIVES, 2),
            "parent": None,
        }
        for n in range(150)
    ]
    yield json.dumps(rows)
    yield json.dumps(rows, indent=2)
    fields = {a: {"type": random.choice(["string", "integer"]), "required": True} for a in ADJECTIVES + NOUNS}
    yield json.dumps({"properties": fields}, indent=4)
    sheet = io.StringIO()
    csv.writer(sheet).writerows(
        [n, random.choice(NOUNS), random.randint(0, 3), "", "EUR"] for n in range(400)
    )
    yield sheet.getvalue()
    noise = random.randbytes(6_000)
    yield base64.encodebytes(noise).decode()
    yield noise[:3_000].hex(" ", 2)
    sparse = bytes(random.choice([0, 0, 0, 0, 0, 0, 0, random.randint(1, 255)]) for _ in range(2_000))
    yield "\n".join(f"{at:08x}  {sparse[at : at + 16].hex(' ')}" for at in range(0, 2_000, 16))
    yield "\n".join(
        f"INSERT INTO items VALUES ({n}, '{random.choice(NOUNS)}', {random.randint(1, 99)});"
        for n in range(200)
    )
    yield "\n".join(
        f"2031-04-05 10:{n // 60:02}:{n % 60:02} {random.choice(['INFO', 'WARN'])} w-{random.randint(1, 4)} "
        f"{random.choice(['request done', 'request started', 'cache miss'])} in {random.randint(1, 900)} ms"
        for n in range(250)
    )
    yield "".join(random.choice("ACGT") for _ in range(6_000))
    yield (
        "<ul>\n"
        + "\n".join(f'  <li class="item"><a href="/{n}">{n.title()}</a></li>' for n in NOUNS * 3)
        + "\n</ul>"
    )
    yield "\n".join(
        f".{n}-{a} {{\n  margin: 0;\n  padding: {random.randint(0, 9)}px;\n}}"
        for n in NOUNS
        for a in ADJECTIVES
    )
    yield "".join(
        f"{n}. {random.choice('KQRBN')}{random.choice('abcdefgh')}{random.randint(1, 8)} "
        f"{random.choice('KQRBN')}x{random.choice('abcdefgh')}{random.randint(1, 8)} "
        for n in range(1, 150)
    )


def code(random: Random) -> Iterator[str]:
    """Code that is written by the yard."""
    yield "\n\n".join(
        f"def test_{a}_{b}(client):\n    result = client.get('/{b}/{a}')\n    assert result.status == 200\n"
        f"    assert result.json()['{b}'] == {random.randint(0, 99)}"
        for a in ADJECTIVES
        for b in NOUNS[:6]
    )
    yield "\n".join(f'    case {n}: return "{random.choice(NOUNS)}";' for n in range(200))
    yield "\n\n".join(
        f"class {a.title()}{b.title()}(Base):\n    def visit(self, node):\n        return node.{a}_{b}()"
        for a in ADJECTIVES
        for b in NOUNS[:5]
    )
    yield "static const unsigned char table[256] = {\n" + "\n".join(
        "    " + ", ".join(str(random.choice([64, 64, 64, random.randint(0, 63)])) for _ in range(16)) + ","
        for _ in range(64)
    )


def verse_and_scripts(random: Random) -> Iterator[str]:
    """A ballad with its refrain, and prose in Chinese and Japanese."""
    yield BALLAD
    yield BALLAD + "\n" + prose(random, 3_000)
    yield CHINESE * 2 + "\n" + JAPANESE
    yield "".join(random.choice(CHINESE.replace("\n", "")) for _ in range(4_000))
    yield "".join(random.choice(JAPANESE.replace("\n", "")) for _ in range(4_000))
    yield "\n".join(
        f"{n}、{random.choice(CHINESE.splitlines())[: random.randint(8, 30)]}" for n in range(1, 120)
    )


def generated(seed: int) -> Iterator[tuple[str, str]]:
    """All generated texts as (kind, text)."""
    random = Random(seed)
    for kind in (tables, lists, data, code, verse_and_scripts):
        for text in kind(random):
            yield kind.__name__, text
    for size in (500, 3_000, 8_000, 30_000):
        yield "prose", prose(random, size)
