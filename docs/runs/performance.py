#!/usr/bin/env python3
"""Writes docs/runs/measured.csv and docs/PERFORMANCE.md from the measured runs in docs/runs/measured/*.toml, the newest run first.

    docs/runs/performance.py            writes both
    docs/runs/performance.py --check    exits with 1 if one of them differs from what would be written

Keys of a run: title, date, commit, machine, command, taut, state, notes; [[figure]] with what, value, unit, low, high,
interval, n, wanted, notes, and headline = true for the one to three figures that decide (the page shows the first);
[[table]] with title, columns and rows.
"""
import csv
import io
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
MEASURED = DOCS / "runs" / "measured"
PAGE = DOCS / "PERFORMANCE.md"
TABLE = DOCS / "runs" / "measured.csv"
# The runs that the page itself shows.
NEWEST = 8
RUN_KEYS = {"title", "date", "commit", "machine", "command", "taut", "state", "figure"}
FIGURE_KEYS = {"what", "value", "unit", "low", "high", "interval", "n", "wanted", "notes", "headline"}

HEAD = """# Performance

Made by `docs/runs/performance.py` from [the measured runs](runs/measured); edit those. A row has the first of the figures
that decide, with interval and number of repetitions (n); the linked file has the rest, with notes. What was published, compared with what is measured here, claim by claim: [Replication](replication.md).

{machines}

An interval is a confidence interval (95 %), a range, or a middle half (quartiles), as named; for the others the kind was not
recorded. Only ratios of interleaved runs are claims: absolute numbers belong to the machine. Medians repeat; p99.9 and higher
show the machine's interruptions. Nothing here ran on NICs or on isolated cores of real hardware.
"""


def load(path):
    """Reads a TOML file; numbers with a decimal point stay as they are written."""
    with open(path, "rb") as file:
        return tomllib.load(file, parse_float=str)


def read_runs(machines):
    """Returns the runs by name and stops at one that lacks something."""
    runs = {}
    for path in sorted(MEASURED.glob("*.toml")):
        if path.stem == "machines":
            continue
        run = load(path)
        lacking = RUN_KEYS - run.keys()
        unknown = [key for figure in run.get("figure", []) for key in figure.keys() - FIGURE_KEYS]
        headlines = sum(figure.get("headline", False) for figure in run.get("figure", []))
        if lacking or unknown:
            sys.exit(f"{path}: missing keys {sorted(lacking)}, unknown keys {unknown}")
        if not 1 <= headlines <= 3:
            sys.exit(f"{path}: {headlines} figures with headline = true, not 1 to 3")
        if not set(run["machine"].split(" and ")) <= machines.keys():
            sys.exit(f"{path}: machine {run['machine']} is not in machines.toml")
        runs[path.stem] = run
    return runs


def cell(text):
    """Returns a text as the cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


def row(*texts):
    return "| " + " | ".join(cell(text) for text in texts) + " |"


def describe(figure):
    """Returns a figure as one phrase: what it is, its value, its interval, n and the target."""
    unit = figure.get("unit", "")
    value = f"{figure['value']} {unit}".strip()
    details = []
    bounds = f"{figure['low']} to {figure['high']}" if "low" in figure else ""
    if bounds or "interval" in figure:
        details.append(f"{figure.get('interval', '')} {bounds}".strip())
    if "n" in figure:
        details.append(f"n = {figure['n']}")
    if "wanted" in figure:
        details.append(f"wanted {figure['wanted']}")
    return f"{figure['what']}: **{value}**" + (f" ({', '.join(details)})" if details else "")


def decisive(run):
    """Returns the first figure that decides, as one phrase."""
    return next(describe(figure) for figure in run["figure"] if figure.get("headline"))


def describe_run(name, run):
    """Returns the cells of a run in the table."""
    commands = [run["command"]] if isinstance(run["command"], str) else run["command"]
    command = f"`{commands[0]}`" + (f" and {len(commands) - 1} more" if len(commands) > 1 else "")
    title = f"[{run['title']}](measured/{name}.toml)"
    cells = [run["date"], title, decisive(run), run["machine"], f"`{run['commit'][:8]}`", command]
    return [" ".join(str(cell).split()) for cell in cells]


def newest_first():
    """Returns the runs with their names, the newest first."""
    machines = load(MEASURED / "machines.toml")
    by_title = sorted(read_runs(machines).items(), key=lambda it: it[1]["title"])
    return sorted(by_title, key=lambda it: it[1]["date"], reverse=True)


def table():
    """Returns the text of the table of all runs."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["Date", "Run", "First figure that decides", "Machine", "Commit", "Command"])
    lines.writerows(describe_run(name, run) for name, run in newest_first())
    return text.getvalue()


def page():
    """Returns the text of the page."""
    machines = [row("Machine", "Processor", "Cores", "Memory", "Kernel", "Virtualisation", "Noise"), "|---|---|---|---|---|---|---|"]
    keys = ["cpu", "cores", "memory", "kernel", "virtualisation", "noise"]
    for name, machine in load(MEASURED / "machines.toml").items():
        machines.append(row(name, *(machine[key] for key in keys)))
    lines = [HEAD.format(machines="\n".join(machines)), "## Newest runs", ""]
    lines += [row("Date", "Run", "First figure that decides", "Machine"), "|---|---|---|---|"]
    for name, run in newest_first()[:NEWEST]:
        lines.append(row(run["date"], f"[{run['title']}](runs/measured/{name}.toml)", decisive(run), run["machine"]))
    lines += ["", "## All runs", "", "With commit and first command:", "", "[All runs](runs/measured.csv)"]
    return "\n".join(lines) + "\n"


def main():
    for path, text in (PAGE, page()), (TABLE, table()):
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text() != text:
                sys.exit(f"{path} is not what {Path(__file__).name} writes: run docs/runs/performance.py")
        elif sys.argv[1:]:
            sys.exit(__doc__)
        else:
            path.write_text(text)


main()
