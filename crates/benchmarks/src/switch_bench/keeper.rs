//! The sources of a switch's rules: an OpenFlow or P4Runtime controller, a person who enters rules, a chain file, or
//! commands that configure a bridge equivalently.

use super::openflow::{Action, Asked, Change, Controller, GroupKind, Rule, in_text};
use super::p4runtime::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io::BufRead;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use taut_bench::benchmark::Failed;
use taut_host::DeviceProcess;

/// Timeout for the start of a switch.
const START: Duration = Duration::from_secs(10);
/// Interval at which the program checks for a stop request while it waits until a person has set the rules.
const LOOK: Duration = Duration::from_millis(100);

/// The source of a switch's rules.
pub(super) enum Keeper {
    OpenFlow(Controller),
    P4Runtime(Box<Client>),
    Bridge(Ports),
    File(RuleFile),
    Person(Person),
}

/// A switch that is restarted with the rules in its chain file.
pub(super) struct RuleFile {
    pub namespace: String,
    /// The `taut` program.
    pub program: PathBuf,
    pub core: usize,
    /// Folder that contains the chain file.
    pub folder: PathBuf,
    /// The part of the chain file that stays unchanged when the rules change.
    pub chain: String,
    pub interfaces: BTreeMap<u32, String>,
    pub running: Option<DeviceProcess>,
}

/// The ports of kernel bridges: the interfaces of a namespace, by port number.
pub(super) struct Ports {
    pub namespace: String,
    pub interfaces: BTreeMap<u32, String>,
}

/// A person who enters rules into a switch.
pub(super) struct Person {
    /// Name of the switch.
    pub switch: String,
    /// Groups and meters that are printed before the rules.
    lines: String,
}

impl Keeper {
    /// Adds the given rules, and waits until the switch applies them.
    pub fn rules(
        &mut self,
        rules: impl IntoIterator<Item = Rule>,
        stop: &AtomicBool,
    ) -> Result<(), Failed> {
        match self {
            Self::OpenFlow(controller) => controller.rules(rules),
            Self::P4Runtime(client) => Ok(client.rules(rules)?),
            Self::Bridge(ports) => ports.rules(rules),
            Self::File(file) => file.rules(rules),
            Self::Person(person) => person.rules(rules, stop),
        }
    }

    /// Returns true if a controller changes single rules, and learns when the switch has applied a change.
    pub fn is_controller(&self) -> bool {
        matches!(self, Self::OpenFlow(_) | Self::P4Runtime(_))
    }

    /// Queues a change of a rule. It is sent by [`Keeper::confirm`] at the latest.
    pub fn queue(&mut self, change: Change, rule: &Rule) -> Result<(), Failed> {
        match self {
            Self::OpenFlow(controller) => {
                controller.rule(change, rule);
                Ok(())
            }
            Self::P4Runtime(client) => Ok(client.queue(change, rule)?),
            Self::Bridge(_) | Self::File(_) | Self::Person(_) => Err(no_controller()),
        }
    }

    /// Waits until the switch has applied all queued changes.
    pub fn confirm(&mut self) -> Result<(), Failed> {
        match self {
            Self::OpenFlow(controller) => controller.barrier(),
            Self::P4Runtime(client) => Ok(client.confirm()?),
            Self::Bridge(_) | Self::File(_) | Self::Person(_) => Err(no_controller()),
        }
    }

    /// Adds a group.
    pub fn group(&mut self, id: u32, kind: GroupKind, buckets: &[(Vec<Action>, u32)]) {
        match self {
            Self::OpenFlow(controller) => controller.group(id, kind, buckets),
            // These have no groups. The rule that uses this group is refused later.
            Self::P4Runtime(_) | Self::Bridge(_) | Self::File(_) => {}
            Self::Person(person) => {
                let (name, is_select) = match kind {
                    GroupKind::All => ("all", false),
                    GroupKind::Select => ("select", true),
                    GroupKind::FastFailover => ("ff", false),
                };
                let _ = write!(person.lines, "  group_id={id},type={name}");
                for (actions, port) in buckets {
                    let actions = in_text(actions);
                    let more = match kind {
                        GroupKind::FastFailover => format!("watch_port:{port},"),
                        _ if is_select => "weight:1,".to_string(),
                        _ => String::new(),
                    };
                    let _ = write!(person.lines, ",bucket={more}actions={actions}");
                }
                person.lines.push('\n');
            }
        }
    }

