//! `taut experiment` on machines that Slurm allocates. The test starts its own cluster on this machine once: a
//! controller, `munge`, and five machines with names and ports of their own in two partitions.

use crate::support::hosts::{Namespace, ip};
use crate::support::program::{Finished, PATIENCE, Program, run};
use crate::support::{is_root, scratch};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PROGRAMS: [&str; 5] = ["munged", "slurmctld", "slurmd", "sbatch", "srun"];
/// Names of the machines and their features. The last machine is the only one in the partition `side`, and does not
/// share the folder `apart` with the other machines.
const MACHINES: [(&str, &str); 5] = [
    ("n1", "gen"),
    ("n2", "dut"),
    ("n3", "gen"),
    ("n4", "dut"),
    ("n5", "apart"),
];
/// The largest number of elements of a Slurm job array.
const MOST: usize = 8;

/// A Slurm cluster on this machine, which is removed on drop with all its processes.
struct Cluster {
    _network: Namespace,
    folder: TempDir,
    daemons: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.slurm("scancel", &["--user=root"]).status();
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && !self.queue().is_empty() {
            sleep(Duration::from_millis(50));
        }
        // Every process of the cluster has the cluster's folder in its environment.
        let own = self.folder.path().display().to_string();
        for _ in 0..3 {
            for process in processes_with(&own) {
                let _ = kill_process(process, Signal::KILL);
            }
            sleep(Duration::from_millis(50));
        }
        for daemon in &mut self.daemons {
            let _ = daemon.wait();
        }
    }
}

/// Moves this thread, and the processes that it will start, to a network namespace with only the loopback interface.
/// Names can be resolved there, since the interface also has an address other than the loopback address.
fn network_of_its_own(name: String) -> Namespace {
    ip(&format!("netns add {name}"));
    ip(&format!("-n {name} link set lo up"));
    ip(&format!("-n {name} addr add 192.0.2.1/32 dev lo"));
    let file = fs::File::open(format!("/run/netns/{name}")).unwrap();
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    Namespace(name)
}

/// Returns the other processes with `text` in their environment or command line.
fn processes_with(text: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| *pid != rustix::process::getpid().as_raw_nonzero().get())
        .filter(|pid| {
            ["environ", "cmdline"].iter().any(|file| {
                let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                bytes
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
            })
        })
        .filter_map(Pid::from_raw)
        .collect()
}

impl Cluster {
    fn new() -> Option<Self> {
        if !is_root() {
            return None;
        }
        let there = |program: &&str| {
            ["/usr/sbin", "/usr/bin"]
                .iter()
                .any(|folder| Path::new(folder).join(program).exists())
        };
        if !PROGRAMS.iter().all(there) {
            println!("skipped: needs Slurm and munge (packages slurm-wlm and munge)");
            return None;
        }
        let folder = scratch();
        let name = folder.path().file_name().unwrap().to_string_lossy();
        let mut cluster = Self {
            // Experiments in different networks do not wait for each other, so these machines do not wait for other
            // tests.
            _network: network_of_its_own(format!("{name}-cluster")),
            folder,
            daemons: Vec::new(),
        };
        cluster.configure();
        let own = cluster.folder.path().to_owned();
        let munge = |name: &str| own.join("munge").with_extension(name).display().to_string();
        cluster.daemon(
            "munged",
            &[
                "--foreground",
                "--force",
                &format!("--key-file={}", munge("key")),
                &format!("--socket={}", munge("sock")),
                &format!("--pid-file={}", munge("pid")),
                &format!("--seed-file={}", munge("seed")),
            ],
        );
        cluster.wait_until("munge", |cluster| {
            UnixStream::connect(cluster.path("munge.sock")).is_ok()
        });
        cluster.daemon("slurmctld", &["-D", "-i"]);
        for (name, _) in &MACHINES[..4] {
            cluster.daemon("slurmd", &["-D", "-N", name]);
        }
        let apart = cluster.path("apart").display().to_string();
        let alone = "mount -t tmpfs tmpfs \"$1\" && exec /usr/sbin/slurmd -D -N n5";
        cluster.daemon_at("/usr/bin/unshare", &["-m", "sh", "-c", alone, "sh", &apart]);
        cluster.wait_until_idle();
        Some(cluster)
    }

