//! Parsers, and memory for TLS handshakes, that a flow borrows for the time of a message.

use super::flow::Flow;
use taut_inspect::buffer::Application;
use taut_inspect::certificate::Certificate;
use taut_inspect::fingerprint::Fingerprint;
use taut_inspect::flight::Flight;
use taut_inspect::http::{Http, HttpLimits};
use taut_inspect::protocols::{Datagrams, Parser, WITH_RECORDS};
use taut_inspect::tls::Hellos;
use taut_inspect::{dns, tls};

/// The number of HTTP parsers of a worker.
const PARSERS: usize = 1024;
/// The number of a worker's parsers for each protocol whose messages are records.
const RECORD_PARSERS: usize = 256;
/// The number of ClientHellos that a worker reassembles at the same time. The next constant is the maximum length of
/// one in bytes.
const HELLOS: usize = 64;
pub(super) const HELLO_BYTES: usize = 16 * 1024;
/// The number of TLS endpoints whose first messages a worker reassembles at the same time, if rules need certificates
/// or fingerprints.
const FLIGHTS: usize = 128;

/// A pool of items, numbered from 1, that flows borrow.
pub(super) struct Lent<T> {
    things: Box<[T]>,
    free: Vec<u32>,
    /// The slot in the flow table of each item's borrower.
    owners: Box<[u32]>,
    /// The item at which the next search for an idle borrower starts.
    hand: usize,
}

/// The number of items among whose borrowers one search finds the flow that has been idle for longest.
const LOOKED_AT: usize = 16;

impl<T> Lent<T> {
    fn new(most: usize, mut make: impl FnMut() -> T) -> Self {
        Self {
            things: (0..most).map(|_| make()).collect(),
            free: (1..=most as u32).rev().collect(),
            owners: vec![0; most].into(),
            hand: 0,
        }
    }

    pub fn is_exhausted(&self) -> bool {
        self.free.is_empty()
    }

    /// Returns the slot of the flow with the largest value of `idle`, among the borrowers of the next few items. `idle`
    /// gets the slot of a flow.
    pub fn idlest(&mut self, idle: impl Fn(usize) -> u32) -> Option<usize> {
        let most = self.things.len();
        let places = (0..LOOKED_AT).map(|it| self.owners[(self.hand + it) % most] as usize);
        let found = places.max_by_key(|&place| idle(place));
        self.hand = (self.hand + LOOKED_AT) % most;
        found
    }

    /// Assigns a free item to the flow in slot `place` and returns the item's number; none if no item is free.
    pub fn take(&mut self, place: usize) -> Option<u32> {
        let number = self.free.pop()?;
        if let Some(owner) = self.owners.get_mut(number as usize - 1) {
            *owner = place as u32;
        }
        Some(number)
    }

    pub fn give_back(&mut self, number: u32) {
        if number > 0 && number != NO_MORE && self.free.len() < self.things.len() {
            self.free.push(number);
        }
    }

    pub fn get(&mut self, number: u32) -> Option<&mut T> {
        self.things.get_mut((number as usize).checked_sub(1)?)
    }
}

/// The parser number of a flow that is not parsed any more; no parser has this number.
pub(super) const NO_MORE: u32 = u32::MAX;

/// The first bytes that a TLS client sends, stored until a ClientHello is complete.
pub(super) struct Hello {
    pub bytes: Box<[u8; HELLO_BYTES]>,
    pub len: usize,
    /// The position of the parser, which continues after the stored bytes.
    pub place: Hellos,
    pub message: tls::ClientHello,
}

/// The items that flows borrow for the time of a message.
pub(super) struct Messages {
    pub http: Lent<Http>,
    /// The parsers of the protocols whose messages are records, in the order of [`WITH_RECORDS`].
    records: [Lent<Option<Parser>>; WITH_RECORDS.len()],
    pub datagrams: Datagrams,
    pub hellos: Lent<Hello>,
    pub flights: Lent<Flight>,
    pub name: dns::Name,
    pub certificate: Certificate,
    pub fingerprint: Fingerprint,
}

impl Messages {
    pub fn new(limits: HttpLimits) -> Self {
        Self {
            http: Lent::new(PARSERS, || Http::new(limits)),
            records: WITH_RECORDS.map(|it| Lent::new(RECORD_PARSERS, || Parser::new(it))),
            datagrams: Datagrams::default(),
            hellos: Lent::new(HELLOS, || Hello {
                bytes: Box::new([0; HELLO_BYTES]),
                len: 0,
                place: Hellos::default(),
                message: tls::ClientHello::default(),
            }),
            flights: Lent::new(FLIGHTS, Flight::default),
            name: dns::Name::default(),
            certificate: Certificate::default(),
            fingerprint: Fingerprint::default(),
        }
    }

    /// Returns the parsers of a protocol; none if its messages are not records.
    pub fn parsers(&mut self, application: Application) -> Option<&mut Lent<Option<Parser>>> {
        let place = WITH_RECORDS.iter().position(|it| *it == application)?;
        self.records.get_mut(place)
    }

    /// Returns the slot of the flow with the largest value of `idle`, among a few borrowers of one kind of item. Only a
    /// kind without free items is searched; none if every kind has free items.
    pub fn idlest_owner(&mut self, idle: impl Fn(usize) -> u32) -> Option<usize> {
        if self.http.is_exhausted() {
            self.http.idlest(idle)
        } else if self.hellos.is_exhausted() {
            self.hellos.idlest(idle)
        } else if self.flights.is_exhausted() {
            self.flights.idlest(idle)
        } else {
            let mut records = self.records.iter_mut();
            records.find(|it| it.is_exhausted())?.idlest(idle)
        }
    }

    /// Releases all items that a flow has borrowed.
    pub fn end(&mut self, flow: &mut Flow) {
        self.end_parser(flow);
        for flight in &mut flow.flights {
            self.flights.give_back(std::mem::take(flight));
        }
    }

    /// Releases the parser of a flow.
    pub fn end_parser(&mut self, flow: &mut Flow) {
        match flow.application {
            Some(Application::Http) => self.http.give_back(flow.parser),
            Some(Application::Tls) => self.hellos.give_back(flow.parser),
            other => {
                if let Some(lent) = other.and_then(|it| self.parsers(it)) {
                    lent.give_back(flow.parser);
                }
            }
        }
        flow.parser = 0;
    }
}
