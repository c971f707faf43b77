#!/usr/bin/env python3
"""Counts how often taut gate, perfgate and hyperfine call a program slower, beside programs that disturb the machine.

    docs/runs/gate_peers.py                  a loop of the shell against itself, and against 5 and 10 % more of it
    docs/runs/gate_peers.py BASE HEAD        two commands, without a shell: BASE against itself, and HEAD against BASE

The programs `taut`, `perfgate` (perfgate-cli of crates.io) and `hyperfine` are used if they are in PATH; each runs
the commands itself. The rules of all three are also applied to the same pairs of times, which this script measures in
random order: perfgate's paired mode (the mean difference is above 0 by more than twice its standard error), hyperfine's
scripts/welch_ttest.py (p below 0.05, and the mean is higher), and taut gate's bets (p below 0.01 after any pair). All
have the limit 0 %: "slower" for a program and itself is a false alarm. It prints a table and writes CSV.
"""
import argparse
import csv
import json
import math
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev, variance

LOOP = "i=0\nwhile [ $i -lt $1 ]; do i=$((i+1)); done\n"
STAKES = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
COLUMNS = ["program", "case", "neighbours", "comparisons", "slower", "share", "low", "high", "pairs", "seconds"]


def run_time(command):
    """Runs a command and returns its time in seconds."""
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure_pairs(base, head, count):
    """Runs both commands in pairs, in random order, and returns the times of base and head."""
    pairs = []
    for _ in range(count):
        times = {}
        for name, command in random.sample([("base", base), ("head", head)], 2):
            times[name] = run_time(command)
        pairs.append((times["base"], times["head"]))
    return pairs


def incomplete_beta(a, b, x):
    """Returns the regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun 26.5.8)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    numerators = [1.0]
    for m in range(200):
        numerators.append(-(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)))
        numerators.append((m + 1) * (b - m - 1) * x / ((a + 2 * m + 1) * (a + 2 * m + 2)))
    fraction = 0.0
    for numerator in reversed(numerators[1:]):
        fraction = numerator / (1 + fraction)
    return math.exp(log_front) / a / (1 + fraction)


def welch_p(first, second):
    """Returns the two-sided p-value of Welch's t-test for equal means."""
    errors = [variance(values) / len(values) for values in (first, second)]
    if sum(errors) == 0:
        return float(mean(first) == mean(second))
    t = (mean(second) - mean(first)) / math.sqrt(sum(errors))
    spread = sum(error**2 / (len(values) - 1) for error, values in zip(errors, (first, second)))
    freedom = sum(errors) ** 2 / spread
    return incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def rule_of_hyperfine(pairs):
    base, head = zip(*pairs)
    return mean(head) > mean(base) and welch_p(base, head) < 0.05


def rule_of_perfgate(pairs):
    # It measures in whole milliseconds.
    differences = [round(head * 1e3) - round(base * 1e3) for base, head in pairs]
    quantile = 2.0 if len(pairs) < 30 else 1.96
    return mean(differences) - quantile * stdev(differences) / math.sqrt(len(differences)) > 0


def rule_of_taut(pairs):
    """Bets on the sign of the log ratio, as crates/measure/src/sequential.rs describes."""
    wealth = [1.0] * len(STAKES)
    ratios = []
    for base, head in pairs:
        ratio = math.log(head / base)
        scatter = 0.0
        if len(ratios) >= 3:
            middle = median(ratios)
            scatter = median(abs(it - middle) for it in ratios) / 0.6744897501960817
        size = max(-2.0, min(2.0, ratio / scatter)) if scatter > 0 else math.copysign(2.0, ratio) if ratio else 0.0
        wealth = [it * (1 + math.tanh(stake * size)) for it, stake in zip(wealth, STAKES)]
        if mean(wealth) >= 100:
            return True
        ratios.append(ratio)
    return False


RULES = {
    "rule of taut gate": rule_of_taut,
    "rule of perfgate": rule_of_perfgate,
    "rule of hyperfine": rule_of_hyperfine,
}


