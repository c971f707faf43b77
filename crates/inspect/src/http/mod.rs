//! The parser of HTTP/1.x for both directions of a connection (RFC 9112), which parses bytes as they arrive. The parser
//! is lenient, because attackers rely on lenient servers: it accepts as a message whatever some server might accept.
//! Bytes that form no message are reported as bytes of a body.
//!
//! `http.uri` is the target without scheme and host, decoded once, with `//`, `/./` and `/../` removed from the path. A
//! header line is `Name: value` and CR LF whatever its line end was; continued lines are joined, and cookies are
//! excluded. Host names are in lower case and without port. The values of several headers of one name are joined by
//! `, `. The first bytes of a body are stored, decoded and without chunk headers.
//!
//! `head.rs` collects a head and parses its first line, `target.rs` the target, `headers.rs` the header lines.
//! `body.rs` splits bodies, `unpack.rs` decodes them, and `memory.rs` provides the memory.

mod body;
mod head;
mod headers;
mod limits;
pub(crate) mod memory;
mod outcome;
mod state;
pub(crate) mod target;
#[cfg(test)]
mod tests;
pub(crate) mod token;
mod unpack;
pub(crate) mod values;

use crate::buffer::Buffer;
use crate::flow_bits::FlowBits;
use head::{Framing, HeadEnd, Side};
use outcome::Then;
use state::{Ahead, State};

pub use crate::buffer::BufferSet;
pub use limits::HttpLimits;
pub use outcome::{HttpFault, HttpLimit, Pushed};
pub use unpack::{MOST_CODINGS, MOST_RATIO};

/// Maximum number of requests with pending responses.
const AWAITED: usize = 16;

/// The parser of HTTP for both directions of a connection.
#[derive(Debug)]
pub struct Http {
    request: Side,
    response: Side,
    awaited: [Asked; AWAITED],
    asked: usize,
    answered: usize,
    /// True if there were more pending requests than can be stored, so that responses cannot be matched with requests
    /// any more.
    is_lost: bool,
    /// Index of the transaction of the current response. The current request belongs to the transaction of the last of
    /// the `asked` requests.
    answering: usize,
    /// Halves of rules that have matched, by transaction. In addition to the pending requests there are two entries.
    /// One is for a response that is still arriving while all other requests wait; the other is for all transactions of
    /// a connection whose responses cannot be matched with requests.
    halves: [FlowBits; AWAITED + 2],
    /// True if both endpoints continue with HTTP/2.
    speaks_http2: bool,
    /// True if the client sent HTTP/2 before the server agreed to the upgrade.
    is_ahead: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self::new(HttpLimits::default())
    }
}

/// The properties of a request that matter for its response.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    /// True for the method HEAD: the response has no body.
    is_head: bool,
    /// True for the method CONNECT: a successful response turns the connection into a tunnel.
    is_connect: bool,
    /// True if the request asks for an upgrade: the bytes after status 101 are another protocol.
    upgrades: bool,
    /// True if the requested upgrade is to HTTP/2.
    wants_http2: bool,
}

impl Http {
    /// Creates a parser with the given limits; no memory is allocated before bytes arrive.
    pub fn new(limits: HttpLimits) -> Self {
        Self {
            request: Side::new(limits.head, limits.request_body),
            response: Side::new(limits.head, limits.response_body),
            awaited: Default::default(),
            asked: 0,
            answered: 0,
            is_lost: false,
            answering: 0,
            halves: Default::default(),
            speaks_http2: false,
            is_ahead: false,
        }
    }

    /// Resets the parser for another connection.
    pub fn reset(&mut self) {
        self.request.reset();
        self.response.reset();
        (self.asked, self.answered, self.is_lost) = (0, 0, false);
        (self.speaks_http2, self.is_ahead) = (false, false);
        self.awaited = Default::default();
        self.answering = 0;
        self.halves = Default::default();
    }

    /// Returns the index of the transaction that the current message of a direction belongs to.
    fn transaction(&self, to_server: bool) -> usize {
        match (self.is_lost, to_server) {
            (true, _) => AWAITED + 1,
            (false, true) => self.asked.saturating_sub(1) % (AWAITED + 1),
            (false, false) => self.answering % (AWAITED + 1),
        }
    }

    /// Returns the halves of rules that have matched in the transaction of a direction's current message.
    pub(crate) fn halves(&self, to_server: bool) -> FlowBits {
        self.halves[self.transaction(to_server)]
    }

