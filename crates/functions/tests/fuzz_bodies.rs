//! Runs the bodies of this crate's fuzz targets over seeded noise, on the stable toolchain.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/bodies/aes.rs"]
mod aes;
#[path = "../../../fuzz/bodies/aes_session.rs"]
mod aes_session;
#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
mod frames;
#[path = "../../../fuzz/bodies/functions.rs"]
mod functions;
#[path = "../../../fuzz/bodies/gateway.rs"]
mod gateway;
#[path = "../../../fuzz/bodies/gtpc_session.rs"]
mod gtpc_session;
#[path = "../../../fuzz/bodies/ips.rs"]
mod ips;
#[path = "../../../fuzz/bodies/nat.rs"]
mod nat;
#[path = "../../../fuzz/bodies/nat_sequence.rs"]
mod nat_sequence;
#[path = "../../../fuzz/bodies/openflow.rs"]
mod openflow;
#[path = "../../../fuzz/bodies/rlnc.rs"]
mod rlnc;
#[path = "../../../fuzz/bodies/route.rs"]
mod route;
#[path = "../../../fuzz/bodies/route_table.rs"]
mod route_table;

#[test]
fn randomly_damaged_routing_tables_are_converted_without_a_panic() {
    let mut random = fastrand::Rng::with_seed(0x6396);
    let texts = [
        "BIRD 2.0.12 ready.\n10.99.0.0/16 unicast [o4 07:27] * (150) [1]\n\tvia 10.8.2.2 on wan\n10.1.0.0/16 blackhole [s] * (2)\n",
        "O>* 10.99.0.0/16 [110/20] via 10.8.2.2, wan, weight 1, 00:00:10\n  *   via 10.8.3.2, lan, weight 1, 00:00:12\n",
    ];
    // This is the end of an MRT record of one route with the next hop 192.0.2.1.
    let route = [
        0, 0, 0, 7, 24, 20, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 7, 0x40, 3, 4, 192, 0, 2, 1,
    ];
    let record = [
        &[0, 0, 0, 1, 0, 13, 0, 2, 0, 0, 0, route.len() as u8][..],
        &route,
    ]
    .concat();
    let mut lines = 0;
    for round in 0..30_000 {
        let mut bytes = match round % 3 {
            0 => record.repeat(3),
            which => texts[which - 1].as_bytes().repeat(2),
        };
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(..=bytes.len()));
        lines += route_table::table(&bytes);
    }
    assert!(lines > 10_000, "{lines}");
}

#[test]
fn routing_tables_stay_consistent_through_random_route_changes() {
    let mut random = fastrand::Rng::with_seed(0x407);
    let mut sent = 0;
    for _ in 0..5_000 {
        let mut bytes = Vec::new();
        for _ in 0..random.usize(..12) {
            let length = random.usize(..14);
            bytes.extend([random.u8(..), length as u8]);
            bytes.extend((0..length).map(|_| random.u8(..)));
        }
        sent += route::sequence(&bytes);
    }
    assert!(sent > 1_000, "{sent}");
}

#[test]
fn encrypted_sessions_accept_no_packet_twice_under_random_operations() {
    let mut random = fastrand::Rng::with_seed(0x5E5);
    let mut taken = 0;
    for _ in 0..1_000 {
        let mut bytes = vec![0; random.usize(..64)];
        random.fill(&mut bytes);
        taken += aes_session::session(&bytes);
    }
    assert!(taken > 1_000, "{taken}");
}

#[test]
fn the_rlnc_decoder_recovers_packets_under_random_loss_and_forgery() {
    let mut random = fastrand::Rng::with_seed(0xC0D);
    let mut recovered = 0;
    for round in 0..600 {
        let mut bytes = vec![0; random.usize(..150)];
        random.fill(&mut bytes);
        // Half of the inputs contain no forged packets.
        for operation in bytes.iter_mut().skip(1).step_by(2) {
            if round % 2 == 0 && *operation % 16 > 12 {
                *operation = 0;
            }
        }
        recovered += rlnc::decoder(&bytes);
    }
    assert!(recovered > 1_000, "{recovered}");
}

