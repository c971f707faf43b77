//! The settings of PFCP: as written, and validated.

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;
use taut_settings::duration;
use taut_wire::pfcp::UDP_PORT;

use crate::pools::Range;

/// The limit on the setting `sessions`: as many sessions as bearers.
pub(in super::super) const MOST_SESSIONS: usize = super::super::bearer::MOST_BEARERS;
/// The limit on the setting `rules`, the number of rules of a session.
const MOST_RULES: usize = 4096;
/// The limit on retransmissions of a request.
pub(in super::super) const MOST_REPEATS: u32 = 10;
/// The limit on buffered packets: each worker allocates this many buffers at most.
pub(in super::super) const MOST_HELD: usize = 1 << 18;
/// The memory in bytes for the responses to one peer: enough for the responses of a minute at a thousand requests a
/// second.
pub(in super::super) const RESPONSE_BYTES: usize = 16 << 20;

/// The settings of PFCP as written: the listening address, with a port if that is not the default, the allowed peers,
/// and their limits.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Settings {
    address: Socket,
    peers: Vec<Socket>,
    node_id: Option<IpAddr>,
    #[serde(default)]
    applications: Applications,
    sessions: Option<usize>,
    peer_sessions: Option<usize>,
    #[serde(default = "usual_rules")]
    rules: usize,
    #[serde(default = "usual_response_time")]
    response_time: String,
    #[serde(default = "usual_repeats")]
    repeats: u32,
    #[serde(default = "usual_heartbeat")]
    heartbeat: String,
    silence: Option<String>,
    #[serde(default = "usual_held")]
    held: usize,
    #[serde(default = "usual_session_held")]
    session_held: usize,
    echo: Option<String>,
    #[serde(default = "usual_echo_time")]
    echo_time: String,
    #[serde(default = "usual_echo_repeats")]
    echo_repeats: u32,
    #[serde(default)]
    lost_peers: LostPeers,
}

fn usual_held() -> usize {
    4096
}

fn usual_session_held() -> usize {
    64
}

fn usual_echo_time() -> String {
    "3s".to_string()
}

fn usual_echo_repeats() -> u32 {
    3
}

fn usual_rules() -> usize {
    256
}

fn usual_response_time() -> String {
    "3s".to_string()
}

fn usual_repeats() -> u32 {
    3
}

fn usual_heartbeat() -> String {
    "60s".to_string()
}

/// The treatment of detection rules for applications, which the gateway does not detect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum Applications {
    #[default]
    Refuse,
    /// Rules for applications are evaluated after all other rules, as if they were for all packets.
    Ignore,
}

/// The treatment of sessions that send to a lost tunnel peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum LostPeers {
    #[default]
    Keep,
    Drop,
}

/// The settings of echo requests to tunnel peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Echo {
    /// The time from an echo response to the next echo request.
    pub interval: Duration,
    /// The timeout of an echo response, T3-RESPONSE.
    pub time: Duration,
    /// The number of echo requests without a response after which a tunnel peer is lost, N3-REQUESTS.
    pub requests: u32,
    /// True if sessions that send to a lost tunnel peer end.
    pub drops_sessions: bool,
}

/// The settings of the gateway that all sessions share, whether PFCP or GTP-C creates them.
#[derive(Debug)]
pub(in super::super) struct Common {
    /// The maximum number of bearers in the table.
    pub bearers: usize,
    /// True if the gateway's own control plane, GTP-C, has sessions too.
    pub has_local_sessions: bool,
    /// The prefixes from which users get addresses.
    pub pools: Vec<Range>,
    /// True if packets from tunnels are dropped unless they have a source address of the tunnel's user.
    pub checks_sources: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(
    untagged,
    expecting = "expected an IP address such as \"192.0.2.1\", or one with a port: \"192.0.2.1:8805\""
)]
pub(in super::super) enum Socket {
    Whole(SocketAddr),
    Usual(IpAddr),
}

impl Socket {
    /// Returns the address with its port; the port is `usual` if none is written.
    pub fn address(self, usual: u16) -> SocketAddr {
        match self {
            Self::Whole(socket) => socket,
            Self::Usual(address) => (address, usual).into(),
        }
    }
}

