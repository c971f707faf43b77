//! `taut ips`: reads rule files, measures their cost on this machine, and queries a running inspection (`taut forward`
//! with the function `ips`) through its control socket.

mod capacity;

use crate::exit::Failure;
use crate::terminal::conversation::Conversation;
use crate::terminal::{print, quantity, socket};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taut_inspect::compile::RuleSet;
use taut_inspect::read::{Dialect, Options, Reading};
use taut_inspect::variables::Variables;
use taut_ips::{Answer, Costs, Request, read_files};
use taut_port::pcap::{Annotated, write_annotated};
use taut_sys::Clock;

/// Number of errors in rule files that are printed; further errors are only counted.
const MOST_SAID: usize = 50;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut ips check community.rules
  taut ips check --variable 'HOME_NET=[10.0.0.0/8]' --disabled *.rules
  taut ips capacity community.rules
  taut ips status --control /run/ips.sock
  taut ips top --control /run/ips.sock --json
  taut ips reload --control /run/ips.sock")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Read rule files: count rules, and print errors with their positions and what is not supported
    Check {
        /// Files of rules
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Value of a name in rules, such as HOME_NET=[10.0.0.0/8] or HTTP_PORTS=80; may be repeated
        #[arg(long, value_name = "NAME=TEXT")]
        variable: Vec<String>,
        /// Language of the files (default: recognised from the files)
        #[arg(long, value_name = "LANGUAGE")]
        language: Option<Language>,
        /// Count rules that are commented out, too
        #[arg(long)]
        disabled: bool,
        /// Count partly understood rules as the function does with `lenient`: they are loaded without the part that is
        /// not understood
        #[arg(long)]
        lenient: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure at which rate the queue fills on this machine, the latency below it, and the wait in a full ring
    Capacity(capacity::Arguments),
    /// Print 300 free rules for trials: they use every option common to taut and Suricata, and match nothing
    Sample {
        /// Write traffic instead, to this pcapng file: conversations of DNS, HTTP and TLS, which none of the rules
        /// matches
        #[arg(long, value_name = "FILE")]
        traffic: Option<PathBuf>,
    },
    /// Print the outcomes of packets, and the rules in force
    Status {
        #[command(flatten)]
        asked: Asked,
    },
    /// Print the rules that cost most, with their evaluations and matches
    Top {
        /// Maximum number of rules that are printed
        #[arg(long, value_name = "N", default_value_t = 20)]
        most: usize,
        #[command(flatten)]
        asked: Asked,
    },
    /// Read all rule files again, and use them from the next packets on
    Reload {
        #[command(flatten)]
        asked: Asked,
    },
}

#[derive(clap::Args)]
struct Asked {
    /// Control socket of the inspection, its setting `control` (default: that of the only running inspection of this
    /// user)
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Language {
    Snort3,
    Suricata,
}

pub fn run(arguments: Arguments) -> Result<(), Failure> {
    match arguments.command {
        Command::Check {
            files,
            variable,
            language,
            disabled,
            lenient,
            json,
        } => {
            let wrong = |reason: String| Failure::Input(format!("--variable {reason}"));
            let options = Options {
                variables: Variables::new(variables(&variable)?).map_err(wrong)?,
                dialect: language.map(|it| match it {
                    Language::Snort3 => Dialect::Snort3,
                    Language::Suricata => Dialect::Suricata,
                }),
                with_disabled: disabled,
                is_lenient: lenient,
            };
            check(&files, &options, json)
        }
        Command::Capacity(arguments) => capacity::run(&arguments),
        Command::Sample { traffic: None } => {
            print::line(taut_inspect::sample::rules().trim_end());
            Ok(())
        }
        Command::Sample {
            traffic: Some(path),
        } => write_traffic(&path),
        Command::Status { asked } => {
            let (line, answer) = ask(&asked, &Request::Status {})?;
            if asked.json {
                print::line(line);
            } else {
                status(&answer);
            }
            Ok(())
        }
        Command::Top { most, asked } => {
            let (line, answer) = ask(&asked, &Request::Top { most })?;
            if asked.json {
                print::line(line);
            } else {
                top(&answer.top.unwrap_or_default());
            }
            Ok(())
        }
        Command::Reload { asked } => {
            let (line, answer) = ask(&asked, &Request::Reload {})?;
            if asked.json {
                print::line(line);
            } else {
                reloaded(&answer);
            }
            Ok(())
        }
    }
}

/// Parses the variables of rules: names with values.
fn variables(texts: &[String]) -> Result<Vec<(&str, &str)>, Failure> {
    let each = texts.iter().map(|text| {
        let wrong = || Failure::Input(format!("--variable {text}: expected NAME=TEXT"));
        text.split_once('=').ok_or_else(wrong)
    });
    each.collect()
}

/// Time between two frames in a file of generated traffic.
const FRAME_DISTANCE_NS: u64 = 100_000;

fn write_traffic(path: &Path) -> Result<(), Failure> {
    let frames =
        taut_inspect::trace::mixed().map_err(|e| Failure::Missing(format!("traffic: {e}")))?;
    let begin = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let annotated = frames.iter().zip(0u64..).map(|(frame, number)| Annotated {
        time_ns: begin.as_nanos() as u64 + number * FRAME_DISTANCE_NS,
        frame,
        len_bytes: frame.len(),
        comment: "",
    });
    let written = File::create(path).and_then(|file| {
        let mut file = BufWriter::new(file);
        write_annotated(&mut file, annotated)?;
        file.flush()
    });
    written.map_err(|e| Failure::of_file(&e, format!("{}: {e}", path.display())))?;
    print::line(format!("{} frames in {}", frames.len(), path.display()));
    Ok(())
}

fn ask(asked: &Asked, request: &Request) -> Result<(String, Answer), Failure> {
    let start = "start `taut forward` with the function ips and its setting control";
    let control = socket::meant(asked.control.as_deref(), "ips", "inspection", start)?;
    let mut inspection = Conversation::begin("inspection", "ips", &control)?;
    let line = inspection.ask(request, &[])?;
    let answer: Answer = inspection.read(&line)?;
    if !answer.ok {
        return Err(Failure::Input(answer.error.unwrap_or_default()));
    }
    Ok((line, answer))
}

/// The output of `taut ips check --json`.
#[derive(Serialize, JsonSchema)]
pub struct Checked<'a> {
    rules: usize,
    mistaken: usize,
    left_out: usize,
    in_part: usize,
    doubled: usize,
    mistakes: Vec<RuleError<'a>>,
    /// Identifiers of the rules that were skipped or loaded in part, by the option that is not understood.
    not_understood: &'a BTreeMap<String, Vec<u32>>,
    /// Number of flow bits (marks that rules set on a flow and test).
    bits: usize,
    memory_bytes: usize,
}

