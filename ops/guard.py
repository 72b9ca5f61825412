"""Runs a program that may not outlive the process that started it.

`spawn` starts this file as a small process of its own between parent and program. It passes signals on,
ends with the program's exit code, and stops the program when the parent is gone, SIGKILL included: the
parent holds the other end of a pipe that closes with it. On Linux the kernel kills the program should the
guard itself be killed. The guard needs the standard library alone and imports little: it starts in
hundredths of a second.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GRACE: Final = 5.0
"""Seconds between SIGTERM and SIGKILL once the parent is gone."""

_POLL: Final = 0.1
_PR_SET_PDEATHSIG: Final = 1
_PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def spawn(
    argv: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdout: Any = None,
    stderr: Any = None,
    pass_fds: Sequence[int] = (),
    umask: int = -1,
    grace: float = GRACE,
) -> subprocess.Popen[bytes]:
    """Start `argv` under a guard; the process returned is the guard, which behaves as the program would.

    The program runs in a session of its own, so Ctrl-C at the terminal reaches it only through the parent.

    Args:
        argv: The program and its arguments; its standard input is empty.
        cwd: Where it runs.
        env: Its environment; the parent's own if not given.
        stdout: As for `subprocess.Popen`.
        stderr: As for `subprocess.Popen`.
        pass_fds: Descriptors that guard and program keep open as long as they live.
        umask: The mode bits that files it makes must not have; the parent's own if -1.
        grace: Seconds that the program has to end by itself when the parent is gone.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(grace), *map(str, argv)],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=None if env is None else dict(env),
        pass_fds=pass_fds,
        umask=umask,
        start_new_session=True,
    )


def main(grace: float, argv: list[str]) -> int:  # pragma: no cover  # its process loads no site packages
    """Run `argv` until it ends or the parent is gone; returns the exit code a shell would give."""
    parent, guard = os.getppid(), os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def die_with_guard() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the line above could help
            os._exit(1)

    # Held back until there is a program to pass them to: a signal in between would end the guard alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    program = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=die_with_guard,  # noqa: PLW1509  # this process has one thread
    )
    for number in _PASSED_ON:
        signal.signal(number, lambda received, _frame: program.send_signal(received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    while program.poll() is None:
        # The pipe tells at once; the parent's id also when a forked sibling keeps the pipe open.
        readable, _, _ = select.select([sys.stdin], [], [], _POLL)
        if readable or os.getppid() != parent:
            _end(program, grace)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def _end(program: subprocess.Popen[bytes], grace: float) -> None:  # pragma: no cover  # the same
    program.terminate()
    try:
        program.wait(grace)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
