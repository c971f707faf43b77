"""Runs commands to their end, or in the background."""

# pyarrow and pandas have no types of their own.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import json
import os
import queue
import shutil
import tempfile
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, Literal, Mapping, Optional, Sequence, Type, Union, cast, overload

from ._errors import Interrupted, InputError, TautError
from ._program import Progress, Running, command_line, objects_in, output_of
from ._record import Record, Summary
from ._results import Library, Results, latency_of

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from ._results import Arrays


class Result(Record):
    """The result of a command: the fields of its last JSON object, and all objects that it printed.

    Attributes:
        objects: All JSON objects in the order of printing, as dictionaries.
        folder: The results folder; ``None`` if the command wrote none.
    """

    __slots__ = ("objects", "folder", "__weakref__")

    def __init__(
        self,
        objects: Sequence[Mapping[str, Any]],
        folder: Optional[str] = None,
        temporary: Optional[str] = None,
    ) -> None:
        super().__init__(objects[-1] if objects else {})
        self.objects = [dict(one) for one in objects]
        self.folder = folder
        if temporary is not None:
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)

    @property
    def latency(self) -> Optional[Summary]:
        """The latency of the first stream; ``None`` if nothing came back or the command measures none."""
        return latency_of(self._fields)

    def seconds(self) -> list[Record]:
        """Returns the counters of each second."""
        return [Record(one) for one in self.objects if one.get("event") == "second"]

    def results(self) -> Results:
        """Returns the results folder.

        Raises:
            InputError: The command wrote none: give it ``out=FOLDER``, or ``out=True`` for a temporary one.
        """
        if self.folder is None:
            raise InputError("no results folder: run the command with out=FOLDER, or out=True", 2, [])
        return Results(self.folder)

    @overload
    def samples(self, library: Literal["arrow"] = "arrow", index: int = 0) -> "pyarrow.Table": ...
    @overload
    def samples(self, library: Literal["numpy"], index: int = 0) -> "Arrays": ...
    @overload
    def samples(self, library: Literal["pandas"], index: int = 0) -> "pandas.DataFrame": ...
    @overload
    def samples(self, library: Literal["polars"], index: int = 0) -> "polars.DataFrame": ...

    def samples(self, library: Library = "arrow", index: int = 0) -> Any:
        """Returns the samples of the results folder, as :meth:`Results.samples` does."""
        return self.results().samples(library, index)


def run(
    command: str,
    *arguments: Any,
    out: Union[str, "os.PathLike[str]", bool, None] = None,
    progress: bool = True,
    **options: Any,
) -> Result:
    """Runs a command to its end and returns its result.

    ``run("generate", port=["memif:a", "memif:b"], rate="1M", seconds=1)`` runs ``taut generate --port=memif:a
    --port=memif:b --rate=1M --seconds=1 --json``.

    Args:
        command: The command with its subcommand, such as ``"bench throughput"``.
        arguments: Further words, such as the name of a file.
        out: The results folder, for commands with ``--out``. ``True`` makes a temporary one, which is removed with the
            result.
        progress: Whether a line shows how far the command is.
        options: The options of the command, with ``_`` for ``-``.

    Raises:
        TautError: The command failed. The class of the exception follows the exit code.
    """
    temporary = tempfile.mkdtemp(prefix="taut-") if out is True else None
    folder: Optional[str] = None
    if temporary is not None:
        folder = os.path.join(temporary, "results")
    elif out is not None and not isinstance(out, bool):
        folder = os.fspath(out)
    words = command_line(command, arguments, {**options, "out": folder})
    try:
        text = _output(words, Progress(f"taut {command}") if progress else None)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Result(objects_in(text), folder, temporary)


def _output(words: Sequence[str], shown: Optional[Progress]) -> str:
    """Returns the JSON that a command prints; nothing for commands such as ``man``, which print none."""
    try:
        return output_of([*words, "--json"], shown)
    except InputError as e:
        if "'--json'" not in e.message:
            raise
    output_of(words, shown)
    return ""


