//! The tables of the benchmarks for the page and the terminal, and the lines below them on the terminal.

use super::evaluate::{
    BurstRow, Evaluation, GoalRow, InsideRow, LatencyRow, LossRow, QUANTILES, SizeRow,
    ThroughputRow, named_size, percentile,
};
use super::results::Soak;
use taut_bench::benchmark::tables::{self, Cell, Table, plain};
use taut_bench::report::causes;
use taut_measure::quantity::{count, rate, share, three_digits, time};
use taut_measure::{BURST_PRECISION, Interval, Limit};
use taut_model::Cause;

/// The explanation of the latency of the device alone.
pub(super) const DEVICE_ONLY: &str = "Device only: between the wires on both sides of the device, as a tap saw it. \
    The rest of the latency is the generator's: handing frames to the kernel, being woken, its receive ring.";

/// The explanation of the throughput's columns.
const RATES: &str = "Less loss: the throughput without the loss that was tolerated. L2 rate: bits of the frames. L1 rate: with the \
    20 bytes of preamble and gap that Ethernet adds to each frame.";
/// The explanation of the rates at which loss was measured.
const LOSS_RATES: &str =
    "Loss at: percentages of the highest rate that the generator can offer; a line may carry more.";

/// Returns all tables for the page.
pub(super) fn all(evaluation: &Evaluation<'_>) -> Vec<Table> {
    let [throughput, goals, latency, loss, bursts, soak] = of_figures(evaluation);
    vec![
        throughput,
        goals,
        latency,
        causes(&evaluation.rows),
        loss,
        bursts,
        soak,
    ]
}

/// Returns the tables for a terminal with `width` columns, and the lines below them.
pub(super) fn text(evaluation: &Evaluation<'_>, width: Option<usize>) -> String {
    let mut out = vec![tables::text(&of_figures(evaluation), width)];
    let loads = || {
        let rows = evaluation.rows.iter();
        rows.flat_map(|row| row.latency.iter().map(move |load| (&row.size, load)))
    };
    if loads().any(|(_, load)| load.inside.is_some()) {
        out.push(DEVICE_ONLY.to_string());
    }
    out.extend(explanations(&evaluation.rows).map(str::to_string));
    for (size, load) in loads() {
        out.extend(load.slowest.as_ref().map(|slowest| {
            let rate = rate(load.rate_pps);
            format!("slowest of {size} at {rate}: {}", slowest.line())
        }));
    }
    out.iter()
        .map(|part| part.trim_end())
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// Returns the explanations of the tables of throughput and loss that have rows.
fn explanations(rows: &[SizeRow]) -> impl Iterator<Item = &'static str> {
    let throughput = rows.iter().any(|row| row.throughput.is_some());
    let loss = rows.iter().any(|row| !row.loss.is_empty());
    let throughput = throughput.then_some(RATES);
    throughput.into_iter().chain(loss.then_some(LOSS_RATES))
}

fn of_figures(evaluation: &Evaluation<'_>) -> [Table; 6] {
    let rows = &evaluation.rows;
    let soak = evaluation.results.soak.as_ref();
    [
        throughput(evaluation),
        goals(rows),
        latency(rows),
        loss(rows),
        bursts(evaluation),
        soak.map(of_soak).unwrap_or_default(),
    ]
}

fn words(words: &str) -> Vec<String> {
    words.split('|').map(str::to_string).collect()
}

/// Formats a bit rate in Gbit/s.
pub(super) fn gigabits(bits: f64) -> String {
    format!("{} Gbit/s", three_digits(bits / 1e9))
}

/// Formats the interval of the repetitions' median in the unit of `show`; empty for a single repetition.
fn interval(interval: Option<&Interval>, show: fn(f64) -> String) -> String {
    interval
        .filter(|i| i.count > 1)
        .map_or(String::new(), |i| i.short(show))
}

