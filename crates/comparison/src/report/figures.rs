//! The report's figures: the evaluated data for each plot, and the caption.

use super::causes::aliasing;
use crate::evaluate::{Device, Evaluation, Spread};
use taut_bench::evaluate::Timeline;
use taut_bench::report::{Drawn, causes};
use taut_figure::{
    Column, Distribution, Item, Series, Style, bars, cdf, histogram, jitter, load, percentiles,
    timeline,
};
use taut_measure::quantity::{Quantity, count, rate};
use taut_model::Cause;
use taut_results::{Kind, Transport};

/// Draws all figures in the order of the report.
pub fn draw(evaluation: &Evaluation) -> Vec<Drawn> {
    let groups = groups(&evaluation.devices);
    let samples = sample_counts(&groups);
    let repetitions = evaluation
        .devices
        .iter()
        .map(|device| device.cbr.len())
        .max()
        .unwrap_or(0);
    let over = format!(
        "{repetitions} {}",
        if repetitions == 1 {
            "repetition"
        } else {
            "repetitions"
        }
    );
    let timelines = evaluation.devices.iter().map(|device| &device.timeline);
    let causes = causes::keys(timelines.flat_map(|timeline| timeline.causes.iter().copied()));
    let mut figures = vec![
        latency_histogram(&groups, &samples),
        latency_percentiles(&groups, &samples),
        latency_cdf(&groups, &samples),
        latency_over_time(&groups, &causes, &samples, repetitions),
        successive_latencies(&groups, &over),
        latency_over_rate(&groups, &over),
        loss_free_rates(&groups, &over),
    ];
    figures.extend(aliasing(evaluation));
    figures
}

