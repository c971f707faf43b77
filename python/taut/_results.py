"""Results folders: what kind they are, their summaries, and their samples."""

# pyarrow and pandas have no types of their own.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, Literal, Mapping, Optional, Union, cast, overload

from ._record import Record, Summary

if TYPE_CHECKING:
    import numpy
    import pandas
    import polars
    import pyarrow

    #: A table as NumPy arrays by the names of its columns.
    Arrays = Dict[str, "numpy.ndarray[Any, Any]"]

#: The libraries that can hold samples and tables.
Library = Literal["arrow", "numpy", "pandas", "polars"]

#: The file by which a kind of folder is known, in the order in which they are looked for.
_KINDS = (
    ("gate.json", "gate"),
    ("experiment.json", "comparison"),
    ("state.json", "experiment"),
    ("bench.json", "benchmark"),
    ("io.json", "benchmark"),
    ("costs.json", "benchmark"),
    ("generators.json", "benchmark"),
    ("switch.json", "benchmark"),
    ("rounds.csv", "control"),
    ("summary.json", "measurement"),
)

#: Folders of runs that are in no table: failed ones, incomplete ones, and warm-ups.
_NOT_COUNTED = re.compile(r"failed|.*\.partial|v\d+-w\d+")


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
        return latency_of(self.summary.to_dict())

    @property
    def report(self) -> Path:
        """The path of the report: ``report.html``, or ``index.html`` of a published folder."""
        published = self.path / "index.html"
        return published if published.is_file() else self.path / "report.html"

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

    @overload
    def metrics(self, library: Literal["arrow"] = "arrow") -> "pyarrow.Table": ...
    @overload
    def metrics(self, library: Literal["numpy"]) -> "Arrays": ...
    @overload
    def metrics(self, library: Literal["pandas"]) -> "pandas.DataFrame": ...
    @overload
    def metrics(self, library: Literal["polars"]) -> "polars.DataFrame": ...

    def metrics(self, library: Library = "arrow") -> Any:
        """Returns the metrics of an experiment: a row for each run and metric.

        Raises:
            FileNotFoundError: The folder is of no experiment.
            ImportError: The library is not installed.
        """
        path = self.path / "metrics.parquet"
        if not path.is_file():
            raise FileNotFoundError(f"{self.path}: no metrics.parquet; experiments have it")
        return read_table(path, library)

    def sample_files(self) -> list[Path]:
        """Returns the paths of all files with samples, one for each stream, device and repetition.

        Those of failed runs, incomplete runs and warm-ups are left out.
        """
        found = (path for path in self.path.rglob("samples.parquet") if path.is_file() and self._counts(path))
        return sorted(found, key=lambda path: [_natural(part) for part in path.parts])

    def _counts(self, path: Path) -> bool:
        return not any(map(_NOT_COUNTED.fullmatch, path.relative_to(self.path).parts))

    @overload
    def samples(self, library: Literal["arrow"] = "arrow", index: int = 0) -> "pyarrow.Table": ...
    @overload
    def samples(self, library: Literal["numpy"], index: int = 0) -> "Arrays": ...
    @overload
    def samples(self, library: Literal["pandas"], index: int = 0) -> "pandas.DataFrame": ...
    @overload
    def samples(self, library: Literal["polars"], index: int = 0) -> "polars.DataFrame": ...

    def samples(self, library: Library = "arrow", index: int = 0) -> Any:
        """Returns the samples of one file: a row for each packet, in the order of sending, times in nanoseconds.

        Args:
            library: ``arrow`` (a pyarrow Table), ``numpy`` (a dictionary of arrays, the memory of Arrow itself where a
                column of numbers has no missing values), ``pandas`` or ``polars`` (data frames).
            index: Position of the file among :meth:`sample_files`.

        Raises:
            FileNotFoundError: The folder has no such file.
            ImportError: The library is not installed.
        """
        files = self.sample_files()
        if not 0 <= index < len(files):
            raise FileNotFoundError(f"{self.path}: {len(files)} files with samples (samples.parquet), none at {index}")
        return read_table(files[index], library)


def read_table(path: Path, library: Library) -> Any:
    """Reads a Parquet file."""
    if library == "polars":
        import polars

        return polars.read_parquet(path)
    import pyarrow.parquet

    table: Any = pyarrow.parquet.read_table(path, memory_map=True)
    if library == "arrow":
        return table
    if library == "pandas":
        return table.to_pandas()
    if library == "numpy":
        return {name: _numpy_of(table.column(name)) for name in table.column_names}
    raise ValueError(f"{library!r} is none of arrow, numpy, pandas, polars")


def _numpy_of(column: Any) -> Any:
    """Returns a column as an array: the memory of Arrow itself if it is one piece of numbers without missing values."""
    return column.chunk(0).to_numpy(zero_copy_only=False) if column.num_chunks == 1 else column.to_numpy()


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


def latency_of(summary: Mapping[str, Any]) -> Optional[Summary]:
    """Returns the latency of the first stream or of the probes in a summary; ``None`` if there is none."""
    streams: Any = summary.get("streams")
    first: Mapping[str, Any] = streams[0] if streams else summary
    for name in ("latency_ns", "rtt_ns"):
        found: Any = first.get(name)
        if isinstance(found, dict) and "count" in found:
            return Summary(cast("dict[str, Any]", found))
    return None
