"""The errors of the program as exceptions, one class for each exit code."""

from __future__ import annotations

from typing import Sequence


class TautError(Exception):
    """A command of taut failed.

    Attributes:
        message: The line that the command printed, without its prefix ``taut:``.
        code: The exit code of the command.
        command: The command line.
    """

    def __init__(self, message: str, code: int, command: Sequence[str]) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.command = list(command)


class LimitMissed(TautError):
    """A measured value violates a limit that was given: exit code 1."""


class InputError(TautError):
    """An option, a file or a folder is wrong: exit code 2."""


class MissingError(TautError):
    """The machine lacks something, such as a permission or an interface: exit code 3."""


class Undecided(TautError):
    """The measurements do not suffice for a verdict: exit code 4."""


class Interrupted(TautError):
    """The command was interrupted before it was done: exit code 130, or a signal ended it."""


_BY_CODE = {1: LimitMissed, 2: InputError, 3: MissingError, 4: Undecided, 130: Interrupted}


def error_of(code: int, stderr: str, command: Sequence[str]) -> TautError:
    """Returns the exception for an exit code and the standard error of a command."""
    if code < 0:
        return Interrupted(f"ended by signal {-code}", 128 - code, command)
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("taut:", "error:"))]
    last = (marked or lines or [f"exit code {code}"])[-1]
    for prefix in ("taut:", "error:"):
        last = last.removeprefix(prefix).strip()
    return _BY_CODE.get(code, TautError)(last, code, command)