/// Returns the figure of the distribution of latency of each device.
fn latency_histogram(groups: &[Group<'_>], samples: &str) -> Drawn {
    Drawn {
        name: "histogram",
        title: "Latency histogram per device",
        caption: format!(
            "A device that holds packets for a full buffer or a drain timer spreads latency up to the timer; one that sends \
             at once has a narrow spike. Each panel has its own vertical scale; the triangle marks the largest latency. \
             32 bins per decade, {samples}."
        ),
        svg: histogram::draw(&columns(groups, |device| Item {
            series: series(device),
            values: Distribution::Latency(&device.latency),
        })),
        data: None,
    }
}

/// Returns the figure of latency by percentile.
fn latency_percentiles(groups: &[Group<'_>], samples: &str) -> Drawn {
    Drawn {
        name: "percentiles",
        title: "Latency by percentile",
        caption: format!(
            "Each nine has equal room, so the right half of each panel is the slowest percent of packets. Lines are dotted where \
             fewer than ten packets lie beyond: there single packets decide. {samples}."
        ),
        svg: percentiles::draw(&columns(groups, |device| Item {
            series: series(device),
            values: Distribution::Latency(&device.latency),
        })),
        data: None,
    }
}

/// Returns the figure of the cumulative distribution of latency.
fn latency_cdf(groups: &[Group<'_>], samples: &str) -> Drawn {
    Drawn {
        name: "cdf",
        title: "Cumulative distribution of latency",
        caption: format!("The share of packets that took at most so long. {samples}."),
        svg: cdf::draw(&columns(groups, |device| Item {
            series: series(device),
            values: Distribution::Latency(&device.latency),
        })),
        data: None,
    }
}

/// Returns the figure of the highest latencies over time, coloured by `causes`.
fn latency_over_time(
    groups: &[Group<'_>],
    causes: &[Series],
    samples: &str,
    repetitions: usize,
) -> Drawn {
    Drawn {
        name: "timeline",
        title: "Latency over time",
        caption: format!(
            "Coloured: each device's 5000 highest latencies, by what they waited for where that is known; grey: up to 2000 packets drawn evenly from all. Straight slanted or level rows \
             of worst packets point to periodic interruptions of the machine. Dotted verticals divide the repetitions, of which there are \
             {repetitions}; the time between them is left out. {samples}."
        ),
        svg: timeline::draw(
            &columns(groups, |device| timeline::Item {
                series: series(device),
                worst: causes::by_cause(&worst(device), Style::of(device.index)),
                background: &device.timeline.background,
                ends: &device.timeline.ends,
                timer: device
                    .info
                    .flush_wait_ns
                    .map(|ns| ("flush timer", ns as f64)),
            }),
            &causes.iter().collect::<Vec<_>>(),
        ),
        data: None,
    }
}

/// Returns the figure of the differences between the latencies of successive packets.
fn successive_latencies(groups: &[Group<'_>], over: &str) -> Drawn {
    Drawn {
        name: "jitter",
        title: "Jitter per device",
        caption: format!(
            "The absolute difference of the latencies of successive packets (RFC 4689), all packets of {over}; \
             pairs broken by a lost packet are left out."
        ),
        svg: jitter::draw(&columns(groups, |device| jitter::Item {
            series: series(device),
            jitter: &device.jitter,
        })),
        data: None,
    }
}

/// Returns the figure of latency over the offered rate.
fn latency_over_rate(groups: &[Group<'_>], over: &str) -> Drawn {
    Drawn {
        name: "load",
        title: "Latency over offered rate",
        caption: format!(
            "Lines join the medians over {over}. Where the offered rate passes what a device can forward, its queues fill and latency \
             jumps to the time a full queue takes. Trials in which the generator itself fell behind are left out."
        ),
        svg: load::draw(&columns(groups, |device| load::Item {
            series: series(device),
            points: device
                .load
                .iter()
                .map(|point| load::Point {
                    sent_pps: point.sent_pps,
                    avg_ns: triple(&point.avg_ns),
                    max_ns: triple(&point.max_ns),
                    loss: point.loss,
                })
                .collect(),
            loss_free_pps: device.loss_free_spread().map(|spread| spread.median),
        })),
        data: None,
    }
}

/// Returns the figure of the highest loss-free rate of each device.
fn loss_free_rates(groups: &[Group<'_>], over: &str) -> Drawn {
    Drawn {
        name: "throughput",
        title: "Highest loss-free rate",
        caption: format!(
            "The highest offered rate at which every packet came back. Bars: median of {over}; whiskers: smallest and largest. \
             “≥”: the search ended at what the generator could offer or was asked to offer, so the device may be faster."
        ),
        svg: bars::draw(
            &bars::Figure {
                name: "throughput",
                title: "Highest loss-free rate per device",
                x_title: "highest loss-free rate (packets/s)",
                quantity: Quantity::RatePps,
                logarithmic: false,
                text: rate,
            },
            &columns(groups, |device| bars::Item {
                series: series(device),
                spread: device
                    .loss_free_spread()
                    .as_ref()
                    .map(triple)
                    .ok_or_else(|| "no loss-free rate found".to_string()),
                at_least: device
                    .limited_by
                    .iter()
                    .any(|limit| *limit != taut_measure::Limit::Device),
            }),
        ),
        data: None,
    }
}

/// Returns a device's slowest packets with their causes.
fn worst(device: &Device) -> Vec<((f64, f64), Option<Cause>)> {
    let Timeline { worst, causes, .. } = &device.timeline;
    worst.iter().copied().zip(causes.iter().copied()).collect()
}

struct Group<'a> {
    heading: &'static str,
    devices: Vec<&'a Device>,
}

/// Groups forwarders by the technology of their transport; calibrations have a table of their own. There are at most
/// two columns, because more would leave no space for labels.
fn groups(devices: &[Device]) -> Vec<Group<'_>> {
    let of = |transports: &[Transport]| -> Vec<&Device> {
        let forwarders = devices.iter().filter(|d| d.info.kind == Kind::Forwarder);
        forwarders
            .filter(|device| transports.contains(&device.info.transport))
            .collect()
    };
    let shared_memory = if of(&[Transport::Vhost]).is_empty() {
        "memif (shared memory)"
    } else {
        "shared memory (memif, vhost-user)"
    };
    [
        (
            &[Transport::Memif, Transport::Vhost] as &[Transport],
            shared_memory,
        ),
        (&[Transport::Veth], "veth (through the kernel)"),
    ]
    .into_iter()
    .map(|(transports, heading)| Group {
        heading,
        devices: of(transports),
    })
    .filter(|group| !group.devices.is_empty())
    .collect()
}

fn columns<'a, T>(groups: &[Group<'a>], item: impl Fn(&'a Device) -> T) -> Vec<Column<T>> {
    groups
        .iter()
        .map(|group| Column {
            heading: group.heading.to_owned(),
            items: group.devices.iter().map(|device| item(device)).collect(),
        })
        .collect()
}

fn series(device: &Device) -> Series {
    Series {
        label: match device.info.transport {
            // Devices over memif have the same names, so the transport is added.
            Transport::Vhost => format!("{} (vhost)", device.info.label),
            Transport::Memif | Transport::Veth => device.info.label.clone(),
        },
        style: Style::of(device.index),
    }
}

fn triple(spread: &Spread) -> [f64; 3] {
    [spread.min, spread.median, spread.max]
}

fn sample_counts(groups: &[Group<'_>]) -> String {
    let counts: Vec<u64> = groups
        .iter()
        .flat_map(|group| &group.devices)
        .map(|device| device.latency.count())
        .collect();
    match (counts.iter().min(), counts.iter().max()) {
        (Some(least), Some(most)) if least == most => {
            format!("n = {} packets per device", count(*most))
        }
        (Some(least), Some(most)) => format!(
            "n = {} to {} packets per device",
            count(*least),
            count(*most)
        ),
        _ => "n = 0".to_owned(),
    }
}
