//! Encrypts UDP payloads on their way through some ports and decrypts them on their way through the others.
//!
//! No nonce is ever used twice with one key, whatever restarts: a sender draws a session identifier of 120 random bits
//! when it starts, derives a key for it from the shared one, and numbers its packets; after 2^32 packets it derives the
//! next. A receiver derives the same from the header that the packet carries. (NIST SP 800-38D section 8; RFC 5869.)

mod cipher;
mod header;
mod key;
mod table_free;
mod window;

pub use header::{Header, Mode};

use crate::datagram::{self, Datagram, Seen};
use crate::mtu::Mtu;
use crate::resize::move_start;
use crate::{Class, Context, Entry, Function, SettingsError, settings};
use cipher::Cipher;
use key::Master;
use ring::rand::{SecureRandom, SystemRandom};
use serde::Deserialize;
use std::path::PathBuf;
use taut_port::{Batch, Packet, PoolHandle, PortError};
use window::Window;

pub(crate) const ENTRY: Entry = Entry {
    name: "aes",
    summary: "encrypts UDP payloads out of the ports `encrypt` by AES, decrypts them out of the others",
    class: Class::Advanced,
    build: |table| Ok(Box::new(Aes::new(settings(table)?)?) as Box<dyn Function>),
};

/// Copies of packets that came without room in front, as many as wait to be sent at most.
const POOL_SLOTS: u32 = 2048;
/// Senders whose keys a receiver keeps; the one unheard for longest makes room.
const MOST_SESSIONS: usize = 64;

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
    #[serde(default)]
    mtu: Mtu,
    #[serde(default)]
    table_free: bool,
}

fn gcm() -> ModeName {
    ModeName::Gcm
}

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Encrypted,
    Decrypted,
    Passed,
    Fragment,
    TooBig,
    NoRoom,
    NotEncrypted,
    Forged,
    Replayed,
    Malformed,
}

/// By name, in the order of the enumeration.
const FATES: [&str; 10] = [
    "encrypted",
    "decrypted",
    "passed: no UDP",
    "dropped: fragment",
    "dropped: too big for the MTU",
    "dropped: no room",
    "dropped: not encrypted",
    "dropped: forged or another key",
    "dropped: replayed",
    "dropped: malformed",
];

impl Fate {
    fn is_sent(self) -> bool {
        matches!(self, Self::Encrypted | Self::Decrypted | Self::Passed)
    }
}

/// What one sender's packets with one key are encrypted with.
struct Session {
    id: [u8; 15],
    /// Upper half of the packets' numbers.
    epoch: u32,
    cipher: Cipher,
    window: Window,
    /// When it was of use last, by [`Aes::clock`].
    used: u64,
}

struct Aes {
    mode: Mode,
    table_free: bool,
    encrypt: Vec<usize>,
    mtu: Mtu,
    master: Master,
    own: Session,
    /// Of the next packet to encrypt.
    number: u64,
    others: Vec<Session>,
    /// Packets decrypted.
    clock: u64,
    pool: Option<PoolHandle>,
    counts: [u64; FATES.len()],
}

impl Aes {
    fn new(settings: Settings) -> Result<Self, SettingsError> {
        let wrong = |text: &str| Err(SettingsError(text.to_string()));
        let (mode, name) = match settings.mode {
            ModeName::Gcm => (Mode::Gcm, "gcm"),
            ModeName::Ctr => (Mode::Ctr, "ctr"),
        };
        if settings.table_free && mode == Mode::Gcm {
            return wrong("table_free = true: only with mode = \"ctr\"");
        }
        if settings.encrypt.is_empty() {
            return wrong(
                "encrypt = []: want the numbers of the ports that packets leave through encrypted: [1]",
            );
        }
        let master = Master::new(Master::read(settings.key_file, settings.key_env)?, name);
        let mut id = [0; 15];
        if SystemRandom::new().fill(&mut id).is_err() {
            return wrong("the machine gives no random numbers to encrypt with");
        }
        Ok(Self {
            own: Session::new(&master, mode, settings.table_free, id, 0),
            mode,
            table_free: settings.table_free,
            encrypt: settings.encrypt,
            mtu: settings.mtu,
            master,
            number: 0,
            others: Vec::with_capacity(MOST_SESSIONS),
            clock: 0,
            pool: None,
            counts: [0; FATES.len()],
        })
    }

    /// Bytes that a payload grows by.
    fn overhead(&self) -> usize {
        match self.mode {
            Mode::Gcm => Header::LEN_BYTES + Cipher::TAG_LEN_BYTES,
            Mode::Ctr => Header::LEN_BYTES,
        }
    }

