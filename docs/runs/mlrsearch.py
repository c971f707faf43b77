#!/usr/bin/env python3
"""Compares the search of `taut bench throughput` with the library of the authors of RFC 9971 on simulated devices.

    pip install mlrsearch==1.2.1
    cargo build --release -p taut-measure --example mlrsearch
    docs/runs/mlrsearch.py FOLDER target/release/examples/mlrsearch [DEVICES]

Both search the same devices (10,000 by default) for the goals of FD.io CSIT, without loss and with at most 0.5 %. FOLDER
gets devices.csv, ours.csv, our-trials.csv, theirs.csv, again.csv, mlrsearch.csv.gz with the essence of all of them, and
summary.json, which is printed as well. The loss of a trial depends on the device, the load, the duration and the number of
earlier trials at that load, here and in crates/measure/examples/mlrsearch.rs. The library searches each device twice with
different random numbers, to show what chance alone changes, and it classifies the loads by the trials of our search.
"""
import csv
import gzip
import json
import multiprocessing
import statistics
import struct
import subprocess
import sys
from pathlib import Path

from MLRsearch import AbstractMeasurer, Config, MeasurementResult, MultipleLossRatioSearch, SearchGoal
from MLRsearch.target_stat import TargetStat
from MLRsearch.target_spec import TargetSpec

MIN_PPS, MAX_PPS = 1e4, 14_880_952.0
WIDTH, DURATION_SUM = 0.005, 21.0
LOSS_RATIOS = (0.0, 0.005)
# A kind of device, with the lowest and the highest value of what sets its devices apart.
KINDS = {
    "sharp": (0.0, 0.0),
    "rare-loss": (0.005, 0.3),
    "knee": (0.005, 0.05),
    "varying": (0.001, 0.03),
    "inversion": (0.02, 0.3),
    "collapse": (0.05, 0.9),
    "beyond-max": (0.0, 0.0),
    "zero": (0.01, 0.99),
}
RANDOM = ("rare-loss", "knee", "varying")
MASK = (1 << 64) - 1
# Number that, added to its seed, makes another device of the same kind, capacity and spread.
OTHER_CHANCE = 1 << 32
PROCESSES = 2


def mix(value):
    """Returns a hash of 64 bits."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def uniform(*keys):
    """Returns a number from 0 to below 1 that depends on the integer keys only."""
    value = 0
    for key in keys:
        value = mix(value ^ key)
    return (value >> 11) * 2.0**-53


def bits(number):
    return struct.unpack("<Q", struct.pack("<d", number))[0]


class Device(AbstractMeasurer):
    """A simulated device."""

    def __init__(self, seed, kind, capacity, spread):
        self.seed, self.kind, self.capacity, self.spread = int(seed), kind, float(capacity), float(spread)
        self.earlier, self.trials, self.seconds = {}, 0, 0.0

    def received(self, load, duration, sent, index):
        """Returns how many of the packets of a trial come back."""
        def draw(number):
            return uniform(self.seed, bits(load), bits(duration), index, number)

        capacity, spread, over = self.capacity, self.spread, load / self.capacity
        lost = 0
        if self.kind == "rare-loss" and draw(0) < spread:
            lost = 1 + int(draw(1) * 0.01 * sent)
        elif self.kind == "knee":
            if draw(0) < (over - 1.0 + spread) / (2.0 * spread):
                lost = 1 + int(draw(1) * 0.002 * sent)
            capacity *= 1.0 + spread
        elif self.kind == "varying":
            capacity *= 1.0 + spread * 1.7320508075688772 * (draw(0) + draw(1) + draw(2) + draw(3) - 2.0)
        elif self.kind == "inversion" and 1.0 - 2.0 * spread <= over < 1.0 - spread:
            lost = 1 + int(0.05 * sent)
        elif self.kind == "collapse" and over > 1.0:
            capacity *= 1.0 - spread * min(over - 1.0, 1.0)
        elif self.kind == "zero":
            lost = 1 + int(spread * sent)
        return max(min(sent, int(capacity * duration)) - lost, 0)

    def measure(self, intended_duration, intended_load):
        index = self.earlier.get(intended_load, 0)
        self.earlier[intended_load] = index + 1
        self.trials += 1
        self.seconds += intended_duration
        sent = max(int(intended_load * intended_duration), 1)
        received = self.received(intended_load, intended_duration, sent, index)
        return MeasurementResult(intended_duration, intended_load, offered_count=sent, forwarding_count=received)


def make_devices(count):
    """Returns the parameters of the devices, all kinds equally often."""
    devices = []
    for seed in range(count):
        kind = list(KINDS)[seed % len(KINDS)]
        low, high = KINDS[kind]
        least, most = (1.05 * MAX_PPS, 3.0 * MAX_PPS) if kind == "beyond-max" else (2.0 * MIN_PPS, 0.95 * MAX_PPS)
        capacity = least * (most / least) ** uniform(seed, 1)
        spread = low * (high / low) ** uniform(seed, 2) if low > 0.0 else 0.0
        devices.append((seed, kind, capacity, spread))
    return devices


def goals():
    """Returns the goals of the library, which are CSIT's."""
    return [
        SearchGoal(loss_ratio=loss, exceed_ratio=0.5, relative_width=WIDTH, duration_sum=DURATION_SUM, fail_fast=False)
        for loss in LOSS_RATIOS
    ]


