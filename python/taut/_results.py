"""Results folders: what kind they are, their summaries, and their samples."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Literal, Optional, Union, overload

from ._record import Record, Summary

if TYPE_CHECKING:
    import numpy
    import pandas
    import polars
    import pyarrow

#: The libraries that can hold samples and tables.
Library = Literal["arrow", "numpy", "pandas", "polars"]

#: The file by which a kind of folder is known, in the order in which they are looked for.
_KINDS = (
    ("gate.json", "gate"),
    ("experiment.json", "comparison"),
    ("state.json", "experiment"),
    ("bench.json", "benchmark"),
    ("rounds.csv", "control"),
    ("summary.json", "measurement"),
)


class Results:
    """A results folder of any command.

    Attributes:
        path: The folder.
        kind: ``comparison`` (``taut demo``), ``experiment``, ``benchmark``, ``gate``, ``control``, or ``measurement``
            (``taut generate --out`` and other commands with a summary).
    """

    def __init__(self, folder: Union[str, "os.PathLike[str]"]) -> None:
        self.path = Path(folder)
        kinds = (kind for file, kind in _KINDS if (self.path / file).is_file())
        kind = next(kinds, None)
        if kind is None:
            raise FileNotFoundError(f"{self.path}: no results of taut")
        self.kind: str = kind

    def __repr__(self) -> str:
        return f"<taut results of kind {self.kind}: {self.path}>"

    @property
    def summary(self) -> Record:
        """The summary of the folder: ``summary.json``, or ``gate.json`` of a gate."""
        name = "gate.json" if self.kind == "gate" else "summary.json"
        return Record(self._read(name))

    @property
    def latency(self) -> Optional[Summary]:
        """The latency of the first stream of a measurement; ``None`` if nothing came back."""
        return latency_of(self._read("summary.json"))

    @property
    def report(self) -> Path:
        """The path of the report."""
        return self.path / "report.html"

    @property
    def figures(self) -> list[Path]:
        """The paths of the figures (SVG)."""
        return sorted([*self.path.glob("figures/*.svg"), *self.path.glob("*.svg")])

    def _read(self, name: str) -> dict[str, Any]:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def runs(self) -> Iterator[Record]:
        """Yields the complete runs of an experiment, with ``variables`` and ``metrics``."""
        with open(self.path / "runs.jsonl", encoding="utf-8") as lines:
            for line in lines:
                yield Record(json.loads(line))

    def sample_files(self) -> list[Path]:
        """Returns the paths of all files with samples, one for each stream, device and repetition."""
        found = (path for path in self.path.rglob("samples.parquet") if path.is_file())
        return sorted(found, key=lambda path: [_natural(part) for part in path.parts])

    @overload
    def samples(self, library: Literal["arrow"] = "arrow", index: int = 0) -> "pyarrow.Table": ...
    @overload
    def samples(self, library: Literal["numpy"], index: int = 0) -> "dict[str, numpy.ndarray[Any, Any]]": ...
    @overload
    def samples(self, library: Literal["pandas"], index: int = 0) -> "pandas.DataFrame": ...
    @overload
    def samples(self, library: Literal["polars"], index: int = 0) -> "polars.DataFrame": ...

    def samples(self, library: Library = "arrow", index: int = 0) -> Any:
        """Returns the samples of one file: a row for each packet, in the order of sending, times in nanoseconds.

        Args:
            library: ``arrow`` (a pyarrow Table), ``numpy`` (a dictionary of arrays, without copies where a column has no
                missing values), ``pandas`` or ``polars`` (data frames).
            index: Position of the file among :meth:`sample_files`.

        Raises:
            FileNotFoundError: The folder has no such file.
            ImportError: The library is not installed.
        """
        files = self.sample_files()
        if not 0 <= index < len(files):
            raise FileNotFoundError(f"{self.path}: {len(files)} files with samples (samples.parquet), none at {index}")
        return read_samples(files[index], library)


def read_samples(path: Path, library: Library) -> Any:
    """Reads a file with samples."""
    if library == "polars":
        import polars

        return polars.read_parquet(path)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path, memory_map=True)
    if library == "arrow":
        return table
    if library == "pandas":
        return table.to_pandas()
    if library == "numpy":
        # A column of one chunk without nulls is handed over without a copy.
        columns = zip(table.column_names, table.combine_chunks().columns)
        return {name: _numpy_of(column) for name, column in columns}
    raise ValueError(f"{library!r} is none of arrow, numpy, pandas, polars")


def _numpy_of(column: Any) -> Any:
    chunk = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return chunk.to_numpy(zero_copy_only=chunk.null_count == 0 and _is_plain(chunk))


def _is_plain(chunk: Any) -> bool:
    import pyarrow

    return bool(pyarrow.types.is_integer(chunk.type) or pyarrow.types.is_floating(chunk.type))


def _natural(text: str) -> list[Union[tuple[int, int], tuple[int, str]]]:
    """Returns a key that sorts ``r10`` behind ``r9``."""
    parts: list[Union[tuple[int, int], tuple[int, str]]] = []
    digits = ""
    for character in text + " ":
        if character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((0, int(digits)))
            digits = ""
        parts.append((1, character))
    return parts


def latency_of(summary: dict[str, Any]) -> Optional[Summary]:
    """Returns the latency of the first stream in the summary of a measurement; ``None`` if there is none."""
    streams = summary.get("streams")
    first = streams[0] if streams else summary
    for name in ("latency_ns", "round_trip_ns"):
        if first.get(name):
            return Summary(first[name])
    return None