    /// Stores halves of rules that have matched a direction's current message; returns false if some of them did not
    /// fit.
    pub fn note_halves(&mut self, to_server: bool, halves: FlowBits) -> bool {
        let transaction = self.transaction(to_server);
        self.halves[transaction].set_all(halves)
    }

    /// Returns true if neither direction is inside a message and no response is pending.
    pub fn is_between_messages(&self) -> bool {
        let is_idle =
            |side: &Side| side.state == State::Head && !side.is_in_head && side.held.len == 0;
        self.asked == self.answered && is_idle(&self.request) && is_idle(&self.response)
    }

    /// Returns true if the connection was upgraded to HTTP/2 (RFC 7540 section 3.2), so that the bytes that follow are
    /// HTTP/2 frames.
    pub fn speaks_http2(&self) -> bool {
        self.speaks_http2
    }

    /// Returns true if the client sent HTTP/2 frames before the server agreed to the upgrade; the HTTP/1 parser cannot
    /// read them.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Returns true if the header lines of a request are incomplete, and its first line is complete and names a version
    /// of HTTP.
    pub fn is_cut_request(&self) -> bool {
        let side = &self.request;
        let names_version = |line: &[u8]| memchr::memmem::find(line, b"HTTP/").is_some();
        side.is_in_head && side.first_line().is_some_and(names_version)
    }

    /// Notes that bytes of a direction are missing: later bytes are reported as bytes of a body.
    pub fn gap(&mut self, to_server: bool) {
        let side = self.side(to_server);
        if side.state != State::Tunnel {
            side.lose();
        }
    }

    /// Closes a direction: bytes that were buffered until their meaning is known are reported, and a body that ends
    /// with the connection is complete.
    pub fn close(&mut self, to_server: bool) -> Pushed {
        let mut pushed = Pushed::default();
        let side = self.side(to_server);
        // Clients accept a response that ends within its header lines.
        if side.state == State::Head && side.is_in_head && side.first_line().is_some() {
            self.head_is_here(to_server, false, &mut pushed);
        }
        self.side(to_server).close(to_server, &mut pushed);
        pushed
    }

    fn side(&mut self, to_server: bool) -> &mut Side {
        if to_server {
            &mut self.request
        } else {
            &mut self.response
        }
    }

    /// Parses bytes of a direction, up to the point at which buffers of a message are complete. The caller evaluates
    /// these and calls again with the remaining bytes.
    pub fn push(&mut self, to_server: bool, data: &[u8]) -> Pushed {
        let mut pushed = Pushed::default();
        loop {
            if let Some(held) = self.side(to_server).held.take_known() {
                let bytes = &held.bytes[..held.len];
                let (taken, then) = self.step(to_server, bytes, &mut pushed);
                pushed.from_held += taken;
                self.side(to_server).hold_rest(&bytes[taken..]);
                if then == Then::Stop {
                    return pushed;
                }
                continue;
            }
            let rest = &data[pushed.consumed..];
            if rest.is_empty() {
                return pushed;
            }
            let (taken, then) = self.step(to_server, rest, &mut pushed);
            pushed.consumed += taken;
            if then == Then::Stop {
                return pushed;
            }
        }
    }

    /// Parses some of the bytes, as the state of the direction requires; returns their number and the next step.
    fn step(&mut self, to_server: bool, data: &[u8], pushed: &mut Pushed) -> (usize, Then) {
        let side = self.side(to_server);
        match side.state {
            State::Head => {
                let (taken, end) = side.take_head(data, to_server);
                match end {
                    HeadEnd::NotYet => return (taken, Then::GoOn),
                    HeadEnd::NoResponse => side.head_is_none(to_server, pushed),
                    HeadEnd::Here | HeadEnd::Full => {
                        if end == HeadEnd::Full {
                            pushed.limit = Some(HttpLimit::Head);
                        }
                        self.head_is_here(to_server, end == HeadEnd::Full, pushed);
                    }
                }
                (taken, Then::Stop)
            }
            State::Tunnel => {
                pushed.unread += data.len();
                (data.len(), Then::GoOn)
            }
            _ => side.step_body(data, to_server, pushed),
        }
    }