/// An error in a rule file.
#[derive(Serialize, JsonSchema)]
struct RuleError<'a> {
    file: String,
    line: usize,
    column: usize,
    reason: &'a str,
}

fn check(files: &[PathBuf], options: &Options, is_json: bool) -> Result<(), Failure> {
    let Reading {
        rules,
        names,
        mistakes,
        mistaken,
        not_understood,
        left_out,
        in_part,
        doubled,
        ..
    } = read_files(files, options).map_err(Failure::Input)?;
    let (loaded, bits) = (rules.len(), names.len());
    let place = |file: &usize| files[*file].display();
    let set = RuleSet::new(rules, names).map_err(Failure::Input)?;
    let memory_bytes = set.memory_bytes();
    if is_json {
        let mistakes: Vec<_> = mistakes
            .iter()
            .map(|(file, it)| RuleError {
                file: place(file).to_string(),
                line: it.line,
                column: it.column,
                reason: &it.reason,
            })
            .collect();
        print::json(&Checked {
            rules: loaded,
            mistaken,
            left_out,
            in_part,
            doubled,
            mistakes,
            not_understood: &not_understood,
            bits,
            memory_bytes,
        });
    } else {
        for (file, mistake) in mistakes.iter().take(MOST_SAID) {
            print::line(format!("{}:{mistake}", place(file)));
        }
        if mistaken > MOST_SAID {
            let more = quantity::counted(mistaken - MOST_SAID, "more error");
            print::line(format!("and {more}"));
        }
        let all = loaded + left_out + mistaken;
        let share = if all == 0 {
            100.0
        } else {
            100.0 * loaded as f64 / all as f64
        };
        print::line(format!(
            "{loaded} of {all} rules load ({share:.1} %), {left_out} skipped, {mistaken} with errors, {in_part} \
            partial, {doubled} duplicate; pattern matching uses {} MB",
            memory_bytes.div_ceil(1_000_000)
        ));
        print_not_understood(&not_understood);
    }
    match mistaken {
        0 => Ok(()),
        n => Err(Failure::Input(format!(
            "{} in {}",
            quantity::counted(n, "error"),
            quantity::counted(files.len(), "file")
        ))),
    }
}

fn print_not_understood(not_understood: &BTreeMap<String, Vec<u32>>) {
    if not_understood.is_empty() {
        return;
    }
    let mut options: Vec<_> = not_understood.iter().collect();
    options.sort_by_key(|it| std::cmp::Reverse(it.1.len()));
    let rows = options.into_iter().map(|(option, rules)| {
        let such: Vec<_> = rules.iter().take(3).map(u32::to_string).collect();
        [option.clone(), rules.len().to_string(), such.join(" ")]
    });
    print::table(["not understood", "rules", "such as"], rows);
}

fn reloaded(answer: &Answer) {
    if let Some(read) = &answer.rules {
        print::line(format!(
            "{} rules in force, {} skipped, {} with errors",
            read.rules, read.left_out, read.mistaken
        ));
    }
}

fn status(answer: &Answer) {
    if let Some(read) = &answer.rules {
        print::line(format!(
            "{} rules in force, {} skipped, {} with errors, {} partial; pattern matching uses {} MB",
            read.rules,
            read.left_out,
            read.mistaken,
            read.in_part,
            read.memory_bytes.div_ceil(1_000_000)
        ));
        if let Some(first) = &read.first_mistake {
            print::line(format!("first error: {first}"));
        }
    }
    let counts = |counts: &Option<BTreeMap<String, u64>>| {
        let counts = counts.iter().flatten().filter(|it| *it.1 > 0);
        counts
            .map(|(name, count)| [name.replace('_', " "), count.to_string()])
            .collect::<Vec<_>>()
    };
    print::table(
        ["what", "count"],
        counts(&answer.outcomes)
            .into_iter()
            .chain(counts(&answer.notes)),
    );
}

fn top(rules: &[Costs]) {
    let clock = Clock::calibrate(Duration::from_millis(5));
    let rows = rules.iter().map(|rule| {
        let each = match rule.timed {
            0 => String::new(),
            timed => format!("{:.0}", clock.to_ns(rule.ticks) / timed as f64),
        };
        let name = format!("{}:{}", rule.gid, rule.sid);
        [
            name,
            rule.asked.to_string(),
            rule.fitted.to_string(),
            each,
            rule.msg.clone(),
        ]
    });
    print::table(["rule", "asked", "fitted", "ns each", "message"], rows);
}
