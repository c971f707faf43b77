//! Changes a running gateway's bearers at a rate, like the signalling of a mobile network (Lange et al., CNSM 2015:
//! about 94,000 messages a second for a million users).

use super::server::{Answer, Request};
use super::{BearerText, CSV_HEADER, Refused};
use schemars::JsonSchema;
use serde::Serialize;
use std::io::{BufRead, BufReader, Error, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use taut_function::changes::PATIENCE;

/// The interval at which due changes are sent.
const TICK: Duration = Duration::from_micros(100);
/// The number of changes in one request, which occupies a core for about 10 us.
const IN_ONE_REQUEST: usize = 10;
/// The number of changes that are sent before their replies are read.
const MOST_AT_A_TIME: usize = 1000;

/// The result of [`churn`]: the number and rate of changes of bearers, and the slowest reply.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Churned {
    /// The number of changed bearers.
    pub changes: u64,
    /// The number of changed bearers per second.
    pub changes_per_second: f64,
    /// The longest time from a request to its reply, milliseconds.
    pub slowest_answer_ms: f64,
}

/// Parses the bearers of a CSV file without validation; the gateway validates them.
///
/// # Errors
/// Returns the number of the first wrong line, from 1, and the error in it.
pub fn bearers_of(text: &str) -> Result<Vec<BearerText>, (usize, String)> {
    let lines = text.lines().enumerate();
    lines
        .map(|(i, line)| (i + 1, line.trim()))
        .filter(|(_, line)| {
            !(line.is_empty() || line.starts_with('#') || CSV_HEADER.starts_with(line))
        })
        .map(|(number, line)| line.parse().map_err(|e| (number, e)))
        .collect()
}

/// Replaces `bearers` one after the other, again and again, at `per_second` replacements a second. Ends after the given
/// time or when the gateway exits.
///
/// # Errors
/// Fails if the gateway refuses a change or does not reply.
pub fn churn(
    stream: &UnixStream,
    bearers: &[BearerText],
    per_second: f64,
    time: Duration,
) -> std::io::Result<Churned> {
    let mut churned = Churned::default();
    let begun = Instant::now();
    let done = ask(stream, bearers, per_second, (begun, time), &mut churned);
    churned.changes_per_second = churned.changes as f64 / begun.elapsed().as_secs_f64();
    match done {
        Err(e) if !is_end(&e) => Err(e),
        _ => Ok(churned),
    }
}

fn is_end(error: &Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn ask(
    stream: &UnixStream,
    bearers: &[BearerText],
    per_second: f64,
    (begun, time): (Instant, Duration),
    churned: &mut Churned,
) -> std::io::Result<()> {
    let mut answers = BufReader::new(stream).lines();
    let mut next = bearers.iter().cycle();
    loop {
        let passed = begun.elapsed();
        if passed >= time {
            return Ok(());
        }
        let due = (passed.as_secs_f64() * per_second) as u64;
        let many = (due.saturating_sub(churned.changes) as usize).min(MOST_AT_A_TIME);
        if many == 0 {
            std::thread::sleep(TICK);
            continue;
        }
        let asked = Instant::now();
        for begun in (0..many).step_by(IN_ONE_REQUEST) {
            let few = IN_ONE_REQUEST.min(many - begun);
            let request = Request::Add {
                bearers: next.by_ref().take(few).cloned().collect(),
                replace: true,
            };
            let mut line = serde_json::to_vec(&request)?;
            line.push(b'\n');
            (&*stream).write_all(&line)?;
            // Yields, because the gateway's worker may share this core.
            std::thread::yield_now();
        }
        for _ in 0..many.div_ceil(IN_ONE_REQUEST) {
            let line = answers
                .next()
                .unwrap_or(Err(ErrorKind::UnexpectedEof.into()))?;
            let answer: Answer = serde_json::from_str(&line)?;
            if let Some(error) = answer.error {
                // The client waits for a data plane that hangs. A data plane that has ended is reported immediately,
                // before the gateway disconnects.
                let ends =
                    error.starts_with(&Refused::Stuck.to_string()) && asked.elapsed() < PATIENCE;
                return match ends {
                    true => Err(ErrorKind::UnexpectedEof.into()),
                    false => Err(Error::new(ErrorKind::InvalidData, error)),
                };
            }
        }
        let took_ms = asked.elapsed().as_secs_f64() * 1e3;
        churned.slowest_answer_ms = churned.slowest_answer_ms.max(took_ms);
        churned.changes += many as u64;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Replies to requests like a gateway that refuses TEID 9; returns the number of changed bearers.
    fn gateway(stream: UnixStream) -> usize {
        let mut changed = 0;
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            let Request::Add { bearers, replace } = serde_json::from_str(&line).unwrap() else {
                panic!("{line}");
            };
            assert!(replace);
            changed += bearers.len();
            let refused = line.contains("\"0x9\"");
            let answer = Answer {
                ok: !refused,
                error: refused.then(|| "no".to_string()),
                ..Answer::default()
            };
            let mut text = serde_json::to_vec(&answer).unwrap();
            text.push(b'\n');
            // The client disconnects at the first refusal, after it has sent up to 99 further requests.
            if (&stream).write_all(&text).is_err() {
                break;
            }
        }
        changed
    }

    #[test]
    fn bearer_changes_follow_the_rate_until_a_change_is_refused() {
        let text = format!("{CSV_HEADER}\n0x1,relay,0x2,192.0.2.9\n\n0x3,relay,0x4,192.0.2.9\n");
        let bearers = bearers_of(&text).unwrap();
        assert_eq!(bearers.len(), 2);
        let (here, there) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || gateway(there));
        let time = Duration::from_millis(200);
        let churned = churn(&here, &bearers, 10_000.0, time).unwrap();
        // At most the due changes are sent: on a busy machine the rate is lower.
        assert!((1..=2000).contains(&churned.changes), "{churned:?}");
        let wrong = bearers_of("0x9,relay,0x2,192.0.2.9").unwrap();
        let error = churn(&here, &wrong, 10_000.0, time).unwrap_err();
        assert_eq!(error.to_string(), "no");
        drop(here);
        assert!(thread.join().unwrap() as u64 > churned.changes);
        assert_eq!(bearers_of("0x1,relay\n0x2,nat").unwrap_err().0, 2);
    }

    #[test]
    fn churn_stops_when_the_gateway_closes_the_connection() {
        let bearers = bearers_of("0x1,relay,0x2,192.0.2.9").unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        drop(there);
        let churned = churn(&here, &bearers, 1e6, Duration::from_secs(60)).unwrap();
        assert_eq!(churned.changes, 0);
    }

    #[test]
    fn churn_makes_no_changes_after_the_data_plane_has_ended() {
        let bearers = bearers_of("0x1,relay,0x2,192.0.2.9").unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            BufReader::new(&there)
                .read_line(&mut String::new())
                .unwrap();
            let answer = Answer {
                error: Some(Refused::Stuck.to_string()),
                ..Answer::default()
            };
            let mut text = serde_json::to_vec(&answer).unwrap();
            text.push(b'\n');
            (&there).write_all(&text).unwrap();
        });
        let churned = churn(&here, &bearers, 1e6, Duration::from_secs(60)).unwrap();
        assert_eq!(churned.changes, 0);
        thread.join().unwrap();
    }
}
