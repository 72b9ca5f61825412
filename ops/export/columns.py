"""Rows into Arrow columns, with a declared schema.

Columns are built flat, value lists first and nesting after, since a list of dictionaries per row costs
several times what the text itself does.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, chain
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from ops.export import schema
from ops.export.rows import row_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from common.records import Message
    from ops.export.rows import Columnar
    from ops.export.tokens import TokenRow


def _arrow(kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0]))
    if isinstance(kind, dict):
        return pa.struct([(name, _arrow(inner)) for name, inner in kind.items()])
    return pa.type_for_alias(kind)


ROW_SCHEMA: Final = pa.schema([(name, _arrow(kind)) for name, kind in schema.ROW.items()])
TOKEN_SCHEMA: Final = pa.schema([(name, _arrow(kind)) for name, kind in schema.TOKENS.items()])


def record_table(records: Sequence[Columnar]) -> pa.Table:
    """The rows of a `parquet` export as a table."""
    columns: list[Any] = []
    for field in ROW_SCHEMA:
        values = list(map(attrgetter(field.name), records))
        make = _MAKERS.get(field.name)
        columns.append((_array if make is None else make)(field.type, values))
    return pa.Table.from_arrays(columns, schema=ROW_SCHEMA)


def token_table(rows: Sequence[TokenRow]) -> pa.Table:
    """Rows of token ids as a table."""
    columns: list[Any] = []
    for field in TOKEN_SCHEMA:
        if field.name == "input_ids":
            columns.append(_packed(field.type, (row.ids for row in rows)))
        elif field.name == "loss_mask":
            columns.append(_packed(field.type, (row.mask for row in rows)))
        else:
            columns.append(pa.array([getattr(row, field.name) for row in rows], field.type))
    return pa.Table.from_arrays(columns, schema=TOKEN_SCHEMA)


def _packed(kind: pa.DataType, pieces: Iterable[bytes]) -> Any:
    """A list column from each row's packed values."""
    data = list(pieces)
    width = kind.value_type.bit_width // 8
    count = sum(map(len, data)) // width
    values = pa.Array.from_buffers(kind.value_type, count, [None, pa.py_buffer(b"".join(data))])
    return pa.ListArray.from_arrays(_offsets(len(piece) // width for piece in data), values, type=kind)


def _offsets(lengths: Iterable[int]) -> Any:
    return pa.array(accumulate(lengths, initial=0), pa.int32())


def _array(kind: pa.DataType, values: Sequence[Any]) -> Any:
    """A column of plain values; one value throughout, as many columns have, is told in one go."""
    if values and values.count(values[0]) == len(values):
        return _repeated(kind, values[0], len(values))
    if kind == pa.string() and None not in values:
        return _texts(values)
    return pa.array(values, kind)


def _repeated(kind: pa.DataType, value: Any, count: int) -> Any:
    return pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)


def _texts(values: Sequence[str]) -> Any:
    """A column of strings, joined here: Arrow's own builder copies long ones twice more as it grows."""
    pieces = list(map(str.encode, values))
    ends = array("i", accumulate(map(len, pieces), initial=0))
    return pa.StringArray.from_buffers(len(pieces), pa.py_buffer(ends), pa.py_buffer(b"".join(pieces)))


def _struct(kind: pa.DataType, items: Sequence[Any]) -> Any:
    """A struct column from objects that have the struct's fields as attributes.

    None is a null, and so is a field that the objects of a kind do not have at all.
    """
    missing = [item is None for item in items]
    if all(missing):
        return _repeated(kind, None, len(items))
    if any(missing):
        blank = SimpleNamespace(**dict.fromkeys(field.name for field in kind))
        items = [blank if item is None else item for item in items]
    fields = [
        _array(field.type, list(map(attrgetter(field.name), items)))
        if hasattr(items[0], field.name)
        else _repeated(field.type, None, len(items))
        for field in kind
    ]
    mask = pa.array(missing) if any(missing) else None
    return pa.StructArray.from_arrays(fields, type=kind, mask=mask)


def _messages(kind: pa.DataType, values: Sequence[Sequence[Message]]) -> Any:
    flat: list[Any] = list(chain.from_iterable(values))
    if any(message.tool_calls is not None or isinstance(message.content, list) for message in flat):
        flat = [row_message(message) for message in flat]
    return pa.ListArray.from_arrays(_offsets(map(len, values)), _struct(kind.value_type, flat), type=kind)


def _turns(kind: pa.DataType, values: Sequence[Any]) -> Any:
    if values.count(None) == len(values):
        return _repeated(kind, None, len(values))
    return pa.array(msgspec.to_builtins(values), kind)  # rare, so by way of plain dictionaries


def _raw(kind: pa.DataType, values: Sequence[msgspec.Raw | msgspec.UnsetType]) -> Any:
    texts = [None if isinstance(value, msgspec.UnsetType) else str(value, "utf-8") for value in values]
    return _array(kind, texts)


_MAKERS: Final[dict[str, Callable[[pa.DataType, Any], Any]]] = {
    "messages": _messages,
    "response": _struct,
    "usage": _struct,
    "speculation": _struct,
    "turns": _turns,
    "params": _raw,
    "metadata": _raw,
}
