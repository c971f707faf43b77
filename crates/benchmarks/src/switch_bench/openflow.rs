//! A scripted controller: the messages of OpenFlow 1.3 that fill a switch with rules and read their counters, over TCP
//! or a UNIX socket. (OpenFlow Switch Specification 1.3.5, sections 7.1 to 7.3.)

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use taut_bench::benchmark::Failed;
use taut_sys::spawn_background;

const VERSION: u8 = 4;
const HEADER_BYTES: usize = 8;
/// Timeout for a reply of the switch. It is long because the switch may have to add a million rules first.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum number of received messages that wait to be read by the controller.
const MOST_HEARD: usize = 64;
/// Number of bytes of queued messages above which the messages are sent.
const PIECE_BYTES: usize = 60_000;

mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const PACKET_IN: u8 = 10;
    pub const PORT_STATUS: u8 = 12;
    pub const FLOW_MOD: u8 = 14;
    pub const GROUP_MOD: u8 = 15;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
    pub const METER_MOD: u8 = 29;
}

const DESCRIPTION: u16 = 0;
const FLOW_STATISTICS: u16 = 1;
const PORT_DESCRIPTIONS: u16 = 13;
/// The value of OpenFlow that matches any port, group or table.
const ANY: u32 = 0xffff_ffff;
const NO_BUFFER: u32 = 0xffff_ffff;

/// Timeout for a connection attempt.
const CALL: Duration = Duration::from_secs(1);

/// Address at which a switch listens for controllers.
#[derive(Debug, Clone)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The match of a rule: IPv4 and UDP if an address or a port is given.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Asked {
    pub in_port: Option<u32>,
    /// Destination network: address and prefix length; none matches every destination.
    pub ip_dst: Option<(Ipv4Addr, u8)>,
    pub udp_dst: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Action {
    Output(u32),
    Queue(u32),
    SetDscp(u8),
    SetDestination(Ipv4Addr),
    PushVlan,
    PopVlan,
    Group(u32),
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Rule {
    pub priority: u16,
    /// The identifier of the rule's counters.
    pub cookie: u64,
    pub asked: Asked,
    pub meter: Option<u32>,
    pub actions: Vec<Action>,
}

/// A change of a rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    Add,
    /// Sets the actions of the rule with exactly this match and priority.
    Modify,
    /// Deletes the rule with exactly this match and priority.
    Delete,
}

/// The method by which a group selects buckets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum GroupKind {
    All,
    Select,
    FastFailover,
}

impl Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(port) => write!(f, "output:{port}"),
            Self::Queue(queue) => write!(f, "set_queue:{queue}"),
            Self::SetDscp(dscp) => write!(f, "set_field:{dscp}->ip_dscp"),
            Self::SetDestination(address) => write!(f, "set_field:{address}->ip_dst"),
            Self::PushVlan => f.write_str("push_vlan:0x8100"),
            Self::PopVlan => f.write_str("pop_vlan"),
            Self::Group(id) => write!(f, "group:{id}"),
        }
    }
}

/// Formats actions for `ovs-ofctl`.
pub(super) fn in_text(actions: &[Action]) -> String {
    let texts: Vec<String> = actions.iter().map(Action::to_string).collect();
    match texts.is_empty() {
        true => "drop".to_string(),
        false => texts.join(","),
    }
}

/// Formats the rule for `ovs-ofctl add-flow`.
impl Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "priority={}", self.priority)?;
        if let Some(port) = self.asked.in_port {
            write!(f, ",in_port={port}")?;
        }
        match (self.asked.udp_dst, self.asked.ip_dst) {
            (Some(_), _) => f.write_str(",udp")?,
            (None, Some(_)) => f.write_str(",ip")?,
            (None, None) => {}
        }
        match self.asked.ip_dst {
            Some((address, 32)) => write!(f, ",nw_dst={address}")?,
            Some((address, length)) => write!(f, ",nw_dst={address}/{length}")?,
            None => {}
        }
        if let Some(port) = self.asked.udp_dst {
            write!(f, ",tp_dst={port}")?;
        }
        f.write_str(",actions=")?;
        if let Some(meter) = self.meter {
            write!(f, "meter:{meter},")?;
        }
        f.write_str(&in_text(&self.actions))
    }
}

