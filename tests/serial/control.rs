//! `taut control`: a loop over real sockets balances, survives arbitrary datagrams, detects a dead peer, and leaves
//! nothing behind. NCSbench's own controller, if installed, balances taut's robot.

use crate::support::hosts::{Namespace, ip};
use crate::support::leftovers::Watch;
use crate::support::program::{Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, alone_and_root, is_installed, json, names, scratch, taut};
use serde_json::Value;
use std::fs;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

/// Starts one side of a control loop (`taut control plant` or `controller`); returns the program and its address.
fn side(arguments: &[&str]) -> (Program, String) {
    let mut command = taut(&["control"]);
    let mut program = Program::start(command.args(arguments).arg("--json"));
    program.wait_for_stdout("started");
    let line = program.stdout();
    let started: Value = serde_json::from_str(line.lines().next().unwrap()).unwrap();
    (program, started["address"].as_str().unwrap().to_owned())
}

const FORMATS: [&str; 2] = ["ncsbench", "taut"];

#[test]
fn a_robot_controlled_over_loopback_balances_and_stores_its_results() {
    let watch = Watch::begin();
    for format in FORMATS {
        // If a shared machine stalls, the robot falls, so the test makes several attempts.
        undisturbed(|| {
            let folder = scratch();
            let out = folder.path().join("out");
            let mut command = taut(&["control", "run", "--periods", "57", "--json"]);
            command.args(["--protocol", format, "--out"]).arg(&out);
            let finished = run(watch.over(&mut command));
            if finished.code() != Some(0) {
                return Err(format!("{format}: {finished:?}"));
            }
            let found = finished.last_json();
            let kpis = &found["kpis"];
            assert_eq!(
                (&kpis["rounds"], &found["end"]),
                (&57.into(), &"periods".into())
            );
            // With both message formats, each delay is computed from timestamps of plant and controller.
            for delay in [
                "sensing",
                "network",
                "controller",
                "actuating",
                "period",
                "there",
            ] {
                assert!(
                    kpis[delay]["count"].as_u64().unwrap() > 20,
                    "{format} {delay}: {kpis}"
                );
            }
            assert_eq!(
                names(&out),
                ["figures", "report.html", "rounds.csv", "summary.json"]
                    .map(String::from)
                    .into()
            );
            assert_eq!(json(&out.join("summary.json")), found);
            let again = run(taut(&["control", "show", "--json"]).arg(&out)).success();
            assert_eq!(again.last_json(), found);
            let refused = run(&mut command);
            assert_eq!(refused.code(), Some(2), "{refused:?}");
            Ok(())
        });
    }
    watch.nothing_is_left();
}

#[test]
fn malformed_datagrams_are_counted_and_do_not_disturb_control() {
    for format in FORMATS {
        let options = [
            "--protocol",
            format,
            "--plant",
            "conveyor",
            "--bind",
            "127.0.0.1:0",
        ];
        let (controller, to) =
            side(&[&["controller", "--answer-to-sender"][..], &options].concat());
        let arguments = [&["plant", &to, "--periods", "60"][..], &options].concat();
        let (plant, at) = side(&arguments);
        let by_hand = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut random = fastrand::Rng::with_seed(7);
        for number in 0..200 {
            // Some datagrams are as long as messages of a protocol, others are not; every second one begins with the
            // mark of taut's protocol.
            let length = [0, 1, 88, 96, 192, 1400][number % 6];
            let mut noise: Vec<u8> = (0..length).map(|_| random.u8(..)).collect();
            if number % 2 == 0 && length > 5 {
                noise[..5].copy_from_slice(b"tCtl\x01");
            }
            for address in [&to, &at] {
                by_hand.send_to(&noise, address).unwrap();
            }
        }
        let plant = plant.finish();
        assert_eq!(plant.code(), Some(0), "{format}: {plant:?}");
        let found = plant.last_json();
        assert_eq!(found["end"], "periods");
        // Datagrams that do not fit into the socket's buffer are not counted. Stray datagrams cannot be rejected by the
        // sender's port, as the controller's port may change.
        let datagrams = &found["plant_datagrams"];
        assert!(datagrams["malformed"].as_u64().unwrap() > 20, "{datagrams}");
        let controller = controller.interrupt().success().last_json();
        let datagrams = &controller["datagrams"];
        assert!(datagrams["malformed"].as_u64().unwrap() > 20, "{datagrams}");
    }
}

