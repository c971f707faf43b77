//! What lies between both sides of `taut control run --over`: functions of a chain, between two namespaces of their own.

use crate::exit::{self, Failure};
use crate::transport::medium_of;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use taut_deploy::Deployment;
use taut_engine::{Chain, ChainError, Wait};
use taut_host::net::Namespace;
use taut_model::link::medium::SharedMedium;
use taut_port::PortSpec;
use taut_traffic::messages::Transport;
use taut_traffic::probe;
use taut_transport::{Scenario, Simulated, simulate, simulate_datagrams};

/// Addresses of plant and controller.
const SIDES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];

/// What is asked for.
#[derive(Debug, Clone)]
pub enum Over {
    /// A channel that both directions share, from a medium file.
    Medium(PathBuf),
    /// The functions of a chain file, as the file has them run.
    Chain(PathBuf),
}

impl FromStr for Over {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("medium", file)) if !file.is_empty() => Ok(Self::Medium(file.into())),
            Some(("chain", file)) if !file.is_empty() => Ok(Self::Chain(file.into())),
            _ => Err("want medium:FILE or chain:FILE".to_owned()),
        }
    }
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Medium(_) => "medium",
            Self::Chain(_) => "chain",
        };
        write!(f, "{kind}:{}", self.file().display())
    }
}

impl Over {
    fn file(&self) -> &Path {
        match self {
            Self::Medium(file) | Self::Chain(file) => file,
        }
    }

    /// The chain, still between ports of its file.
    fn chain(&self) -> Result<Chain, ChainError> {
        let file = match self {
            Self::Chain(file) => return Chain::load(file),
            Self::Medium(file) => file,
        };
        let path = toml::Value::from(file.display().to_string());
        let text = format!(
            "ports = [\"null:\", \"null:\"]\n[[function]]\nname = \"medium\"\nfile = {path}\n"
        );
        let mut chain = Chain::parse(&text, "--over")?;
        // Both sides sleep most of the time, and may have this core, too.
        chain.wait = Wait::Yield;
        Ok(chain)
    }
}

/// Bytes of a message in virtual time: those of NCSbench's command, which is the longer one.
const MESSAGE_BYTES: usize = 192;
/// Time after which a datagram is no use to any loop, ns.
const WORTHLESS_NS: u64 = 4_000_000_000;
/// Times that a side which finds nobody tries again.
const GREETINGS: u64 = 8;

/// A robot and its controller over a medium in virtual time.
#[derive(Debug, Clone)]
pub struct Virtual<'a> {
    /// What carries messages.
    pub by: &'a probe::Over,
    /// From one report to the next, ns.
    pub period_ns: u64,
    /// Reports.
    pub rounds: u64,
    /// Seed of what the medium draws.
    pub seed: u64,
}

impl Virtual<'_> {
    /// Delays of both ways of each round, ns, or that it is lost: reports by the clock, each of them answered when it
    /// is delivered, as if the controller took no time. What is in messages changes nothing, so all of it is known
    /// before the loop begins.
    pub fn rounds(&self, over: &Over) -> Result<Vec<Option<[u64; 2]>>, Failure> {
        let Over::Medium(file) = over else {
            return Err(Failure::Input(format!(
                "--over {over}: a chain needs processes; with --virtual want medium:FILE"
            )));
        };
        let mut found = Simulated::default();
        // Who finds nobody tries again, as processes do.
        for attempt in 0..GREETINGS {
            let seed = self.seed.wrapping_add(attempt << 32);
            found = self.simulated(&mut medium_of(file, seed)?, seed)?;
            if !found.messages[0].is_empty() {
                break;
            }
        }
        // The answers, in the order in which what they answer was delivered: that of the reports.
        let mut answers = found.messages[1].iter();
        let rounds = found.messages[0].iter().map(|report| {
            let there_ns = report.took_ns?;
            Some([there_ns, answers.next()?.took_ns?])
        });
        let mut rounds: Vec<_> = rounds.collect();
        // Where both sides never found each other, nothing arrives.
        if rounds.is_empty() {
            rounds.push(None);
        }
        Ok(rounds)
    }

    fn simulated(&self, medium: &mut SharedMedium, seed: u64) -> Result<Simulated, Failure> {
        let mut scenario = Scenario {
            settings: self.by.deadline.settings,
            interval_ns: self.period_ns,
            payload_bytes: MESSAGE_BYTES,
            messages: self.rounds,
            answers: true,
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
                "--transport {}: is not simulated; want deadline or udp",
                other.name()
            ))),
        }
    }
}

/// The path, which is gone when it is dropped.
pub struct Between {
    // Ends before the namespaces that it reaches into.
    _deployment: Deployment,
    namespaces: [Namespace; 2],
}

impl Between {
    /// Lays it.
    ///
    /// # Errors
    /// The file is none, or a chain cannot be put up here; nothing is left then.
    pub fn lay(over: &Over) -> Result<Self, Failure> {
        let mut chain = over.chain()?;
        let fresh = || Namespace::fresh().map_err(|e| Failure::Missing(e.to_string()));
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
        Ok(Self {
            _deployment: Deployment::up(&chain, over.file(), &program, exit::stop_flag()?)?,
            namespaces,
        })
    }

    /// Names of the namespaces of plant and controller.
    pub fn namespaces(&self) -> [Option<String>; 2] {
        self.namespaces
            .each_ref()
            .map(|namespace| Some(namespace.name().to_owned()))
    }

    /// The address at which the controller is.
    pub fn controller(&self) -> IpAddr {
        SIDES[1].into()
    }
}