def search_again(device):
    """Runs the library on the same device with other random numbers."""
    seed, *rest = device
    return [[seed, *row[1:]] for row in search_theirs((seed + OTHER_CHANCE, *rest))]


def search_theirs(device):
    """Runs the library on a device and returns a row per goal."""
    config = Config()
    config.goals = goals()
    config.min_load, config.max_load, config.warmup_duration = MIN_PPS, MAX_PPS, 0.0
    measurer = Device(*device)
    found = MultipleLossRatioSearch(config).search(measurer, debug=lambda _: None)
    rows = []
    for number, goal in enumerate(config.goals):
        result = found[goal]
        lower, upper = result.relevant_lower_bound, result.relevant_upper_bound
        bounds = [float(it) if it else None for it in (lower, upper, result.conditional_throughput)]
        rows.append([device[0], number, *bounds, measurer.trials, measurer.seconds])
    return rows


def classify(trials, goal):
    """Returns lower bound, upper bound and conditional throughput of trials by the library's classification of loads."""
    target = TargetSpec(goal.loss_ratio, goal.exceed_ratio, None, goal.final_trial_duration, goal.duration_sum, 2, False, None)
    loads = {}
    for trial in trials:
        loads.setdefault(trial.intended_load, TargetStat(target)).add(trial)
    lower = upper = conditional = None
    for load, stat in sorted(loads.items()):
        optimistic, pessimistic = stat.estimates()
        if not optimistic:
            upper = load
            break
        if pessimistic:
            lower, conditional = load, load * (1.0 - stat.pessimistic_loss_ratio)
    return lower, upper, conditional


def number(text):
    return float(text) if text else None


def read_results(path):
    """Returns the rows of a file of results by device and goal, as numbers."""
    with open(path, newline="") as file:
        rows = [{key: number(value) for key, value in it.items()} for it in csv.DictReader(file)]
    return {(int(it["device"]), int(it["goal"])): it for it in rows}