/// The validated [`Settings`].
#[derive(Debug, Clone)]
pub(in super::super) struct Terms {
    pub socket: SocketAddr,
    /// The addresses of the peers: the allowed sources, and the destinations of requests.
    pub peers: Vec<SocketAddr>,
    pub node_id: IpAddr,
    pub applications: Applications,
    /// The limit on the sessions of all peers.
    pub sessions: usize,
    /// The limit on the sessions of one peer, so that no peer exhausts the total.
    pub peer_sessions: usize,
    /// The limit on the number of bearers in all sessions of one peer: all bearers times `peer_sessions` / `sessions`,
    /// rounded up.
    pub peer_bearers: usize,
    /// The limit on the number of rules, of all kinds, of a session.
    pub rules: usize,
    /// The limit on packets buffered for one forwarding rule.
    pub session_held: usize,
    /// The settings of echo requests to tunnel peers, if they are sent.
    pub echo: Option<Echo>,
    /// The memory for the responses to one peer, in bytes.
    pub response_bytes: usize,
    /// The timeout of a response, T1 (TS 29.244 section 6.4).
    pub response_time: Duration,
    /// The number of retransmissions of a request, N1 (TS 29.244 section 6.4).
    pub repeats: u32,
    /// The time from one heartbeat to the next one; none if no heartbeats are sent.
    pub heartbeat: Option<Duration>,
    /// The time without a message after which a peer loses its sessions; none for no limit.
    pub silence: Option<Duration>,
    /// True if the gateway's own control plane, GTP-C, has sessions too.
    pub has_local_sessions: bool,
    /// The prefixes from which users get addresses.
    pub pools: Vec<Range>,
    /// True if packets from tunnels are dropped unless they have a source address of the tunnel's user.
    pub checks_sources: bool,
}

impl Terms {
    /// Returns how long after a request its retransmissions may arrive: until its sender stops retransmitting.
    pub fn repeats_end_after(&self) -> Duration {
        self.response_time * (self.repeats + 1)
    }

    /// Returns the gateway's own addresses for PFCP: the listening address and the node identifier, unless unspecified.
    pub fn own(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let own = [self.socket.ip(), self.node_id];
        own.into_iter().filter(|address| !address.is_unspecified())
    }

    /// Checks that a peer has the time to answer a heartbeat before it counts as idle.
    fn check_silence(&self) -> Result<(), String> {
        if let (Some(silence), Some(heartbeat)) = (self.silence, self.heartbeat)
            && silence <= heartbeat + self.repeats_end_after()
        {
            return Err(format!(
                "pfcp: silence = {silence:?}: expected more than {:?}, as a heartbeat comes every {heartbeat:?} and may take {:?} \
                 to be answered",
                heartbeat + self.repeats_end_after(),
                self.repeats_end_after()
            ));
        }
        Ok(())
    }
}

/// Returns the time in `text` for the setting `key`, if it is in a range of milliseconds; `or` describes the range in
/// an error.
fn time(key: &str, text: &str, range: RangeInclusive<u64>, or: &str) -> Result<Duration, String> {
    time_of("pfcp", key, text, range, or)
}

/// Returns the time in `text` for the setting `key` of a table, as [`time`] does.
pub(in super::super) fn time_of(
    table: &str,
    key: &str,
    text: &str,
    range: RangeInclusive<u64>,
    or: &str,
) -> Result<Duration, String> {
    let ms = Duration::from_millis;
    match duration(text) {
        Some(time) if (ms(*range.start())..=ms(*range.end())).contains(&time) => Ok(time),
        _ => Err(format!("{table}: {key} = \"{text}\": expected {or}")),
    }
}

impl Settings {
    /// Returns the limit on the packets that all sessions buffer together.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Validates the settings; returns a description of the first error otherwise.
    pub fn check(&self, common: &Common) -> Result<Terms, String> {
        let bearers = common.bearers;
        let socket = self.address.address(UDP_PORT);
        let node_id = self.node_id.unwrap_or(socket.ip());
        if node_id.is_unspecified() {
            return Err(
                "pfcp: node_id: expected an address by which others know this node".to_string(),
            );
        }
        let peers = self.check_peers()?;
        // The gateway's own control plane is one more peer.
        let parts = peers.len() + usize::from(common.has_local_sessions);
        let (sessions, peer_sessions) = self.check_sessions(bearers, parts)?;
        self.check_numbers()?;
        let response_time = time(
            "response_time",
            &self.response_time,
            10..=60_000,
            "10ms to 60s",
        )?;
        let heartbeat = match self.heartbeat.as_str() {
            "none" => None,
            text => Some(time(
                "heartbeat",
                text,
                100..=86_400_000,
                "100ms to 86400s, such as \"60s\", or \"none\"",
            )?),
        };
        self.check_held()?;
        let echo = self.check_echo()?;
        let silence = self.silence.as_deref().map(|text| {
            let or = "100ms to 86400s, such as \"300s\"; without it sessions are kept";
            time("silence", text, 100..=86_400_000, or)
        });
        let terms = Terms {
            socket,
            peers,
            node_id,
            applications: self.applications,
            sessions,
            peer_sessions,
            peer_bearers: (bearers * peer_sessions).div_ceil(sessions),
            rules: self.rules,
            session_held: self.session_held,
            echo,
            response_bytes: RESPONSE_BYTES,
            response_time,
            repeats: self.repeats,
            heartbeat,
            silence: silence.transpose()?,
            has_local_sessions: common.has_local_sessions,
            pools: common.pools.clone(),
            checks_sources: common.checks_sources,
        };
        terms.check_silence()?;
        Ok(terms)
    }

