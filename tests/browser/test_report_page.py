import socket
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from support.browser import PROGRAM, Page
from support.need import require
from support.report_runs import letters, made_up, write

from common.records import Message, Response
from common.storage import open_storage
from ops.report.page import page as make_page
from ops.report.read import read_run

SHOTS = Path(__file__).parents[2] / "out" / "screenshots"
ATTACK = (
    "</script></style></title></textarea></div></section><script>window.broken = 1</script>"
    "<img src=x onerror='window.broken = 1'><svg onload='window.broken = 1'>"
    "<iframe src='https://example.com'></iframe><link rel=stylesheet href='//example.com/x.css'>"
)
SIZES = [pytest.param(1280, 900, id="desktop"), pytest.param(390, 844, id="phone")]
WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OPEN_ALL = "document.querySelectorAll('details').forEach(d => { d.open = true }) || 1"


@pytest.fixture
def opened(tmp_path):
    """A function that makes a run's page and tells its URL."""
    require(PROGRAM, "chromium: apt-get install chromium")

    def make(records, **more):
        folder = write(tmp_path / "nightly", records, **more)
        reading = read_run(open_storage(str(folder)), samples=4, at=datetime(2026, 1, 5, 14, tzinfo=UTC))
        path = tmp_path / "page.html"
        path.write_text(make_page(reading), encoding="utf-8")
        return path.as_uri()

    return make


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_run_reads_well_and_asks_nothing_of_the_network(opened, width, height, scheme):
    url = opened(made_up(1500), dead=letters(30), finished=False)
    async with Page(width, height) as page:
        await page.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        await page.watch()
        await page.goto(url)
        assert await page.run(WIDER) == 0
        await page.screenshot(SHOTS / f"report-{width}-{scheme}.png")
        await page.run(OPEN_ALL)
        assert await page.run(WIDER) == 0
        assert await page.run("getComputedStyle(document.querySelector('.tiles')).display") == "grid"
        paper = await page.run("getComputedStyle(document.body).backgroundColor")
        assert (int(paper.removeprefix("rgb(").split(",")[0]) < 128) == (scheme == "dark")
        assert page.requests == [url]
        assert page.errors == page.logged == []


@pytest.mark.parametrize(("width", "height"), SIZES)
async def test_words_in_charts_neither_overlap_nor_leave_the_page(opened, width, height):
    url = opened(made_up(1500))
    async with Page(width, height) as page:
        await page.goto(url)
        worst = await page.run("""(() => {
            let overlaps = 0, outside = 0
            for (const chart of document.querySelectorAll('.chart')) {
                const boxes = [...chart.querySelectorAll('text.x')]
                    .map(t => t.getBoundingClientRect()).filter(b => b.width).sort((a, b) => a.left - b.left)
                boxes.forEach((b, i) => { if (i && b.left < boxes[i - 1].right) overlaps++ })
                for (const text of chart.querySelectorAll('text')) {
                    const box = text.getBoundingClientRect()
                    if (box.width && (box.left < 0 || box.right > innerWidth)) outside++
                }
            }
            return [overlaps, outside]
        })()""")
        assert worst == [0, 0]


async def test_hostile_texts_stay_texts(opened):
    record = made_up(1)[0]
    hostile = [
        msgspec.structs.replace(
            record,
            index=index,
            id=ATTACK,
            server=ATTACK,
            finish_reason=ATTACK,
            messages=[Message("user", ATTACK)],
            response=Response(content=text, reasoning_content=ATTACK * 50),
        )
        for index, text in enumerate(["\u202eevil\u2066", "x" * 1_000_000, "\0\x1b\r" + ATTACK])
    ]
    url = opened(hostile, dead=[msgspec.structs.replace(letters(1)[0], id=ATTACK, last_error=ATTACK)])
    async with Page(390, 844) as page:
        await page.watch()
        await page.goto(url)
        await page.run(OPEN_ALL)
        assert await page.run("window.broken === undefined")
        assert await page.run("document.querySelectorAll('script, img, iframe, link').length") == 0
        assert await page.run("document.querySelector('.column .text').textContent") == ATTACK
        assert await page.run(WIDER) == 0
        assert page.requests == [url]
        assert page.errors == page.logged == []


async def test_its_policy_stops_what_would_get_in(opened):
    url = opened(made_up(5))
    with socket.create_server(("127.0.0.1", 0)) as outside:
        outside.settimeout(0)
        attack = (
            f"<img src='http://127.0.0.1:{outside.getsockname()[1]}/x.png' onerror='window.broken = 1'>"
            "<style>body { display: none }</style><p style='color: red'>"
        )
        async with Page() as page:
            await page.goto(url)
            await page.run(
                "window.stopped = []; document.addEventListener('securitypolicyviolation', "
                "e => stopped.push(e.effectiveDirective)) || 1"
            )
            await page.run(f"document.body.insertAdjacentHTML('beforeend', `{attack}`)")
            await page.run(
                "document.body.append(Object.assign(document.createElement('script'), "
                "{textContent: 'window.broken = 1'}))"
            )
            stopped = await page.until("stopped.length >= 5 && stopped.join(' ')", "all is stopped")
            assert set(stopped.split()) == {
                "img-src",
                "style-src-elem",
                "style-src-attr",
                "script-src-elem",
                "script-src-attr",
            }
            assert await page.run("window.broken === undefined")
            assert await page.run("getComputedStyle(document.body).display") == "block"
        with pytest.raises(BlockingIOError):
            outside.accept()


async def test_those_who_cannot_see_it_find_their_way(opened):
    url = opened(made_up(500), dead=letters(3))
    async with Page() as page:
        await page.goto(url)
        tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        nodes = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in tree
            if not node.get("ignored")
        ]
        roles = {role for role, _ in nodes}
        assert {"main", "navigation", "banner", "contentinfo"} <= roles
        for role in ("image", "table", "region"):
            assert all(name for kind, name in nodes if kind == role), role
        assert ("region", "Servers") in nodes
        assert await page.run("document.querySelectorAll('h1').length") == 1
        dangling = (
            "[...document.querySelectorAll('nav a')].filter(a => !document.querySelector(a.hash)).length"
        )
        assert await page.run(dangling) == 0