    fn wait_until_idle(&self) {
        self.wait_until("four idle machines", |cluster| {
            let states = ["--noheader", "--partition=all", "-N", "-o", "%T"];
            let states = run(&mut cluster.slurm("sinfo", &states));
            let idle = states.stdout.lines().filter(|state| *state == "idle");
            idle.count() == 4
        });
    }

    fn configure(&self) {
        let own = self.folder.path().display();
        // The cluster may use all ports of its network; those from 32,768 on are ephemeral.
        let ports: Vec<_> = (0..=MACHINES.len()).map(|number| 17_000 + number).collect();
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        // Daemons may be slow on a busy core and must not count as dead; no test waits for Slurm to detect that by
        // itself.
        let mut text = format!(
            "ClusterName=taut\n\
             SlurmctldHost={}(127.0.0.1)\n\
             SlurmctldPort={}\n\
             SlurmUser=root\n\
             AuthInfo=socket={own}/munge.sock\n\
             StateSaveLocation={own}/state\n\
             SlurmdSpoolDir={own}/spool-%n\n\
             SlurmctldPidFile={own}/slurmctld.pid\n\
             SlurmdPidFile={own}/%n.pid\n\
             ProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\n\
             MpiDefault=none\n\
             SelectType=select/linear\n\
             SlurmdParameters=config_overrides\n\
             SchedulerParameters=sched_min_interval=0,batch_sched_delay=0\n\
             ReturnToService=2\n\
             KillWait=10\n\
             SlurmdTimeout=300\n\
             MaxArraySize={MOST}\n",
            host.trim(),
            ports[0]
        );
        for ((name, feature), port) in MACHINES.iter().zip(&ports[1..]) {
            text += &format!(
                "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=1 Feature={feature}\n"
            );
            fs::create_dir(self.path(&format!("spool-{name}"))).unwrap();
        }
        text += "PartitionName=all Nodes=n[1-4] Default=YES OverSubscribe=EXCLUSIVE\n\
                 PartitionName=side Nodes=n5 OverSubscribe=EXCLUSIVE\n";
        fs::write(self.path("slurm.conf"), text).unwrap();
        for folder in ["state", "apart"] {
            fs::create_dir(self.path(folder)).unwrap();
        }
        let key: Vec<u8> = (0..128).map(|_| fastrand::u8(..)).collect();
        fs::write(self.path("munge.key"), key).unwrap();
        fs::set_permissions(self.path("munge.key"), fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Builds one of Slurm's commands, such as `squeue`, for this cluster.
    fn slurm(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("SLURM_CONF", self.path("slurm.conf"));
        command
    }

    fn daemon(&mut self, program: &str, arguments: &[&str]) {
        self.daemon_at(&format!("/usr/sbin/{program}"), arguments);
    }

    fn daemon_at(&mut self, path: &str, arguments: &[&str]) {
        let log = fs::File::create(self.path(&format!("{}.log", self.daemons.len()))).unwrap();
        let daemon = self
            .slurm(path, arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.daemons.push(daemon);
    }

    #[track_caller]
    fn wait_until(&self, what: &str, mut seen: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !seen(self) {
            if Instant::now() > deadline {
                let logs = fs::read_dir(self.folder.path()).unwrap().flatten();
                let logs =
                    logs.filter(|entry| entry.path().extension().is_some_and(|e| e == "log"));
                let logs: Vec<_> = logs.map(|log| fs::read_to_string(log.path())).collect();
                let failures = self.failures();
                panic!("never came to {what}; runs that failed: {failures:#?}; {logs:#?}");
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Returns the reasons for the failed runs of all experiments.
    fn failures(&self) -> Vec<String> {
        let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
        let outs = entries(self.folder.path().to_owned());
        let runs = outs.flat_map(|out| entries(out.path().join("failed")));
        runs.filter_map(|run| fs::read_to_string(run.path().join("run.json")).ok())
            .collect()
    }

    /// Returns Slurm's list of the jobs that wait or run.
    fn queue(&self) -> String {
        self.squeue(&["--partition=all"])
    }

    fn squeue(&self, arguments: &[&str]) -> String {
        run(&mut self.slurm("squeue", &[&["--noheader"], arguments].concat())).stdout
    }

    /// Returns the number of all job arrays that were submitted so far.
    fn arrays(&self) -> usize {
        let all = self.squeue(&["--states=all", "-o", "%F"]);
        all.lines().collect::<BTreeSet<_>>().len()
    }

    fn taut(&self, arguments: &[&str]) -> Command {
        let mut command = self.slurm(env!("CARGO_BIN_EXE_taut"), arguments);
        command.current_dir(self.folder.path());
        command
    }

    fn start(&self, experiment: &str, out: &str) -> Program {
        fs::write(self.path("sweep.toml"), experiment).unwrap();
        Program::start(&mut self.taut(&["experiment", "run", "sweep.toml", "--out", out]))
    }

    /// Starts a run on the machine that is the only one in its partition.
    fn start_aside(&self, step: &str, out: &str) -> Program {
        let text = format!(
            "title = \"Aside\"\n[plan]\nrepetitions = 1\nlimit = \"600s\"\n\
             [nodes.one]\nat = \"slurm\"\nfeatures = \"apart\"\n[[step]]\nrun = \"{step}\"\n"
        );
        fs::write(self.path("aside.toml"), text).unwrap();
        let words = ["experiment", "run", "aside.toml", "--out", out];
        Program::start(self.taut(&words).env("SBATCH_PARTITION", "side"))
    }

    fn run(&self, experiment: &str, out: &str) -> Finished {
        self.start(experiment, out).finish_within(2 * PATIENCE)
    }

    fn resume(&self, out: &str) -> Finished {
        Program::start(&mut self.taut(&["experiment", "resume", out])).finish_within(2 * PATIENCE)
    }

    /// Returns the names of the complete runs in the results folder `out`.
    fn whole(&self, out: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path(out).join("runs"))
            .into_iter()
            .flatten()
            .flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".partial"))
            .collect()
    }

    fn record(&self, run: &str) -> Value {
        let text = fs::read_to_string(self.path(run).join("run.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Checks that no job of the experiment waits or runs, and that the experiment's folder lists none.
    #[track_caller]
    fn nothing_is_left(&self, out: &str) {
        assert_eq!(self.queue(), "");
        for name in ["slurm/job", "slurm/runs", "slurm/taut"] {
            assert!(!self.path(out).join(name).exists(), "{name}");
        }
        let entries = fs::read_dir(self.path(out).join("runs")).unwrap().flatten();
        let partial = entries.filter(|e| e.file_name().to_string_lossy().ends_with(".partial"));
        assert_eq!(partial.count(), 0);
    }
}

/// Returns an experiment of twelve runs on pairs of machines.
fn sweep(seconds: &str) -> String {
    format!(
        r#"
title = "Sweep"
[loop]
size = [64, 128, 256]
[plan]
repetitions = 4
limit = "30s"
[nodes.generator]
at = "slurm"
features = "gen"
[nodes.device]
at = "slurm"
features = "dut"
[[file]]
name = "size"
text = "{{{{ size }}}}"
[[step]]
name = "device"
node = "device"
run = "echo ready; cat size >there; exec sleep 600"
background = true
ready = "ready"
[[step]]
name = "generator"
node = "generator"
run = "sleep {seconds}; echo '{{\"size\":{{{{ size }}}}}}'"
json = true
"#
    )
}

#[test]
fn slurm_runs_experiments_and_cluster_failures_are_reported() {
    let Some(mut cluster) = Cluster::new() else {
        return;
    };
    // Slurm checks time limits twice a minute only; the other runs proceed in the meantime.
    let step = "echo begun; [ -e ../../../pass ] || sleep 300";
    let limited = cluster.start_aside(step, "limited");
    cluster.wait_until("the run aside", |cluster| {
        let said = cluster.path("limited/runs/v1-r1.partial/logs/step-1.out");
        fs::read_to_string(said).is_ok_and(|said| said.contains("begun"))
    });
    let job = cluster.squeue(&["--partition=side", "-o", "%i"]);
    let job = format!("JobId={}", job.trim());
    let update = ["update", &job, "EndTime=now"];
    let updated = run(&mut cluster.slurm("scontrol", &update));
    assert_eq!(updated.code(), Some(0), "{updated:?}");

    let begun = Instant::now();
    let done = |what: &str| println!("{what}: at {:.1?}", begun.elapsed());
    twelve_runs_are_made_on_pairs_of_machines(&cluster);
    done("twelve runs");
    runs_are_added_until_a_metric_is_known(&cluster);
    done("runs until a metric is known");
    an_interrupted_sweep_is_resumed_with_the_missing_runs_only(&cluster);
    done("the sweep that was interrupted");
    a_job_that_reached_its_time_limit_is_made_again(&cluster, limited);
    done("the job that reached its time limit");
    a_folder_that_machines_do_not_share_is_told(&cluster);
    done("the folder that is not shared");
    what_goes_wrong_in_a_cluster_is_said(&mut cluster);
}

fn a_job_that_reached_its_time_limit_is_made_again(cluster: &Cluster, limited: Program) {
    let finished = limited.finish_within(2 * PATIENCE);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stderr.contains("v1-r1: "), "{finished:?}");
    assert!(finished.stderr.contains("time limit"), "{finished:?}");
    assert!(
        finished.stderr.contains("taut experiment resume"),
        "{finished:?}"
    );
    fs::write(cluster.path("limited/pass"), "").unwrap();
    let mut resume = cluster.taut(&["experiment", "resume", "limited"]);
    let resumed = Program::start(resume.env("SBATCH_PARTITION", "side"));
    let resumed = resumed.finish_within(2 * PATIENCE).success();
    assert!(resumed.stdout.contains("1 of 1 runs"), "{resumed:?}");
}

fn a_folder_that_machines_do_not_share_is_told(cluster: &Cluster) {
    let finished = cluster
        .start_aside("true", "apart/out")
        .finish_within(2 * PATIENCE);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(
        finished
            .stderr
            .contains("a file system that all machines share (--out)"),
        "{finished:?}"
    );
}

fn runs_are_added_until_a_metric_is_known(cluster: &Cluster) {
    let text = r#"
title = "Until"
[loop]
kind = ["steady", "wild"]
[plan]
repetitions = 6
until = { metric = "n.value", within = 0.1, at_most = 7 }
[nodes.one]
at = "slurm"
[[step]]
name = "n"
run = """echo '{"value": {{ 10 if kind == "steady" else repetition * repetition }}}'"""
json = true
"#;
    let before = cluster.arrays();
    let finished = cluster.run(text, "until").success();
    // The combination `steady` is complete after six runs, and the other combination is abandoned after seven.
    assert!(finished.stdout.contains("13 of 13 runs"), "{finished:?}");
    assert!(cluster.whole("until").contains("v2-r7"));
    // Twelve runs do not fit into one array; the thirteenth has its own.
    assert_eq!(cluster.arrays() - before, 3);
    cluster.nothing_is_left("until");
}

fn twelve_runs_are_made_on_pairs_of_machines(cluster: &Cluster) {
    let finished = cluster.run(&sweep("0.1"), "out").success();
    assert!(finished.stdout.contains("12 of 12 runs"), "{finished:?}");
    cluster.nothing_is_left("out");
    let index = fs::read_to_string(cluster.path("out/runs.jsonl")).unwrap();
    assert_eq!(index.lines().count(), 12);
    let mut pairs = BTreeSet::new();
    for (run, size) in cluster
        .whole("out")
        .iter()
        .zip([64, 64, 64, 64, 128, 128, 128, 128, 256, 256, 256, 256])
    {
        let record = cluster.record(&format!("out/runs/{run}"));
        assert_eq!(
            record["metrics"]["generator.size"],
            f64::from(size),
            "{record}"
        );
        let there = cluster.path(&format!("out/runs/{run}/device/there"));
        assert_eq!(fs::read_to_string(there).unwrap(), size.to_string());
        let on = |role: &str| {
            let notes = record["notes"].as_array().unwrap();
            let notes = notes.iter().filter_map(Value::as_str);
            let mut hosts =
                notes.filter_map(|note| note.strip_prefix(&format!("node {role} was ")));
            hosts.next().unwrap().to_owned()
        };
        let pair = [on("generator"), on("device")];
        assert!(["n1", "n3"].contains(&pair[0].as_str()), "{pair:?}");
        assert!(["n2", "n4"].contains(&pair[1].as_str()), "{pair:?}");
        pairs.insert(pair);
    }
    assert!(!pairs.is_empty());
}

fn an_interrupted_sweep_is_resumed_with_the_missing_runs_only(cluster: &Cluster) {
    let arrays = cluster.arrays();
    let few = sweep("0.5").replace("repetitions = 4", "repetitions = 2");
    let driver = cluster.start(&few, "cut");
    cluster.wait_until("two whole runs", |cluster| cluster.whole("cut").len() >= 2);
    let stopped = driver.interrupt();
    assert_eq!(stopped.code(), Some(130), "{stopped:?}");
    assert!(
        stopped.stderr.contains("taut experiment resume"),
        "{stopped:?}"
    );
    cluster.nothing_is_left("cut");
    let first = cluster.whole("cut");
    assert!(first.len() < 6, "all were made");
    let changed = |run: &String| {
        let file = cluster.path(&format!("cut/runs/{run}/run.json"));
        fs::metadata(file).unwrap().modified().unwrap()
    };
    let before: Vec<_> = first.iter().map(changed).collect();

    // The killed command's job array continues by itself, and is not submitted a second time.
    let resumed = Program::start(&mut cluster.taut(&["experiment", "resume", "cut"]));
    cluster.wait_until("another whole run", |cluster| {
        cluster.whole("cut").len() > first.len()
    });
    resumed.kill();
    let under_way = cluster.squeue(&["--partition=all", "-o", "%F"]);
    let under_way: BTreeSet<_> = under_way.lines().collect();
    assert!(under_way.len() <= 1, "{under_way:?}");
    let finished = cluster.resume("cut").success();
    assert!(finished.stdout.contains("6 of 6 runs"), "{finished:?}");
    cluster.nothing_is_left("cut");
    assert_eq!(first.iter().map(changed).collect::<Vec<_>>(), before);
    assert!(!cluster.path("cut/failed").exists());
    // There are two arrays, and not a third.
    assert_eq!(cluster.arrays() - arrays, 2);
}

fn what_goes_wrong_in_a_cluster_is_said(cluster: &mut Cluster) {
    let refused = cluster.run(&sweep("0.1").replace("\"dut\"", "\"gpu\""), "o1");
    assert_eq!(refused.code(), Some(3), "{refused:?}");
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    assert!(refused.stderr.contains("[gen*1&gpu*1]"), "{refused:?}");
    assert!(refused.stderr.contains("sinfo"), "{refused:?}");
    // `taut experiment check` reports the same error before any run.
    let check = ["experiment", "check", "sweep.toml"];
    let checked = run(&mut cluster.taut(&check));
    assert_eq!(checked.code(), Some(3), "{checked:?}");
    assert!(
        checked.stdout.contains("missing: node slurm: "),
        "{checked:?}"
    );
    assert!(checked.stdout.contains("[gen*1&gpu*1]"), "{checked:?}");
    fs::write(cluster.path("sweep.toml"), sweep("0.1")).unwrap();
    let checked = run(&mut cluster.taut(&check)).success();
    assert!(
        checked
            .stdout
            .contains("slurm: it has 2 machines with `[gen*1&dut*1]`"),
        "{checked:?}"
    );
    assert_eq!(cluster.queue(), "");

    let mut command = cluster.taut(&["experiment", "run", "sweep.toml", "--out", "o3"]);
    let refused = run(command.env("PATH", cluster.path("nothing")));
    assert_eq!(refused.code(), Some(3), "{refused:?}");
    assert!(
        refused.stderr.contains("`sbatch` is not installed here"),
        "{refused:?}"
    );

    // One job is cancelled, one loses its machine to a reboot; the others complete.
    let few = sweep("1")
        .replace("repetitions = 4", "repetitions = 1")
        .replace(
            "run = \"sleep 1;",
            "run = \"[ {{ size }} != 64 ] || [ -e ../../../pass ] || sleep 600; ",
        );
    let driver = cluster.start(&few, "o2");
    let log = |cluster: &Cluster| {
        cluster
            .path("o2/runs/v1-r1.partial/logs/generator.out")
            .exists()
    };
    cluster.wait_until("the run that takes long", log);
    cluster.wait_until("the other runs", |cluster| cluster.whole("o2").len() == 2);
    let host = |cluster: &Cluster| {
        let running = cluster.squeue(&["--states=running", "-o", "%B"]);
        MACHINES
            .iter()
            .position(|(name, _)| *name == running.trim())
    };
    cluster.wait_until("one job", |cluster| host(cluster).is_some());
    let host = host(cluster).unwrap();
    // The controller was started second, after munge.
    let mut daemon = cluster.daemons.remove(2 + host);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    // A power failure ends all processes.
    for process in processes_with(&cluster.folder.path().display().to_string()) {
        let read = |file: &str| {
            let bytes = fs::read(format!("/proc/{}/{file}", process.as_raw_nonzero()));
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        if read("comm").starts_with("slurmstepd") || read("environ").contains("SLURM_JOB_ID=") {
            let _ = kill_process(process, Signal::KILL);
        }
    }
    // The test reports the failure of the machine to Slurm, which would need up to a minute to detect it.
    let name = format!("NodeName={}", MACHINES[host].0);
    let down = ["update", &name, "State=DOWN", "Reason=power"];
    assert_eq!(run(&mut cluster.slurm("scontrol", &down)).code(), Some(0));
    let finished = driver.finish_within(2 * PATIENCE);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(
        finished.stderr.contains("v1-r1: node failure"),
        "{finished:?}"
    );
    assert!(finished.stdout.contains("2 of 3 runs"), "{finished:?}");
    cluster.daemon("slurmd", &["-D", "-b", "-N", MACHINES[host].0]);
    let failed = cluster.record("o2/failed/v1-r1-1");
    assert!(
        failed["failure"].as_str().unwrap().contains("node failure"),
        "{failed}"
    );
    cluster.nothing_is_left("o2");

    cluster.wait_until_idle();
    let resumed = Program::start(&mut cluster.taut(&["experiment", "resume", "o2"]));
    cluster.wait_until("the run that takes long", log);
    let _ = run(&mut cluster.slurm("scancel", &["--user=root"]));
    let finished = resumed.finish_within(2 * PATIENCE);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    assert!(finished.stderr.contains("v1-r1: "), "{finished:?}");
    cluster.nothing_is_left("o2");

    fs::write(cluster.path("o2/pass"), "").unwrap();
    cluster.resume("o2").success();
    assert_eq!(cluster.whole("o2").len(), 3);
}