fn throughput(evaluation: &Evaluation<'_>) -> Table {
    let is_busy = evaluation.is_busy();
    let limit = |t: &ThroughputRow| match t.limited_by {
        Limit::Device if is_busy && t.mean_pps > 0.0 => "the device, or other programs".to_owned(),
        _ => t.limit().to_owned(),
    };
    let cells = |row: &SizeRow| {
        let t = row.throughput.as_ref()?;
        let none_held = match t.none_held {
            some if some > 0 && t.mean_pps > 0.0 => {
                format!("no rate held in {some} of {}", t.repetitions)
            }
            _ => String::new(),
        };
        Some(vec![
            plain(&row.size),
            [rate(t.mean_pps), interval(t.interval.as_ref(), rate)],
            plain(rate(t.min_pps)),
            plain(rate(t.max_pps)),
            plain(rate(t.conditional_pps)),
            plain(gigabits(t.layer2_bits)),
            plain(gigabits(t.layer1_bits)),
            [limit(t), none_held],
        ])
    };
    let few = if evaluation.results.head.settings.repetitions < 6 {
        "; fewer than six repetitions have their range"
    } else {
        ""
    };
    Table {
        title: "Throughput".to_string(),
        caption: format!(
            "Mean over the repetitions, those in which no rate held as 0. Small: the interval of the median repetition, and \
             how often such an interval covers it{few}. {RATES}"
        ),
        head: words("frame|throughput|lowest|highest|less loss|L2 rate|L1 rate|limited by"),
        rows: evaluation.rows.iter().filter_map(cells).collect(),
        least_important: vec![4, 6, 5, 2, 3],
        ..Table::default()
    }
}

/// Returns the table of the goals of MLRsearch, if there are several.
fn goals(rows: &[SizeRow]) -> Table {
    let several = rows.iter().filter_map(|row| {
        let found = row.throughput.as_ref()?;
        (found.goals.len() > 1).then_some((&row.size, found))
    });
    let cells = |(size, found): (&String, &ThroughputRow)| {
        let size = size.clone();
        let load = |load: Option<f64>| plain(load.map_or_else(|| "–".to_owned(), rate));
        let of_goal = move |row: &GoalRow| {
            let goal = &row.goal;
            vec![
                plain(&size),
                plain(share(goal.loss_ratio)),
                plain(share(goal.exceed_ratio)),
                plain(time(goal.final_trial_duration * 1e9)),
                plain(time(goal.duration_sum * 1e9)),
                plain(share(goal.width)),
                load(row.relevant_lower_bound),
                load(row.relevant_upper_bound),
                load(row.conditional_throughput),
                plain(format!("{} of {}", row.regular, found.repetitions)),
            ]
        };
        found.goals.iter().map(of_goal).collect::<Vec<_>>()
    };
    Table {
        title: "Goals".to_string(),
        caption: "Medians over the repetitions, by the names of RFC 9971. A result is regular if both bounds are known and at most \
             the width apart."
            .to_string(),
        head: words(
            "frame|loss ratio|exceed ratio|final trial|duration sum|width|relevant lower bound|relevant upper bound|conditional \
             throughput|regular",
        ),
        rows: several.flat_map(cells).collect(),
        least_important: vec![4, 3, 5, 2, 8],
        ..Table::default()
    }
}

fn latency(rows: &[SizeRow]) -> Table {
    let mut head = words("frame|rate|packets|lost|mean");
    head.extend(QUANTILES.map(percentile));
    head.push("max".to_string());
    let cells = |row: &SizeRow| {
        let of_load = |load: &LatencyRow| {
            let device_only = load.inside.as_ref().map(inside_cells);
            std::iter::once(load_cells(&row.size, load)).chain(device_only)
        };
        row.latency.iter().flat_map(of_load).collect::<Vec<_>>()
    };
    Table {
        title: "Latency".to_string(),
        caption: "Every packet, all repetitions together. Small: the interval of the median repetition’s own percentile, as \
                  only repetitions are independent of each other: what disturbs a packet disturbs its neighbours. The \
                  percentile of all packets lies above it where few repetitions made the tail. –: fewer than ten packets lie \
                  beyond the percentile."
            .to_string(),
        head,
        rows: rows.iter().flat_map(cells).collect(),
        sentences: Vec::new(),
        least_important: vec![4, 2, 6, 8, 10],
        brief_from: Some(2),
    }
}

fn load_cells(size: &str, load: &LatencyRow) -> Vec<Cell> {
    let share_of = load.share.map_or(String::new(), |_| load.load());
    let mut cells = vec![
        plain(size),
        [rate(load.rate_pps), share_of],
        plain(count(load.packets)),
        plain(share(load.loss)),
    ];
    if load.packets == 0 {
        cells.push(plain("no data"));
        cells.resize(6 + QUANTILES.len(), plain(""));
        return cells;
    }
    cells.push(time_or_none(load.mean_ns));
    cells.extend(load.quantiles.iter().map(|q| {
        let [value, _] = time_or_none(q.ns);
        [value, interval(q.interval.as_ref(), time)]
    }));
    cells.push(time_or_none(load.max_ns.map(|ns| ns as f64)));
    cells
}