    /// Returns the addresses of the peers. Checks that each is a unicast address and occurs only once.
    fn check_peers(&self) -> Result<Vec<SocketAddr>, String> {
        let mut peers: Vec<SocketAddr> = Vec::new();
        for peer in &self.peers {
            let peer = peer.address(UDP_PORT);
            let address = peer.ip().to_canonical();
            if address.is_unspecified() || address.is_multicast() || peer.port() == 0 {
                return Err(format!("pfcp: peers: {peer} is not a unicast address"));
            }
            if peers.iter().any(|known| known.ip() == address) {
                return Err(format!("pfcp: peers: {address} is listed twice"));
            }
            peers.push((address, peer.port()).into());
        }
        if peers.is_empty() {
            return Err(
                "pfcp: peers: expected the control plane's address, or several".to_string(),
            );
        }
        Ok(peers)
    }

    /// Returns two limits: on the sessions of all peers together, and on the sessions of each of `peers` peers.
    fn check_sessions(&self, bearers: usize, peers: usize) -> Result<(usize, usize), String> {
        let sessions = self.sessions.unwrap_or((bearers / 2).max(1));
        if !(1..=MOST_SESSIONS).contains(&sessions) {
            return Err(format!(
                "pfcp: sessions = {sessions}: expected 1 to {MOST_SESSIONS}"
            ));
        }
        let share = sessions.div_ceil(peers);
        let peer_sessions = self.peer_sessions.unwrap_or(share);
        if !(1..=sessions).contains(&peer_sessions) {
            return Err(format!(
                "pfcp: peer_sessions = {peer_sessions}: expected 1 to {sessions}, the total number of sessions"
            ));
        }
        Ok((sessions, peer_sessions))
    }

    /// Checks the settings `rules` (limit for each session) and `repeats` (number of retransmissions).
    fn check_numbers(&self) -> Result<(), String> {
        if !(1..=MOST_RULES).contains(&self.rules) {
            return Err(format!(
                "pfcp: rules = {}: expected 1 to {MOST_RULES}",
                self.rules
            ));
        }
        if self.repeats > MOST_REPEATS {
            return Err(format!(
                "pfcp: repeats = {}: expected 0 to {MOST_REPEATS}",
                self.repeats
            ));
        }
        Ok(())
    }

    /// Checks the settings `held` and `session_held` (limits on buffered packets).
    fn check_held(&self) -> Result<(), String> {
        for (key, value, most) in [
            ("held", self.held, MOST_HELD),
            ("session_held", self.session_held, MOST_HELD),
        ] {
            if value > most {
                return Err(format!(
                    "pfcp: {key} = {value}: expected 0 to {most} packets"
                ));
            }
        }
        Ok(())
    }

