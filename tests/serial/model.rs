//! `taut model`: predictions, fits, checks, plans and budgets, and errors in their input.

use crate::support::program::{Finished, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, json, scratch, taut};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn model(line: &str) -> Finished {
    let words: Vec<&str> = line.split_whitespace().collect();
    run(&mut taut(&[&["model"], &words[..]].concat()))
}

#[test]
fn the_model_predicts_the_published_maximum_rate_and_explains_it() {
    let line = "--ghz 3.3 --io 100 --task 350 --line 10G --json";
    let found: Value = model(&format!("predict {line}")).success().last_json();
    let highest = found["rate"]["highest"]["estimate"]["value"]
        .as_f64()
        .unwrap();
    assert!((highest / 7.333e6 - 1.0).abs() < 1e-3, "{found}");
    assert_eq!(found["rate"]["binding"], "processor");
    let explained = model("explain --ghz 3.3 --io 100 --task 350 --line 10G")
        .success()
        .stdout;
    assert!(
        explained.contains("binds") && explained.contains("unknown"),
        "{explained}"
    );
    let at_load = model(&format!(
        "predict {line} --load 80% --pattern poisson --interrupt 250/s:6us"
    ));
    let at_load: Value = at_load.success().last_json();
    let quantiles = at_load["latency"]["quantiles"].as_array().unwrap();
    assert!(quantiles.len() >= 4, "{at_load}");
    assert!(
        quantiles
            .windows(2)
            .all(|pair| pair[0]["ns"].as_f64() <= pair[1]["ns"].as_f64())
    );
}

#[test]
fn a_model_is_fitted_stored_and_compared_with_other_runs() {
    let folder = scratch();
    let (runs, kept) = (
        folder.path().join("runs.csv"),
        folder.path().join("model.toml"),
    );
    let mut text = "burn,frame_bytes,ports,cycles\n".to_owned();
    for (at, bytes) in (0..40_u32).zip([64, 256, 512, 1518].into_iter().cycle()) {
        let wobble = f64::from(at % 3) - 1.0;
        let cycles = f64::from(100 + 50 * at) + 0.1 * f64::from(bytes) + wobble;
        text += &format!("{},{bytes},null,{cycles}\n", 50 * at);
    }
    text += "50,64,memif,9999\n";
    fs::write(&runs, text).unwrap();
    let (from, to) = (runs.display(), kept.display());
    let named = "--column burn=load_cycles --where ports=null";
    let told = model(&format!("fit {from} {named} -o {to}"))
        .success()
        .stdout;
    assert!(
        told.contains("runs held out") && told.contains("load"),
        "{told}"
    );
    let asked = model(&format!(
        "predict {to} --at load_cycles=500 --size 64 --ghz 3 --json"
    ));
    let asked: Value = asked.success().last_json();
    let cycles = asked["rate"]["cycles"]["value"].as_f64().unwrap();
    assert!((cycles - 606.4).abs() < 5.0, "{asked}");
    let beyond = model(&format!("predict {to} --at load_cycles=50000 --ghz 3"))
        .success()
        .stdout;
    assert!(
        beyond.contains("outside the range that the model was fitted to"),
        "{beyond}"
    );
    model(&format!("check {to} {from} {named} --max-error 1%")).success();
    let missed = model(&format!(
        "check {to} {from} --column burn=load_cycles --where ports=memif --max-error 1%"
    ));
    assert_eq!(missed.code(), Some(1), "{missed:?}");
}

#[test]
fn plans_choose_the_core_count_and_fail_for_unreachable_latencies() {
    let line = "plan --rate 5M --io 100 --task 200 --ghz 3 --machine-line 10G --json";
    let plan: Value = model(line).success().last_json();
    let best = plan["plan"]["best"].as_u64().unwrap() as usize;
    assert_eq!(plan["plan"]["options"][best]["cores"], 1, "{plan}");
    let never = model(&format!("{line} --latency p99<10ns"));
    assert_eq!(never.code(), Some(1), "{never:?}");
    let spread = model(
        "plan --rate 200M --io 100 --task 300 --ghz 3 --machines 1,10,100 --entries 1e8 --json",
    );
    assert_eq!(spread.success().last_json().as_array().unwrap().len(), 3);
}

