"""Code blocks and tables for simulated answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

_NAMES: Final = [
    "count",
    "total",
    "merge",
    "window",
    "parse",
    "chunk",
    "balance",
    "route",
    "score",
    "trim",
    "fold",
    "index",
    "batch",
    "shard",
    "score_row",
    "lookup",
    "retry",
    "decode",
    "collect",
    "walk",
    "group",
    "normalise",
    "split",
    "weight",
    "nearest",
]
_THINGS: Final = [
    "orders",
    "readings",
    "edges",
    "users",
    "words",
    "samples",
    "tickets",
    "pixels",
    "tracks",
    "invoices",
    "rows",
    "events",
    "points",
    "cells",
    "files",
]

_TEMPLATES: Final = (
    """```python
def {f}_{t}({t}: list[float], limit: int = {k}) -> float:
    \"\"\"Return the {f} of the first `limit` {t}.\"\"\"
    best = 0.0
    for place, value in enumerate({t}[:limit]):
        if value > best * {m}:
            best = value + place / {k}
    return best
```""",
    """```javascript
export async function {f}{T}(url, {{ retries = {m}, wait = {k} }} = {{}}) {{
  for (let turn = 0; turn < retries; turn += 1) {{
    const reply = await fetch(`${{url}}/{t}?page=${{turn}}`);
    if (reply.ok) return (await reply.json()).{t};
    await new Promise((done) => setTimeout(done, wait * turn));
  }}
  throw new Error("no {t} after " + retries + " tries");
}}
```""",
    """```sql
SELECT region, COUNT(*) AS {t}, AVG(amount) AS {f}
FROM {t}_by_day
WHERE day >= DATE '2024-0{m}-01' AND amount > {k}
GROUP BY region
HAVING COUNT(*) > {m}
ORDER BY {f} DESC;
```""",
    """```rust
fn {f}_{t}({t}: &[u64]) -> Option<u64> {{
    {t}.iter().copied().filter(|x| x % {m} != 0).map(|x| x + {k}).max()
}}
```""",
    """```bash
find ./{t} -name '*.csv' -mtime -{m} -print0 |
  xargs -0 awk -F, '$3 > {k} {{ {f}[$1] += $3 }} END {{ for (key in {f}) print key, {f}[key] }}' | sort -k2 -n
```""",
    """| {t} | before | after |
|---|---|---|
| {f} | {k} | {m} |
| median | {m}.{k} | {k}.{m} |
| share | {k} % | 1{m} % |""",
    """$$\\sum_{{i=1}}^{{{k}}} \\frac{{x_i^{m}}}{{i + {k}}} \\le \\int_0^{{{m}}} f(t)\\,dt$$""",
)


def snippet(chooser: random.Random) -> str:
    """One code block, table or formula."""
    thing = chooser.choice(_THINGS)
    return chooser.choice(_TEMPLATES).format(
        f=chooser.choice(_NAMES),
        t=thing,
        T=thing.capitalize(),
        k=chooser.randint(11, 97),
        m=chooser.randint(2, 9),
    )
