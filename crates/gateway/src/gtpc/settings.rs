//! The settings of GTP-C: as written, and validated.

use crate::pfcp::{self, Common, LostPeers, Socket, time_of};
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use taut_wire::gtpc::UDP_PORT;

/// The limit on the rules of a session: eleven bearers with sixteen filters each, and their other rules.
const RULES: usize = 512;

/// The settings of GTP-C as written: the listening address, the allowed peers, and their limits.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Settings {
    address: Socket,
    peers: Vec<Socket>,
    sessions: Option<usize>,
    #[serde(default = "usual_response_time")]
    response_time: String,
    #[serde(default = "usual_repeats")]
    repeats: u32,
    #[serde(default = "usual_echo")]
    echo: String,
    #[serde(default)]
    lost_peers: LostPeers,
    #[serde(default = "usual_held")]
    held: usize,
    #[serde(default = "usual_session_held")]
    session_held: usize,
}

fn usual_response_time() -> String {
    "3s".to_string()
}

fn usual_repeats() -> u32 {
    3
}

fn usual_echo() -> String {
    "60s".to_string()
}

fn usual_held() -> usize {
    4096
}

fn usual_session_held() -> usize {
    64
}

/// The validated [`Settings`].
#[derive(Debug, Clone)]
pub(in super::super) struct Terms {
    pub socket: SocketAddr,
    /// The gateway's IP address in the endpoints that it announces for control messages.
    pub node: IpAddr,
    /// The addresses of the peers: the allowed sources, and the destinations of requests.
    pub peers: Vec<SocketAddr>,
    pub sessions: usize,
    /// The timeout of a response, T3-RESPONSE (TS 29.274 section 7.6).
    pub response_time: Duration,
    /// The number of retransmissions of a request: N3-REQUESTS (TS 29.274 section 7.6) minus one.
    pub repeats: u32,
    /// The time from one echo request to the next one; none if no echo requests are sent.
    pub echo: Option<Duration>,
    /// True if sessions end when their peer does not respond to echo requests.
    pub drops_sessions: bool,
    session_held: usize,
}

impl Terms {
    /// Returns how long after a peer's request its retransmissions may arrive.
    pub fn repeats_end_after(&self) -> Duration {
        self.response_time * (self.repeats + 1)
    }

    /// Returns the terms of the sessions of a gateway that has GTP-C but no PFCP.
    pub fn of_sessions(&self, common: &Common) -> pfcp::Terms {
        pfcp::Terms {
            socket: self.socket,
            peers: Vec::new(),
            node_id: self.node,
            applications: pfcp::Applications::Refuse,
            sessions: self.sessions,
            peer_sessions: self.sessions,
            peer_bearers: common.bearers,
            rules: RULES,
            session_held: self.session_held,
            echo: None,
            response_bytes: 0,
            response_time: self.response_time,
            repeats: self.repeats,
            heartbeat: None,
            silence: None,
            has_local_sessions: true,
            pools: common.pools.clone(),
            checks_sources: common.checks_sources,
        }
    }
}

impl Settings {
    /// Returns the limit on the packets that all sessions buffer together.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Validates the settings; returns a description of the first error otherwise.
    pub fn check(&self, common: &Common) -> Result<Terms, String> {
        let socket = self.address.address(UDP_PORT);
        if socket.ip().is_unspecified() {
            return Err("gtpc: address: expected the address that peers send to".to_string());
        }
        let mut peers: Vec<SocketAddr> = Vec::new();
        for peer in &self.peers {
            let peer = peer.address(UDP_PORT);
            let address = peer.ip().to_canonical();
            if address.is_unspecified() || address.is_multicast() || peer.port() == 0 {
                return Err(format!("gtpc: peers: {peer} is not a unicast address"));
            }
            if peers.iter().any(|known| known.ip() == address) {
                return Err(format!("gtpc: peers: {address} is listed twice"));
            }
            peers.push((address, peer.port()).into());
        }
        if peers.is_empty() {
            let text = "gtpc: peers: expected the addresses of MMEs, or of other gateways";
            return Err(text.to_string());
        }
        let sessions = self.sessions.unwrap_or((common.bearers / 2).max(1));
        let most = pfcp::MOST_SESSIONS;
        if !(1..=most).contains(&sessions) {
            return Err(format!("gtpc: sessions = {sessions}: expected 1 to {most}"));
        }
        let most = pfcp::MOST_REPEATS;
        if self.repeats > most {
            let repeats = self.repeats;
            return Err(format!("gtpc: repeats = {repeats}: expected 0 to {most}"));
        }
        let most = pfcp::MOST_HELD;
        for (key, value) in [("held", self.held), ("session_held", self.session_held)] {
            if value > most {
                return Err(format!(
                    "gtpc: {key} = {value}: expected 0 to {most} packets"
                ));
            }
        }
        let echo = match self.echo.as_str() {
            "none" => None,
            text => {
                let or = "1s to 86400s, such as \"60s\", or \"none\"";
                Some(time_of("gtpc", "echo", text, 1_000..=86_400_000, or)?)
            }
        };
        let (time, or) = (&self.response_time, "10ms to 60s");
        Ok(Terms {
            socket,
            node: socket.ip(),
            peers,
            sessions,
            response_time: time_of("gtpc", "response_time", time, 10..=60_000, or)?,
            repeats: self.repeats,
            echo,
            drops_sessions: self.lost_peers == LostPeers::Drop,
            session_held: self.session_held,
        })
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
                has_local_sessions: true,
                pools: Vec::new(),
                checks_sources: true,
            })
    }

    #[test]
    fn only_an_address_and_peers_are_required() {
        let terms = read("address = \"127.0.0.8\"\npeers = [\"127.0.0.4\"]").unwrap();
        assert_eq!(terms.socket, "127.0.0.8:2123".parse().unwrap());
        assert_eq!(terms.peers, ["127.0.0.4:2123".parse().unwrap()]);
        assert_eq!((terms.sessions, terms.repeats), (500, 3));
        assert_eq!(terms.repeats_end_after(), Duration::from_secs(12));
        assert_eq!(terms.echo, Some(Duration::from_secs(60)));
    }

    #[test]
    fn invalid_settings_are_refused_with_the_valid_values() {
        let usual = "address = \"127.0.0.8\"\npeers = [\"127.0.0.4\"]\n";
        for (text, part) in [
            (
                "address = \"::1\"\npeers = []".to_string(),
                "peers: expected",
            ),
            (
                "address = \"::\"\npeers = []".to_string(),
                "address: expected",
            ),
            (
                format!("{usual}sessions = 0"),
                "sessions = 0: expected 1 to",
            ),
            (
                format!("{usual}repeats = 11"),
                "repeats = 11: expected 0 to 10",
            ),
            (format!("{usual}echo = \"1ms\""), "or \"none\""),
            (
                format!("{usual}response_time = \"1h\""),
                "expected 10ms to 60s",
            ),
            (format!("{usual}held = 262145"), "held = 262145"),
            (format!("{usual}retries = 1"), "unknown key `retries`"),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
