"""What a model's `config.json` says about how to serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from common.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_STATE_BYTES: Final = {"float32": 4, "bfloat16": 2}
_CONVOLUTION_BYTES: Final = 2  # kept in the model's own 16 bit type


class Traits(msgspec.Struct, frozen=True):
    """The traits of a model that decide flags.

    Attributes:
        hybrid: It has layers of linear attention, which keep a state per request.
        mtp: It carries a head that predicts several tokens.
        recurrent: Numbers in the recurrent state of one slot, all layers together; 0 if unknown.
        convolution: Numbers in the convolution state of one slot; 0 if unknown.
    """

    hybrid: bool = True
    mtp: bool = True
    recurrent: int = 0
    convolution: int = 0

    def slot_bytes(self, dtype: str) -> int:
        """Bytes of GPU memory for one slot of the state cache; 0 if unknown."""
        return self.recurrent * _STATE_BYTES[dtype] + self.convolution * _CONVOLUTION_BYTES


def traits_of(config: Mapping[str, Any]) -> Traits:
    """The traits that a model's configuration names; missing fields count as absent."""
    text: Mapping[str, Any] = config.get("text_config") or config
    linear = sum(kind == "linear_attention" for kind in text.get("layer_types") or ())
    mtp = bool(text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers"))
    value_heads, value_width = text.get("linear_num_value_heads", 0), text.get("linear_value_head_dim", 0)
    key_heads, key_width = text.get("linear_num_key_heads", 0), text.get("linear_key_head_dim", 0)
    kernel = text.get("linear_conv_kernel_dim", 1)
    channels = 2 * key_heads * key_width + value_heads * value_width
    return Traits(
        hybrid=linear > 0,
        mtp=mtp,
        recurrent=linear * value_heads * key_width * value_width,
        convolution=linear * channels * (kernel - 1),
    )


def read_traits(model: Path) -> Traits:
    """The traits of the model in a folder.

    Raises:
        UsageError: its `config.json` is missing or unreadable.
    """
    path = model / "config.json"
    try:
        config = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path} cannot be read ({error}): --model must name a model's folder") from error
    return traits_of(config)
