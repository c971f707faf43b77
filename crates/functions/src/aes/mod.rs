//! Encrypts the UDP payloads of packets that leave through some ports, and decrypts those of packets that leave through
//! the others.
//!
//! No nonce is ever used twice with one key, even across restarts. A sender draws a session identifier of 72 random
//! bits when it starts, derives a key for the session from the shared key, and numbers its packets. After 2^32 packets
//! it derives the next key. A receiver derives the same keys from the headers of the packets. (NIST SP 800-38D section
//! 8; RFC 5869.) Among a million starts of senders with one shared key, the probability of two equal identifiers is
//! below 2^-32.

mod byte_wise;
mod cipher;
mod clock;
mod header;
mod key;
mod senders;
mod window;

pub use header::{Header, Mode};

use cipher::Cipher;
use clock::Clock;
use key::{End, Master};
use ring::rand::{SecureRandom, SystemRandom};
use senders::{Senders, Sent, Session, TooMany};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;
use taut_function::datagram::{self, Datagram, Seen};
use taut_function::mtu::Mtu;
use taut_function::resize::move_start;
use taut_function::{Class, Context, Entry, Function, KernelVersion, SettingsError, settings};
use taut_port::{Batch, Packet, PoolHandle, PortError};
use taut_settings::duration;

pub(crate) const ENTRY: Entry = Entry {
    name: "aes",
    summary: "encrypts UDP payloads in one direction and decrypts them in the other",
    class: Class::Advanced,
    ports: Some("encrypt"),
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| simulated(table, clock::of_the_machine, POOL_SLOTS),
    in_kernel: KernelVersion::No("XDP programs have no cipher whose keys they may use"),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[
    (
        "encrypt",
        "required",
        "ports, counted from 0: packets that leave through them are encrypted, all others decrypted",
    ),
    (
        "key_file",
        "this or `key_env`",
        "file with the key: 32 or 64 hexadecimal digits, or 16 or 32 bytes (AES-128 or AES-256); readable by its \
         owner only",
    ),
    (
        "key_env",
        "this or `key_file`",
        "environment variable with the digits",
    ),
    (
        "end",
        "none",
        "`a` at one end, `b` at the other, or neither. With it each direction has its own keys, so packets sent \
         back do not decrypt at their end. Without it an end recognises its own packets by their session only",
    ),
    (
        "mode",
        "`gcm`",
        "`gcm`: nobody can read, change, repeat or redirect packets. `ctr`: nobody can read them, but **changes \
         are not detected**",
    ),
    (
        "clock_error",
        "`1s`",
        "with `gcm`: maximum difference of the clocks of both ends",
    ),
    (
        "mtu",
        "1500",
        "longest IP packet that may leave encrypted, 576 to 65535 bytes",
    ),
    (
        "byte_wise",
        "`false`",
        "with `ctr`: AES in software, byte by byte with an S-box table, and a key expansion per packet, as in the \
         code archived by Xiang et al.: for their figures only, as its timing depends on key and data",
    ),
];

/// Builds the function with another clock and pool, for simulations: `clock` returns the time since 1970, `slots` is
/// the number of buffers.
///
/// # Errors
/// Fails as [`crate::build`] does.
pub fn simulated(
    table: toml::Table,
    clock: fn() -> Duration,
    slots: u32,
) -> Result<Box<dyn Function>, SettingsError> {
    Ok(Box::new(Aes::new(settings(table)?, clock, slots)?))
}

/// The number of buffers for copies of packets without headroom; this many copies may wait to be sent.
const POOL_SLOTS: u32 = 2048;
/// The default for the clock error: clocks synchronised over the network rarely exceed it.
const CLOCK_ERROR: Duration = Duration::from_secs(1);

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    Gcm,
    Ctr,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    encrypt: Vec<usize>,
    #[serde(default = "gcm")]
    mode: ModeName,
    key_file: Option<PathBuf>,
    key_env: Option<String>,
    end: Option<End>,
    clock_error: Option<String>,
    #[serde(default)]
    mtu: Mtu,
    #[serde(default)]
    byte_wise: bool,
}

fn gcm() -> ModeName {
    ModeName::Gcm
}

/// The result of processing one packet; packets are counted by result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Encrypted,
    Decrypted,
    Passed,
    Fragment,
    TooBig,
    NoRoom,
    NotEncrypted,
    Forged,
    Replayed,
    TooEarly,
    Ahead,
    TooManySenders,
    Malformed,
}

/// The names of the counters of packets by result, in the order of [`Outcome`].
const OUTCOMES: [&str; 13] = [
    "encrypted",
    "decrypted",
    "passed: no UDP",
    "dropped: fragment",
    "dropped: too big for the MTU",
    "dropped: no room",
    "dropped: not encrypted",
    "dropped: forged or another key",
    "dropped: replayed",
    "dropped: sent before this end began",
    "dropped: sender's clock ahead",
    "dropped: too many new senders",
    "dropped: malformed",
];

impl Outcome {
    fn is_sent(self) -> bool {
        matches!(self, Self::Encrypted | Self::Decrypted | Self::Passed)
    }
}

struct Aes {
    mode: Mode,
    byte_wise: bool,
    encrypt: Vec<usize>,
    mtu: Mtu,
    master: Master,
    own: Session,
    /// The number of the next packet to encrypt.
    number: u64,
    senders: Senders,
    clock: Clock,
    slots: u32,
    pool: Option<PoolHandle>,
    counts: [u64; OUTCOMES.len()],
}

impl Aes {
    fn new(settings: Settings, clock: fn() -> Duration, slots: u32) -> Result<Self, SettingsError> {
        let wrong = |text: &str| Err(SettingsError(text.to_string()));
        let (mode, name) = match settings.mode {
            ModeName::Gcm => (Mode::Gcm, "gcm"),
            ModeName::Ctr => (Mode::Ctr, "ctr"),
        };
        if settings.byte_wise && mode == Mode::Gcm {
            return wrong("byte_wise = true: only with mode = \"ctr\"");
        }
        if settings.encrypt.is_empty() {
            return wrong(
                "encrypt = []: expected the numbers of the ports that packets leave through encrypted: [1]",
            );
        }
        let clock_error = match settings.clock_error {
            Some(_) if mode == Mode::Ctr => {
                return wrong(
                    "clock_error: only with mode = \"gcm\"; ctr has no replay protection",
                );
            }
            Some(text) => duration(&text).ok_or_else(|| {
                SettingsError(format!(
                    "clock_error = \"{text}\": expected a time, such as 1s"
                ))
            })?,
            None => CLOCK_ERROR,
        };
        let key = Master::read(settings.key_file, settings.key_env)?;
        let master = Master::new(key.clone(), name, settings.end);
        let other = Master::new(key, name, settings.end.map(End::other));
        let mut id = [0; 9];
        if SystemRandom::new().fill(&mut id).is_err() {
            return wrong("the system provides no random numbers for encryption");
        }
        Ok(Self {
            own: Session::new(&master, mode, settings.byte_wise, id, 0),
            mode,
            byte_wise: settings.byte_wise,
            encrypt: settings.encrypt,
            mtu: settings.mtu,
            master,
            number: 0,
            senders: Senders::new(other, mode, settings.byte_wise, clock::units(clock_error)),
            clock: Clock::new(clock),
            slots,
            pool: None,
            counts: [0; OUTCOMES.len()],
        })
    }

    /// Returns the number of bytes by which encryption enlarges a payload.
    fn overhead(&self) -> usize {
        match self.mode {
            Mode::Gcm => Header::LEN_BYTES + Cipher::TAG_LEN_BYTES,
            Mode::Ctr => Header::LEN_BYTES,
        }
    }

    fn encrypt(&mut self, packet: &mut Packet, it: Datagram) -> Outcome {
        let (payload, added) = (it.payload().start, self.overhead());
        if it.end - it.ip + added > self.mtu.0 {
            return Outcome::TooBig;
        }
        let Some(pool) = &self.pool else {
            return Outcome::NoRoom;
        };
        let before = it.sum(packet.bytes());
        packet.truncate(it.end as u16);
        if !move_start(packet, payload, 0, added, pool) {
            return Outcome::NoRoom;
        }
        let epoch = (self.number >> 32) as u32;
        if epoch != self.own.epoch {
            let (mode, byte_wise) = (self.mode, self.byte_wise);
            self.own = Session::new(&self.master, mode, byte_wise, self.own.id, epoch);
        }
        let header = Header {
            mode: self.mode,
            session: self.own.id,
            sent: self.clock.now(),
            number: self.number,
        };
        self.number += 1;
        let frame = packet.bytes_mut();
        let it = it.ends_with(frame);
        let (associated, length) = associated(frame, &it, &header);
        let text = &mut frame[payload + added..];
        let tag = (self.own.cipher).encrypt(header.nonce(), &associated[..length], text);
        let room = &mut frame[payload..payload + added];
        room[..Header::LEN_BYTES].copy_from_slice(&header.emit());
        let tag_len = added - Header::LEN_BYTES;
        room[Header::LEN_BYTES..].copy_from_slice(&tag[..tag_len]);
        it.update_checksum(frame, before);
        Outcome::Encrypted
    }

