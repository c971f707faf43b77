#![allow(clippy::unwrap_used)]

use super::*;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use taut_transport::{Coding, Master, Settings};

const HERE: &str = "127.0.0.1:0";
const PATIENCE: Duration = Duration::from_secs(20);

fn pair(transport: Transport, settings: &DeadlineSettings) -> [Box<dyn Messages>; 2] {
    [(); 2].map(|()| open(transport, HERE.parse().unwrap(), settings).unwrap())
}

/// Waits until `side` has a message; during this, `other` runs too.
fn next(side: &mut Box<dyn Messages>, other: &mut Box<dyn Messages>) -> (Vec<u8>, SocketAddr) {
    let begun = Instant::now();
    let mut message = vec![0; MOST_MESSAGE_BYTES];
    while begun.elapsed() < PATIENCE {
        if let Ok(Some(received)) = side.receive(&mut message) {
            return (message[..received.length].to_vec(), received.from);
        }
        other.wait(Duration::from_micros(100));
        side.wait(Duration::from_micros(100));
    }
    panic!("no message came: {side:?} {other:?}");
}

#[test]
fn messages_arrive_complete_and_replies_reach_their_sender() {
    for transport in Transport::ALL {
        let settings = DeadlineSettings {
            settings: Settings {
                target_ns: 4_000_000_000,
                window_ns: 4_000_000_000,
                ..Settings::default()
            },
            master: None,
        };
        let [mut one, mut other] = pair(transport, &settings);
        let to = other.address().unwrap();
        for length in [1_usize, 700, 1_380] {
            one.send_to(&vec![length as u8; length], to).unwrap();
            let (message, from) = next(&mut other, &mut one);
            assert_eq!(message, vec![length as u8; length], "{transport:?}");
            other.send_to(&message[..1], from).unwrap();
            assert_eq!(
                next(&mut one, &mut other),
                (vec![length as u8], to),
                "{transport:?}"
            );
        }
        assert_eq!(transport.name().parse::<Transport>(), Ok(transport));
    }
    assert!(
        "sctp"
            .parse::<Transport>()
            .unwrap_err()
            .contains("expected udp, fec, tcp or deadline")
    );
}

#[test]
fn malformed_packets_are_counted_and_create_no_peer() {
    let settings = DeadlineSettings::default();
    let mut host = DeadlineMessages::open(HERE.parse().unwrap(), settings).unwrap();
    let to = host.address().unwrap();
    let stranger = UdpSocket::bind(HERE).unwrap();
    for noise in [
        &b""[..],
        &[0xD1],
        &[0xD1, 0x10, 0, 0],
        &[7; 1400],
        &[0xD1, 0x12, 0, 0, 1, 2, 3, 4],
    ] {
        stranger.send_to(noise, to).unwrap();
    }
    let mut message = [0; 100];
    let begun = Instant::now();
    while host.strangers() < 5 && begun.elapsed() < PATIENCE {
        assert_eq!(host.receive(&mut message).unwrap(), None);
    }
    assert_eq!((host.strangers(), host.peers()), (5, 0));
}

#[test]
fn a_hello_of_another_version_gets_a_refusal() {
    let mut host =
        DeadlineMessages::open(HERE.parse().unwrap(), DeadlineSettings::default()).unwrap();
    let stranger = UdpSocket::bind(HERE).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut hello = [0; 80];
    hello[..8].copy_from_slice(&[0xD1, 0x20, 0, 0, 1, 2, 3, 4]);
    stranger.send_to(&hello, host.address().unwrap()).unwrap();
    let mut message = [0; 100];
    let begun = Instant::now();
    while host.strangers() < 1 && begun.elapsed() < PATIENCE {
        assert_eq!(host.receive(&mut message).unwrap(), None);
    }
    let length = stranger.recv(&mut message).unwrap();
    let (header, body) = taut_transport::wire::parse(&message[..length]).unwrap();
    assert_eq!(
        (header.connection, body),
        (0x0102_0304, taut_transport::wire::Body::Refusal(1))
    );
}