#[test]
fn every_parsed_encryption_header_is_emitted_unchanged() {
    let mut random = fastrand::Rng::with_seed(0xAE5);
    for _ in 0..30_000 {
        let mut bytes = vec![0; random.usize(..40)];
        random.fill(&mut bytes);
        if let Some(first) = bytes.first_mut() {
            *first &= 0x23;
        }
        aes::header(&bytes);
    }
}

#[test]
fn runts_and_corrupted_frames_cause_no_panic_in_function_chains() {
    for entry in taut_functions::FUNCTIONS.0 {
        let is_there = functions::names().any(|name| name == entry.name);
        assert!(is_there || entry.name == "plugin", "{}", entry.name);
    }
    let mut random = fastrand::Rng::with_seed(0x5407);
    let mut passed = 0;
    for chain in (0..functions::chains()).chain(0..functions::chains()) {
        let mut bytes = vec![0; 2 + random.usize(..=10 * 6)];
        random.fill(&mut bytes);
        let (first, second) = functions::chain(chain);
        bytes[..2].copy_from_slice(&[first, second]);
        passed += functions::frames(&bytes);
    }
    assert!(passed > 1_000, "{passed}");
}

#[test]
fn nat_counts_corrupted_frames_once_and_preserves_their_length() {
    let mut random = fastrand::Rng::with_seed(0x4A7);
    for mut frame in frames::frames() {
        // ICMP errors and the packets that they quote are among them.
        if random.bool() && frame.len() > 60 {
            frame[23] = 1;
            frame[34] = *random.choice(&[3, 11]).unwrap_or(&3);
            frame[42] = 0x45;
            frame[51] = *random.choice(&[1, 6, 17]).unwrap_or(&17);
        }
        let at = random.usize(..frame.len());
        frame[at] = random.u8(..);
        nat::frame(&frame);
    }
}

#[test]
fn randomly_corrupted_frames_are_inspected_without_a_panic() {
    let mut random = fastrand::Rng::with_seed(0x1B5);
    let mut all = frames::frames();
    all.extend(taut_inspect::trace::mixed().unwrap());
    // Some of the users' packets in tunnels have extension headers.
    let tunnel = taut_wire::Tunnel {
        teid: 7,
        src_ip: "192.0.2.1".parse().unwrap(),
        dst_ip: "192.0.2.2".parse().unwrap(),
    };
    let flow = taut_wire::UdpFlow {
        dst_port: 53,
        ..taut_wire::UdpFlow::default()
    };
    for size in 100..600 {
        let protocol = *random
            .choice(&[taut_wire::Protocol::Udp, taut_wire::Protocol::Tcp])
            .unwrap();
        all.push(flow.frame_as(protocol, Some(&tunnel), size).unwrap());
    }
    random.shuffle(&mut all);
    let mut sent = 0;
    for some in all.chunks(8) {
        let mut bytes = Vec::new();
        for frame in some {
            let mut frame = frame.clone();
            for _ in 0..random.usize(..4) {
                let at = random.usize(..frame.len().min(90));
                frame[at] = random.u8(..);
            }
            frame.truncate(random.usize(frame.len() / 2..=frame.len()));
            bytes.extend((frame.len() as u16).to_be_bytes());
            bytes.extend(frame);
        }
        sent += ips::frames(&bytes);
    }
    assert!(sent > 10_000, "{sent}");
}

#[test]
fn nat_agrees_with_a_model_over_random_packet_sequences() {
    let mut random = fastrand::Rng::with_seed(0x5E9);
    for _ in 0..2_000 {
        let mut bytes = vec![0; random.usize(..400)];
        random.fill(&mut bytes);
        nat_sequence::sequence(&bytes);
    }
}