    /// Adds a meter that drops packets above `pps` packets per second.
    pub fn meter(&mut self, id: u32, pps: u32) {
        match self {
            Self::OpenFlow(controller) => controller.meter(id, pps),
            Self::P4Runtime(client) => client.meter(pps),
            Self::Bridge(_) | Self::File(_) => {}
            Self::Person(person) => {
                let line = format!(
                    "  meter={id},pktps,burst,bands=type=drop,rate={pps},burst_size={pps}\n"
                );
                person.lines.push_str(&line);
            }
        }
    }

    /// Returns the number of packets that matched each rule, by cookie; `None` if they cannot be counted. A rule for
    /// the packets of one ingress port has the port number as cookie.
    pub fn counters(&mut self) -> Result<Option<BTreeMap<u64, u64>>, Failed> {
        match self {
            Self::OpenFlow(controller) => controller.counters().map(Some),
            Self::Bridge(ports) => ports.counters().map(Some),
            Self::File(file) => counters(&file.namespace, &file.interfaces).map(Some),
            Self::P4Runtime(_) | Self::Person(_) => Ok(None),
        }
    }

    /// Deletes the rules of a switch that continues to run after the measurement.
    pub fn leave(&mut self) -> Result<(), Failed> {
        match self {
            Self::OpenFlow(controller) => controller.clear(),
            Self::P4Runtime(client) => Ok(client.leave()?),
            Self::Bridge(_) | Self::File(_) | Self::Person(_) => Ok(()),
        }
    }
}

pub(super) fn no_controller() -> Failed {
    Failed::Broken("it has no controller".to_string())
}

impl Ports {
    /// Creates bridges that forward as the rules require, one for each group of connected ports. Without learning, a
    /// packet leaves through all other ports of its bridge, except that isolated ports do not send to each other.
    fn rules(&self, rules: impl IntoIterator<Item = Rule>) -> Result<(), Failed> {
        let mut script = String::from("set -e\n");
        for (number, bridge) in self.bridges(rules)?.iter().enumerate() {
            let _ = writeln!(
                script,
                "ip link add name br{number} type bridge stp_state 0 forward_delay 0 mcast_snooping 0
                ip link set dev br{number} up"
            );
            for (port, is_isolated) in bridge {
                let isolated = if *is_isolated { "on" } else { "off" };
                let _ = writeln!(
                    script,
                    "ip link set dev {port} master br{number}
                    ip link set dev {port} type bridge_slave learning off isolated {isolated}
                    tries=0
                    until [ \"$(cat /sys/class/net/{port}/brport/state)\" = 3 ]; do
                        tries=$((tries + 1))
                        [ $tries -lt 500 ]
                        sleep 0.01
                    done"
                );
            }
        }
        shell(&self.namespace, &script).map(drop)
    }

    /// Returns the bridges that forward as the rules require: the interfaces of each bridge, and whether they are
    /// isolated.
    fn bridges(
        &self,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<Vec<Vec<(&str, bool)>>, Failed> {
        let refused = |rule: &Rule| Failed::Broken(format!("a bridge cannot do {rule}"));
        let mut sending: Vec<Sending> = Vec::new();
        for rule in rules {
            let only_port = Asked {
                in_port: rule.asked.in_port,
                ..Asked::default()
            };
            let outputs = rule.actions.iter().map(|action| match action {
                Action::Output(port) if self.interfaces.contains_key(port) => Some(*port),
                _ => None,
            });
            let outputs: Option<BTreeSet<u32>> = outputs.collect();
            let from = rule.asked.in_port.filter(|_| rule.asked == only_port);
            match (from, outputs, rule.meter) {
                (Some(from), Some(outputs), None) => sending.push((from, outputs, rule)),
                _ => return Err(refused(&rule)),
            }
        }
        let bridges = connected_ports(&sending);
        // A port that does not forward to all others of its bridge is isolated: it forwards only to the ports that are
        // not isolated.
        let others = |bridge: &BTreeSet<u32>, port: u32| -> BTreeSet<u32> {
            bridge.iter().copied().filter(|it| *it != port).collect()
        };
        let mut isolated = BTreeSet::new();
        for bridge in &bridges {
            let of_bridge = sending.iter().filter(|it| bridge.contains(&it.0));
            let some = of_bridge.filter(|(from, outputs, _)| *outputs != others(bridge, *from));
            isolated.extend(some.map(|it| it.0));
        }
        for (from, outputs, rule) in &sending {
            let bridge = bridges.iter().find(|it| it.contains(from));
            let mut does = bridge.map_or_else(BTreeSet::new, |it| others(it, *from));
            if isolated.contains(from) {
                does.retain(|it| !isolated.contains(it));
            }
            if does != *outputs {
                return Err(refused(rule));
            }
        }
        let named = |port: &u32| {
            let name = self.interfaces.get(port).map_or("", String::as_str);
            (name, isolated.contains(port))
        };
        Ok(bridges
            .iter()
            .map(|bridge| bridge.iter().map(named).collect())
            .collect())
    }

    /// Returns the number of frames received through each port.
    fn counters(&self) -> Result<BTreeMap<u64, u64>, Failed> {
        counters(&self.namespace, &self.interfaces)
    }
}

/// An ingress port, the egress ports of the packets that enter through it, and the rule that forwards these packets.
type Sending = (u32, BTreeSet<u32>, Rule);

/// Groups the ports into bridges: ports that forward to each other are in one bridge.
fn connected_ports(sending: &[Sending]) -> Vec<BTreeSet<u32>> {
    let mut bridges: Vec<BTreeSet<u32>> = Vec::new();
    for (from, outputs, _) in sending {
        let mut joined = outputs.clone();
        joined.insert(*from);
        bridges.retain(|other| {
            let is_apart = joined.is_disjoint(other);
            if !is_apart {
                joined.extend(other);
            }
            is_apart
        });
        bridges.push(joined);
    }
    bridges
}

/// Returns the number of frames received through each of the given interfaces, by port number.
fn counters(
    namespace: &str,
    interfaces: &BTreeMap<u32, String>,
) -> Result<BTreeMap<u64, u64>, Failed> {
    let mut script = String::new();
    for (port, name) in interfaces {
        let file = format!("/sys/class/net/{name}/statistics/rx_packets");
        let _ = writeln!(script, "echo {port} $(cat {file})");
    }
    let said = shell(namespace, &script)?;
    let read = |line: &str| {
        let (port, packets) = line.split_once(' ')?;
        Some((port.parse().ok()?, packets.parse().ok()?))
    };
    Ok(said.lines().filter_map(read).collect())
}

fn shell(namespace: &str, script: &str) -> Result<String, Failed> {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "sh", "-c", script]);
    let done = command.output()?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let last = said.lines().last().unwrap_or("a command failed");
        return Err(Failed::Broken(format!("the kernel's switch: {last}")));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

impl RuleFile {
    /// Starts the switch with the given rules; without rules, the switch has no function.
    pub fn rules(&mut self, rules: impl IntoIterator<Item = Rule>) -> Result<(), Failed> {
        // The XDP programs of the earlier switch must be removed from the interfaces first.
        if let Some(before) = self.running.take() {
            before.stop()?;
        }
        let mut text = self.chain.clone();
        for (number, rule) in rules.into_iter().enumerate() {
            if number == 0 {
                text.push_str("[[function]]\nname = \"switch\"\n");
            }
            text.push_str(&in_file(&rule)?);
        }
        let file = self.folder.join("device.toml");
        std::fs::write(&file, text)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]);
        command.arg(&self.program).arg("forward").arg(&file);
        command.args(["--quiet", "--until-stdin-closes"]);
        let mut process = DeviceProcess::start("device", command, self.core, &self.folder)?;
        process.wait_for_line(|line| line.starts_with("forwarding"), START)?;
        self.running = Some(process);
        Ok(())
    }
}

