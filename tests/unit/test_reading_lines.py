"""Physical lines, compressed or not, from the start or from any line on."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
import zstandard

from common.errors import InputError
from producer.lines import RawLine, read_lines, split_lines
from producer.source import Source


def compress_gzip(data):
    """Two members with zero bytes behind them, as tape-minded tools leave them."""
    middle = len(data) // 2
    return gzip.compress(data[:middle]) + gzip.compress(data[middle:]) + b"\0" * 64


def compress_zstd(data):
    """A skippable frame, then two frames, the second with a checksum."""
    middle = len(data) // 2
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"any"
    second = zstandard.ZstdCompressor(write_checksum=True).compress(data[middle:])
    return skippable + zstandard.ZstdCompressor().compress(data[:middle]) + second


FORMS = {"": lambda data: data, ".gz": compress_gzip, ".zst": compress_zstd}


def make(folder, data, suffix=""):
    path = folder / f"in.jsonl{suffix}"
    path.write_bytes(FORMS[suffix](data))
    return Source(name=f"in.jsonl{suffix}", path=str(path))


def split(*chunks, **options):
    return list(split_lines(chunks, **options))


def test_lines_have_number_offset_and_end():
    assert split(b"ab\n\n  \t\r\ncd") == [RawLine(1, 0, 3, b"ab"), RawLine(4, 9, 11, b"cd")]


def test_the_last_line_needs_no_newline():
    assert split(b"a\n") == [RawLine(1, 0, 2, b"a")]
    assert split(b"a") == [RawLine(1, 0, 1, b"a")]
    assert split() == split(b"") == split(b"\n\r\n ") == []


def test_only_newline_bytes_end_a_line():
    text = "a\u2028b\u2029c\u0085d\re\x0bf\x0cg\x1ch".encode()
    assert [line.raw for line in split(text + b"\r\n" + text)] == [text + b"\r", text]


def test_a_byte_order_mark_is_dropped_at_the_start_of_the_file_alone():
    mark = b"\xef\xbb\xbf"
    assert split(mark + b"a\n" + mark + b"b") == [RawLine(1, 0, 5, b"a"), RawLine(2, 5, 9, mark + b"b")]
    assert split(mark + b"\nb") == [RawLine(2, 4, 5, b"b")]
    assert split(mark[:1], mark[1:2], mark[2:]) == []
    assert split(mark + b"b", line=2, offset=5) == [RawLine(2, 5, 9, mark + b"b")]


def test_a_line_over_the_limit_comes_without_its_bytes_and_the_next_one_whole():
    data = b"123456\n1234567\n12\n1234567"
    expected = [
        RawLine(1, 0, 7, b"123456"),
        RawLine(2, 7, 15, None),
        RawLine(3, 15, 18, b"12"),
        RawLine(4, 18, 25, None),
    ]
    assert split(data, max_line=6) == expected
    assert split(*(data[at : at + 1] for at in range(len(data))), max_line=6) == expected


def test_white_space_of_any_length_is_a_blank_line():
    assert split(b" " * 50 + b"\na", max_line=6) == [RawLine(2, 51, 52, b"a")]
    assert split(*[b" " * 5] * 10, b"\na", max_line=6) == [RawLine(2, 51, 52, b"a")]
    assert split(b" " * 50 + b"x\na", max_line=6)[0] == RawLine(1, 0, 52, None)


@pytest.mark.parametrize("suffix", FORMS)
def test_every_form_gives_the_same_lines(tmp_path, suffix):
    data = b"".join(b'{"n": %d}%s' % (n, b"\r\n\n" if n % 7 == 0 else b"\n") for n in range(60_000))
    assert list(read_lines(make(tmp_path, data, suffix))) == split(data)


@pytest.mark.parametrize("suffix", FORMS)
def test_reading_starts_at_any_line(tmp_path, suffix):
    data = b"\xef\xbb\xbfone\n\ntwo\nthree"
    source = make(tmp_path, data, suffix)
    lines = list(read_lines(source))
    for at, line in enumerate(lines):
        assert list(read_lines(source, line=line.number, offset=line.offset)) == lines[at:]
    assert list(read_lines(source, line=5, offset=len(data))) == []


@pytest.mark.parametrize("suffix", FORMS)
@pytest.mark.parametrize("offset", [1, 5, 99])
def test_no_line_at_the_offset_is_an_error(tmp_path, suffix, offset):
    source = make(tmp_path, b"one\ntwo\n", suffix)
    with pytest.raises(InputError) as caught:
        list(read_lines(source, line=2, offset=offset))
    assert (
        str(caught.value) == f"{source.name}: no line starts at byte {offset} any more: the file was changed"
    )


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("cut", [3, 70])
def test_a_cut_off_file_gives_what_is_whole_and_then_says_where(tmp_path, suffix, cut):
    data = b"".join(b"line %d\n" % n for n in range(100_000))
    source = make(tmp_path, data, suffix)
    path = tmp_path / source.name
    path.write_bytes(path.read_bytes()[: -64 - cut if suffix == ".gz" else -cut])
    seen = []
    with pytest.raises(InputError) as caught:
        seen.extend(line.raw for line in read_lines(source))
    assert f"{source.name}: the compressed data is cut off or damaged on line " in str(caught.value)
    assert "decompressed bytes (" in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_damage_is_an_error(tmp_path, suffix):
    source = make(tmp_path, b"".join(b"line %d\n" % n for n in range(9_000)), suffix)
    path = tmp_path / source.name
    content = bytearray(path.read_bytes())
    content[-90 if suffix == ".gz" else -1] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(InputError, match="cut off or damaged"):
        list(read_lines(source))


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".zst", "zstd")])
@pytest.mark.parametrize("content", [b"", b'{"prompt": "a"}\n', b"\x1f"])
def test_a_name_that_promises_compression_must_keep_it(tmp_path, suffix, kind, content):
    path = tmp_path / f"in{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_lines(Source(name=f"in{suffix}", path=str(path))))
    assert str(caught.value) == f"in{suffix}: is not {kind} data, though its name says so"


def test_compression_is_known_by_content_where_the_name_says_nothing(tmp_path):
    for suffix in (".gz", ".zst"):
        path = tmp_path / "input-0123"
        path.write_bytes(FORMS[suffix](b"a\nb\n"))
        assert [line.raw for line in read_lines(Source(name="-", path=str(path)))] == [b"a", b"b"]


@pytest.mark.parametrize("suffix", FORMS)
def test_a_line_that_is_too_long_is_never_held(tmp_path, suffix):
    path = tmp_path / f"in{suffix}"
    block = b"x" * (1 << 20)
    opened = {"": open, ".gz": gzip.open, ".zst": zstandard.open}[suffix]
    with opened(path, "wb") as file:
        for _ in range(96):
            file.write(block)
        file.write(b"\nend\n")
    tracemalloc.start()
    try:
        lines = list(read_lines(Source(name=f"in{suffix}", path=str(path)), max_line=1 << 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert lines == [RawLine(1, 0, (96 << 20) + 1, None), RawLine(2, (96 << 20) + 1, (96 << 20) + 5, b"end")]
    assert peak < 48 << 20