#[test]
fn gateway_sessions_and_tables_agree_after_random_pfcp_messages() {
    let mut random = fastrand::Rng::with_seed(0x5E55);
    for _ in 0..2_000 {
        // Peers that begin with an association get further.
        let mut bytes = vec![0; random.usize(2..250)];
        random.fill(&mut bytes[2..]);
        gateway::sessions(&bytes);
    }
}

#[test]
fn gateway_sessions_and_tables_agree_after_random_gtpc_messages() {
    let mut random = fastrand::Rng::with_seed(0x29274);
    for _ in 0..1_500 {
        let mut bytes = vec![0; random.usize(..300)];
        random.fill(&mut bytes);
        gtpc_session::sessions(&bytes);
    }
}

#[test]
fn gateway_counts_and_tables_agree_after_random_frames_and_changes() {
    let mut random = fastrand::Rng::with_seed(0x6717);
    for _ in 0..7_000 {
        let mut bytes = vec![0; random.usize(..200)];
        random.fill(&mut bytes);
        gateway::sequence(&bytes);
    }
}

#[test]
fn an_openflow_switch_replies_to_damaged_controller_messages() {
    let mut random = fastrand::Rng::with_seed(0x0f13);
    let message = |kind: u8, body: &[u8]| {
        let length = (8 + body.len()) as u16;
        let mut message = vec![4, kind];
        message.extend(length.to_be_bytes());
        message.extend([0, 0, 0, 7]);
        message.extend(body);
        message
    };
    // IPv4 packets from the first port leave through the second, with other addresses.
    let found = [
        0, 1, 0, 18, 0x80, 0, 0, 4, 0, 0, 0, 1, 0x80, 0, 10, 2, 8, 0, 0, 0, 0, 0, 0, 0,
    ];
    let set = [0, 25, 0, 16, 0x80, 0, 22, 4, 10, 0, 0, 1, 0, 0, 0, 0];
    let output = [0, 0, 0, 16, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
    let apply = [&[0, 4, 0, 40, 0, 0, 0, 0][..], &set, &output].concat();
    let mut rule = [0; 40];
    rule[24..36].fill(0xff);
    let rule = [&rule[..], &found, &apply].concat();
    let group = [
        &[0, 0, 1, 0, 0, 0, 0, 1, 0, 32, 0, 1][..],
        &[0xff; 8],
        &[0; 4],
        &output,
    ]
    .concat();
    let meter = [
        0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 16, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let all: Vec<Vec<u8>> = [0, 1, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]
        .map(|kind| {
            message(
                18,
                &[
                    &[0, kind, 0, 0, 0, 0, 0, 0][..],
                    &[0xff; 32],
                    &[0, 1, 0, 4, 0, 0, 0, 0],
                ]
                .concat(),
            )
        })
        .into();
    let mut said = vec![
        message(0, &[]),
        message(14, &rule),
        message(15, &group),
        message(29, &meter),
    ];
    said.extend(all);
    said.push(message(20, &[]));
    let whole = [vec![200], said.concat()].concat();
    assert!(openflow::session(&whole) > 12);
    let mut answers = 0;
    for _ in 0..3_000 {
        let mut bytes = whole.clone();
        bytes[0] = random.u8(..);
        for _ in 0..random.usize(..4) {
            // Most changes are after the hello, but some are in it.
            let from = if random.u8(..) < 16 { 0 } else { 9 };
            let at = random.usize(from..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(9..=bytes.len()));
        answers += openflow::session(&bytes);
    }
    assert!(answers > 3_000, "{answers}");
}

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("aes_header", aes::header);
    corpus::replay("aes_session", aes_session::session);
    corpus::replay("gtpu_sequence", gateway::sequence);
    corpus::replay("ips_frames", ips::frames);
    corpus::replay("nat_frame", nat::frame);
    corpus::replay("nat_sequence", nat_sequence::sequence);
    corpus::replay("gtpc_session", gtpc_session::sessions);
    corpus::replay("pfcp_session", gateway::sessions);
    corpus::replay("rlnc_decoder", rlnc::decoder);
    corpus::replay("route_sequence", route::sequence);
}
