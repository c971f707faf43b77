//! `taut generate` reports, packet by packet, the faults that the function `impair` injects.

use crate::support::program::{Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{RESTING, Sockets, alone, scratch, taut};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Reads the log of `impair`, as a map from packet number to action. Fails if a packet belongs to another flow or is
/// logged twice.
fn log_of(path: &Path) -> BTreeMap<u64, String> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("packet,to_port,flow,sequence,action"));
    let mut actions = BTreeMap::new();
    let mut flows = std::collections::BTreeSet::new();
    for line in lines {
        let [packet, _, flow, sequence, action] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        // Packet numbers equal sequence numbers, as no packet arrived before the first one of the trial.
        assert_eq!(packet, sequence, "{line}");
        flows.insert(flow.to_string());
        let earlier = actions.insert(sequence.parse().unwrap(), action.to_string());
        assert_eq!(earlier, None, "{line}");
    }
    assert!(flows.len() <= 1, "{flows:?}");
    actions
}

/// The observations of one packet in the samples: number of arrivals, and whether it was reordered, refused, and
/// corrupt.
type Outcome = (u8, bool, bool, bool);

fn samples_of(path: &Path) -> Vec<Outcome> {
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().skip(1).enumerate();
    rows.map(|(index, line)| {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields[0], index.to_string());
        assert_eq!(fields[3].is_empty(), fields[4] == "0", "{line}");
        let flag = |i: usize| fields[i].parse::<bool>().unwrap();
        (fields[4].parse().unwrap(), flag(5), flag(6), flag(7))
    })
    .collect()
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

/// Runs the generator once through `impair` with `settings`. Compares the log with the samples, and both with the
/// programs' counts. Returns an error if the machine itself lost packets.
fn compare(settings: &str) -> Result<BTreeMap<u64, String>, String> {
    let sockets = Sockets::new();
    let folder = scratch();
    let log = folder.path().join("impair.csv");
    let chain = folder.path().join("chain.toml");
    let ports: Vec<String> = sockets
        .paths()
        .iter()
        .map(|path| format!("\"memif:{}\"", path.display()))
        .collect();
    let text = format!(
        "ports = [{}]\n[[function]]\nname = \"impair\"\nlog = \"{}\"\n{settings}",
        ports.join(", "),
        log.display()
    );
    fs::write(&chain, text).unwrap();
    let cores = taut_host::choose_cores();
    let device = cores.device.to_string();
    let mut forward = taut(&["forward", "--json", "--quiet", "--core", &device]);
    let mut forward = Program::start(forward.args(RESTING).arg(&chain));
    forward.wait_for_stdout("started");
    let out = folder.path().join("out");
    let core = cores.generator.to_string();
    let mut arguments = vec!["generate".to_string()];
    arguments.extend(sockets.ports("client", ""));
    arguments.extend(
        [
            "--rate",
            "10k",
            "--seconds",
            "0.4",
            "--warm-up",
            "0",
            "--max-loss",
            "1",
            "--json",
            "--samples",
            "csv",
            "--core",
            &core,
            "--out",
        ]
        .map(String::from),
    );
    arguments.push(out.display().to_string());
    let ours = run(&mut taut(&arguments)).success().first_stream();
    let theirs = forward.interrupt().success().last_json();

    let (tally, counters) = (&ours["tally"], &theirs["counters"]);
    let by_accident = number(&theirs["dropped"]) - number(&counters["dropped_by_function"]);
    if number(&tally["refused"]) + number(&tally["unsent"]) + by_accident > 0 {
        return Err(format!("lost by accident: {ours} {theirs}"));
    }
    let actions = log_of(&log);
    let samples = samples_of(&out.join("samples.csv"));
    let of = |action: &str| actions.values().filter(|a| *a == action).count() as u64;
    assert_eq!(samples.len() as u64, number(&tally["sent"]));
    assert_eq!(ours["samples"]["not_kept"], 0);
    let came = 1 + samples.iter().rposition(|s| s.0 > 0).unwrap_or(0);
    for (sequence, found) in samples.iter().enumerate() {
        let action = actions.get(&(sequence as u64)).map(String::as_str);
        let want = match action {
            None => (1, false, false, false),
            Some("lose") => (0, false, false, false),
            Some("corrupt") => (0, false, false, true),
            Some("duplicate") => (2, false, false, false),
            Some("reorder") => (1, true, false, false),
            Some(other) => panic!("{other}"),
        };
        // The generator stops waiting after 20 ms without packets, so a forwarder that is preempted at the end causes
        // losses.
        if found.0 < want.0 && sequence + 64 > came {
            return Err(format!(
                "packet {sequence} of {} came too late",
                samples.len()
            ));
        }
        assert_eq!(*found, want, "packet {sequence}, {action:?}");
    }
    assert_eq!(number(&counters["dropped_by_function"]), of("lose"));
    assert_eq!(number(&tally["corrupt"]), of("corrupt"));
    assert_eq!(number(&ours["sequence"]["duplicate"]), of("duplicate"));
    assert_eq!(number(&ours["sequence"]["reordered"]), of("reorder"));
    assert_eq!(number(&ours["lost"]), of("lose") + of("corrupt"));
    assert_eq!(tally["foreign"], 0);
    Ok(actions)
}

