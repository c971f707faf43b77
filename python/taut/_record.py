"""JSON objects whose fields are attributes."""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, Optional, cast


class Record(Mapping[str, Any]):
    """A JSON object of a command. Fields are attributes and items: ``r.device.id`` is ``r["device"]["id"]``.

    Nested objects are records, lists are lists of records or values. The names and units of fields are those of the
    command's reference.
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> Any:
        return _wrap(self._fields[name])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            known = ", ".join(sorted(self._fields))
            raise AttributeError(f"no field {name!r}; there are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._fields]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fields!r})"

    def to_dict(self) -> dict[str, Any]:
        """Returns the object as plain dictionaries and lists."""
        return dict(self._fields)


def _wrap(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Record(cast("Mapping[str, Any]", value))
    if isinstance(value, list):
        return [_wrap(item) for item in cast(List[Any], value)]
    return value


class Summary(Record):
    """The summary of a distribution of times, in nanoseconds.

    A percentile is ``None`` if there are too few samples for it.
    """

    __slots__ = ()

    @property
    def count(self) -> int:
        """The number of samples."""
        return int(self._fields["count"])

    def _ns(self, name: str) -> Optional[float]:
        value = self._fields.get(f"{name}_ns")
        return None if value is None else float(value)

    @property
    def min(self) -> Optional[float]:
        """The smallest value, ns."""
        return self._ns("min")

    @property
    def mean(self) -> Optional[float]:
        """The mean, ns."""
        return self._ns("avg")

    @property
    def p50(self) -> Optional[float]:
        """The median, ns."""
        return self._ns("p50")

    @property
    def p99(self) -> Optional[float]:
        """The 99th percentile, ns."""
        return self._ns("p99")

    @property
    def p99_9(self) -> Optional[float]:
        """The 99.9th percentile, ns."""
        return self._ns("p99_9")

    @property
    def p99_99(self) -> Optional[float]:
        """The 99.99th percentile, ns."""
        return self._ns("p99_99")

    @property
    def max(self) -> Optional[float]:
        """The largest value, ns."""
        return self._ns("max")

    @property
    def std(self) -> Optional[float]:
        """The standard deviation, ns."""
        return self._ns("std")
