import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.dashboard import MOST_ROWS, ReadableJSON, window

sizes = st.integers(min_value=0, max_value=1500)


@given(total=sizes, rows=st.integers(min_value=1, max_value=300), order=st.sampled_from(["asc", "dsc"]))
def test_pages_together_show_every_row_once_in_order(total, rows, order):
    rows = min(rows, MOST_ROWS)
    shown = []
    for offset in range(0, total, rows):
        first, last = window(total, offset, rows, order)
        page = list(range(first, last + 1))
        assert 0 < len(page) <= rows
        shown += page if order == "asc" else reversed(page)
    assert shown == (list(range(total)) if order == "asc" else list(reversed(range(total))))


@pytest.mark.parametrize("order", ["asc", "dsc"])
def test_a_page_beyond_the_end_shows_nothing(order):
    first, last = window(10, 5000, 8, order)
    assert last < first


@given(total=sizes, offset=sizes, rows=st.integers(min_value=-5, max_value=10**9))
def test_no_page_fetches_more_than_the_most(total, offset, rows):
    for order in ("asc", "dsc"):
        first, last = window(total, offset, rows, order)
        assert last - first + 1 <= MOST_ROWS


def test_what_is_not_json_is_shown_as_such():
    assert ReadableJSON.loads(b'{"a": 1}') == {"a": 1}
    assert ReadableJSON.loads(b"\x80\x05cos\nsystem\n") == "(not JSON)"