    fn session(&self, id: [u8; 15], epoch: u32) -> Session {
        Session::new(&self.master, self.mode, self.table_free, id, epoch)
    }

    fn encrypt(&mut self, packet: &mut Packet, it: Datagram) -> Fate {
        let (payload, added) = (it.payload().start, self.overhead());
        if it.end - it.ip + added > self.mtu.0 {
            return Fate::TooBig;
        }
        let Some(pool) = &self.pool else {
            return Fate::NoRoom;
        };
        let before = it.sum(packet.bytes());
        packet.truncate(it.end as u16);
        if !move_start(packet, payload, 0, added, pool) {
            return Fate::NoRoom;
        }
        let epoch = (self.number >> 32) as u32;
        if epoch != self.own.epoch {
            self.own = self.session(self.own.id, epoch);
        }
        let header = Header {
            mode: self.mode,
            session: self.own.id,
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
        Fate::Encrypted
    }

    fn decrypt(&mut self, packet: &mut Packet, it: Datagram) -> Fate {
        let (payload, added) = (it.payload().start, self.overhead());
        let bytes = &packet.bytes()[payload..it.end];
        let Some(header) = Header::parse(bytes) else {
            return Fate::NotEncrypted;
        };
        if header.mode != self.mode || bytes.len() < added {
            return Fate::NotEncrypted;
        }
        // Sent back to where it came from.
        if header.session == self.own.id {
            return Fate::Replayed;
        }
        let epoch = (header.number >> 32) as u32;
        let known = self
            .others
            .iter()
            .position(|s| s.epoch == epoch && s.id == header.session);
        let mut new = None;
        let session = match known {
            Some(at) => &mut self.others[at],
            None => new.insert(Session::new(
                &self.master,
                self.mode,
                self.table_free,
                header.session,
                epoch,
            )),
        };
        if self.mode == Mode::Gcm && !session.window.is_new(header.number) {
            return Fate::Replayed;
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
            return Fate::Forged;
        }
        self.clock += 1;
        session.window.see(header.number);
        session.used = self.clock;
        if let Some(new) = new {
            self.remember(new);
        }
        frame.copy_within(..payload, added);
        packet.drop_front(added as u16);
        let frame = packet.bytes_mut();
        it.ends_with(frame).update_checksum(frame, before);
        Fate::Decrypted
    }

    /// Of senders that proved in GCM that they have the key, so that nobody else makes others be forgotten.
    #[cold]
    fn remember(&mut self, session: Session) {
        if self.others.len() < MOST_SESSIONS {
            self.others.push(session);
        } else if let Some(unheard) = self.others.iter_mut().min_by_key(|s| s.used) {
            *unheard = session;
        }
    }
}

impl Session {
    fn new(master: &Master, mode: Mode, table_free: bool, id: [u8; 15], epoch: u32) -> Self {
        let (key, length) = master.derive(&id, epoch);
        let cipher = Cipher::new(mode, table_free, &key[..length]);
        Self {
            id,
            epoch,
            cipher: cipher.unwrap_or_else(|| unreachable!("keys have 16 or 32 bytes")),
            window: Window::default(),
            used: 0,
        }
    }
}

/// Addresses, ports and the header: where a payload goes is protected with it, or whoever sends it elsewhere would have
/// it decrypted for them. In what order: header, addresses, ports.
fn associated(frame: &[u8], it: &Datagram, header: &Header) -> ([u8; 60], usize) {
    let mut all = [0; 60];
    let addresses = match frame[it.ip] >> 4 {
        4 => &frame[it.ip + 12..it.ip + 20],
        _ => &frame[it.ip + 8..it.ip + 40],
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
        self.pool = Some(PoolHandle::new(POOL_SLOTS, false)?);
        Ok(())
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let encrypts = self.encrypt.contains(&context.to_port);
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            let packet = &mut batch.packets_mut()[i];
            let fate = match Seen::of(packet.bytes()) {
                Seen::Datagram(it) if encrypts => self.encrypt(packet, it),
                Seen::Datagram(it) => self.decrypt(packet, it),
                Seen::Other if datagram::is_fragment(packet.bytes()) => Fate::Fragment,
                Seen::Other => Fate::Passed,
                Seen::Malformed => Fate::Malformed,
            };
            self.counts[fate as usize] += 1;
            if !fate.is_sent() {
                batch.mark_dropped(i);
            }
        }
    }

    fn fates(&self) -> Vec<(&'static str, u64)> {
        FATES.into_iter().zip(self.counts).collect()
    }
}

#[cfg(test)]
mod tests;