def experiment(
    name: Union[str, "os.PathLike[str]"],
    *,
    set: Optional[Mapping[str, Any]] = None,  # noqa: A002: the name of the option
    repetitions: Optional[int] = None,
    out: Union[str, "os.PathLike[str]", None] = None,
    progress: bool = True,
) -> Results:
    """Runs an experiment file or a reference experiment, and returns its results folder.

    Args:
        name: The experiment file, or the name of a reference experiment such as ``"stylianopoulos-fig2"``.
        set: Variables with other values than in the file.
        repetitions: Runs of each combination.
        out: The results folder; by default a new one under ``./results``.
        progress: Whether a line shows how far the experiment is.
    """
    folder = os.fspath(out) if out is not None else _fresh(os.path.basename(os.fspath(name)))
    options = {"set": {key: _value(item) for key, item in (set or {}).items()}, "repetitions": repetitions}
    run("experiment run", name, out=folder, progress=progress, **options)
    return Results(folder)


def _value(value: Any) -> str:
    """Returns a value as experiment files have it: a list in brackets, texts in lists in quotes."""
    if isinstance(value, (list, tuple)):
        return json.dumps(list(cast("Sequence[Any]", value)))
    return str(value)


def _fresh(name: str) -> str:
    stem = name[: -len(".toml")] if name.endswith(".toml") else name
    number = 1
    while os.path.exists(os.path.join("results", f"{stem}-{number}")):
        number += 1
    return os.path.join("results", f"{stem}-{number}")


class Background:
    """A command that runs in the background of a ``with`` block, which ends it.

    Iterating yields the counters of each second as they come, until the command ends.

    Attributes:
        started: The first object that the command printed, once it runs.
        summary: The last object; ``None`` until the command has ended.
    """

    def __init__(self, command: str, *arguments: Any, start_within: float = 30.0, **options: Any) -> None:
        self._words = [*command_line(command, arguments, options), "--json"]
        self._start_within = start_within
        self._lines: "queue.Queue[Optional[Record]]" = queue.Queue(maxsize=4096)
        self._running: Optional[Running] = None
        self.started: Optional[Record] = None
        self.summary: Optional[Record] = None

    def __enter__(self) -> "Background":
        self._running = Running(self._words)
        self._running.each_line(self._take, lambda: self._offer(None))
        try:
            self.started = self._lines.get(timeout=self._start_within)
        except queue.Empty:
            self._running.kill()
            raise TautError(f"has not started within {self._start_within} s", 3, self._words) from None
        except BaseException:
            self._running.kill()
            raise
        if self.started is None:
            self._running.end()
        return self

    def _take(self, line: str) -> None:
        if line.startswith("{"):
            one = Record(json.loads(line))
            if one.get("event") == "summary":
                self.summary = one
            else:
                self._offer(one)

    def _offer(self, one: Optional[Record]) -> None:
        """Queues an object; the oldest one is dropped if nobody reads them."""
        while True:
            try:
                return self._lines.put_nowait(one)
            except queue.Full:
                try:
                    self._lines.get_nowait()
                except queue.Empty:
                    pass

    def __iter__(self) -> Iterator[Record]:
        while True:
            one = self._lines.get()
            if one is None:
                # Another loop must end as well.
                self._offer(None)
                return
            if one.get("event", "second") == "second":
                yield one

    def stop(self) -> Optional[Record]:
        """Ends the command as Ctrl-C does, and returns its summary.

        Raises:
            TautError: The command failed, or does not end within 30 s.
        """
        running, self._running = self._running, None
        if running is None:
            return self.summary
        running.interrupt()
        try:
            running.end(timeout=30)
        except Interrupted:
            pass
        finally:
            running.kill()
        return self.summary

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        try:
            self.stop()
        except TautError:
            # An exception of the block is more important than that of the end.
            if error is None:
                raise


def forward(*arguments: Any, **options: Any) -> Background:
    """Returns ``taut forward`` for a ``with`` block: ``with taut.forward(port=["memif:a,role=server", ...]) as f:``."""
    return Background("forward", *arguments, **options)


def capture(*arguments: Any, **options: Any) -> Background:
    """Returns ``taut capture`` for a ``with`` block."""
    return Background("capture", *arguments, **options)


def results(folder: Union[str, "os.PathLike[str]"]) -> Results:
    """Opens a results folder of any command.

    Raises:
        FileNotFoundError: The folder has no results of taut.
    """
    return Results(folder)