#[test]
fn the_plants_input_becomes_0_after_its_controller_is_killed() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("out");
    let options = ["--plant", "conveyor", "--bind", "127.0.0.1:0"];
    let (controller, to) = side(&[&["controller", "--answer-to-sender"][..], &options].concat());
    let out_text = out.display().to_string();
    let (plant, _) = side(&[&["plant", &to, "--out", &out_text][..], &options].concat());
    std::thread::sleep(Duration::from_millis(400));
    controller.kill();
    let plant = plant.finish();
    assert_eq!(plant.code(), Some(1), "{plant:?}");
    assert!(plant.stderr.contains("left at 0"), "{plant:?}");
    let rounds = fs::read_to_string(out.join("rounds.csv")).unwrap();
    let last = rounds.lines().last().unwrap();
    assert_eq!(last.split(',').nth(5), Some("0"), "{last}");
}

#[test]
fn the_plant_reports_controllers_of_another_protocol_or_version() {
    let _turn = alone();
    let options = ["--plant", "conveyor", "--bind", "127.0.0.1:0"];
    let taut = [&options[..], &["--protocol", "taut"]].concat();
    let (_controller, to) = side(&[&["controller", "--answer-to-sender"][..], &options].concat());
    let arguments = [&["plant", &to, "--patience", "500ms"][..], &taut].concat();
    let (plant, _) = side(&arguments);
    let plant = plant.finish();
    assert_eq!(plant.code(), Some(1), "{plant:?}");
    assert!(plant.stderr.contains("--protocol"), "{plant:?}");

    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = stranger.local_addr().unwrap().to_string();
    let (plant, at) = side(&[&["plant", &to, "--patience", "500ms"][..], &taut].concat());
    stranger
        .send_to(b"tCtl\x09and what another version has to say", at)
        .unwrap();
    let plant = plant.finish();
    assert!(plant.stderr.contains("version 9"), "{plant:?}");
}

#[test]
fn an_interrupted_control_run_leaves_no_process_or_file() {
    let _turn = alone();
    let watch = Watch::begin();
    let mut command = taut(&["control", "run", "--plant", "conveyor", "--json"]);
    let program = Program::start(watch.over(&mut command));
    std::thread::sleep(Duration::from_millis(900));
    let finished = program.interrupt();
    assert_eq!(finished.code(), Some(130), "{finished:?}");
    watch.nothing_is_left();
}

#[test]
fn a_control_loop_works_between_two_network_namespaces() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let sides = ["w", "e"].map(|side| {
        let name = format!("t{}-c{side}", std::process::id());
        ip(&format!("netns add {name}"));
        Namespace(name)
    });
    let [west, east] = sides.each_ref().map(|it| it.0.as_str());
    ip(&format!(
        "link add eth0 netns {west} type veth peer name eth0 netns {east}"
    ));
    for (name, address) in [(west, "10.9.0.1"), (east, "10.9.0.2")] {
        ip(&format!("-n {name} address add {address}/24 dev eth0"));
        ip(&format!("-n {name} link set eth0 up"));
    }
    let arguments = [
        "control",
        "run",
        "--plant",
        "conveyor",
        "--periods",
        "40",
        "--json",
    ];
    let mut command = taut(&arguments);
    command.args([
        "--plant-in",
        west,
        "--controller-in",
        east,
        "--at",
        "10.9.0.2",
    ]);
    let found = run(&mut command).success().last_json();
    assert_eq!(found["kpis"]["rounds"], 40, "{found}");
}

