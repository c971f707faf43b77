#!/usr/bin/env python3
"""Puts the tables that are stored as CSV into the pages of the documentation: those of the site and of packages.

    docs/tables.py FOLDER              rewrites the pages below FOLDER
    docs/tables.py supports RENDERER   as a preprocessor of mdBook (book.toml): reads and writes a book as JSON

A line of a page that is only a link to a CSV file is replaced by a table. [Options of taut bench loss](../options.csv) is the rows
whose first column is `taut bench loss`, without that column. With `beyond taut bench throughput` before the bracket it is without
the rows that this key has too, and a line above says so. A link without " of " is all rows. Links in cells start from the CSV
file's folder. A link to a text file (.txt, .conf, .c) on a line of its own is replaced by the text.
"""
import csv
import functools
import json
import os
import re
import sys
from pathlib import Path

TABLE = re.compile(r"^\[[^\]\n]+?(?: of (?P<key>[^\]\n]+?))?(?: beyond (?P<other>[^\]\n]+))?\]\((?P<file>[^)\s]+\.csv)\)$", re.M)
TEXT = re.compile(r"^\[[^\]\n]+\]\(([^)\s]+\.(txt|conf|c))\)$", re.M)
ADDRESS = re.compile(r"^https://\S+$")
ANY_LINK = re.compile(r"\[([^\]\n]+)\]\((?!https?:|#)([^)\s#]+)[^)\n]*\)")
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)")


@functools.cache
def read(path):
    """Returns the heads and the rows of a CSV file."""
    with open(path, newline="") as file:
        head, *rows = csv.reader(file)
    return head, rows


def table(found, folder):
    """Returns the table for a link on a page in `folder`."""
    path = Path(os.path.normpath(folder / found["file"]))
    head, rows = read(path)
    above = ""
    if found["key"]:
        of = lambda key: [row[1:] for row in rows if row[0] == key]
        head, chosen, known = head[1:], of(found["key"]), of(found["other"])
        if not chosen or (found["other"] and not known):
            sys.exit(f"tables: {path} has no rows for {found[0]}")
        rows = [row for row in chosen if row not in known]
        if known:
            names = {row[0] for row in chosen}
            lacking = ", ".join(row[0] for row in known if row[0] not in names)
            above = f"As `{found['other']}`" + (f" without {lacking}" if lacking else "") + (", and:\n\n" if rows else ".")
        if not rows:
            return above
    full = [at for at in range(len(head)) if any(row[at] for row in rows)]
    base = os.path.relpath(path.parent, folder)
    moved = lambda it: "](" + os.path.normpath(os.path.join(base, it[1]))
    cell = lambda text: ADDRESS.sub(r"<\g<0>>", LINK.sub(moved, " ".join(text.split()).replace("|", "\\|")))
    line = lambda cells: "| " + " | ".join(cells[at] for at in full) + " |"
    return above + "\n".join([line(head), "|---" * len(full) + "|", *(line([cell(it) for it in row]) for row in rows)])


def page(text, folder):
    text = TABLE.sub(lambda found: table(found, folder), text)
    return TEXT.sub(lambda found: f"```{found[2]}\n" + (folder / found[1]).read_text() + "```", text)


def within(text, folder, source):
    """Returns a page of a site without links that lead out of it: to folders, and to files that are not below `source`."""
    def kept(found):
        path = Path(os.path.normpath(folder / found[2]))
        if path.is_relative_to(source) and not path.is_dir():
            return found[0]
        return f"{found[1]} (`{os.path.relpath(path, source.parent)}`)"

    return ANY_LINK.sub(kept, text)


def chapters(items, source):
    """Puts the tables into the chapters of a book, and into those below them."""
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter["source_path"]:
                folder = (source / chapter["source_path"]).parent
                chapter["content"] = within(page(chapter["content"], folder), folder, source)
            chapters(chapter["sub_items"], source)


def main():
    match sys.argv[1:]:
        case []:
            context, book = json.load(sys.stdin)
            chapters(book.get("items") or book.get("sections"), Path(context["root"]) / context["config"]["book"].get("src", "src"))
            json.dump(book, sys.stdout)
        case ["supports", _]:
            pass
        case [folder]:
            for path in Path(folder).rglob("*.md"):
                text = path.read_text()
                made = page(text, path.parent)
                if made != text:
                    path.write_text(made)
        case _:
            sys.exit(__doc__)


main()