/// Formats a rule as a flow entry of a chain file, in which ports are numbered from 0.
fn in_file(rule: &Rule) -> Result<String, Failed> {
    let mut text = format!("[[function.rule]]\npriority = {}\n", rule.priority);
    if let Some(port) = rule.asked.in_port {
        let _ = writeln!(text, "in_port = {}", port - 1);
    }
    if let Some((address, length)) = rule.asked.ip_dst {
        let _ = writeln!(text, "ip_dst = \"{address}/{length}\"");
    }
    if let Some(port) = rule.asked.udp_dst {
        let _ = writeln!(text, "udp_dst = {port}");
    }
    let action = |action: &Action| match action {
        Action::Output(port) => Some(format!("output:{}", port - 1)),
        _ => None,
    };
    let actions: Option<Vec<String>> = rule.actions.iter().map(action).collect();
    let refused = || Failed::Broken(format!("its file has no {rule}"));
    let actions = actions.filter(|_| rule.meter.is_none());
    let _ = writeln!(text, "actions = {:?}", actions.ok_or_else(refused)?);
    Ok(text)
}

impl Person {
    pub fn new(switch: String) -> Self {
        Self {
            switch,
            lines: String::new(),
        }
    }

    /// Returns the instructions that tell the person which rules to enter.
    fn told(&mut self, rules: impl IntoIterator<Item = Rule>) -> String {
        let lines = std::mem::take(&mut self.lines);
        let mut text = format!(
            "\nMake these rules in the switch ({}), and no others; then press Enter:\n{lines}",
            self.switch
        );
        for rule in rules {
            let _ = writeln!(text, "  {rule}");
        }
        text
    }

