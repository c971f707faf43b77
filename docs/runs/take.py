#!/usr/bin/env python3
"""Takes finished experiments of `taut experiment replicate-all --out FOLDER` into the documentation.

    docs/runs/take.py FOLDER COMMIT

FOLDER has the report as well. Before it is made, copy docs/runs/replication.json there: what it says of other experiments stays.
"""
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent
RUNS = DOCS / "runs"


def take_run(folder, state, commit):
    """Copies the samples and the figure of one experiment, and brings its lines up to date."""
    name = folder.name
    definition = tomllib.loads((folder / "experiment.toml").read_text())
    shutil.copy(folder / "metrics.parquet", RUNS / f"{name}.parquet")

    page = RUNS / "README.md"
    every = definition.get("plan", {}).get("repetitions", 1)
    made = state["changes"].get("repetitions") or every
    extent = "all" if made == every else "one of them" if made == 1 else f"{made} of them"
    failed = state["planned"] - state["done"]
    row = (
        f"| [{name}]({name}.parquet) | {state['started'][:16].replace('T', ' ')} | {state['done']} of {state['planned']} "
        f"| {made} | {extent} | {f'{failed} runs failed' if failed else ''} |"
    )
    text, found = re.subn(rf"^\| \[{re.escape(name)}\]\(.*$", lambda _: row, page.read_text(), flags=re.M)
    assert found == 1, f"{page}: rows of {name}: {found}"
    page.write_text(text)

    page = DOCS / "gallery.md"
    text = page.read_text()
    start = text.index(f"\n### {name}\n")
    end = min(at for at in (text.find("\n## ", start + 1), text.find("\n### ", start + 1), len(text)) if at >= 0)
    part = text[start:end]
    title = re.search(r"!\[(.*?)\]\(gallery/", part).group(1)
    figure = next(it["name"] for it in definition["figure"] if it["title"] == title)
    shutil.copy(folder / "figures" / f"{figure}.svg", DOCS / "gallery" / f"{name}.svg")
    repetitions = "" if made == every else f" --repetitions {made}"
    part = re.sub(r"    taut experiment run .*", f"    taut experiment run {name}{repetitions}", part)
    made_by = f"Made by commit `{commit}` on {state['started'][:10]}, machine A; {state['done']} runs."
    part = re.sub(r"Made by commit .*", made_by, part)
    page.write_text(text[:start] + part + text[end:])
    print(f"{name}: {row}")


def main():
    folder, commit = Path(sys.argv[1]), sys.argv[2]
    for state_file in sorted(folder.glob("*/state.json")):
        state = json.loads(state_file.read_text())
        if state["stage"] == "running":
            continue
        if (state_file.parent / "metrics.parquet").exists():
            take_run(state_file.parent, state, commit)
    shutil.copy(folder / "replication.json", RUNS)
    shutil.copy(folder / "claims.csv", RUNS)
    shutil.copy(folder / "replication.md", DOCS)


main()
