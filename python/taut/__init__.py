"""Low-latency packet processing on Linux: runs the commands of taut, and reads their results.

    >>> import taut
    >>> r = taut.run("generate", device="memif-loop", rate="10k", seconds=0.2, progress=False)
    >>> r.streams[0].tally.sent
    2000

Each option of a command is a keyword argument, with ``_`` for ``-``; ``taut COMMAND --help`` describes them. The fields of
a result are those of the command's JSON.
"""

from ._errors import InputError, Interrupted, LimitMissed, MissingError, TautError, Undecided
from ._program import program
from ._record import Record, Summary
from ._results import Results
from ._run import Background, Result, capture, experiment, forward, results, run

__all__ = [
    "Background",
    "InputError",
    "Interrupted",
    "LimitMissed",
    "MissingError",
    "Record",
    "Result",
    "Results",
    "Summary",
    "TautError",
    "Undecided",
    "capture",
    "experiment",
    "forward",
    "program",
    "results",
    "run",
]
