//! The network between plant and controller of `taut control run --over`: functions of a chain or a third-party switch,
//! each between two network namespaces that are created for the run.

use crate::exit::{self, Failure};
use crate::transport::medium_of;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use taut_deploy::Deployment;
use taut_engine::{Chain, ChainError, Wait};
use taut_functions::FUNCTIONS;
use taut_host::baseline::{Baseline, Frames, Running, baselines};
use taut_host::net::{Namespace, Testbed};
use taut_model::link::medium::SharedMedium;
use taut_port::PortSpec;
use taut_traffic::messages::Transport;
use taut_traffic::probe;
use taut_transport::{Scenario, Simulated, simulate, simulate_datagrams};
use tempfile::TempDir;

/// IPv4 addresses of plant and controller.
const SIDES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];

/// The kind of network to set up.
#[derive(Debug, Clone)]
pub enum Over {
    /// A channel shared by both directions, from a medium file.
    Medium(PathBuf),
    /// A chain of functions from a chain file, run as described in the file.
    Chain(PathBuf),
    /// A third-party switch between veth pairs of the kernel.
    Device(&'static Baseline),
}

/// Returns the third-party switches that forward frames with any address.
fn switches() -> impl Iterator<Item = &'static Baseline> {
    let all = baselines().iter();
    all.filter(|it| it.on_interfaces() && it.frames == Frames::Through)
}

impl FromStr for Over {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("medium", file)) if !file.is_empty() => Ok(Self::Medium(file.into())),
            Some(("chain", file)) if !file.is_empty() => Ok(Self::Chain(file.into())),
            Some(("device", id)) => switches()
                .find(|it| it.id == id)
                .map(Self::Device)
                .ok_or_else(|| {
                    let ids: Vec<_> = switches().map(|it| it.id).collect();
                    format!("expected one of these devices: {}", ids.join(", "))
                }),
            _ => Err("expected medium:FILE, chain:FILE or device:ID".to_owned()),
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Medium(file) => write!(f, "medium:{}", file.display()),
            Self::Chain(file) => write!(f, "chain:{}", file.display()),
            Self::Device(switch) => write!(f, "device:{}", switch.id),
        }
    }
}

/// Builds a chain with a medium as its only function, between ports that are not connected yet.
fn chain_of_medium(file: &Path) -> Result<Chain, ChainError> {
    let path = toml::Value::from(file.display().to_string());
    let text =
        format!("ports = [\"null:\", \"null:\"]\n[[function]]\nname = \"medium\"\nfile = {path}\n");
    let mut chain = Chain::parse(&text, "--over", FUNCTIONS)?;
    // Both sides sleep most of the time and may use this core as well.
    chain.wait = Wait::Yield;
    Ok(chain)
}

/// Length of a message in virtual time, bytes: that of NCSbench's command, the longer of its two messages.
const MESSAGE_BYTES: usize = 192;
/// Delay above which a datagram is useless to any control loop, ns.
const WORTHLESS_NS: u64 = 4_000_000_000;
/// Maximum number of attempts to reach the peer.
const GREETINGS: u64 = 8;

/// A robot and its controller over a medium in virtual time.
#[derive(Debug, Clone)]
pub struct Virtual<'a> {
    /// The transport of the messages.
    pub by: &'a probe::Over,
    /// Time from one report to the next, ns.
    pub period_ns: u64,
    /// Number of reports to exchange.
    pub rounds: u64,
    /// Target delay of plant and controller while the default target delay is not met, ns; none if it does not change.
    pub late_target_ns: Option<u64>,
    /// Seed of the medium's random draws.
    pub seed: u64,
}

/// The exchanges of messages between plant and controller.
pub struct Rounds {
    /// Delays of both directions in each exchange, ns; `None` if one message of the exchange is lost.
    pub recorded_ns: Vec<Option<[u64; 2]>>,
    /// For each exchange, true if notices of the controller's endpoint demand the later target delay.
    pub noticed: Vec<bool>,
}