fn inside_cells(inside: &InsideRow) -> Vec<Cell> {
    let lost = match inside.missed {
        0 => share(inside.loss),
        // Packets that the wiretap missed would count as lost, so the loss ratio is unknown.
        _ => "n/a".to_owned(),
    };
    let packets = count(inside.packets);
    let mut cells = [String::new(), "device only".to_owned(), packets, lost]
        .map(plain)
        .to_vec();
    cells.push(time_or_none(inside.mean_ns));
    cells.extend(inside.quantiles.iter().map(|q| time_or_none(q.ns)));
    cells.push(time_or_none(inside.max_ns.map(|ns| ns as f64)));
    cells
}

fn time_or_none(ns: Option<f64>) -> Cell {
    plain(ns.map_or("–".to_string(), time))
}

/// Returns the table of causes: the minimum latency of the slowest packets, their number, and the fraction of each
/// cause.
fn causes(rows: &[SizeRow]) -> Table {
    let cells = |row: &SizeRow| {
        let loads = row.latency.iter().filter_map(|load| {
            let slowest = load.slowest.as_ref()?;
            let above = time(slowest.above_ns);
            let mut cells = [row.size.clone(), rate(load.rate_pps), above]
                .map(plain)
                .to_vec();
            cells.extend(causes::cells(&slowest.causes).into_iter().map(plain));
            Some(cells)
        });
        loads.collect::<Vec<_>>()
    };
    let mut head = words("frame|rate|from|packets");
    head.extend(Cause::ALL.map(|cause| cause.name().to_string()));
    Table {
        title: "What the slowest packets waited for".to_string(),
        caption: "One packet in a thousand of each trial, 4096 at most: those that took longest. Generator and taut forward \
                  note each time their loop was held up for more than 1 µs and four times what its rounds take. A packet is \
                  explained if such times, while it was under way, make up half or more of what it took above the median. \
                  Other devices do not tell: what their own core lost shows as unexplained."
            .to_string(),
        head,
        rows: rows.iter().flat_map(cells).collect(),
        ..Table::default()
    }
}

/// Returns the table of loss ratios. Its rows are the offered rates, in percent of the highest, at which loss was
/// measured.
fn loss(rows: &[SizeRow]) -> Table {
    let curves = rows.iter().map(|row| row.loss.as_slice());
    let longest = curves.max_by_key(|loss| loss.len()).unwrap_or_default();
    let most = longest.first().map_or(1.0, |point| point.offered_pps);
    let step = |point: &LossRow| {
        let step = format!("{:.3}", 100.0 * point.offered_pps / most);
        format!("{} %", step.trim_end_matches('0').trim_end_matches('.'))
    };
    let cells = |row: &SizeRow| {
        let mut cells = vec![plain(&row.size)];
        cells.extend(row.loss.iter().map(|point| {
            let behind = if point.generator_behind { "*" } else { "" };
            let lost = format!("{}{behind}", share(point.loss[1]));
            [lost, rate(point.offered_pps)]
        }));
        cells.resize(longest.len() + 1, plain(""));
        cells
    };
    let mut head = words("frame, loss at");
    head.extend(longest.iter().map(step));
    Table {
        title: "Loss".to_string(),
        caption: "Share lost at shares of the most that the generator can offer, until two in a row lose nothing; small: the \
                  rate. Medians over the repetitions. *: the generator fell behind and offered less than that in one \
                  repetition at least; the share is of what it did offer."
            .to_string(),
        head,
        rows: rows.iter().filter(|row| !row.loss.is_empty()).map(cells).collect(),
        // The highest rates are omitted first: the columns at the rates where the losses end are the most important.
        least_important: (1..longest.len()).collect(),
        ..Table::default()
    }
}

fn bursts(evaluation: &Evaluation<'_>) -> Table {
    let settings = &evaluation.results.head.settings;
    let cells = |row: &SizeRow| {
        let b = row.back_to_back.as_ref()?;
        let mut cells = vec![
            plain(&row.size),
            [
                count(b.mean.round() as u64),
                interval(b.interval.as_ref(), |packets| count(packets.round() as u64)),
            ],
            plain(count(b.min)),
            plain(count(b.max)),
            plain(three_digits(b.deviation)),
            plain(rate(b.burst_pps)),
        ];
        cells.extend(buffer(b, row.throughput.is_some()).map(plain));
        Some(cells)
    };
    Table {
        title: "Back-to-back frames".to_string(),
        caption: format!(
            "Average over {} searches (RFC 9004 section 6.3), each by bisection with loss verification to within {} of the \
             length, bursts of {} at most, 20 ms of silence between them. Deviation: standard deviation, in packets. Implied: \
             how long the average burst lasts at the rate at which it was handed over; there is no line whose highest frame \
             rate could stand for it. Corrected: implied × (1 − throughput / burst rate), as what the device forwards while \
             the burst comes in is not in its buffer (section 6.4).",
            settings.bursts,
            share(BURST_PRECISION),
            time(settings.longest_burst_seconds * 1e9)
        ),
        head: words(
            "frame|longest burst (packets)|shortest|longest|deviation|burst rate|buffer, implied|buffer, corrected|packets",
        ),
        rows: evaluation.rows.iter().filter_map(cells).collect(),
        least_important: vec![4, 2, 3, 6, 5],
        ..Table::default()
    }
}

