//! The report of a folder of `taut probe client --out`: counts, round trips, and round trips over time.

use super::ProbeReport;
use askama::Template;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::{Shell, ended_early, write_page};
use taut_bench::evaluate::{Collector, Timeline};
use taut_bench::report::{Drawn, ReportError, flatten, histogram};
use taut_figure::cdf::{self, Share};
use taut_figure::{Axis, Chart, Column, Distribution, Item, Series, Style, timeline};
use taut_host::CpuShare;
use taut_measure::quantity::{Quantity, count, share, time};
use taut_measure::{LatencyHistogram, Summary};
use taut_results::{LeftOut, RECORDED_LATENCIES, each_kept_sample, read_json};

#[derive(Template)]
#[template(path = "probe_results/probed.html")]
struct Page<'a> {
    shell: Shell<'a>,
    counts: Vec<(&'static str, String)>,
    times: Vec<(&'static str, Vec<String>)>,
    facts: Vec<(&'static str, String)>,
    cpu_names: [&'static str; 7],
    cpus: Vec<(String, Vec<String>)>,
}

/// The contents of a folder's files other than its summary.
struct Kept {
    rtt: LatencyHistogram,
    /// The round trips over time; none if no samples were stored.
    timeline: Option<Timeline>,
    left_out: Vec<LeftOut>,
    problems: Vec<String>,
}

/// Returns true if a folder was written by `taut probe client --out`.
pub fn is_probed(dir: &Path) -> bool {
    read_json::<ProbeReport>(dir, "summary.json").is_ok()
}

/// Writes `figures/` and `report.html` into the folder `dir` of `taut probe client --out`, made from the files there.
/// Returns the path of the page; earlier files are replaced.
///
/// # Errors
/// Returns an error if the folder cannot be read or written.
pub fn write(dir: &Path) -> Result<PathBuf, ReportError> {
    let report: ProbeReport = read_json(dir, "summary.json")?;
    let kept = Kept::read(dir, &report);
    let figures = draw(&report, &kept);
    let page = page(&report, &kept, &figures).render()?;
    write_page(dir, &figures, &page)
}

impl Kept {
    fn read(dir: &Path, report: &ProbeReport) -> Self {
        let mut problems = Vec::new();
        let mut left_out = Vec::new();
        if report.origin.stopped {
            left_out.push(LeftOut {
                what: "The rest of the probes".to_owned(),
                why: "it ended early".to_owned(),
                how: "run it again".to_owned(),
            });
        }
        let rtt = match report.probes.received {
            // No histogram log is written if no reply was received.
            0 => LatencyHistogram::new(),
            _ => histogram(dir, RECORDED_LATENCIES).unwrap_or_else(|e| {
                problems.push(e);
                LatencyHistogram::new()
            }),
        };
        let mut collector = Collector::new(report.samples.unwrap_or(0));
        let timeline = match each_kept_sample(dir, "", |sample| collector.record(sample, None)) {
            Ok(true) => Some(collector.finish()),
            Ok(false) if report.samples.is_some() => {
                problems.push(format!("{}: the samples are gone", dir.display()));
                None
            }
            Ok(false) => {
                left_out.push(LeftOut {
                    what: "Round trips over time".to_owned(),
                    why: "no samples were kept".to_owned(),
                    how: "leave --samples none out".to_owned(),
                });
                None
            }
            Err(e) => {
                problems.push(e.to_string());
                None
            }
        };
        Self {
            rtt,
            timeline,
            left_out,
            problems,
        }
    }
}

fn page<'a>(report: &'a ProbeReport, kept: &'a Kept, figures: &'a [Drawn]) -> Page<'a> {
    let origin = &report.origin;
    let version = origin.versions["taut"].as_str().unwrap_or("unknown");
    let cpus = report.cpu.iter().flat_map(|cpu| {
        let each = cpu.cpus.iter();
        let each = each.map(|(number, share)| (number.to_string(), cpu_cells(share)));
        std::iter::once(("all".to_owned(), cpu_cells(&cpu.all))).chain(each)
    });
    Page {
        shell: Shell {
            title: format!("Round trips to {}", report.server),
            subtitle: format!(
                "{} · probes of {} bytes, {} apart · taut {version}",
                origin.started,
                report.size_bytes,
                time(report.interval_ns as f64)
            ),
            busy: None,
            state: origin.stopped.then(ended_early),
            finding: finding(report),
            figures,
            noise: &[],
            left_out: &kept.left_out,
            failed_attempts: &[],
            problems: &kept.problems,
            machine: flatten(&origin.versions),
            command_line: &origin.command_line,
        },
        counts: counts(report),
        times: vec![
            ("round trip", time_cells(report.rtt_ns.as_ref())),
            ("wake-up", time_cells(report.wake_up_ns.as_ref())),
            ("from due", time_cells(report.rtt_from_intended_ns.as_ref())),
            ("send delay", time_cells(report.send_delay())),
        ],
        facts: facts(report),
        cpu_names: ["user", "system", "irq", "softirq", "steal", "guest", "idle"],
        cpus: cpus.collect(),
    }
}

fn finding(report: &ProbeReport) -> String {
    let lost = share(report.lost_share.unwrap_or(0.0));
    let Some(rtt) = &report.rtt_ns else {
        return "Nothing came back.".to_owned();
    };
    let mean = mean(report).unwrap_or_else(|| time(rtt.avg_ns));
    let within = report.budget.map_or(String::new(), |budget| {
        let within = time(budget.ns as f64);
        format!("; {} came back within {within}", share(budget.share))
    });
    format!("The mean round trip was {mean}{within}; {lost} of the probes were lost.")
}

/// Returns the text for the mean of the repetitions' means, with the confidence interval of the median of these means;
/// none without replies.
fn mean(report: &ProbeReport) -> Option<String> {
    let mean = report.rtt_mean_ns?;
    Some(format!(
        "{} (median repetition: {})",
        time(mean.point),
        mean.words(time)
    ))
}

fn counts(report: &ProbeReport) -> Vec<(&'static str, String)> {
    let probes = &report.probes;
    let counts = [
        ("sent", probes.sent),
        ("received", probes.received),
        ("lost", probes.lost),
        ("duplicate", probes.duplicate),
        ("reordered", probes.reordered),
        ("late", probes.late),
        ("malformed", probes.malformed),
        ("refused", probes.refused),
        ("unreachable", probes.unreachable),
    ];
    counts.map(|(name, value)| (name, count(value))).into()
}

fn time_cells(summary: Option<&Summary>) -> Vec<String> {
    let ns = |ns: Option<u64>| ns.map_or("–".to_owned(), |ns| time(ns as f64));
    let Some(of) = summary else {
        return vec!["–".to_owned(); 7];
    };
    vec![
        ns(Some(of.min_ns)),
        time(of.avg_ns),
        ns(of.p50_ns),
        ns(of.p99_ns),
        ns(of.p99_9_ns),
        ns(of.p99_99_ns),
        ns(Some(of.max_ns)),
    ]
}

fn facts(report: &ProbeReport) -> Vec<(&'static str, String)> {
    let mut facts = vec![(
        "mean of the repetitions’ means",
        mean(report).unwrap_or("– (takes two repetitions)".to_owned()),
    )];
    if let Some(budget) = &report.budget {
        let within = format!(
            "{:.3} % of those sent within {}",
            budget.share * 100.0,
            time(budget.ns as f64)
        );
        facts.push(("within the budget", within));
    }
    let wake_up = report.wake_up_ns.as_ref().zip(report.rtt_ns.as_ref());
    if let Some((wake_up, rtt)) = wake_up.filter(|(_, rtt)| rtt.avg_ns > 0.0) {
        let part = share(wake_up.avg_ns / rtt.avg_ns);
        facts.push(("of the mean round trip, the client’s wake-up", part));
    }
    facts.push(("lost", share(report.lost_share.unwrap_or(0.0))));
    if let Some(own) = report.cpu.as_ref().and_then(|cpu| cpu.own) {
        facts.push(("of the processors, this client", share(own)));
    }
    facts
}

fn cpu_cells(cpu: &CpuShare) -> Vec<String> {
    let shares = [
        cpu.user,
        cpu.system,
        cpu.irq,
        cpu.softirq,
        cpu.steal,
        cpu.guest,
        cpu.idle,
    ];
    shares.map(|share| format!("{:.1} %", share * 100.0)).into()
}

fn series(report: &ProbeReport) -> Series {
    Series {
        label: format!("{} bytes to {}", report.size_bytes, report.server),
        style: Style::of(0),
    }
}

fn draw(report: &ProbeReport, kept: &Kept) -> Vec<Drawn> {
    let distribution = (kept.rtt.count() > 0).then(|| distribution(report, &kept.rtt));
    let over_time = kept.timeline.as_ref();
    let over_time = over_time.map(|timeline| over_time_of(report, timeline));
    distribution.into_iter().chain(over_time).collect()
}

fn distribution(report: &ProbeReport, rtt: &LatencyHistogram) -> Drawn {
    let chart = Chart::new(
        "probe",
        "Cumulative distribution of round trips",
        "Share of answered probes with at most a given round trip.",
    );
    let axis = Axis {
        title: "round trip",
        quantity: Quantity::TimeNs,
        log: true,
    };
    let item = Item {
        series: series(report),
        values: Distribution::Latency(rtt),
    };
    Drawn {
        name: "cdf",
        title: "Round trips",
        caption: format!("{} probes.", count(rtt.count())),
        svg: cdf::chart(&chart, axis, Share::AtMost, "probes", &[item], &[]),
        data: None,
    }
}

fn over_time_of(report: &ProbeReport, found: &Timeline) -> Drawn {
    let own = series(report);
    let budget_ns = report.budget.map(|budget| budget.ns as f64);
    let (what, worst) = match budget_ns {
        Some(budget_ns) => {
            let beyond = found.worst.iter().filter(|(_, ns)| *ns > budget_ns);
            ("beyond the budget", beyond.copied().collect())
        }
        None => ("one of the slowest", found.slowest(report.probes.received)),
    };
    let key = Series {
        label: what.to_owned(),
        style: Style::of(0),
    };
    let caption = format!(
        "Some of the probes in grey, over the time at which they were due; in colour {}. Lost ones have no round trip.",
        match budget_ns {
            Some(_) => "those that took longer than the budget, the slowest 5000 at most",
            None => "the slowest, one in a thousand",
        }
    );
    let item = timeline::Item {
        series: own,
        worst: vec![(key.clone(), worst)],
        background: &found.background,
        ends: &found.ends,
        timer: budget_ns.map(|ns| ("budget", ns)),
    };
    let column = Column {
        heading: String::new(),
        items: vec![item],
    };
    Drawn {
        name: "timeline",
        title: "Round trips over time",
        caption,
        svg: timeline::draw(&[column], &[&key]),
        data: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::{TRAIN, train};
    use super::super::{ProbeAccount, ProbeFolder};
    use super::*;
    use std::time::{Duration, SystemTime};
    use taut_host::CpuShares;
    use taut_results::Origin;
    use taut_results::PacketFormat;

    /// Fills a folder with the results of two repetitions, of which one lost a probe, and returns the path of the page.
    fn filled(dir: &Path, format: Option<PacketFormat>, budget_us: Option<u64>) -> PathBuf {
        let mut folder = ProbeFolder::create(dir, format).unwrap();
        let mut account = ProbeAccount::new(budget_us.map(Duration::from_micros));
        for round_trips in [
            [Some(100), None, Some(120)],
            [Some(300), Some(50), Some(90)],
        ] {
            let train = train(&round_trips);
            account.add(&train);
            folder.write(&train);
        }
        let cpu = CpuShares {
            seconds: 1.0,
            all: CpuShare {
                idle: 1.0,
                ..CpuShare::default()
            },
            cpus: Vec::new(),
            own: Some(0.25),
        };
        let origin = Origin {
            started: "2026-11-21T08:15:00Z".to_owned(),
            command_line: "taut probe client <x>".to_owned(),
            versions: serde_json::json!({"taut": "0", "kernel": "1"}),
            stopped: true,
        };
        let server = "192.0.2.1:9".parse().unwrap();
        let mut report = account.report(server, &TRAIN, Some(cpu), origin);
        let length = Duration::from_secs(1);
        folder
            .finish(&mut report, account.rtt(), SystemTime::now(), length)
            .unwrap()
    }

    fn figure(dir: &Path, name: &str) -> String {
        std::fs::read_to_string(dir.join("figures").join(name)).unwrap()
    }

    #[test]
    fn reports_never_read_or_write_files_outside_the_results_folder() {
        for format in [PacketFormat::Parquet, PacketFormat::Csv] {
            let dir = tempfile::tempdir().unwrap();
            filled(dir.path(), Some(format), Some(200));
            crate::strangers::check(dir.path(), write);
        }
    }

    #[test]
    fn the_report_page_of_a_probe_folder_is_reproducible() {
        for format in [PacketFormat::Parquet, PacketFormat::Csv] {
            let dir = tempfile::tempdir().unwrap();
            assert!(!is_probed(dir.path()));
            let path = filled(dir.path(), Some(format), Some(200));
            assert!(is_probed(dir.path()));
            let page = std::fs::read_to_string(&path).unwrap();
            for part in [
                "Round trips to 192.0.2.1:9",
                "taut probe client &#60;x&#62;",
                "Ended early",
                "66.667 % of those sent within 200",
                "25.0 %",
                "of the mean round trip, the client’s wake-up</th><td class=\"left\">10.0 %",
                "The rest of the probes",
            ] {
                assert!(page.contains(part), "{part}");
            }
            assert!(figure(dir.path(), "cdf.svg").contains("256 bytes to 192.0.2.1:9"));
            let over_time = figure(dir.path(), "timeline.svg");
            assert!(over_time.contains("beyond the budget") && over_time.contains("budget 200"));
            assert_eq!(write(dir.path()).unwrap(), path);
            assert!(page == std::fs::read_to_string(&path).unwrap());
            assert!(over_time == figure(dir.path(), "timeline.svg"));
        }
    }

    #[test]
    fn pages_without_samples_have_a_note_and_no_timeline() {
        let dir = tempfile::tempdir().unwrap();
        let page = std::fs::read_to_string(filled(dir.path(), None, None)).unwrap();
        assert!(page.contains("no samples were kept") && !page.contains("within the budget"));
        assert!(!dir.path().join("figures/timeline.svg").exists());
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), Some(PacketFormat::Csv), None);
        assert!(figure(dir.path(), "timeline.svg").contains("one of the slowest"));
    }

    #[test]
    fn the_page_names_missing_and_damaged_files() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path(), Some(PacketFormat::Csv), None);
        std::fs::remove_file(dir.path().join(RECORDED_LATENCIES)).unwrap();
        std::fs::write(dir.path().join("samples.csv"), "head\n0,1\n").unwrap();
        let page = std::fs::read_to_string(write(dir.path()).unwrap()).unwrap();
        for part in [RECORDED_LATENCIES, "samples.csv", "Missing or unreadable"] {
            assert!(page.contains(part), "{part}");
        }
    }
}