    fn decrypt(&mut self, packet: &mut Packet, it: Datagram) -> Outcome {
        let (payload, added) = (it.payload().start, self.overhead());
        let bytes = &packet.bytes()[payload..it.end];
        let Some(header) = Header::parse(bytes) else {
            return Outcome::NotEncrypted;
        };
        if header.mode != self.mode || bytes.len() < added {
            return Outcome::NotEncrypted;
        }
        // The packet was sent back to its sender.
        if header.session == self.own.id {
            return Outcome::Replayed;
        }
        // Without authentication, an attacker can write any time and any number into packets.
        let is_protected = self.mode == Mode::Gcm;
        if is_protected {
            let (now, clock) = (self.clock.now(), &mut self.clock);
            match self.senders.sent(&header, now, || clock.read()) {
                Sent::InTime => {}
                Sent::TooEarly => return Outcome::TooEarly,
                Sent::Ahead => return Outcome::Ahead,
            }
        }
        let now = self.clock.now();
        let place = match self.senders.find(&header, now) {
            Ok(place) => place,
            Err(TooMany) => return Outcome::TooManySenders,
        };
        let Some(session) = self.senders.at(place) else {
            return Outcome::TooManySenders;
        };
        if is_protected && !session.window.is_new(header.number) {
            return Outcome::Replayed;
        }
        let before = it.sum(packet.bytes());
        packet.truncate(it.end as u16);
        let frame = packet.bytes_mut();
        let (associated, length) = associated(frame, &it, &header);
        let mut tag = [0; Cipher::TAG_LEN_BYTES];
        let sent = &frame[payload + Header::LEN_BYTES..payload + added];
        tag[..sent.len()].copy_from_slice(sent);
        let text = &mut frame[payload + added..];
        let cipher = &session.cipher;
        if cipher
            .decrypt(header.nonce(), &associated[..length], tag, text)
            .is_err()
        {
            return Outcome::Forged;
        }
        self.senders.accept(place, &header, now);
        frame.copy_within(..payload, added);
        packet.drop_front(added as u16);
        let frame = packet.bytes_mut();
        it.ends_with(frame).update_checksum(frame, before);
        Outcome::Decrypted
    }
}

/// Returns the authenticated data, in this order: header, addresses, ports. The tag thus protects the destination as
/// well. Otherwise an attacker could redirect packets to get them decrypted.
fn associated(frame: &[u8], it: &Datagram, header: &Header) -> ([u8; 60], usize) {
    let mut all = [0; 60];
    let addresses = match it.is_v4 {
        true => &frame[it.ip + 12..it.ip + 20],
        false => &frame[it.ip + 8..it.ip + 40],
    };
    let mut length = 0;
    for part in [&header.emit(), addresses, &frame[it.udp..it.udp + 4]] {
        all[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    (all, length)
}

impl Function for Aes {
    fn prepare(&mut self) -> Result<(), PortError> {
        self.pool = Some(PoolHandle::new(self.slots, false)?);
        self.senders.begin(self.clock.read());
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        self.clock.advance(context.now_ticks);
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            let encrypts = (self.encrypt).contains(&batch.leaves_through(i, context.to_port));
            let headers = batch.headers(i);
            let packet = batch.packet_mut(i);
            let outcome = match Seen::of(&headers, packet.bytes()) {
                Seen::Datagram(it) if encrypts => self.encrypt(packet, it),
                Seen::Datagram(it) => self.decrypt(packet, it),
                Seen::Other if datagram::is_fragment(&headers) => Outcome::Fragment,
                Seen::Other => Outcome::Passed,
                Seen::Malformed => Outcome::Malformed,
            };
            self.counts[outcome as usize] += 1;
            if !outcome.is_sent() {
                batch.mark_dropped(i);
            }
        }
    }

    fn outcomes(&self) -> Vec<(&'static str, u64)> {
        OUTCOMES.into_iter().zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests;