def ask(command, codes, verdict=None):
    """Runs a peer and returns its exit code; one that is no verdict, or lacks the words of the verdict, is an error."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    is_verdict = done.returncode == 0 or verdict is None or verdict in done.stderr
    if done.returncode not in codes or not is_verdict:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(f"exit code {done.returncode}: {lines[-1] if lines else ''}")
    return done.returncode


def ask_taut(base, head, arguments, folder):
    command = ["taut", "gate", "--base", shlex.join(base), "--head", shlex.join(head), "--worse", "0%"]
    command += ["--pairs", str(arguments.most_pairs), "--out", str(folder / "gate")]
    slower = ask(command, [0, 1, 4]) == 1
    pairs = len(json.loads((folder / "gate/gate.json").read_text())["pairs"])
    return slower, pairs


def ask_perfgate(base, head, arguments, folder):
    out = folder / "perfgate.json"
    command = ["perfgate", "paired", "--name", "pair", "--baseline-cmd", shlex.join(base)]
    command += ["--current-cmd", shlex.join(head), "--repeat", str(arguments.pairs), "--warmup", "1"]
    command += ["--fail-on-regression", "0", "--out", str(out)]
    # Version 0.18 ends with code 1 for a regression, others with 2, which also means unknown options.
    slower = ask(command, [0, 1, 2], "regression") != 0
    return slower, len([sample for sample in json.loads(out.read_text())["samples"] if not sample["warmup"]])


def ask_hyperfine(base, head, arguments, folder):
    out = folder / "hyperfine.json"
    command = ["hyperfine", "-N", "--warmup", "1", "--runs", str(arguments.pairs), "--export-json", str(out)]
    ask(command + [shlex.join(base), shlex.join(head)], [0])
    first, second = (result["times"] for result in json.loads(out.read_text())["results"])
    return mean(second) > mean(first) and welch_p(first, second) < 0.05, arguments.pairs


PEERS = {
    "taut": ("taut gate", ask_taut),
    "perfgate": ("perfgate paired", ask_perfgate),
    "hyperfine": ("hyperfine", ask_hyperfine),
}


def share_with_interval(count, of):
    """Returns a share and its Wilson interval of 95 %."""
    z = 1.959964
    share = count / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return share, max(0.0, middle - half), min(1.0, middle + half)


def cases(arguments, folder):
    """Returns the compared commands by the name of the case."""
    if arguments.commands:
        base, head = (shlex.split(command) for command in arguments.commands)
        return {"A/A": (base, base), "A/B": (base, head)}
    loop = folder / "loop.sh"
    loop.write_text(LOOP)
    rounds = 1_000
    # So many rounds that one run takes the wanted time without neighbours.
    while (took := min(run_time(["sh", str(loop), str(rounds)]) for _ in range(3))) < arguments.run_ms / 1e3:
        rounds = int(rounds * min(10, max(1.1, arguments.run_ms / 1e3 / took)))
    words = [["sh", str(loop), str(int(rounds * slower))] for slower in (1, 1.05, 1.1)]
    return {"A/A": (words[0], words[0]), "+5 %": (words[0], words[1]), "+10 %": (words[0], words[2])}


def compare_all(arguments, compared, folder, counts):
    """Makes one comparison of each case by each program, in random order, and adds the results to `counts`."""
    work = [(case, peer) for case in compared for peer in [None, *arguments.peers]]
    for case, peer in random.sample(work, len(work)):
        base, head = compared[case]
        begin = time.monotonic()
        if time.monotonic() > arguments.deadline:
            return
        if peer is None:
            pairs = measure_pairs(base, head, arguments.pairs)
            found = {name: (rule(pairs), len(pairs)) for name, rule in RULES.items()}
        else:
            scratch = Path(tempfile.mkdtemp(dir=folder))
            name, ask_peer = PEERS[peer]
            try:
                found = {name: ask_peer(base, head, arguments, scratch)}
            except (RuntimeError, OSError, ValueError, KeyError) as error:
                # A program that fails once has other options than this script knows.
                arguments.peers.remove(peer)
                print(f"{peer} is left out: {error}", file=sys.stderr)
                return
            finally:
                shutil.rmtree(scratch)
        for name, (slower, pairs) in found.items():
            counts.setdefault((name, case), []).append((slower, pairs, time.monotonic() - begin))


def write_results(arguments, counts):
    """Writes the CSV and prints it as a table."""
    rows = []
    in_order = sorted(counts.items(), key=lambda it: (it[0][0], arguments.cases.index(it[0][1])))
    for (name, case), found in in_order:
        slower = sum(it[0] for it in found)
        share, low, high = share_with_interval(slower, len(found))
        numbers = [f"{it:.3f}" for it in (share, low, high)]
        pairs, seconds = median(it[1] for it in found), f"{median(it[2] for it in found):.2f}"
        rows.append([name, case, arguments.neighbours, len(found), slower, *numbers, f"{pairs:g}", seconds])
    with open(arguments.out, "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])
    table = [COLUMNS, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print(f"CSV: {arguments.out}")


# Rows of the figure: the programs, then the colours of the cases.
DRAWN = ["taut gate", "perfgate paired", "hyperfine"]
COLOURS = {"A/A": "#c0392b", "+5 %": "#7fb3d5", "+10 %": "#1f618d"}


def draw(source, target):
    """Draws the shares of `slower` with their intervals, from a CSV that this script wrote."""
    with open(source, newline="") as file:
        rows = {(row["program"], row["case"]): row for row in csv.DictReader(file)}
    drawn = [(name, case, rows[name, case]) for name in DRAWN for case in COLOURS if (name, case) in rows]
    height = 22 * len(drawn) + 60
    x = lambda share: 250 + 400 * float(share)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="700" height="{height}" fill="#fff"/>',
        '<text x="20" y="20" font-weight="bold">How often "slower" is said, beside one busy loop per CPU</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<line x1="{x(share)}" y1="32" x2="{x(share)}" y2="{height - 24}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(share)}" y="{height - 8}" text-anchor="middle">{share:.0%}</text>')
    for index, (name, case, row) in enumerate(drawn):
        y = 50 + 22 * index
        parts.append(f'<text x="240" y="{y + 4}" text-anchor="end">{name}, {case} (n = {row["comparisons"]})</text>')
        ends = f'x1="{x(row["low"]):.1f}" y1="{y}" x2="{x(row["high"]):.1f}" y2="{y}"'
        parts.append(f'<line {ends} stroke="{COLOURS[case]}" stroke-width="3"/>')
        parts.append(f'<circle cx="{x(row["share"]):.1f}" cy="{y}" r="5" fill="{COLOURS[case]}"/>')
    Path(target).write_text("\n".join([*parts, "</svg>"]) + "\n")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="BASE and HEAD; without them, a shell loop")
    parser.add_argument("--seconds", type=float, default=290, help="time after which no comparison begins (290)")
    parser.add_argument("--pairs", type=int, default=15, help="pairs of a comparison, but of taut gate (15)")
    parser.add_argument("--most-pairs", type=int, default=60, help="maximum number of pairs of taut gate (60)")
    parser.add_argument("--run-ms", type=float, default=20, help="time of a run of the loop without neighbours (20)")
    parser.add_argument("--neighbours", type=int, default=os.cpu_count(), help="number of busy loops (one per CPU)")
    parser.add_argument("--out", default="gate-peers.csv", help="file to write (gate-peers.csv)")
    parser.add_argument("--draw", nargs=2, metavar=("CSV", "SVG"), help="measure nothing: draw the CSV of an earlier call")
    arguments = parser.parse_args()
    if len(arguments.commands) not in (0, 2) or arguments.pairs < 2 or arguments.most_pairs < 1:
        parser.error("expected no command or two, and at least two pairs")
    arguments.peers = [name for name in PEERS if shutil.which(name)]
    return arguments


def main():
    arguments = parse()
    if arguments.draw:
        return draw(*arguments.draw)
    for name in PEERS.keys() - set(arguments.peers):
        print(f"{name} is not in PATH: only its rule is applied", file=sys.stderr)
    counts = {}
    with tempfile.TemporaryDirectory(prefix="gate-peers-") as folder:
        folder = Path(folder)
        compared = cases(arguments, folder)
        arguments.cases = list(compared)
        busy = [sys.executable, "-c", "while True: pass"]
        neighbours = [subprocess.Popen(busy) for _ in range(arguments.neighbours)]
        arguments.deadline = time.monotonic() + arguments.seconds
        try:
            while time.monotonic() < arguments.deadline:
                compare_all(arguments, compared, folder, counts)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        finally:
            for neighbour in neighbours:
                neighbour.kill()
                neighbour.wait()
    write_results(arguments, counts)


main()
