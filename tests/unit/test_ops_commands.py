"""Every command that `ops` lists is there and explains itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from ops.cli import COMMANDS, LazyGroup, main

if TYPE_CHECKING:
    from click.testing import Result


def ops(*arguments: str) -> Result:
    """`ops` as it is typed."""
    return CliRunner().invoke(main, arguments, prog_name="ops")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_there_and_helps(name: str) -> None:
    shown = ops(name, "--help")

    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith(f"Usage: ops {name} [OPTIONS]")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_name_that_it_is_listed_under(name: str) -> None:
    assert isinstance(main, LazyGroup)
    command = main.get_command(click.Context(main), name)

    assert command is not None
    assert command.name == name


def test_ops_lists_its_commands_with_a_line_each() -> None:
    shown = ops("--help")

    assert all(f"  {name} " in shown.output for name in COMMANDS)


def test_an_unknown_command_is_bad_usage() -> None:
    assert ops("exprot").exit_code == 2