#[test]
fn every_random_impairment_is_logged_with_its_packet() {
    let _turn = alone();
    for seed in 1..=2 {
        undisturbed(|| -> Result<(), String> {
            let actions = compare(&format!(
                "seed = {seed}\nloss = 0.02\nduplicate = 0.02\nreorder = 0.02\ncorrupt = 0.02\n"
            ))?;
            // About 80 actions of each kind are expected, so it is practically impossible that a kind is missing.
            for action in ["lose", "duplicate", "reorder", "corrupt"] {
                assert!(
                    actions.values().any(|a| a == action),
                    "seed {seed}: no {action}"
                );
            }
            Ok(())
        });
    }
}

#[test]
fn only_the_configured_kind_of_fault_is_reported() {
    let _turn = alone();
    for (fault, action) in [
        ("loss", "lose"),
        ("duplicate", "duplicate"),
        ("reorder", "reorder"),
        ("corrupt", "corrupt"),
    ] {
        undisturbed(|| -> Result<(), String> {
            let actions = compare(&format!("seed = 7\n{fault} = 0.05\n"))?;
            // About 200 actions are expected.
            assert!(actions.len() > 120, "{fault}: {}", actions.len());
            assert!(actions.values().all(|a| a == action), "{fault}");
            Ok(())
        });
    }
}

#[test]
fn only_the_listed_packets_are_reported_as_impaired() {
    let _turn = alone();
    undisturbed(|| {
        let actions = compare(
            "lose_at = [0, 10, 11]\nduplicate_at = [20, 21]\nreorder_at = [30, 32]\n\
             corrupt_at = [40, 41]\ndistance = 5\n",
        )?;
        let numbers = |action: &str| -> Vec<u64> {
            let these = actions.iter().filter(|(_, a)| *a == action);
            these.map(|(number, _)| *number).collect()
        };
        assert_eq!(numbers("lose"), [0, 10, 11]);
        assert_eq!(numbers("duplicate"), [20, 21]);
        assert_eq!(numbers("corrupt"), [40, 41]);
        // A stall of the machine may release a delayed packet before another one overtakes it. Such a packet is not
        // logged.
        let reordered = numbers("reorder");
        if reordered != [30, 32] {
            return Err(format!("{reordered:?}"));
        }
        Ok(())
    });
}

#[test]
fn no_fault_is_reported_without_impairments() {
    let _turn = alone();
    undisturbed(|| -> Result<(), String> {
        assert!(compare("")?.is_empty());
        Ok(())
    });
}