/// Returns the cells about the size of the device's buffer: two durations and a number of packets. The cells are empty
/// without a throughput.
fn buffer(bursts: &BurstRow, has_throughput: bool) -> [String; 3] {
    match bursts.buffer {
        Some(buffer) => [
            time(buffer.implied_seconds * 1e9),
            time(buffer.corrected_seconds * 1e9),
            count(buffer.corrected_packets.round() as u64),
        ],
        None if bursts.unlimited > 0 => ["longest burst reached", "–", "–"].map(str::to_owned),
        None if has_throughput => ["never filled", "–", "–"].map(str::to_owned),
        None => ["–"; 3].map(str::to_owned),
    }
}

fn of_soak(soak: &Soak) -> Table {
    let counts = &soak.counts;
    let lost = counts.sent.saturating_sub(counts.received);
    let latency = soak.latency.as_ref().map_or("no data".to_string(), |l| {
        let value = |ns: Option<u64>| ns.map_or("–".to_string(), |ns| time(ns as f64));
        format!(
            "p50 {} · p99 {} · p99.9 {} · p99.99 {} · max {}",
            value(l.p50_ns),
            value(l.p99_ns),
            value(l.p99_9_ns),
            value(l.p99_99_ns),
            time(l.max_ns as f64)
        )
    });
    let rows = [
        ("rate", rate(counts.offered_pps)),
        ("duration", format!("{} s", three_digits(counts.seconds))),
        ("sent", count(counts.sent)),
        (
            "lost on the way",
            format!("{} ({})", count(lost), share(counts.loss())),
        ),
        ("refused by a full ring", count(counts.refused)),
        ("never sent", count(counts.unsent)),
        ("duplicate", count(counts.duplicate)),
        ("reordered", count(counts.reordered)),
        ("latency", latency),
    ];
    Table {
        title: "Soak".to_string(),
        head: vec!["soak".to_string(), named_size(&soak.size)],
        rows: rows
            .map(|(name, value)| vec![plain(name), plain(value)])
            .to_vec(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::made_up;
    use super::super::results::Results;
    use super::*;
    use taut_results::Completion;

    #[test]
    fn the_terminal_prints_all_tables_and_omits_columns_when_narrow() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let results = Results::load(&dir).unwrap();
        let evaluation = Evaluation::of(&results);
        let titles: Vec<String> = all(&evaluation)
            .into_iter()
            .map(|table| table.title)
            .collect();
        assert_eq!(titles.len(), 7);
        let wide = text(&evaluation, None);
        for part in [
            "no data",
            "100 kpkt/s (10 % of throughput)",
            "75.0 % (4.00 Mpkt/s)",
            "soak  ",
            "slowest of 64 at 900 kpkt/s: 4 packets from 1.59 µs on: device's core: timer tick 50.0 %",
        ] {
            assert!(wide.contains(part), "{part} in {wide}");
        }
        assert!(wide.contains(RATES) && wide.contains(LOSS_RATES), "{wide}");
        let narrow = text(&evaluation, Some(60));
        assert!(
            narrow.contains("left out for want of width: less loss"),
            "{narrow}"
        );
    }

    #[test]
    fn the_buffer_is_unknown_if_no_burst_overflowed_it() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let results = Results::load(&dir).unwrap();
        let evaluation = Evaluation::of(&results);
        let mut bursts = evaluation.rows[0].back_to_back.clone().unwrap();
        assert_eq!(buffer(&bursts, true)[0], "1.00 ms");
        bursts.buffer = None;
        assert_eq!(buffer(&bursts, false)[0], "–");
        assert_eq!(buffer(&bursts, true)[0], "never filled");
        bursts.unlimited = 1;
        assert_eq!(buffer(&bursts, true)[0], "longest burst reached");
    }
}
