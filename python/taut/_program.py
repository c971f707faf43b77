"""Finds the program, builds its command lines, and runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from typing import IO, Any, Callable, Iterable, List, Mapping, Optional, Sequence, cast

from ._errors import MissingError, TautError, error_of

#: Bytes of standard error that are kept for the message of an exception.
_KEPT = 65536

#: A progress line: percent, time left, text.
_PROGRESS = re.compile(r"^\s*(\d+) %\s+(\d+):(\d\d) left\s+(.*)$")


def program() -> str:
    """Returns the path of the program: that of the environment variable ``TAUT``, of this installation, or of ``PATH``.

    Raises:
        MissingError: There is none.
    """
    named = os.environ.get("TAUT")
    if named:
        return named
    for scheme in (None, "posix_user"):
        try:
            folder = sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts")
        except KeyError:
            continue
        here = os.path.join(folder, "taut")
        if os.access(here, os.X_OK) and _is_binary(here):
            return here
    found = shutil.which("taut")
    if found is None:
        raise MissingError("the program taut is not in PATH, and TAUT does not name it", 3, ["taut"])
    return found


def _is_binary(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def command_line(command: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> list[str]:
    """Returns the words of a command line.

    ``seconds=1`` becomes ``--seconds 1``, ``max_loss=0.1`` becomes ``--max-loss 0.1``. ``True`` is an option without a
    value; ``None`` and ``False`` are left out; each item of a list repeats the option; a dictionary becomes
    ``NAME=VALUE`` for each item.
    """
    words = [*command.split(), *map(_text, arguments)]
    for name, value in options.items():
        option = "--" + name.rstrip("_").replace("_", "-")
        for one in _each(value):
            words += [option] if one is True else [f"{option}={_text(one)}"]
    return words


def _each(value: Any) -> Iterable[Any]:
    if value is None or value is False:
        return []
    if isinstance(value, Mapping):
        return [f"{name}={_text(item)}" for name, item in cast("Mapping[str, Any]", value).items()]
    if isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value)
    return [value]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else str(value)


class Running:
    """A command that runs: its output line by line, and its end."""

    def __init__(self, words: Sequence[str], progress: Optional["Progress"] = None) -> None:
        self.words = [program(), *words]
        try:
            # A group of its own: Ctrl-C reaches the command once, through this class.
            self._process = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        except OSError as e:
            raise MissingError(f"cannot run {self.words[0]}: {e.strerror}", 3, self.words) from e
        self._stderr = ""
        self._progress = progress
        stderr = self._process.stderr
        assert stderr is not None
        self._readers: list[threading.Thread] = []
        self._read_in_background(lambda: self._read_stderr(stderr))

    def _read_in_background(self, read: Callable[[], None]) -> None:
        reader = threading.Thread(target=read, daemon=True)
        self._readers.append(reader)
        reader.start()

    def each_line(self, take: Callable[[str], None], at_end: Callable[[], None]) -> None:
        """Hands each line of standard output to ``take`` in a thread, which :meth:`end` waits for."""

        def read() -> None:
            try:
                for line in self.stdout:
                    take(line)
            finally:
                at_end()

        self._read_in_background(read)

    def _read_stderr(self, stderr: IO[str]) -> None:
        with stderr:
            self._read_lines(stderr)

    def _read_lines(self, stderr: IO[str]) -> None:
        for line in stderr:
            shown = _PROGRESS.match(line)
            if shown is None:
                self._stderr = (self._stderr + line)[-_KEPT:]
            elif self._progress is not None:
                percent, minutes, seconds, what = shown.groups()
                self._progress.show(int(percent), 60 * int(minutes) + int(seconds), what)

    @property
    def stdout(self) -> IO[str]:
        """The standard output of the command."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def is_running(self) -> bool:
        """Whether the command has not ended yet."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Asks the command to end, as Ctrl-C does."""
        if self.is_running:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Ends the command and all processes of its group at once."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def end(self, timeout: Optional[float] = None) -> None:
        """Waits for the end of the command.

        Raises:
            TautError: The exit code of the command is not 0, or it has not ended after ``timeout`` seconds.
        """
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TautError(f"has not ended within {timeout:g} s", 3, self.words) from None
        # What the command printed last can still be in the pipes, which a process that it left behind can hold open.
        for reader in self._readers:
            reader.join(timeout=5)
        if self._progress is not None:
            self._progress.close()
        self.stdout.close()
        if code != 0:
            raise error_of(code, self._stderr, self.words)


def output_of(words: Sequence[str], progress: Optional["Progress"] = None) -> str:
    """Runs a command and returns its standard output.

    Raises:
        TautError: The command failed.
    """
    running = Running(words, progress)
    try:
        text = running.stdout.read()
        running.end()
        return text
    except KeyboardInterrupt:
        running.interrupt()
        try:
            running.end(timeout=30)
        except Exception:
            running.kill()
        raise
    except BaseException:
        running.kill()
        raise


def objects_in(text: str) -> list[dict[str, Any]]:
    """Returns the JSON objects of an output: one object over several lines, or one object in each line."""
    try:
        whole: Any = json.loads(text)
    except ValueError:
        lines = (line for line in text.splitlines() if line.startswith("{"))
        return [json.loads(line) for line in lines]
    items = cast(List[Any], whole) if isinstance(whole, list) else [whole]
    return [item for item in items if isinstance(item, dict)]


class Progress:
    """One line of progress: a bar of tqdm if it is installed, else plain text in a terminal or a notebook."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: Any = None
        self._handle: Any = None
        try:
            from tqdm.auto import tqdm  # type: ignore[import-untyped,import-not-found,unused-ignore]

            self._bar = tqdm(total=100, desc=title, unit="%", leave=False)
        except ImportError:
            if _in_notebook():
                from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

                self._handle = display(_Line(title), display_id=True)

    def show(self, percent: int, left_s: int, what: str) -> None:
        """Shows how far the command is."""
        text = f"{self._title}: {percent} %, {left_s // 60}:{left_s % 60:02} left, {what}"
        if self._bar is not None:
            self._bar.update(percent - self._bar.n)
            self._bar.set_postfix_str(what, refresh=False)
        elif self._handle is not None:
            self._handle.update(_Line(text))
        elif sys.stderr.isatty():
            print(f"\r{text[:79]:<79}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Removes the line."""
        if self._bar is not None:
            self._bar.close()
        elif self._handle is not None:
            self._handle.update(_Line(""))
        elif sys.stderr.isatty():
            print(f"\r{'':<79}\r", end="", file=sys.stderr, flush=True)


class _Line:
    """A line of text that a notebook shows without quotes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules
