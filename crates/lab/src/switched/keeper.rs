//! Whoever makes rules in a switch: a controller by OpenFlow, a person who is told them, or commands that have a bridge do the same.

use super::openflow::{Action, Asked, Controller, GroupKind, Rule, in_text};
use crate::benchmark::Failed;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::BufRead;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How often somebody who waits for a person looks whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Whoever makes rules in a switch.
pub(super) enum Keeper {
    OpenFlow(Controller),
    Bridge(Ports),
    Person(Person),
}

/// Ports of a bridge of the kernel: interfaces of a namespace, by their numbers.
pub(super) struct Ports {
    pub namespace: String,
    pub interfaces: BTreeMap<u32, String>,
}

/// A person who makes rules in a switch.
pub(super) struct Person {
    /// What the switch is called.
    pub switch: String,
    /// Groups and meters that come before rules.
    lines: String,
}

impl Keeper {
    /// Makes all of these rules, and waits until the switch goes by them.
    pub fn rules(
        &mut self,
        rules: impl IntoIterator<Item = Rule>,
        stop: &AtomicBool,
    ) -> Result<(), Failed> {
        match self {
            Self::OpenFlow(controller) => controller.rules(rules),
            Self::Bridge(ports) => ports.rules(rules),
            Self::Person(person) => person.rules(rules, stop),
        }
    }

    /// Makes a group.
    pub fn group(&mut self, id: u32, kind: GroupKind, buckets: &[(Vec<Action>, u32)]) {
        match self {
            Self::OpenFlow(controller) => controller.group(id, kind, buckets),
            // The rule that leads to it is refused.
            Self::Bridge(_) => {}
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

    /// Makes a meter that drops what is above so many packets a second.
    pub fn meter(&mut self, id: u32, pps: u32) {
        match self {
            Self::OpenFlow(controller) => controller.meter(id, pps),
            Self::Bridge(_) => {}
            Self::Person(person) => {
                let line = format!(
                    "  meter={id},pktps,burst,bands=type=drop,rate={pps},burst_size={pps}\n"
                );
                person.lines.push_str(&line);
            }
        }
    }

    /// Packets that each rule has seen, by its cookie; None where nobody can tell. Rules about ports have the port's number.
    pub fn counters(&mut self) -> Result<Option<BTreeMap<u64, u64>>, Failed> {
        match self {
            Self::OpenFlow(controller) => controller.counters().map(Some),
            Self::Bridge(ports) => ports.counters().map(Some),
            Self::Person(_) => Ok(None),
        }
    }

    /// Takes out what is in a switch that stays.
    pub fn leave(&mut self) -> Result<(), Failed> {
        match self {
            Self::OpenFlow(controller) => controller.clear(),
            Self::Bridge(_) | Self::Person(_) => Ok(()),
        }
    }
}

impl Ports {
    /// What a port's frames are sent through, as a bridge can do it: they are in a VLAN of the port's own, to which those ports belong.
    /// With nothing learned, all of them get a copy.
    fn rules(&self, rules: impl IntoIterator<Item = Rule>) -> Result<(), Failed> {
        let mut script = String::from("set -e\n");
        for rule in rules {
            let refused = || Failed::Broken(format!("a bridge cannot do {rule}"));
            let port = rule.asked.in_port.filter(|port| {
                rule.meter.is_none()
                    && rule.asked
                        == Asked {
                            in_port: Some(*port),
                            ..Asked::default()
                        }
            });
            let port = port.ok_or_else(refused)?;
            let name = |port: &u32| self.interfaces.get(port).ok_or_else(refused);
            let vlan = port + 1;
            let from = name(&port)?;
            let _ = writeln!(
                script,
                "bridge vlan add dev {from} vid {vlan} pvid untagged"
            );
            for action in &rule.actions {
                let Action::Output(to) = action else {
                    return Err(refused());
                };
                let to = name(to)?;
                let _ = writeln!(script, "bridge vlan add dev {to} vid {vlan} untagged");
            }
        }
        self.shell(&script).map(drop)
    }

    /// Frames that came in through each port.
    fn counters(&self) -> Result<BTreeMap<u64, u64>, Failed> {
        let mut script = String::new();
        for (port, name) in &self.interfaces {
            let file = format!("/sys/class/net/{name}/statistics/rx_packets");
            let _ = writeln!(script, "echo {port} $(cat {file})");
        }
        let said = self.shell(&script)?;
        let read = |line: &str| {
            let (port, packets) = line.split_once(' ')?;
            Some((port.parse().ok()?, packets.parse().ok()?))
        };
        Ok(said.lines().filter_map(read).collect())
    }

    /// Makes the bridge of these interfaces: no frame passes until there are rules.
    pub fn join(&self) -> Result<(), Failed> {
        let names = self.interfaces.values().cloned().collect::<Vec<_>>();
        let names = names.join(" ");
        self.shell(&format!(
            "set -e
ip link add name br0 type bridge vlan_filtering 1 vlan_default_pvid 0 stp_state 0 mcast_snooping 0
ip link set br0 up
for port in {names}; do
    ip link set $port master br0
    bridge link set dev $port learning off
done
for port in {names}; do
    tries=0
    until [ \"$(cat /sys/class/net/$port/brport/state)\" = 3 ]; do
        tries=$((tries + 1))
        [ $tries -lt 500 ]
        sleep 0.01
    done
done
"
        ))
        .map(drop)
    }

    fn shell(&self, script: &str) -> Result<String, Failed> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace, "sh", "-c", script]);
        let done = command.output()?;
        if !done.status.success() {
            let said = String::from_utf8_lossy(&done.stderr);
            let last = said.lines().last().unwrap_or("a command failed");
            return Err(Failed::Broken(format!("the bridge: {last}")));
        }
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }
}

impl Person {
    pub fn new(switch: String) -> Self {
        Self {
            switch,
            lines: String::new(),
        }
    }

    /// What the person is told.
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

/// Waits for a line of standard input.
fn wait_for_enter(stop: &AtomicBool) -> Result<(), Failed> {
    /// What a thread reads that waits for the next line as long as the process lives: nothing else can be woken by Ctrl-C.
    static LINES: OnceLock<Mutex<Receiver<()>>> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
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
                    "standard input has ended, and nobody has said that the rules are made"
                        .to_string(),
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
    fn a_person_is_told_groups_meters_and_rules_in_one() {
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

    #[test]
    fn a_bridge_says_which_rule_it_cannot_do() {
        let ports = Ports {
            namespace: "none".to_string(),
            interfaces: [(1, "a".to_string()), (2, "b".to_string())].into(),
        };
        let sending = |actions| Rule {
            asked: Asked {
                in_port: Some(1),
                ..Asked::default()
            },
            actions,
            ..Rule::default()
        };
        for rule in [
            sending(vec![Action::Queue(7)]),
            sending(vec![Action::Output(3)]),
            Rule {
                meter: Some(1),
                ..sending(vec![Action::Output(2)])
            },
            Rule {
                asked: Asked {
                    in_port: Some(1),
                    udp_dst: Some(42),
                    ip_dst: None,
                },
                ..sending(vec![])
            },
            Rule::default(),
        ] {
            let said = ports.rules([rule]);
            assert!(
                matches!(&said, Err(Failed::Broken(why)) if why.contains("cannot do priority=0")),
                "{said:?}"
            );
        }
    }
}