impl Virtual<'_> {
    /// Simulates the exchanges of messages between plant and controller, in virtual time. Reports are sent periodically, and the reply to each is sent at the moment of its delivery, as if the controller
    /// took no time. Contents of messages do not matter, so all delays are known before the loop begins.
    pub fn rounds(&self, over: &Over) -> Result<Rounds, Failure> {
        let Over::Medium(file) = over else {
            return Err(Failure::Input(format!(
                "--over {over}: unsupported with --virtual; expected medium:FILE"
            )));
        };
        let mut found = Simulated::default();
        // Real processes also try again if their first messages get no reply.
        for attempt in 0..GREETINGS {
            let seed = self.seed.wrapping_add(attempt << 32);
            found = self.simulated(&mut medium_of(file, seed)?, seed)?;
            if !found.messages[0].is_empty() {
                break;
            }
        }
        // The replies are in the order in which the reports were delivered.
        let usual_ns = self.by.deadline.settings.target_ns;
        // Only the deadline transport has targets.
        let targets_ns = found.targets_ns[1].iter().copied();
        let targets_ns = targets_ns.chain(std::iter::repeat(usual_ns));
        let mut answers = found.messages[1].iter().zip(targets_ns);
        let mut is_noticed = false;
        let rounds = found.messages[0].iter().map(|report| {
            let answered = report.took_ns.and_then(|there_ns| {
                let (answer, target_ns) = answers.next()?;
                is_noticed = target_ns > usual_ns;
                Some([there_ns, answer.took_ns?])
            });
            (answered, is_noticed)
        });
        let (mut rounds, noticed): (Vec<_>, Vec<_>) = rounds.unzip();
        // No message arrives if plant and controller never connected.
        if rounds.is_empty() {
            rounds.push(None);
        }
        Ok(Rounds {
            recorded_ns: rounds,
            noticed,
        })
    }

    fn simulated(&self, medium: &mut SharedMedium, seed: u64) -> Result<Simulated, Failure> {
        let mut scenario = Scenario {
            settings: self.by.deadline.settings,
            interval_ns: self.period_ns,
            payload_bytes: MESSAGE_BYTES,
            messages: self.rounds,
            answers: true,
            late_target_ns: self.late_target_ns,
            seed,
            ..Scenario::default()
        };
        match self.by.transport {
            Transport::Deadline => {
                simulate(&scenario, medium).map_err(|e| Failure::Input(e.to_string()))
            }
            Transport::Udp => {
                scenario.settings.target_ns = WORTHLESS_NS;
                Ok(simulate_datagrams(&scenario, medium))
            }
            other => Err(Failure::Input(format!(
                "--transport {}: cannot be simulated; expected deadline or udp",
                other.name()
            ))),
        }
    }
}

/// The network path between plant and controller, which is removed on drop.
pub struct Between {
    path: Laid,
}

/// The programs and namespaces of the path. Programs in the namespaces are listed first, so that they end before the
/// namespaces.
enum Laid {
    Chain {
        _deployment: Box<Deployment>,
        namespaces: [Namespace; 2],
    },
    Device {
        _running: Running,
        testbed: Testbed,
        far: Namespace,
        _scratch: TempDir,
    },
}

impl Between {
    /// Sets up the path between the plant and the controller.
    ///
    /// # Errors
    /// The file is invalid, a chain cannot run here, or the switch is missing. Nothing is left behind in any of these
    /// cases.
    pub fn lay(over: &Over) -> Result<Self, Failure> {
        let path = match over {
            Over::Medium(file) => functions(chain_of_medium(file)?, file)?,
            Over::Chain(file) => functions(Chain::load(file, FUNCTIONS)?, file)?,
            Over::Device(switch) => device(switch)?,
        };
        Ok(Self { path })
    }

    /// Returns the names of the namespaces of plant and controller.
    pub fn namespaces(&self) -> [Option<String>; 2] {
        let names = match &self.path {
            Laid::Chain { namespaces, .. } => namespaces.each_ref().map(Namespace::name),
            Laid::Device { testbed, far, .. } => [testbed.generator_namespace(), far.name()],
        };
        names.map(|name| Some(name.to_owned()))
    }

    /// Returns the IP address of the controller.
    pub fn controller(&self) -> IpAddr {
        SIDES[1].into()
    }
}

fn missing(e: impl fmt::Display) -> Failure {
    Failure::Missing(e.to_string())
}

