//! A laboratory with this machine as its node: its file, its users, and its service, which can be killed.

use super::program::{Finished, Program, run};
use super::{scratch, taut};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// An experiment of two runs, which take no time and need no other program.
const NUMBERS: &str = r#"title = "Numbers"
[loop]
x = [1, 2]
[plan]
repetitions = 1
limit = "20s"
[[step]]
name = "it"
run = "cat numbers.txt; sleep 0.1; echo '{\"value\": {{ x }}.5}'"
json = true
[[file]]
name = "numbers.txt"
from = "numbers.txt"
"#;

/// A folder with the file of a laboratory, an experiment, and the token of each user.
pub struct Laboratory {
    folder: TempDir,
}

/// A running service.
pub struct Service<'a> {
    pub program: Program,
    pub url: String,
    of: &'a Laboratory,
}

impl Laboratory {
    /// Makes a laboratory of two users, whose file also has these lines at its top.
    pub fn new(more: &str) -> Self {
        let folder = scratch();
        let mut text = format!("folder = \"state\"\nlisten = \"127.0.0.1:0\"\n{more}\n");
        for user in ["alice", "bob"] {
            let mut command = taut(&["lab", "token", user, "--out"]);
            text += &run(command.arg(folder.path().join(user))).success().stdout;
        }
        text += "[nodes.here]\nat = \"local\"\ncores = 2\nproperties = { nic = \"none\", rack = 3 }\n\
            [nodes.far]\nat = \"ssh://root@far\"\n";
        fs::write(folder.path().join("lab.toml"), text).unwrap();
        fs::write(folder.path().join("numbers.toml"), NUMBERS).unwrap();
        fs::write(folder.path().join("numbers.txt"), "three\n").unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn serve(&self) -> Service<'_> {
        let mut command = taut(&["lab", "serve", "--json", "--until-stdin-closes"]);
        let mut program = Program::start(command.arg(self.path("lab.toml")));
        program.wait_for_stdout("started");
        let started: Value =
            serde_json::from_str(program.stdout().lines().next().unwrap()).unwrap();
        let url = started["url"].as_str().unwrap().to_owned();
        Service {
            program,
            url,
            of: self,
        }
    }
}

impl Service<'_> {
    /// Runs a command line of a user.
    pub fn by(&self, user: &str, line: &str) -> Finished {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = taut(&words);
        command.current_dir(self.of.folder.path());
        command.env("TAUT_LAB", &self.url);
        run(command.arg("--token-file").arg(self.of.path(user)))
    }

    /// Runs a command line of a user, and returns what it prints as JSON.
    #[track_caller]
    pub fn json_by(&self, user: &str, line: &str) -> Value {
        self.by(user, &format!("{line} --json"))
            .success()
            .last_json()
    }
}

/// Kills the service `kills` times, each at a random time after an experiment and a reservation were accepted. Checks
/// that each of them survives, and that all experiments end with all their runs.
pub fn kill_often(kills: u64) {
    let lab = Laboratory::new("retry = true");
    let mut random = fastrand::Rng::with_seed(1);
    let (mut reserved, mut submitted) = (BTreeSet::new(), BTreeSet::new());
    for kill in 0..kills {
        let service = lab.serve();
        let user = ["alice", "bob"][kill as usize % 2];
        let wish = format!("lab reserve far --from +{}m --for 5m", 60 + 10 * kill);
        reserved.insert(
            service.json_by(user, &wish)["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
        let made = service.json_by(user, "experiment submit numbers.toml");
        submitted.insert(made["id"].as_u64().unwrap());
        std::thread::sleep(Duration::from_millis(random.u64(..400)));
        service.program.kill();
    }
    let service = lab.serve();
    for id in &submitted {
        service
            .by("bob", &format!("experiment watch {id}"))
            .success();
    }
    let of = |line: &str| service.json_by("bob", line).as_array().unwrap().clone();
    let kept = of("lab calendar");
    let kept: BTreeSet<String> = kept
        .iter()
        .map(|it| it["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(kept, reserved);
    let done = of("lab queue");
    let done = done
        .iter()
        .filter(|it| it["state"] == "finished" && it["progress"]["done"] == 2);
    let done: BTreeSet<u64> = done.map(|it| it["id"].as_u64().unwrap()).collect();
    assert_eq!(done, submitted);
    service.program.interrupt().success();
}