#[test]
fn a_peer_without_the_right_key_gets_no_reply() {
    let with = |key: u8| DeadlineSettings {
        settings: Settings::default(),
        master: Some(Master::new(&[key; 32]).unwrap()),
    };
    let mut host = DeadlineMessages::open(HERE.parse().unwrap(), with(1)).unwrap();
    let to = host.address().unwrap();
    for wrong in [DeadlineSettings::default(), with(2)] {
        let mut other = DeadlineMessages::open(HERE.parse().unwrap(), wrong).unwrap();
        other.send_to(b"hello", to).unwrap();
        let before = host.strangers();
        let begun = Instant::now();
        let mut message = [0; 100];
        while host.strangers() == before && begun.elapsed() < PATIENCE {
            assert_eq!(host.receive(&mut message).unwrap(), None);
        }
        assert_eq!((host.strangers(), host.peers()), (before + 1, 0));
    }
    let mut right: Box<dyn Messages> =
        Box::new(DeadlineMessages::open(HERE.parse().unwrap(), with(1)).unwrap());
    right.send_to(b"hello", to).unwrap();
    let mut host: Box<dyn Messages> = Box::new(host);
    // The first message may have waited too long for the connection.
    let begun = Instant::now();
    let mut message = [0; 100];
    while begun.elapsed() < PATIENCE {
        if let Ok(Some(received)) = host.receive(&mut message) {
            assert_eq!(&message[..received.length], b"hello");
            return;
        }
        right.wait(Duration::from_micros(100));
        let _ = right.send_to(b"hello", to);
    }
    panic!("nothing came: {host:?}");
}

#[test]
fn unfinished_handshakes_of_many_peers_do_not_block_new_peers() {
    let settings = DeadlineSettings {
        settings: Settings {
            target_ns: 4_000_000_000,
            ..Settings::default()
        },
        master: None,
    };
    let mut host = DeadlineMessages::open(HERE.parse().unwrap(), settings.clone()).unwrap();
    let to = host.address().unwrap();
    let mut message = [0; 100];
    // Sends the hellos of more peers than allowed, none of which continues. Their sockets stay open, so that their
    // ports are not reused.
    let mut others = Vec::new();
    for _ in 0..70 {
        let mut one = DeadlineMessages::open(HERE.parse().unwrap(), settings.clone()).unwrap();
        one.send_to(b"hello", to).unwrap();
        assert_eq!(host.receive(&mut message).unwrap(), None);
        others.push(one);
    }
    let mut right = DeadlineMessages::open(HERE.parse().unwrap(), settings).unwrap();
    right.send_to(b"hello", to).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(received) = host.receive(&mut message).unwrap() {
            assert_eq!(&message[..received.length], b"hello");
            return;
        }
        right.wait(Duration::from_millis(1));
    }
    panic!("kept out: {host:?}");
}

#[test]
fn fec_recovers_one_lost_datagram_of_each_group() {
    // A relay drops the second packet of each five.
    let between = UdpSocket::bind(HERE).unwrap();
    let settings = DeadlineSettings {
        settings: Settings {
            coding: Coding::Block {
                symbols: 4,
                redundancy: 0.25,
            },
            ..Settings::default()
        },
        master: None,
    };
    let [mut one, mut other] = pair(Transport::Fec, &settings);
    let to = other.address().unwrap();
    for number in 0..8_u8 {
        let message = vec![number; 10 + usize::from(number)];
        one.send_to(&message, between.local_addr().unwrap())
            .unwrap();
    }
    let mut packet = [0; 2_000];
    for number in 0..10 {
        let length = between.recv(&mut packet).unwrap();
        if number % 5 != 1 {
            between.send_to(&packet[..length], to).unwrap();
        }
    }
    let mut got: Vec<Vec<u8>> = (0..8).map(|_| next(&mut other, &mut one).0).collect();
    got.sort();
    let all: Vec<_> = (0..8)
        .map(|number| vec![number; 10 + usize::from(number)])
        .collect();
    assert_eq!(got, all);
    let most = taut_transport::parity::MOST_PARITY_PAYLOAD_BYTES;
    let refused = one.send_to(&vec![0; most + 1], to).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    let none = open(
        Transport::Fec,
        HERE.parse().unwrap(),
        &DeadlineSettings {
            settings: Settings {
                coding: Coding::Off,
                ..Settings::default()
            },
            master: None,
        },
    );
    assert!(none.unwrap_err().to_string().contains("1 to 16"));
}
