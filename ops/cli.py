"""`ops`: what an operator types. Each command lives in its own module and is imported when it is used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from common.errors import PromptmillError

COMMANDS: Final = {
    "run": ("ops.run.cli", "run", "Turn a file of prompts into a data set, with everything started for you."),
    "preflight": ("ops.preflight.cli", "preflight", "What would go wrong, before it does."),
    "status": ("ops.status.cli", "status", "How far a run is, how fast, and whether anything is wrong."),
    "dead": ("ops.manage", "dead", "The prompts that ended without a completion, and why."),
    "retry": ("ops.manage", "retry", "Queue a run's dead letters again."),
    "resume": ("ops.manage", "resume", "Let a run go on that the quality guard has paused."),
    "verify": ("ops.verify.cli", "verify", "Prove that every prompt ended exactly once."),
    "report": ("ops.report.cli", "report", "Write a run's report as one HTML page."),
    "export": ("ops.export.cli", "export_command", "Turn parts into a data set for training."),
    "launch": ("ops.launch.cli", "launch", "Start one SGLang server per GPU."),
    "simulate": ("ops.simulator.cli", "simulate", "Serve simulated SGLang servers."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, so that each starts fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of use."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found: Any = getattr(import_module(module), attribute)
        if not isinstance(found, click.Command):
            raise TypeError(f"{module}.{attribute} is not a command")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors of ours end it with their sentence and exit code."""
        try:
            return super().invoke(ctx)
        except PromptmillError as error:
            click.echo(f"ops {ctx.invoked_subcommand or ''}: {error}", err=True)
            sys.exit(error.exit_code)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="promptmill")
def main() -> None:
    """Turn a file of prompts into a verified data set of LLM completions."""


if __name__ == "__main__":
    main()