    fn rules(
        &mut self,
        rules: impl IntoIterator<Item = Rule>,
        stop: &AtomicBool,
    ) -> Result<(), Failed> {
        eprint!("{}", self.told(rules));
        wait_for_enter(stop)
    }
}

/// Waits for a line on standard input.
fn wait_for_enter(stop: &AtomicBool) -> Result<(), Failed> {
    /// Messages from a thread that reads standard input for the lifetime of the process. Ctrl-C could not wake a
    /// blocking read in the waiting thread.
    static LINES: OnceLock<Mutex<Receiver<()>>> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().split(b'\n') {
                if line.is_err() || tell.send(()).is_err() {
                    break;
                }
            }
        });
        Mutex::new(told)
    });
    let lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(()) => return Ok(()),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failed::Broken(
                    "standard input ended before the rules were confirmed".to_string(),
                ));
            }
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                return Err(Failed::Stopped);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn manual_instructions_contain_groups_meters_and_rules() {
        let mut keeper = Keeper::Person(Person::new("by hand".to_string()));
        keeper.meter(1, 1_000);
        keeper.group(1, GroupKind::FastFailover, &[(vec![Action::Output(2)], 2)]);
        let Keeper::Person(person) = &mut keeper else {
            unreachable!("it is one");
        };
        let rule = Rule {
            actions: vec![Action::Group(1)],
            ..Rule::default()
        };
        let told = person.told([rule]);
        for line in [
            "  meter=1,pktps,burst,bands=type=drop,rate=1000,burst_size=1000",
            "  group_id=1,type=ff,bucket=watch_port:2,actions=output:2",
            "  priority=0,actions=group:1",
        ] {
            assert!(told.lines().any(|it| it == line), "{told}");
        }
        assert_eq!(person.told([]).lines().count(), 2);
    }

    fn ports() -> Ports {
        let names = (1..=6).map(|port| (port, format!("p{port}")));
        Ports {
            namespace: "none".to_string(),
            interfaces: names.collect(),
        }
    }

    fn sending(in_port: u32, to: &[u32]) -> Rule {
        Rule {
            asked: Asked {
                in_port: Some(in_port),
                ..Asked::default()
            },
            actions: to.iter().map(|port| Action::Output(*port)).collect(),
            ..Rule::default()
        }
    }

    #[test]
    fn ports_of_a_bridge_that_exchange_no_packets_are_isolated() {
        let ports = ports();
        let hops = [sending(1, &[2]), sending(3, &[4]), sending(5, &[6])];
        let hops = ports.bridges(hops).unwrap();
        assert_eq!(hops.len(), 3);
        assert!(hops.iter().flatten().all(|(_, is_isolated)| !is_isolated));
        let amplified = [sending(1, &[2, 4]), sending(3, &[6]), sending(5, &[6])];
        let amplified = ports.bridges(amplified).unwrap();
        let all = |number: usize| amplified[number].as_slice();
        assert_eq!(all(0), [("p1", false), ("p2", false), ("p4", false)]);
        assert_eq!(all(1), [("p3", true), ("p5", true), ("p6", false)]);
    }

    #[test]
    fn rules_in_a_chain_file_number_ports_from_zero() {
        let rule = Rule {
            priority: 7,
            ..sending(1, &[2, 3])
        };
        let text = in_file(&rule).unwrap();
        let want = "[[function.rule]]\npriority = 7\nin_port = 0\nactions = [\"output:1\", \"output:2\"]\n";
        assert_eq!(text, want);
        let metered = Rule {
            meter: Some(1),
            ..rule
        };
        assert!(in_file(&metered).is_err());
    }

    #[test]
    fn a_bridge_refuses_rules_that_bridges_do_not_support() {
        let ports = ports();
        let of_class = Rule {
            asked: Asked {
                in_port: Some(1),
                udp_dst: Some(42),
                ip_dst: None,
            },
            ..sending(1, &[2])
        };
        let metered = Rule {
            meter: Some(1),
            ..sending(1, &[2])
        };
        let queued = Rule {
            actions: vec![Action::Queue(7)],
            ..sending(1, &[])
        };
        for rules in [
            vec![queued],
            vec![sending(1, &[9])],
            vec![metered],
            vec![of_class],
            vec![Rule::default()],
            vec![sending(1, &[2, 3]), sending(2, &[3]), sending(3, &[2])],
        ] {
            let said = ports.bridges(rules);
            assert!(
                matches!(&said, Err(Failed::Broken(why)) if why.contains("cannot do priority=0")),
                "{said:?}"
            );
        }
    }
}
