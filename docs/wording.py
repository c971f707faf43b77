#!/usr/bin/env python3
"""The wording of doc comments, error messages and test names: checks what a program can check, and draws samples for readers.

    docs/wording.py check [FILE...]      one line per fault; exit code 1 if there is one
    docs/wording.py sample SEED          100 doc comments, each with its item's line, 50 error messages and 50 test names, the
                                         same for the same seed and tree
"""
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Openings of clauses that have lost their head.
OPENINGS = {"What", "Of", "As", "Whose", "So", "Told"}
# Openings that are right only after another sentence.
FIRST_OPENINGS = OPENINGS | {"Whether", "Where", "Which", "That", "Those"}
MOST_WORDS = 30
MOST_WORDS_OF_A_NAME = 10

DOC = re.compile(r"\s*//[/!] ?(.*)")
FENCE = re.compile(r"\s*```")
TEST = re.compile(r"#\[test\]\s*(?:#\[[^\]]*\]\s*)*(?:async )?fn (\w+)")
ERROR = re.compile(r"#\[error\(\s*\"((?:[^\"\\]|\\.)*)\"|(?:bail|anyhow|err)!\(\s*\"((?:[^\"\\]|\\.)*)\"", re.S)


def sources(names):
    if names:
        return [Path(name) for name in names]
    listed = subprocess.run(["git", "ls-files", "*.rs"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split()]


def doc_comments(text):
    """Pairs of line number and text, one for each block of doc comments, without code."""
    block, start, in_code = [], 0, False
    for number, line in enumerate(text.splitlines() + [""], 1):
        found = DOC.fullmatch(line)
        if found is None or line.lstrip().startswith("////"):
            if block:
                yield start, "\n".join(block).strip()
            block, in_code = [], False
            continue
        if not block:
            start = number
        said = found.group(1)
        if FENCE.match(said):
            in_code = not in_code
        elif not in_code:
            block.append(said)


def sentences(doc):
    """The sentences of a doc comment; rows of tables, headings and lists' marks are none."""
    doc = re.sub(r"^#+ .*$", "", doc, flags=re.M)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) ?)", doc):
        if re.match(r"\s*[|\[]", paragraph):
            continue
        flat = " ".join(re.sub(r"^\s*(?:[-*]|\d+\.) +", "", paragraph).split())
        flat = re.sub(r"`[^`]*`", "`code`", flat)
        yield from re.split(r"(?<=[.!?:;])\s+(?=[A-Z`\[(])", flat)


def faults(path):
    text = path.read_text()
    for line, doc in doc_comments(text):
        openings = FIRST_OPENINGS
        for sentence in filter(None, sentences(doc)):
            words = sentence.split()
            wrong, openings = words[0] in openings, OPENINGS
            if wrong and not sentence.startswith("As of ") and not sentence.endswith("?"):
                yield line, f"opens with `{words[0]}`: {sentence}"
            elif len(words) > MOST_WORDS:
                yield line, f"{len(words)} words: {sentence}"
    for found in TEST.finditer(text):
        words = found.group(1).split("_")
        line = text.count("\n", 0, found.end()) + 1
        if len(words) > MOST_WORDS_OF_A_NAME:
            yield line, f"a test's name of {len(words)} words: {found.group(1)}"
        if words[0].capitalize() in OPENINGS:
            yield line, f"a test's name that opens with `{words[0]}`: {found.group(1)}"


def check(names):
    count = 0
    for path in sources(names):
        for line, fault in faults(path):
            name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            print(f"{name}:{line}: {fault}")
            count += 1
    print(f"wording: {count} faults", file=sys.stderr)
    return 1 if count else 0


def item_below(text, line):
    """The line of the item that the doc comment at `line` describes, after attributes."""
    below = (it.strip() for it in text.splitlines()[line - 1:])
    return next((it for it in below if it and not it.startswith(("//", "#"))), "")


def sample(seed):
    docs, errors, tests = [], [], []
    for path in sources([]):
        text = path.read_text()
        name = path.relative_to(ROOT)
        docs += [(f"{name}:{line}", f"{doc}\n   > {item_below(text, line)}") for line, doc in doc_comments(text)]
        tests += [(str(name), found) for found in TEST.findall(text)]
        errors += [(str(name), one or other) for one, other in ERROR.findall(text)]
    draw = random.Random(seed)
    for title, found, count in [("doc comments", docs, 100), ("error messages", errors, 50), ("test names", tests, 50)]:
        print(f"## {count} of {len(found)} {title}, seed {seed}\n")
        for number, (where, said) in enumerate(draw.sample(sorted(found), count), 1):
            print(f"{number}. {where}: {said}\n")
    return 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["check", *names]:
            sys.exit(check(names))
        case ["sample", seed]:
            sys.exit(sample(int(seed)))
        case _:
            sys.exit(__doc__)