    /// Handles the head of a message (first line and header lines) that is complete or has reached its limit. Reports
    /// its buffers and sets the state that follows.
    fn head_is_here(&mut self, to_server: bool, is_cut: bool, pushed: &mut Pushed) {
        let side = self.side(to_server);
        side.is_in_head = false;
        let Some(mut framing) = side.read_head(to_server) else {
            side.head_is_none(to_server, pushed);
            return;
        };
        framing.begin_unpacking(&mut side.unpacker);
        pushed.ready = side.has;
        if framing.contradicts {
            pushed.fault = Some(HttpFault::Lengths);
        } else if framing.is_odd {
            pushed.fault = Some(HttpFault::HeaderLine);
        }
        if framing.has_too_many_codings {
            pushed.limit = pushed.limit.or(Some(HttpLimit::Codings));
        }
        // The missing lines of a truncated head may announce chunks: the first bytes of the body show whether there are
        // any.
        framing.is_chunked |= is_cut && !to_server;
        let next = match to_server {
            true => self.behind_request(&framing),
            false => self.behind_response(&framing),
        };
        let side = self.side(to_server);
        side.state = match (is_cut, next) {
            (true, State::Ahead(ahead)) => State::LongHead(side.line_len(), Some(ahead)),
            (true, State::Body(length)) => {
                State::LongHead(side.line_len(), Some(Ahead::Body(length)))
            }
            (true, State::Head) => State::LongHead(side.line_len(), None),
            (_, next) => next,
        };
        side.is_cut = is_cut;
        match side.state {
            // This is an interim response; the final response follows.
            State::Ahead(Ahead::Message { .. }) if is_interim(side.status()) => {
                side.is_whole = true;
            }
            State::Head | State::Ahead(Ahead::Message { .. }) => {
                side.body_is_whole(to_server, pushed);
            }
            _ => {}
        }
    }

    /// Returns the state of the direction after the first line and header lines of a request.
    fn behind_request(&mut self, framing: &Framing) -> State {
        let asked = Asked {
            is_head: self.request.method() == b"HEAD",
            is_connect: self.request.method() == b"CONNECT",
            upgrades: framing.upgrades,
            wants_http2: framing.wants_http2,
        };
        let waits_for_http2 = self.awaited.iter().any(|it| it.wants_http2);
        self.is_ahead |= self.request.method() == b"PRI" && waits_for_http2;
        if self.asked - self.answered < AWAITED {
            self.awaited[self.asked % AWAITED] = asked;
        } else {
            self.is_lost = true;
        }
        self.asked += 1;
        if !self.is_lost {
            let transaction = self.transaction(true);
            self.halves[transaction] = FlowBits::default();
        }
        match (framing.is_chunked, framing.length) {
            (true, length) => State::Ahead(Ahead::Chunks(length)),
            (false, None | Some(0)) => State::Head,
            (false, Some(length)) => State::Body(length),
        }
    }

    /// Returns the state of the direction after the first line and header lines of a response.
    fn behind_response(&mut self, framing: &Framing) -> State {
        let status = self.response.status();
        let asked = if self.answered < self.asked && !self.is_lost {
            self.awaited[self.answered % AWAITED]
        } else {
            Asked::default()
        };
        let is_interim = is_interim(status);
        self.answering = self.answered;
        if !is_interim && self.answered < self.asked {
            self.answered += 1;
        }
        // From here on the connection is a tunnel, even if the head contains lengths (RFC 9112 section 6.3).
        let is_tunnel = asked.is_connect && (200..300).contains(&status);
        let is_other = status == 101 && asked.upgrades;
        self.speaks_http2 = is_other && asked.wants_http2;
        if is_tunnel || is_other {
            self.request.state = State::Tunnel;
            return State::Tunnel;
        }
        if is_interim || matches!(status, 204 | 304) || asked.is_head {
            return State::Ahead(Ahead::Message {
                is_chunked: framing.is_chunked,
                length: framing.length,
            });
        }
        match (framing.is_chunked, framing.length) {
            (true, length) => State::Ahead(Ahead::Chunks(length)),
            (false, Some(0)) => State::Head,
            (false, Some(length)) => State::Body(length),
            (false, None) => State::UntilClose,
        }
    }

    /// Returns a buffer of a direction's current message; none if the message does not have that buffer.
    pub fn buffer_of(&self, to_server: bool, buffer: Buffer) -> Option<&[u8]> {
        let side = if to_server {
            &self.request
        } else {
            &self.response
        };
        if !side.has.contains(buffer) {
            return None;
        }
        side.buffer(buffer)
    }
}

/// Returns true if the status is that of an interim response, which another response to the same request follows.
fn is_interim(status: u16) -> bool {
    (100..200).contains(&status)
}