#[test]
fn latency_budgets_add_up_and_models_match_published_figures() {
    let budget: Value = model("budget --calvin --json").success().last_json();
    assert_eq!(
        (budget["spent_us"].as_f64(), budget["remains_us"].as_f64()),
        (Some(1000.0), Some(0.0))
    );
    let exceeded = model("budget --target 100us --fibre 25");
    assert_eq!(exceeded.code(), Some(1), "{exceeded:?}");
    model("check --published --max-error 3%").success();
}

#[test]
fn the_overload_model_reads_results_folders_and_names_invalid_folders() {
    let _turn = alone();
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (out, bursts) = (path("plain"), path("bursts"));
    let measure = |out: &str, more: &[&str]| {
        let words = ["generate", "--rate", "1k", "--max-loss", "1", "--out", out];
        let finished = run(&mut taut(&[&words[..], more].concat()));
        if finished.stderr.contains("preempted the generator") {
            return Err(finished.stderr);
        }
        finished.success();
        Ok(())
    };
    let pattern = ["--seconds", "1", "--pattern", "burst(32, 0ns)"];
    let device = ["--device", "memif,function=burn(cycles=30000)"];
    // A busy machine may preempt the forwarder without the function for longer than the function takes.
    undisturbed(|| {
        let _ = [&out, &bursts].map(fs::remove_dir_all);
        measure(&bursts, &[&device[..], &pattern].concat())?;
        measure(&out, &["--device", "memif", "--seconds", "0.3"])?;
        let summary = json(&folder.path().join("plain/summary.json"));
        let taken = &summary["device_interruptions"];
        let share = taken["share"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{taken}");
        // The worker's times of bursts give the overload point: at most one packet for each 30,000 cycles.
        let line = format!("overload --from {out} {bursts} --bursts {bursts} --json");
        let told = model(&line);
        if told.stderr.contains("longer than the plain forwarder is -") {
            return Err(told.stderr);
        }
        let work = told.success().last_json()["work"].clone();
        assert!(work["batch"].as_f64().unwrap() > 2.0, "{work}");
        assert!(work["highest_pps"].as_f64().unwrap() < 2e5, "{work}");
        Ok(())
    });
    let elsewhere = folder.path().display();
    // The preemptions of both cores in that measurement are used in a prediction.
    let core = "predict --ghz 1 --io 0 --task 2000 --rate 50k --transfer 5us --json";
    let predicted: Value = model(&format!("{core} --interrupted-as {out}"))
        .success()
        .last_json();
    let p50 = &predicted["latency"]["quantiles"][0];
    assert_eq!(p50["name"], "p50");
    assert!(p50["ns"].as_f64().unwrap() > 6_900.0, "{predicted}");
    for (line, part) in [
        (
            format!("{core} --interrupted-as {elsewhere}"),
            "expected a folder of taut generate --out",
        ),
        (
            format!("overload --from {out} {out} --busy {elsewhere}"),
            "expected a folder of taut generate --out",
        ),
        // The duration of a function on a busy machine is unknown, but a forwarder is never slower than itself.
        (
            format!("overload --from {out} {out}"),
            "longer than the plain forwarder is 0",
        ),
        (
            format!("overload --from {out} {bursts} --bursts {elsewhere}"),
            "expected a folder of taut generate --out",
        ),
        (
            format!("overload --from {out} {elsewhere}"),
            "expected a folder of taut generate --out",
        ),
    ] {
        let finished = model(&line);
        assert_eq!(finished.code(), Some(2), "{line}: {finished:?}");
        assert!(finished.stderr.contains(part), "{line}: {finished:?}");
        assert_eq!(
            finished.stderr.trim_end().lines().count(),
            1,
            "{finished:?}"
        );
    }
}

#[test]
fn memory_accesses_are_measured_and_compared_with_models() {
    let _turn = alone();
    let found: Value = model("access --at 2097152 --time 1ms --json")
        .success()
        .last_json();
    let points = found["points"].as_array().unwrap();
    let cost = |place: usize| points[place]["measured"].as_f64().unwrap();
    assert!(
        cost(0) > 0.5 && cost(points.len() - 1) > 2.0 * cost(0),
        "{found}"
    );
    assert_eq!(found["at"]["bytes"], 2_097_152);
    assert!(found["worst"]["fitted"].as_f64().unwrap() >= 0.0);
    assert!(
        found["levels"]["memory"]["count"].as_u64().unwrap() > 0,
        "{found}"
    );
}

#[test]
fn the_ips_capacity_is_reported_for_rules_and_a_chain() {
    let _turn = alone();
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let rules = run(&mut taut(&["ips", "sample"])).success().stdout;
    fs::write(path("rules"), rules).unwrap();
    let chain = format!(
        "ports = [\"null:\", \"null:\"]\nburst = 8\n[[function]]\nname = \"ips\"\nrules = [\"{}\"]\n\
         events = \"{}\"\ncontrol = \"{}\"\n",
        path("rules"),
        path("eve.json"),
        path("sock")
    );
    fs::write(path("chain.toml"), chain).unwrap();
    let ask = |file: &str, more: &[&str]| {
        let file = path(file);
        let words = [&["ips", "capacity", &file, "--seconds", "0.02"], more].concat();
        run(&mut taut(&words)).success()
    };
    let found = ask("rules", &["--io", "50ns", "--queue", "256", "--json"]).last_json();
    assert_eq!(
        (&found["rules"], &found["burst"]),
        (&300.into(), &32.into())
    );
    let traffic = found["traffic"].as_array().unwrap();
    assert_eq!((traffic.len(), &traffic[6]["name"]), (7, &"mixed".into()));
    for of in traffic {
        let highest = of["highest"]["estimate"]["value"].as_f64().unwrap();
        let ring_ns = of["ring_ns"].as_f64().unwrap();
        assert!((ring_ns / (256e9 / highest) - 1.0).abs() < 1e-6, "{of}");
        let busy_ns = of["busy_ns"]["value"].as_f64().unwrap() + 50.0;
        let left = 1.0 - of["interruptions"]["share"].as_f64().unwrap();
        assert!(
            (highest / (left * 1e9 / busy_ns) - 1.0).abs() < 1e-6,
            "{of}"
        );
        assert_eq!(of["latency"].as_array().unwrap().len(), 4, "{of}");
    }
    let told = ask("chain.toml", &[]).stdout;
    assert!(
        told.starts_with("300 rules, batches of 8, a ring of 1024 slots") && told.contains("R_max"),
        "{told}"
    );
    assert!(!Path::new(&path("eve.json")).exists() && !Path::new(&path("sock")).exists());
}

#[test]
fn impossible_predictions_cause_a_one_line_error() {
    let folder = scratch();
    let broken = folder.path().join("broken.toml");
    fs::write(&broken, "schema = 1\n").unwrap();
    let broken = broken.display();
    for (line, part) in [
        (
            "predict --ghz 3".to_owned(),
            "the cost of a packet is unknown",
        ),
        (
            "predict --ghz 3 --io 100 --line fast".to_owned(),
            "expected a line such as 10G",
        ),
        (format!("predict {broken}"), "broken.toml"),
        (
            "predict /no/such/model.toml".to_owned(),
            "/no/such/model.toml",
        ),
        (
            format!("predict {broken} --io 3 --machine /no/such"),
            "/no/such",
        ),
        ("fit /no/such/runs".to_owned(), "/no/such/runs"),
        (
            format!("fit {}", folder.path().display()),
            "no runs.csv or metrics.csv",
        ),
        (
            "plan --rate 1G --io 100000 --ghz 3".to_owned(),
            "cores would be needed",
        ),
    ] {
        let finished = model(&line);
        assert_eq!(finished.code(), Some(2), "{line}: {finished:?}");
        assert!(finished.stderr.contains(part), "{line}: {finished:?}");
        assert_eq!(
            finished.stderr.trim_end().lines().count(),
            1,
            "{line}: {finished:?}"
        );
    }
}