/// A byte stream between controller and switch.
trait Line: Read + Write + Send {
    /// Returns a second handle of the connection, for use in another thread.
    fn second(&self) -> std::io::Result<Box<dyn Line>>;

    fn close(&self);
}

impl Line for TcpStream {
    fn second(&self) -> std::io::Result<Box<dyn Line>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Line for UnixStream {
    fn second(&self) -> std::io::Result<Box<dyn Line>> {
        Ok(Box::new(self.try_clone()?))
    }

    fn close(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Version, type, transaction id and body of a message.
type Message = (u8, u8, u32, Vec<u8>);

/// A connection to a switch.
pub(super) struct Controller {
    /// The connection to the switch. The mutex stays locked until a complete message is written.
    line: Arc<Mutex<Box<dyn Line>>>,
    /// Messages from the switch that the receiving thread has read.
    heard: Receiver<std::io::Result<Message>>,
    /// Transaction id of the last message that the controller queued.
    last: u32,
    output: Vec<u8>,
}

impl Drop for Controller {
    fn drop(&mut self) {
        // Closing the connection ends the receiving thread.
        self.line
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .close();
    }
}

/// Receives messages, and replies to echo requests immediately, even while the controller is busy. Switches close
/// connections to controllers that do not reply.
fn hear(
    mut line: Box<dyn Line>,
    answers: &Mutex<Box<dyn Line>>,
    heard: &SyncSender<std::io::Result<Message>>,
) {
    loop {
        let said = match read(&mut line) {
            Ok((_, kind::ECHO_REQUEST, number, body)) => {
                let mut answer = vec![VERSION, kind::ECHO_REPLY, 0, 0];
                answer.extend(number.to_be_bytes());
                answer.extend(body);
                length_at(&mut answer, 0, 2);
                let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
                match answers.write_all(&answer) {
                    Ok(()) => continue,
                    Err(e) => Err(e),
                }
            }
            // The controller did not request asynchronous messages, so it ignores them.
            Ok((_, kind::PACKET_IN..=kind::PORT_STATUS, ..)) => continue,
            said => said,
        };
        let is_over = said.is_err();
        if heard.send(said).is_err() || is_over {
            return;
        }
    }
}

fn read(line: &mut dyn Read) -> std::io::Result<Message> {
    let mut head = [0; HEADER_BYTES];
    line.read_exact(&mut head)?;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    let mut body = vec![0; length.saturating_sub(HEADER_BYTES)];
    line.read_exact(&mut body)?;
    let number = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
    Ok((head[0], head[1], number, body))
}

impl Controller {
    /// Connects to the switch, repeats failed attempts until the timeout, exchanges greetings, and waits until the
    /// links of `ports` are up.
    pub fn connect(address: &Address, ports: &[u32], patience: Duration) -> Result<Self, Failed> {
        let begun = Instant::now();
        let mut controller = loop {
            match Self::greet(address) {
                Ok(controller) => break controller,
                Err(_) if begun.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(Failed::Broken(format!("no OpenFlow switch there: {e}"))),
            }
        };
        // The controller waits for the links: a switch may listen before its ports are ready, and groups may depend on
        // them.
        loop {
            let up = controller.ports()?;
            let Some(down) = ports.iter().find(|port| !up.contains(port)) else {
                return Ok(controller);
            };
            if begun.elapsed() > patience {
                let text = format!("port {down} of the switch has no link");
                return Err(Failed::Broken(text));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn greet(address: &Address) -> std::io::Result<Self> {
        let line: Box<dyn Line> = match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CALL)?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Address::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                Box::new(stream)
            }
        };
        let mut controller = Self::on(line)?;
        controller.message(kind::HELLO, |body| {
            // This is the bitmap of supported versions.
            body.extend([0, 1, 0, 8]);
            body.extend((1_u32 << VERSION).to_be_bytes());
        });
        controller.flush()?;
        let (version, kind, ..) = controller.read()?;
        if kind != kind::HELLO || version < VERSION {
            let text = format!("it greets with version {version}, message {kind}");
            return Err(std::io::Error::new(ErrorKind::InvalidData, text));
        }
        Ok(controller)
    }

    /// Returns a controller on this connection, before the greeting.
    fn on(line: Box<dyn Line>) -> std::io::Result<Self> {
        let (tell, heard) = sync_channel(MOST_HEARD);
        let (ears, line) = (line.second()?, Arc::new(Mutex::new(line)));
        let answers = Arc::clone(&line);
        spawn_background("controller-ears", move || hear(ears, &answers, &tell))
            .map_err(std::io::Error::other)?;
        Ok(Self {
            line,
            heard,
            last: 0,
            output: Vec::new(),
        })
    }

    /// Appends a message to the output buffer, and returns its transaction id.
    fn message(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> u32 {
        self.last += 1;
        let start = self.output.len();
        self.output.extend([VERSION, kind, 0, 0]);
        self.output.extend(self.last.to_be_bytes());
        body(&mut self.output);
        length_at(&mut self.output, start, start + 2);
        self.last
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let done = line.write_all(&self.output);
        drop(line);
        self.output.clear();
        done
    }

    /// Returns the next message from the switch.
    fn read(&mut self) -> std::io::Result<Message> {
        let late = |_| std::io::Error::from(ErrorKind::TimedOut);
        self.heard.recv_timeout(PATIENCE).map_err(late)?
    }

    /// Sends the queued messages, and reads until the reply with the type `kind` and the transaction id `number`.
    fn answer(&mut self, kind: u8, number: u32) -> Result<Vec<u8>, Failed> {
        self.flush()?;
        loop {
            let (_, said, of, body) = self.read()?;
            match said {
                kind::ERROR => {
                    let word = |at: usize| {
                        let bytes = body.get(at..at + 2);
                        bytes.map_or(0, |it| u16::from_be_bytes([it[0], it[1]]))
                    };
                    return Err(Failed::Broken(format!(
                        "the switch refuses: OpenFlow error type {}, code {}",
                        word(0),
                        word(2)
                    )));
                }
                _ if said == kind && of == number => return Ok(body),
                _ => {}
            }
        }
    }

    /// Waits until the switch has applied all earlier messages.
    pub fn barrier(&mut self) -> Result<(), Failed> {
        let number = self.message(kind::BARRIER_REQUEST, |_| {});
        self.answer(kind::BARRIER_REPLY, number).map(drop)
    }

    /// Queues a change of a rule. It is sent with the next barrier at the latest.
    pub fn rule(&mut self, change: Change, rule: &Rule) {
        self.message(kind::FLOW_MOD, |body| flow_mod(body, change, rule));
    }

    /// Adds the given rules, and waits until the switch applies them.
    pub fn rules(&mut self, rules: impl IntoIterator<Item = Rule>) -> Result<(), Failed> {
        for rule in rules {
            self.rule(Change::Add, &rule);
            if self.output.len() > PIECE_BYTES {
                self.flush()?;
            }
        }
        self.barrier()
    }

    /// Deletes all rules. Groups and meters are deleted when new ones with the same ids are added.
    pub fn clear(&mut self) -> Result<(), Failed> {
        self.message(kind::FLOW_MOD, |body| {
            flow_mod_head(body, 0xff, 3, 0, 0);
            oxm(body, &Asked::default());
        });
        self.barrier()
    }

    /// Adds a group, and replaces an existing one with the same id. A bucket is a list of actions and a port. A
    /// fast-failover group uses the bucket only while that port is up; other kinds of groups ignore the port.
    pub fn group(&mut self, id: u32, kind: GroupKind, buckets: &[(Vec<Action>, u32)]) {
        self.message(kind::GROUP_MOD, |body| {
            body.extend([0, 2, 0, 0]);
            body.extend(id.to_be_bytes());
        });
        self.message(kind::GROUP_MOD, |body| {
            body.extend([0, 0]);
            body.extend([
                match kind {
                    GroupKind::All => 0,
                    GroupKind::Select => 1,
                    GroupKind::FastFailover => 3,
                },
                0,
            ]);
            body.extend(id.to_be_bytes());
            for (actions, port) in buckets {
                let start = body.len();
                let weight = u16::from(kind == GroupKind::Select);
                let watched = match kind {
                    GroupKind::FastFailover => *port,
                    _ => ANY,
                };
                body.extend([0, 0]);
                body.extend(weight.to_be_bytes());
                body.extend(watched.to_be_bytes());
                body.extend(ANY.to_be_bytes());
                body.extend([0; 4]);
                actions
                    .iter()
                    .for_each(|action| write_action(body, *action));
                length_at(body, start, start);
            }
        });
    }

    /// Adds a meter that drops packets above `pps` packets per second, and replaces an existing one with the same id.
    pub fn meter(&mut self, id: u32, pps: u32) {
        self.message(kind::METER_MOD, |body| {
            body.extend([0, 2, 0, 0]);
            body.extend(id.to_be_bytes());
        });
        self.message(kind::METER_MOD, |body| {
            // The flags select packets per second, and a burst size.
            body.extend([0, 0, 0, 2 | 4]);
            body.extend(id.to_be_bytes());
            body.extend([0, 1, 0, 16]);
            body.extend(pps.to_be_bytes());
            body.extend(pps.to_be_bytes());
            body.extend([0; 4]);
        });
    }

    /// Returns the number of packets that matched each rule, by cookie.
    pub fn counters(&mut self) -> Result<BTreeMap<u64, u64>, Failed> {
        let mut counters = BTreeMap::new();
        let parts = self.multipart(FLOW_STATISTICS, |body| {
            body.extend([0xff, 0, 0, 0]);
            body.extend([ANY.to_be_bytes(), ANY.to_be_bytes()].concat());
            body.extend([0; 4 + 8 + 8]);
            oxm(body, &Asked::default());
        })?;
        for part in parts {
            let mut left = &part[..];
            while let Some(length) = left.first_chunk::<2>() {
                let length = usize::from(u16::from_be_bytes(*length));
                let Some((entry, rest)) = left.split_at_checked(length.max(2)) else {
                    break;
                };
                let number = |at: usize| {
                    let bytes = entry.get(at..at + 8)?;
                    Some(u64::from_be_bytes(bytes.try_into().ok()?))
                };
                if let (Some(cookie), Some(packets)) = (number(24), number(32)) {
                    *counters.entry(cookie).or_default() += packets;
                }
                left = rest;
            }
        }
        Ok(counters)
    }

    /// Returns the switch's own description: hardware and software.
    pub fn description(&mut self) -> Result<String, Failed> {
        const TEXT_BYTES: usize = 256;
        let all = self.multipart(DESCRIPTION, |_| {})?.concat();
        let texts = all.chunks(TEXT_BYTES).take(3).map(|text| {
            let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(text).trim().to_string()
        });
        let said: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
        Ok(match said.is_empty() {
            true => "says nothing of itself".to_string(),
            false => said.join(", "),
        })
    }

    /// Returns the ports whose links are up.
    fn ports(&mut self) -> Result<BTreeSet<u32>, Failed> {
        const PORT_BYTES: usize = 64;
        let parts = self.multipart(PORT_DESCRIPTIONS, |_| {})?;
        let ports = parts.iter().flat_map(|part| part.chunks_exact(PORT_BYTES));
        let word = |port: &[u8], at: usize| {
            let bytes = port[at..].first_chunk::<4>();
            bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
        };
        // The first bit of the state means that the link is down.
        let up = ports.filter(|port| word(port, 36) & 1 == 0);
        Ok(up.map(|port| word(port, 0)).collect())
    }

    /// Returns the parts of a multipart reply, without their headers.
    fn multipart(
        &mut self,
        asked: u16,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Vec<Vec<u8>>, Failed> {
        let number = self.message(kind::MULTIPART_REQUEST, |body| {
            body.extend(asked.to_be_bytes());
            body.extend([0; 6]);
            write(body);
        });
        let mut parts = Vec::new();
        loop {
            let mut part = self.answer(kind::MULTIPART_REPLY, number)?;
            let has_more = part.get(3).is_some_and(|flags| flags & 1 == 1);
            part.drain(..part.len().min(8));
            parts.push(part);
            if !has_more {
                return Ok(parts);
            }
        }
    }
}

fn flow_mod_head(body: &mut Vec<u8>, table: u8, command: u8, priority: u16, cookie: u64) {
    body.extend(cookie.to_be_bytes());
    body.extend([0; 8]);
    body.extend([table, command, 0, 0, 0, 0]);
    body.extend(priority.to_be_bytes());
    body.extend(NO_BUFFER.to_be_bytes());
    body.extend([ANY.to_be_bytes(), ANY.to_be_bytes()].concat());
    body.extend([0; 4]);
}

fn flow_mod(body: &mut Vec<u8>, change: Change, rule: &Rule) {
    let command = match change {
        Change::Add => 0,
        Change::Modify => 2,
        Change::Delete => 4,
    };
    flow_mod_head(body, 0, command, rule.priority, rule.cookie);
    oxm(body, &rule.asked);
    if change == Change::Delete {
        return;
    }
    if let Some(meter) = rule.meter {
        body.extend([0, 6, 0, 8]);
        body.extend(meter.to_be_bytes());
    }
    if !rule.actions.is_empty() {
        let start = body.len();
        body.extend([0, 4, 0, 0, 0, 0, 0, 0]);
        let actions = rule.actions.iter();
        actions.for_each(|action| write_action(body, *action));
        length_at(body, start, start + 2);
    }
}

/// Writes a rule's match in the format OXM, and its padding.
fn oxm(body: &mut Vec<u8>, asked: &Asked) {
    let start = body.len();
    body.extend([0, 1, 0, 0]);
    let mut field = |number: u8, has_mask: bool, bytes: &[u8]| {
        body.extend([
            0x80,
            0x00,
            number << 1 | u8::from(has_mask),
            bytes.len() as u8,
        ]);
        body.extend(bytes);
    };
    if let Some(port) = asked.in_port {
        field(0, false, &port.to_be_bytes());
    }
    if asked.ip_dst.is_some() || asked.udp_dst.is_some() {
        field(5, false, &[0x08, 0x00]);
    }
    if asked.udp_dst.is_some() {
        field(10, false, &[17]);
    }
    match asked.ip_dst {
        Some((address, 32)) => field(12, false, &address.octets()),
        Some((address, length)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            field(12, true, &[address.octets(), mask.to_be_bytes()].concat());
        }
        None => {}
    }
    if let Some(port) = asked.udp_dst {
        field(16, false, &port.to_be_bytes());
    }
    length_at(body, start, start + 2);
    pad(body, start);
}

fn write_action(body: &mut Vec<u8>, action: Action) {
    let start = body.len();
    let output = |body: &mut Vec<u8>, port: u32| {
        body.extend([0, 0, 0, 16]);
        body.extend(port.to_be_bytes());
        body.extend([0; 8]);
    };
    let short = |body: &mut Vec<u8>, kind: u8, argument: u32| {
        body.extend([0, kind, 0, 8]);
        body.extend(argument.to_be_bytes());
    };
    let set = |body: &mut Vec<u8>, field: u8, value: &[u8]| {
        body.extend([0, 25, 0, 0, 0x80, 0x00, field << 1, value.len() as u8]);
        body.extend(value);
        pad(body, start);
        length_at(body, start, start + 2);
    };
    match action {
        Action::Output(port) => output(body, port),
        Action::Queue(queue) => short(body, 21, queue),
        Action::Group(id) => short(body, 22, id),
        Action::PushVlan => short(body, 17, 0x8100 << 16),
        Action::PopVlan => short(body, 18, 0),
        Action::SetDscp(dscp) => set(body, 8, &[dscp]),
        Action::SetDestination(address) => set(body, 12, &address.octets()),
    }
}

/// Writes the number of bytes since `start` as 16 bits at position `at`.
fn length_at(body: &mut [u8], start: usize, at: usize) {
    let length = (body.len() - start) as u16;
    body[at..at + 2].copy_from_slice(&length.to_be_bytes());
}

/// Appends zeros up to a multiple of 8 bytes since `start`.
fn pad(body: &mut Vec<u8>, start: usize) {
    let length = body.len() - start;
    body.resize(start + length.next_multiple_of(8), 0);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_switch as switch;

    /// Returns the replies of taut's own switch: message types, and type and code of errors.
    fn heard(controller: &Controller) -> Vec<(u8, Vec<u8>)> {
        let answer = switch::heard(&[&controller.output]);
        let mut left = &answer[..];
        let mut messages = Vec::new();
        while let Some(head) = left.first_chunk::<8>() {
            let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
            messages.push((head[1], left[8..length].to_vec()));
            left = &left[length..];
        }
        messages
    }

    #[test]
    fn a_busy_controller_replies_to_echo_requests_of_the_switch() {
        let (line, mut switch) = UnixStream::pair().unwrap();
        let mut controller = Controller::on(Box::new(line)).unwrap();
        let packet = [4, kind::PACKET_IN, 0, 9, 0, 0, 0, 0, 7];
        for _ in 0..200 {
            switch.write_all(&packet).unwrap();
        }
        switch
            .write_all(&[4, kind::ECHO_REQUEST, 0, 9, 0, 0, 0, 5, 6])
            .unwrap();
        let mut answer = [0; 9];
        switch.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [4, kind::ECHO_REPLY, 0, 9, 0, 0, 0, 5, 6]);
        switch
            .write_all(&[4, kind::BARRIER_REPLY, 0, 8, 0, 0, 0, 1])
            .unwrap();
        controller.barrier().unwrap();
        drop(controller);
        let mut left = Vec::new();
        switch.read_to_end(&mut left).unwrap();
        assert_eq!(left, [4, kind::BARRIER_REQUEST, 0, 8, 0, 0, 0, 1]);
    }

    /// Returns a controller after the greeting, on a connection without a switch.
    fn controller() -> Controller {
        let (line, _) = UnixStream::pair().unwrap();
        on(line)
    }

    /// Returns a controller after the greeting, on the connection `line`.
    fn on(line: UnixStream) -> Controller {
        let mut controller = Controller::on(Box::new(line)).unwrap();
        controller.message(kind::HELLO, |body| body.extend([0, 1, 0, 8, 0, 0, 0, 16]));
        controller
    }

    #[test]
    fn the_switch_accepts_every_flow_entry_group_and_meter() {
        let mut controller = controller();
        controller.meter(1, 1_000_000);
        let out = vec![Action::Output(2)];
        for (id, kind) in [
            (1, GroupKind::All),
            (2, GroupKind::Select),
            (3, GroupKind::FastFailover),
        ] {
            controller.group(id, kind, &[(out.clone(), 2)]);
        }
        let to = |actions: Vec<Action>| Rule {
            actions,
            ..Rule::default()
        };
        let address = Ipv4Addr::new(10, 1, 2, 0);
        let rules = [
            to(out.clone()),
            to(vec![Action::Queue(7), Action::Output(3)]),
            to(vec![Action::SetDscp(46), Action::Output(3)]),
            to(vec![Action::SetDestination(address), Action::Output(3)]),
            to(vec![Action::PushVlan, Action::PopVlan, Action::Output(3)]),
            to((1..=3).map(Action::Group).collect()),
            Rule {
                meter: Some(1),
                ..to(out.clone())
            },
        ];
        let asked = [
            Asked::default(),
            Asked {
                in_port: Some(1),
                ip_dst: Some((address, 24)),
                udp_dst: Some(42),
            },
            Asked {
                ip_dst: Some((address, 32)),
                ..Asked::default()
            },
        ];
        let is_ip =
            |action: &Action| matches!(action, Action::SetDscp(_) | Action::SetDestination(_));
        for (priority, rule) in (1..).zip(&rules) {
            for asked in asked {
                // A field can only be set if the match ensures that packets have it.
                if asked == Asked::default() && rule.actions.iter().any(is_ip) {
                    continue;
                }
                let rule = Rule {
                    priority,
                    asked,
                    ..rule.clone()
                };
                controller.rule(Change::Add, &rule);
                controller.rule(Change::Modify, &rule);
                controller.rule(Change::Delete, &rule);
                controller.rule(Change::Add, &rule);
            }
        }
        controller.message(kind::BARRIER_REQUEST, |_| {});
        let answers = heard(&controller);
        let kinds: Vec<u8> = answers.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [kind::HELLO, kind::BARRIER_REPLY], "{answers:?}");
    }

    #[test]
    fn rules_are_printed_in_the_syntax_of_ovs_ofctl() {
        let rule = Rule {
            priority: 100,
            cookie: 7,
            asked: Asked {
                in_port: Some(1),
                ip_dst: Some((Ipv4Addr::new(10, 1, 2, 0), 24)),
                udp_dst: Some(42),
            },
            meter: Some(1),
            actions: vec![Action::Queue(7), Action::Output(3)],
        };
        assert_eq!(
            rule.to_string(),
            "priority=100,in_port=1,udp,nw_dst=10.1.2.0/24,tp_dst=42,actions=meter:1,set_queue:7,output:3"
        );
        let none = Rule::default();
        assert_eq!(none.to_string(), "priority=0,actions=drop");
    }

    #[test]
    fn the_controller_reads_counters_by_cookie_and_lists_the_ports() {
        // A switch of taut, without packets, is at the other end of the connection.
        let (line, mut peer) = UnixStream::pair().unwrap();
        let switch = std::thread::spawn(move || {
            let mut all = Vec::new();
            let (mut buffer, mut said) = ([0; 4096], 0);
            while let Ok(many @ 1..) = peer.read(&mut buffer) {
                all.extend_from_slice(&buffer[..many]);
                let answer = switch::heard(&[&all]);
                // The controller does not read the last error messages, so sending them may fail.
                if peer.write_all(&answer[said..]).is_err() {
                    break;
                }
                said = answer.len();
            }
        });
        let mut controller = on(line);
        let rule = |cookie| Rule {
            cookie,
            priority: cookie as u16,
            actions: vec![Action::Output(2)],
            ..Rule::default()
        };
        controller.rules((1..=40).map(rule)).unwrap();
        assert!(controller.ports().unwrap().into_iter().eq(1..=4));
        let description = controller.description().unwrap();
        assert!(description.contains(", taut "), "{description}");
        let counters = controller.counters().unwrap();
        assert!(counters.keys().copied().eq(1..=40), "{counters:?}");
        assert!(counters.values().all(|packets| *packets == 0));
        let too_many = controller.rules((41..=100).map(rule));
        assert!(
            matches!(&too_many, Err(Failed::Broken(why)) if why.contains("type 5, code 1")),
            "{too_many:?}"
        );
        drop(controller);
        switch.join().unwrap();
    }
}