#[test]
fn a_control_loop_works_over_a_radio_chain_or_switch() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let (watch, folder) = (Watch::begin(), scratch());
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let radio = file("radio.toml", "[wlan]\nimplementation_us = 120\n");
    let chain = file(
        "chain.toml",
        "ports = [\"null:\", \"null:\"]\nwait = \"yield\"\n[[function]]\nname = \"xor\"\nkey = 7\n\
         [[function]]\nname = \"xor\"\nkey = 7\n",
    );
    let switch = "device:veth-ovs".to_owned();
    for over in [format!("medium:{radio}"), format!("chain:{chain}"), switch] {
        if over.starts_with("device:") && !is_installed("ovs-vswitchd") {
            println!("skipped: needs openvswitch (package openvswitch-switch)");
            continue;
        }
        undisturbed(|| {
            // The conveyor is a plant that tolerates late commands.
            let mut command = taut(&["control", "run", "--plant", "conveyor", "--periods", "40"]);
            let finished = run(watch.over(command.args(["--json", "--over", &over])));
            watch.nothing_is_left();
            if finished.code() != Some(0) {
                return Err(format!("{over}: {finished:?}"));
            }
            let found = finished.last_json();
            assert_eq!(found["settings"]["over"], over.as_str(), "{found}");
            assert!(
                found["kpis"]["network"]["count"].as_u64() > Some(20),
                "{found}"
            );
            Ok(())
        });
    }
    let wrong = file("wrong.toml", "[wlan]\nstations = -1\n");
    for (over, part) in [
        (format!("medium:{wrong}"), "stations"),
        ("medium:none.toml".to_owned(), "none.toml: No such file"),
        ("chain:none.toml".to_owned(), "none.toml: No such file"),
        (
            "wire".to_owned(),
            "expected medium:FILE, chain:FILE or device:ID",
        ),
        (
            "device:wire".to_owned(),
            "expected one of these devices: veth-",
        ),
    ] {
        let finished = run(&mut taut(&["control", "run", "--over", &over]));
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{part}: {finished:?}");
    }
    watch.nothing_is_left();
}

#[test]
fn live_control_output_is_plain_text_without_a_terminal() {
    let _turn = alone();
    let watch = Watch::begin();
    let mut command = taut(&["control", "run", "--live", "--plant", "conveyor"]);
    let finished = run(watch.over(command.args(["--periods", "60"]))).success();
    let mut lines = finished.stdout.lines();
    assert!(
        lines.any(|line| line.starts_with("period ") && line.contains(" in time, ")),
        "{finished:?}"
    );
    assert!(lines.any(|line| line.contains("60 rounds")), "{finished:?}");
    let finished = run(&mut taut(&["control", "run", "--live", "--json"]));
    assert_eq!(finished.code(), Some(2), "{finished:?}");
    watch.nothing_is_left();
}

#[test]
fn a_virtual_run_replays_recorded_delays_and_losses() {
    let folder = scratch();
    let out = folder.path().join("out");
    let virtual_run = || taut(&["control", "run", "--virtual", "--periods", "200", "--json"]);
    let mut first = virtual_run();
    first.args(["--delay", "2ms", "--loss", "10%", "--out"]);
    let first = run(first.arg(&out)).success().last_json();
    let mut again = virtual_run();
    again.args(["--delay", "1ms", "--as-recorded"]).arg(&out);
    let again = run(&mut again).success().last_json();
    assert_eq!(again["kpis"]["network"]["median_ms"]["point"], 3.0);
    assert!(first["kpis"]["lost"].as_u64() > Some(0));
    assert_eq!(first["kpis"]["lost"], again["kpis"]["lost"]);
    fs::write(out.join("rounds.csv"), "nonsense").unwrap();
    for wrong in [folder.path(), &out] {
        let refused = run(virtual_run().arg("--as-recorded").arg(wrong));
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    }
}

/// The test needs a copy of NCSbench: `NCSBENCH` is its folder `src`, and python3 needs numpy and scipy.
#[test]
fn the_ncsbench_controller_balances_tauts_simulated_robot() {
    let Some(source) = std::env::var_os("NCSBENCH") else {
        println!("skipped: needs NCSBENCH, the folder src of tum-lkn/NCSbench");
        return;
    };
    let _turn = alone();
    undisturbed(|| {
        let folder = scratch();
        let python = std::env::var_os("NCSBENCH_PYTHON").unwrap_or("python3".into());
        let mut command = Command::new(python);
        let script = std::path::Path::new(&source).join("controller.py");
        // NCSbench's controller reads its matrices from the working folder, and logs there.
        let matrices = "controller_simulation_matrices.mat";
        fs::copy(
            std::path::Path::new(&source).join(matrices),
            folder.path().join(matrices),
        )
        .unwrap();
        let mut controller = Program::start(command.arg(script).current_dir(folder.path()));
        controller.wait_for_stderr("Waitig for packets");
        let finished = run(&mut taut(&["control", "plant", "127.0.0.1", "--json"]));
        controller.kill();
        let found = finished.last_json();
        match finished.code() {
            Some(0) if found["kpis"]["rounds"] == 1400 => Ok(()),
            _ => Err(format!("{finished:?}")),
        }
    });
}
