//! HTTP/1.x of both directions of a connection (RFC 9112), read as bytes come. It is lenient, as those who attack are: what a server
//! might take for a message is one here, and bytes of which none can be made are given as those of a body.
//!
//! The buffers: `http.uri` is the target without scheme and host, decoded once, with `//`, `/./` and `/../` taken out of the
//! path; a header line is `Name: value` and CR LF whatever it ended in, lines that go on in the next are one; cookies are not among
//! them. Host names are in lower case and without port. What several headers of one name say is joined by `, `. Of bodies the first
//! bytes are kept, with the heads of chunks taken out, and unpacked.
//!
//! `head.rs` gathers a head and reads its first line, `target.rs` its target, `headers.rs` its other lines; `body.rs` takes bodies
//! apart, `unpack.rs` unpacks them; `memory.rs` is what all of that is kept in.

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

/// Requests whose responses are awaited at a time.
const AWAITED: usize = 16;

/// Both directions of a connection.
#[derive(Debug)]
pub struct Http {
    request: Side,
    response: Side,
    awaited: [Asked; AWAITED],
    asked: usize,
    answered: usize,
    /// Whether more requests were awaited than are kept: which response answers what is not known from there on.
    is_lost: bool,
    /// Number of the transaction that the present response belongs to; that of the present request is the last one asked.
    answering: usize,
    /// Halves of rules that fitted in each transaction: one more than are awaited, as a response goes on while all others are; and one for
    /// all where nobody knows which is which.
    halves: [FlowBits; AWAITED + 2],
    /// Whether both ends go on with HTTP/2.
    speaks_http2: bool,
    /// Whether a client began with HTTP/2 before the server had agreed.
    is_ahead: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self::new(HttpLimits::default())
    }
}

/// What of a request matters for its response.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    /// The response has no body.
    is_head: bool,
    /// What follows a response that agrees is not HTTP.
    is_connect: bool,
    /// What follows status 101 is another protocol.
    upgrades: bool,
    /// That one is HTTP/2.
    wants_http2: bool,
}

impl Http {
    /// Makes one that keeps so much of messages; no memory is taken before bytes come.
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

    /// Makes it ready for another connection.
    pub fn reset(&mut self) {
        self.request.reset();
        self.response.reset();
        (self.asked, self.answered, self.is_lost) = (0, 0, false);
        (self.speaks_http2, self.is_ahead) = (false, false);
        self.awaited = Default::default();
        self.answering = 0;
        self.halves = Default::default();
    }

    /// The place of what is kept of the transaction that the present message of a direction belongs to.
    fn transaction(&self, to_server: bool) -> usize {
        match (self.is_lost, to_server) {
            (true, _) => AWAITED + 1,
            (false, true) => self.asked.saturating_sub(1) % (AWAITED + 1),
            (false, false) => self.answering % (AWAITED + 1),
        }
    }

    /// Returns which halves of rules have fitted in the transaction that the present message of a direction belongs to.
    pub(crate) fn halves(&self, to_server: bool) -> FlowBits {
        self.halves[self.transaction(to_server)]
    }

    /// Notes halves of rules that the present message of a direction fits; false if there was no room for all of them.
    pub fn note_halves(&mut self, to_server: bool, halves: FlowBits) -> bool {
        let transaction = self.transaction(to_server);
        self.halves[transaction].set_all(halves)
    }

    /// Says whether nothing of a message has come that is not whole, and no response is awaited.
    pub fn is_between_messages(&self) -> bool {
        let is_idle =
            |side: &Side| side.state == State::Head && !side.is_in_head && side.held.len == 0;
        self.asked == self.answered && is_idle(&self.request) && is_idle(&self.response)
    }

    /// Returns whether the connection was upgraded to HTTP/2 (RFC 7540 section 3.2), so that the bytes that follow are HTTP/2 frames.
    pub fn speaks_http2(&self) -> bool {
        self.speaks_http2
    }

    /// Returns whether the client sent HTTP/2 frames before the server agreed to the upgrade; this parser cannot read them.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead
    }

    /// Says whether a request has come up to the middle of its head, with a whole first line that names a version of HTTP.
    pub fn is_cut_request(&self) -> bool {
        let side = &self.request;
        let names_version = |line: &[u8]| memchr::memmem::find(line, b"HTTP/").is_some();
        side.is_in_head && side.first_line().is_some_and(names_version)
    }

    /// Bytes of a direction are missing: what follows is given as bytes of a body.
    pub fn gap(&mut self, to_server: bool) {
        let side = self.side(to_server);
        if side.state != State::Tunnel {
            side.lose();
        }
    }

    /// A direction is closed: what was held back to find out what it is, is given, and the body that it ends is whole.
    pub fn close(&mut self, to_server: bool) -> Pushed {
        let mut pushed = Pushed::default();
        let side = self.side(to_server);
        // Clients take the header lines of a response that ends among them.
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

    /// Takes bytes of a direction, up to where buffers of a message are complete; the caller looks at those and comes again with the
    /// rest.
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

    /// Takes some of the bytes as the state says.
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

    /// The head of a message is complete, or no more of it is kept: says what is in it and what follows.
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
        // What the rest of the head of a response says of its body is not known: its first bytes tell.
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
            // The response that counts is still to come.
            State::Ahead(Ahead::Message { .. }) if is_interim(side.status()) => {
                side.is_whole = true;
            }
            State::Head | State::Ahead(Ahead::Message { .. }) => {
                side.body_is_whole(to_server, pushed);
            }
            _ => {}
        }
    }

    /// What follows the head of a request.
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

    /// What follows the head of a response.
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
        // A tunnel from here on, whatever lengths the head has (RFC 9112 section 6.3).
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

    /// Returns a buffer of the present message of one direction.
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

/// Whether another response to the same request follows.
fn is_interim(status: u16) -> bool {
    (100..200).contains(&status)
}