/// Starts a chain between two namespaces.
fn functions(mut chain: Chain, file: &Path) -> Result<Laid, Failure> {
    let fresh = || Namespace::fresh().map_err(missing);
    let namespaces = [fresh()?, fresh()?];
    let ports = namespaces.iter().zip(SIDES).map(|(namespace, address)| {
        PortSpec::parse(&format!(
            "veth:eth0,netns={},address={address}/24",
            namespace.name()
        ))
    });
    chain.ports = ports.collect::<Result<_, _>>()?;
    chain.name = Some(format!("control-{}", std::process::id()));
    let program = exit::own_program()?;
    Ok(Laid::Chain {
        _deployment: Box::new(Deployment::up(&chain, file, &program, exit::stop_flag()?)?),
        namespaces,
    })
}

/// Starts a switch between two namespaces, on the last core of the machine.
fn device(switch: &Baseline) -> Result<Laid, Failure> {
    switch.probe().map_err(missing)?;
    let core = taut_host::allowed_cpus().last().copied().unwrap_or(0);
    let testbed = Testbed::builder().steering(switch.steering(core)).build();
    let testbed = testbed.map_err(missing)?;
    let addresses = SIDES.map(|address| format!("{address}/24"));
    let far = testbed.part(addresses.each_ref().map(String::as_str));
    let far = far.map_err(missing)?;
    let scratch = taut_host::private::scratch().map_err(missing)?;
    let running = switch.start(Some(&testbed), core, scratch.path());
    Ok(Laid::Device {
        _running: running.map_err(missing)?,
        testbed,
        far,
        _scratch: scratch,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_control::controller::{LatePlan, Strategy};
    use taut_control::station::Discipline;
    use taut_control::{LinkSettings, plant};

    const MS: u64 = 1_000_000;
    const SEEDS: u64 = 8;

    /// Returns the number of periods, of 900 and one result per seed, that the robot stays up beside `stations` other
    /// stations, which send from 11 to 21 s. Targets are in ms.
    fn periods(
        stations: u32,
        target: u64,
        strategy: Strategy,
        late: Option<(u64, Strategy)>,
    ) -> Vec<usize> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("radio.toml");
        let text = format!(
            "[wlan]\nimplementation_us = 120\nstations = {stations}\n\
            active = [[0, 0], [11000, {stations}], [21000, 0], [60000, 0]]"
        );
        std::fs::write(&file, text).unwrap();
        let mut by = probe::Over {
            transport: Transport::Deadline,
            ..probe::Over::default()
        };
        let settings = &mut by.deadline.settings;
        (settings.target_ns, settings.window_ns, settings.in_time) = (target * MS, 2 * MS, 0.9);
        let late = late.map(|(target, strategy)| LatePlan {
            target_ns: target * MS,
            strategy,
            delay_ns: 2 * (target - 2) * MS,
        });
        let run = |seed| {
            let mut scenario = taut_control::Scenario::new(plant::robot());
            scenario.station.discipline = Discipline::Arrival;
            scenario.station.periods = 900;
            (
                scenario.controller.strategy,
                scenario.controller.expected_delay_ns,
            ) = (strategy, 0);
            (scenario.late, scenario.seed) = (late, seed);
            let rounds = Virtual {
                by: &by,
                period_ns: scenario.model.period_ns(),
                rounds: 950,
                late_target_ns: late.map(|it| it.target_ns),
                seed,
            };
            let Ok(Rounds {
                recorded_ns,
                noticed,
            }) = rounds.rounds(&Over::Medium(file.clone()))
            else {
                panic!("the medium is valid");
            };
            scenario.link = LinkSettings {
                recorded_ns,
                noticed,
                ..LinkSettings::default()
            };
            taut_control::simulate(&scenario).unwrap().records.len()
        };
        (1..=SEEDS).map(run).collect()
    }

    #[test]
    fn a_robot_with_notices_stands_where_a_fixed_controller_falls() {
        let late = |strategy| Some((50, strategy));
        let noticed = periods(5, 2, Strategy::Fixed, late(Strategy::Compensated));
        assert_eq!(noticed, [900; SEEDS as usize]);
        // The other stations send from period 286 to 571.
        for (late, most) in [(None, 400), (late(Strategy::Fixed), 571)] {
            let fixed = periods(5, 2, Strategy::Fixed, late);
            assert!(fixed.iter().all(|it| *it < most), "{late:?}: {fixed:?}");
        }
    }
}