    /// Returns the settings of echo requests to tunnel peers, if they are to be sent.
    fn check_echo(&self) -> Result<Option<Echo>, String> {
        if !(1..=MOST_REPEATS).contains(&self.echo_repeats) {
            let repeats = self.echo_repeats;
            return Err(format!(
                "pfcp: echo_repeats = {repeats}: expected 1 to {MOST_REPEATS}"
            ));
        }
        let interval = self.echo.as_deref().map(|text| {
            let or = "1s to 86400s, such as \"60s\"; without it peers of tunnels are not asked";
            time("echo", text, 1_000..=86_400_000, or)
        });
        let echo_time = time("echo_time", &self.echo_time, 100..=60_000, "100ms to 60s")?;
        Ok(interval.transpose()?.map(|interval| Echo {
            interval,
            time: echo_time,
            requests: self.echo_repeats,
            drops_sessions: self.lost_peers == LostPeers::Drop,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Terms, String> {
        let settings = toml::from_str::<Settings>(text);
        settings
            .map_err(|e| taut_settings::in_words(&e))?
            .check(&Common {
                bearers: 1000,
                has_local_sessions: false,
                pools: Vec::new(),
                checks_sources: true,
            })
    }

    const USUAL: &str = "address = \"127.0.0.8\"\npeers = [\"127.0.0.4\", \"[::1]:9\"]\n";

    #[test]
    fn only_peers_are_required_and_other_settings_have_defaults() {
        let usual = read(USUAL).unwrap();
        assert_eq!(usual.socket, "127.0.0.8:8805".parse().unwrap());
        let peers = ["127.0.0.4:8805", "[::1]:9"].map(|peer| peer.parse().unwrap());
        assert_eq!(usual.peers, peers);
        assert_eq!((usual.sessions, usual.rules), (500, 256));
        // Two peers have half of the sessions and of the table each.
        assert_eq!((usual.peer_sessions, usual.peer_bearers), (250, 500));
        assert_eq!(usual.repeats_end_after(), Duration::from_secs(12));
        assert_eq!(usual.heartbeat, Some(Duration::from_secs(60)));
        assert_eq!(usual.silence, None);
        let other = "sessions = 7\nrules = 9\nresponse_time = \"500ms\"\nrepeats = 0\nheartbeat = \"1s\"\nsilence = \"2s\"\n";
        let other = read(&format!("{USUAL}{other}")).unwrap();
        assert_eq!((other.sessions, other.rules), (7, 9));
        assert_eq!((other.peer_sessions, other.peer_bearers), (4, 572));
        let all = read(&format!("{USUAL}peer_sessions = 500\n")).unwrap();
        assert_eq!((all.peer_sessions, all.peer_bearers), (500, 1000));
        assert_eq!(other.repeats_end_after(), Duration::from_millis(500));
        let silent = format!("{USUAL}heartbeat = \"none\"\nsilence = \"2s\"\n");
        assert_eq!(read(&silent).unwrap().heartbeat, None);
    }

    #[test]
    fn invalid_settings_are_refused_with_the_valid_values() {
        for (text, part) in [
            ("address = \"127.0.0.8:9\"\npeers = []", "peers: expected"),
            (
                "address = \"0.0.0.0\"\npeers = [\"::1\"]",
                "node_id: expected",
            ),
            (
                "address = \"here\"\npeers = []",
                "expected an IP address such as",
            ),
            (
                "address = \"::1\"\npeers = [\"0.0.0.0\"]",
                "0.0.0.0:8805 is not a unicast address",
            ),
            (
                "address = \"::1\"\npeers = [\"192.0.2.9\", \"::ffff:192.0.2.9\"]",
                "192.0.2.9 is listed twice",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        for (line, part) in [
            ("sessions = 0", "sessions = 0: expected 1 to 4000000"),
            ("sessions = 4000001", "expected 1 to"),
            ("sessions = -1", "sessions = -1: expected a whole number"),
            ("peer_sessions = 0", "peer_sessions = 0: expected 1 to 500"),
            ("peer_sessions = 501", "expected 1 to 500"),
            ("rules = 0", "rules = 0: expected 1 to 4096"),
            ("rules = 4097", "expected 1 to 4096"),
            ("repeats = 11", "repeats = 11: expected 0 to 10"),
            ("response_time = \"soon\"", "expected 10ms to 60s"),
            ("response_time = \"61s\"", "expected 10ms to 60s"),
            ("heartbeat = \"0s\"", "expected 100ms to 86400s"),
            ("heartbeat = \"never\"", "or \"none\""),
            ("silence = \"1ms\"", "without it sessions are kept"),
            ("silence = \"72s\"", "expected more than 72s"),
            ("retries = 5", "unknown key `retries`"),
            ("held = 262145", "held = 262145: expected 0 to 262144"),
            ("session_held = 262145", "expected 0 to 262144 packets"),
            ("echo = \"1ms\"", "peers of tunnels are not asked"),
            ("echo_time = \"1ms\"", "expected 100ms to 60s"),
            ("echo_repeats = 0", "echo_repeats = 0: expected 1 to 10"),
        ] {
            let error = read(&format!("{USUAL}{line}")).unwrap_err();
            assert!(error.contains(part), "{line}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
