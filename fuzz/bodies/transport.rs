//! Two endpoints that communicate, and an attacker that changes, repeats, forges and delays their packets.
#![allow(dead_code)] // each target uses one of the bodies

use taut_transport::parity::{MOST_PARITY_PAYLOAD_BYTES, ParityReceiver};
use taut_transport::wire::{self, MOST_DATAGRAM_BYTES};
use taut_transport::{Coding, Endpoint, MOST_PAYLOAD_BYTES, Settings};

/// Executes the steps that the bytes encode: each step is an action with its arguments.
pub fn packets(bytes: &[u8]) {
    let mut bytes = bytes.iter().copied();
    let mut next = || bytes.next();
    let Some(first) = next() else { return };
    let coding = match first & 3 {
        0 => Coding::Off,
        1 => Coding::Block {
            symbols: 4,
            redundancy: 0.5,
        },
        2 => Coding::Window {
            symbols: 4,
            redundancy: Some(1.0),
        },
        _ => Coding::Window {
            symbols: 8,
            redundancy: None,
        },
    };
    let settings = Settings {
        coding,
        kept: 32,
        payload_bytes: 64,
        target_ns: 5_000_000,
        window_ns: 2_000_000,
        ..Settings::default()
    };
    let mut now = 1_000_000_000_u64;
    let Ok(mut opener) = Endpoint::open(settings, None, [first; 16], now) else {
        return;
    };
    let mut packet = [0; MOST_DATAGRAM_BYTES];
    let Some(length) = opener.transmit(now, &mut packet) else {
        return;
    };
    let Ok(answerer) = Endpoint::accept(settings, None, [7; 16], now, &packet[..length]) else {
        return;
    };
    let mut sides = [opener, answerer];
    let mut held: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut delivered = [None::<u64>; 2];
    while let Some(action) = next() {
        let side = usize::from(action >> 7);
        match action & 7 {
            0 => now += u64::from(next().unwrap_or(1)) * 10_000,
            1 => now += u64::from(next().unwrap_or(1)) * 1_000_000,
            2 => {
                let length = usize::from(next().unwrap_or(8)) % 80;
                let _ = sides[side].send(now, &[action; 80][..length]);
            }
            // A delayed packet arrives unchanged.
            3 if !held.is_empty() => {
                let (to, packet) = held.remove(usize::from(next().unwrap_or(0)) % held.len());
                sides[to].receive(now, &packet);
            }
            4 => {
                // A copy of a delayed packet arrives with one byte changed; the packet itself stays delayed.
                if let Some((to, packet)) = held.last() {
                    let mut packet = packet.clone();
                    let at = usize::from(next().unwrap_or(0)) % packet.len().max(1);
                    if let Some(byte) = packet.get_mut(at) {
                        *byte ^= next().unwrap_or(1);
                    }
                    sides[*to].receive(now, &packet);
                }
            }
            5 => {
                // A forged packet has a header that may be right.
                let mut made = vec![0xD1, 0x10 | next().unwrap_or(2), next().unwrap_or(0) & 3, 0];
                made.extend_from_slice(&sides[side].connection().to_be_bytes());
                made.extend((0..next().unwrap_or(40)).map_while(|_| next()));
                sides[side].receive(now, &made);
                let _ = wire::parse(&made);
            }
            _ => {}
        }
        for from in 0..2 {
            let mut count = 0;
            while let Some(length) = sides[from].transmit(now, &mut packet) {
                count += 1;
                assert!(count < 10_000, "a side that never has enough");
                if action & 64 == 0 {
                    let sent = packet[..length].to_vec();
                    sides[1 - from].receive(now, &sent);
                } else if held.len() < 64 {
                    held.push((1 - from, packet[..length].to_vec()));
                }
            }
        }
        for side in 0..2 {
            while let Some(delivery) = sides[side].deliver(now) {
                // Without a key, the first reply sets the largest message length, even a forged one, so only the
                // overall maximum is checked.
                assert!(delivery.payload.len() <= MOST_PAYLOAD_BYTES);
                assert!(
                    delivered[side].is_none_or(|last| delivery.number > last),
                    "out of order"
                );
                delivered[side] = Some(delivery.number);
            }
            while sides[side].notice().is_some() {}
            let _ = sides[side].wake_ns(now);
        }
    }
}

/// Passes packets to a receiver of datagrams with parity. In the bytes, each packet follows its length, and a byte
/// whose lowest bit is 0 if the packet's header is to be corrected.
pub fn parity(bytes: &[u8]) {
    let mut receiver = ParityReceiver::default();
    let mut rest = bytes;
    while let [length, begins, tail @ ..] = rest {
        let (body, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        let mut packet = body.to_vec();
        // The corrected header lets most packets pass the first check.
        if let [magic, size, index, zero, stream @ ..] = &mut packet[..]
            && begins & 1 == 0
        {
            (*magic, *size, *zero) = (0xD2, *size % 17, 0);
            *index %= *size + 1;
            stream.iter_mut().take(7).for_each(|byte| *byte = 0);
            let length = stream.len().saturating_sub(10) as u16;
            if let Some(field) = stream.get_mut(8..10)
                && begins & 2 == 0
            {
                field.copy_from_slice(&length.to_be_bytes());
            }
        }
        let brought = receiver.receive(&packet);
        let both = [brought.message, brought.repaired];
        for message in both.into_iter().flatten() {
            assert!(message.len() <= MOST_PARITY_PAYLOAD_BYTES);
        }
    }
}
