#!/usr/bin/env python3
"""Takes finished experiments of `taut experiment replicate-all --out FOLDER` into the documentation.

    docs/runs/take.py FOLDER COMMIT

FOLDER has the report as well. Before it is made, copy docs/runs/replication.json there: what it says of other experiments stays.
"""
import csv
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
RUNS = DOCS / "runs"


def take_run(folder, state, commit):
    """Copies the samples and the figure of one experiment, and brings its row up to date."""
    name = folder.name
    definition = tomllib.loads((folder / "experiment.toml").read_text())
    shutil.copy(folder / "metrics.parquet", RUNS / f"{name}.parquet")

    every = definition.get("plan", {}).get("repetitions", 1)
    made = state["changes"].get("repetitions") or every
    extent = "all" if made == every else "one of them" if made == 1 else f"{made} of them"
    failed = state["planned"] - state["done"]
    begun = state["started"][:16].replace("T", " ")
    row = [name, begun, f"{state['done']} of {state['planned']}", made, extent, f"{failed} runs failed" if failed else "", commit]
    with open(RUNS / "experiments.csv", newline="") as file:
        rows = [row if other[0] == name else other for other in csv.reader(file)]
    assert row in rows, f"experiments.csv has no row of {name}"
    with open(RUNS / "experiments.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)

    title = re.search(rf"!\[(.*?)\]\(gallery/{re.escape(name)}\.svg\)", (DOCS / "gallery.md").read_text()).group(1)
    figure = next(it["name"] for it in definition["figure"] if it["title"] == title)
    shutil.copy(folder / "figures" / f"{figure}.svg", DOCS / "gallery" / f"{name}.svg")
    print(row)


def main():
    folder, commit = Path(sys.argv[1]), sys.argv[2]
    for state_file in sorted(folder.glob("*/state.json")):
        state = json.loads(state_file.read_text())
        if state["stage"] == "running":
            continue
        if (state_file.parent / "metrics.parquet").exists():
            take_run(state_file.parent, state, commit)
    shutil.copy(folder / "replication.json", RUNS)
    shutil.copy(folder / "verdicts.csv", RUNS)
    shutil.copy(folder / "claims.csv", RUNS)
    shutil.copy(folder / "replication.md", DOCS)


main()