def write(path, head, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def same(ours, theirs, share):
    """Returns whether two loads are both unknown, or differ by at most the share of the higher one."""
    if ours is None or theirs is None:
        return ours is theirs
    return abs(ours - theirs) <= share * max(ours, theirs)


def overlap(ours, theirs):
    """Returns whether the intervals of two results have a load in common; an unknown bound is no bound."""
    def ends(it):
        return it["lower"] or 0.0, it["upper"] or float("inf")

    (low, high), (low2, high2) = ends(ours), ends(theirs)
    return max(low, low2) <= min(high, high2)


def error(results, keys, devices):
    """Returns the root mean square of the distances from the middle of an interval to the load with half of the trials bad.

    In widths of the goal, over the kinds of which that load is known; None without such a device.
    """
    squares = []
    for device, goal in keys:
        _, kind, capacity, spread = devices[device]
        if kind in ("inversion", "beyond-max", "zero", "collapse"):
            continue
        # Accidents of a knee lose less than the second goal allows, so that only its capacity limits that goal.
        sharp = capacity * (1.0 + spread) if kind == "knee" and goal else capacity
        found = results[device, goal]
        middle = (found["lower"] + found["upper"]) / 2.0
        squares.append((middle * (1.0 - LOSS_RATIOS[goal]) / sharp - 1.0) ** 2 / WIDTH**2)
    return round((sum(squares) / len(squares)) ** 0.5, 2) if squares else None


def reclassify(folder, devices, ours):
    """Returns for how many devices and goals the library finds the bounds of our results in our trials."""
    trials = {}
    with open(folder / "our-trials.csv", newline="") as file:
        for it in csv.DictReader(file):
            load, seconds = float(it["load"]), float(it["seconds"])
            trial = MeasurementResult(seconds, load, offered_count=int(it["sent"]), forwarding_count=int(it["received"]))
            trials.setdefault(int(it["device"]), []).append(trial)
    equal = 0
    for device in devices:
        simulated = Device(*device)
        for trial in trials[device[0]]:
            assert simulated.measure(trial.intended_duration, trial.intended_load) == trial, f"device {device} differs"
        for index, goal in enumerate(goals()):
            row = ours[device[0], index]
            found = classify(trials[device[0]], goal)
            equal += all(same(row[key], it, 1e-9) for key, it in zip(("lower", "upper", "conditional"), found))
    return equal


def percentiles(values):
    values = sorted(values)
    return {
        "median": round(statistics.median(values), 3),
        "p90": round(values[int(0.9 * (len(values) - 1))], 3),
        "max": round(values[-1], 3),
        "total": None,
    }


def write_essence(path, devices, ours, theirs, again):
    """Writes a line per device: trials and seconds, and by how many widths our bounds are above theirs, for each goal."""
    head = ["device", "kind", "ours_trials", "theirs_trials", "again_trials", "ours_seconds"]
    bounds = [(goal, key) for goal in range(len(LOSS_RATIOS)) for key in ("lower", "upper")]
    head += [f"goal{goal}_{key}_widths" for goal, key in bounds]

    def widths(device, goal, key):
        a, b = ours[device, goal][key], theirs[device, goal][key]
        return "" if a is None or b is None else round((a / b - 1.0) / WIDTH, 2)

    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        for device, kind, *_ in devices:
            trials = [int(it[device, 0]["trials"]) for it in (ours, theirs, again)]
            offsets = [widths(device, *bound) for bound in bounds]
            writer.writerow([device, kind, *trials, ours[device, 0]["seconds"], *offsets])


def summarise(keys, ours, theirs):
    """Returns the comparison of the results for some devices and goals."""
    pairs = [(ours[key], theirs[key]) for key in keys]
    searches = [(ours[key], theirs[key]) for key in keys if key[1] == 0]

    def share(count, of):
        return round(count / len(of), 4)

    def both(a, b, width):
        return same(a["lower"], b["lower"], width) and same(a["upper"], b["upper"], width)

    def known(result):
        return result["lower"] is None, result["upper"] is None

    summary = {
        "devices": len(searches),
        "overlap": share(sum(overlap(a, b) for a, b in pairs), pairs),
        "within a width": share(sum(both(a, b, WIDTH * 1.000001) for a, b in pairs), pairs),
        "same bounds known": share(sum(known(a) == known(b) for a, b in pairs), pairs),
    }
    for name in ("trials", "seconds"):
        ratios = percentiles([a[name] / b[name] for a, b in searches])
        ratios["total"] = round(sum(a[name] for a, _ in searches) / sum(b[name] for _, b in searches), 3)
        summary[f"{name}, fewer or equal"] = share(sum(a[name] <= b[name] for a, b in searches), searches)
        summary[f"{name}, ratio"] = ratios
    return summary


def main():
    folder, program = Path(sys.argv[1]), sys.argv[2]
    folder.mkdir(parents=True, exist_ok=True)
    devices = make_devices(int(sys.argv[3]) if len(sys.argv) > 3 else 10_000)
    write(folder / "devices.csv", ["device", "kind", "capacity", "spread"], devices)
    sums = [f"loss={loss},trial=1,sum={DURATION_SUM},exceed=0.5,width={WIDTH}" for loss in LOSS_RATIOS]
    subprocess.run([program, folder, str(MIN_PPS), str(MAX_PPS), *sums], check=True)
    with multiprocessing.Pool(PROCESSES) as pool:
        for name, search in (("theirs", search_theirs), ("again", search_again)):
            found = pool.map(search, devices, chunksize=50)
            head = ["device", "goal", "lower", "upper", "conditional", "trials", "seconds"]
            write(folder / f"{name}.csv", head, [row for rows in found for row in rows])

    ours, theirs, again = (read_results(folder / f"{name}.csv") for name in ("ours", "theirs", "again"))
    write_essence(folder / "mlrsearch.csv.gz", devices, ours, theirs, again)
    keys = sorted(theirs)
    summary = {"all": summarise(keys, ours, theirs), "all, library twice": summarise(keys, again, theirs)}
    for kind in KINDS:
        of_kind = [key for key in keys if devices[key[0]][1] == kind]
        summary[kind] = summarise(of_kind, ours, theirs)
        summary[kind]["error in widths, ours and theirs"] = [error(it, of_kind, devices) for it in (ours, theirs)]
        if kind in RANDOM:
            summary[f"{kind}, library twice"] = summarise(of_kind, again, theirs)
    equal = reclassify(folder, devices, ours)
    summary["same results of the same trials"] = f"{equal} of {len(keys)}"
    text = json.dumps(summary, indent=1)
    (folder / "summary.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
