//! Chains that encrypt, code, stamp, spread and filter packets, in `taut forward` between memif links. tshark decodes
//! the packets that leave. The functions of the receiving end restore what those of the sending end changed; forged
//! packets are dropped and counted.

use crate::support::between::{Between, decoded};
use crate::support::{alone, scratch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use taut_wire::resolution::{LONGEST_BYTES, arp_frame};
use taut_wire::{ArpRepr, EtherType, EthernetRepr, Mac, UdpFlow, Vlan, arp};

/// Offset of the payload of an untagged UDP datagram over IPv4.
const PAYLOAD: usize = 42;

/// The time without a packet after which none is in flight any more, also on a busy machine.
const SILENCE: Duration = Duration::from_millis(400);

/// Builds frames of three flows and of different sizes, with correct checksums.
fn frames(count: usize) -> Vec<Vec<u8>> {
    let frame = |number: usize| {
        let flow = UdpFlow {
            src_port: 1000 + (number % 3) as u16,
            ..UdpFlow::default()
        };
        flow.frame(100 + number * 53 % 1200).unwrap()
    };
    (0..count).map(frame).collect()
}

fn payloads(frames: &[Vec<u8>]) -> BTreeSet<Vec<u8>> {
    frames.iter().map(|f| f[PAYLOAD..].to_vec()).collect()
}

/// Builds frames with different payloads.
fn distinct(count: usize) -> Vec<Vec<u8>> {
    let mut frames = frames(count);
    for (number, frame) in frames.iter_mut().enumerate() {
        frame[PAYLOAD..PAYLOAD + 2].copy_from_slice(&(number as u16).to_be_bytes());
        // The checksum is cleared: only the payload matters here.
        frame[40..42].fill(0);
    }
    frames
}

/// Builds an ARP request that every payload function passes unchanged: when it arrives, all earlier packets are
/// processed.
fn marker() -> Vec<u8> {
    let header = EthernetRepr {
        destination: Mac::BROADCAST,
        source: Mac([2, 0, 0, 0, 0, 9]),
        vlan: Vlan::Untagged,
        ethertype: EtherType::ARP,
    };
    let question = ArpRepr {
        operation: arp::Operation::REQUEST,
        sender_mac: header.source,
        sender_ip: [192, 0, 2, 9].into(),
        target_mac: Mac::default(),
        target_ip: [192, 0, 2, 1].into(),
    };
    let mut frame = [0; LONGEST_BYTES];
    let length = arp_frame(&header, &question, &mut frame).unwrap();
    frame[..length].to_vec()
}

fn write_key(path: &Path, digit: char) {
    fs::write(path, digit.to_string().repeat(32)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns the function `aes` with a key that repeats this digit. Both sides use one clock, so a receiver accepts
/// packets immediately.
fn aes(folder: &Path, encrypt: usize, digit: char, more: &str) -> String {
    let path = folder.join(format!("{digit}.key"));
    write_key(&path, digit);
    let clocks = if more.contains("ctr") {
        ""
    } else {
        "clock_error = \"0s\""
    };
    format!(
        "[[function]]\nname = \"aes\"\nencrypt = [{encrypt}]\nkey_file = \"{}\"\n{clocks}\n{more}\n",
        path.display()
    )
}

fn rlnc(encode: usize, more: &str) -> String {
    format!("[[function]]\nname = \"rlnc\"\nencode = [{encode}]\nseed = 1\n{more}\n")
}

#[test]
fn checksums_are_correct_after_every_function_that_changes_payloads() {
    let _turn = alone();
    let folder = scratch();
    let hops = "port = 1\nhops = [\"02:00:00:00:00:11\", \"02:00:00:00:00:12\"]";
    let rules =
        "default = \"drop\"\nrules = [{ action = \"accept\", source_port = \"1000-1001\" }]";
    let named = |name: &str, more: &str| format!("[[function]]\nname = \"{name}\"\n{more}\n");
    let all = [
        (aes(folder.path(), 1, 'a', ""), 24),
        (aes(folder.path(), 1, 'a', "mode = \"ctr\""), 24),
        (named("ats", ""), 24),
        (named("xor", "key = 90"), 24),
        (named("balance", hops), 24),
        // The rules select two of three flows.
        (named("filter", rules), 16),
        (rlnc(1, ""), 24),
        (
            named("ats", "")
                + &aes(folder.path(), 1, 'a', "")
                + &rlnc(1, "code = \"block\"\nsymbols = 8"),
            24,
        ),
    ];
    let sent = frames(24);
    let mut left = Vec::new();
    for (functions, least) in all {
        let mut chain = Between::start(&functions);
        chain.send(0, &sent);
        let here = if functions.contains("rlnc") {
            // Repair packets follow the source packets.
            let here = chain.receive_all(1, least, SILENCE);
            assert!(here.len() > least, "{functions}: {}", here.len());
            here
        } else {
            chain.send(0, &[marker()]);
            let mut here = chain.receive(1, least + 1);
            assert_eq!(here.pop(), Some(marker()), "{functions}: more than {least}");
            here
        };
        if functions.contains("balance") {
            let hops: BTreeSet<u8> = here.iter().map(|frame| frame[5]).collect();
            assert!(hops.iter().all(|last| [0x11, 0x12].contains(last)));
        }
        chain.outcomes();
        left.extend(here);
    }
    let Some(lines) = decoded(&left, &["frame.protocols"]) else {
        return;
    };
    for line in &lines {
        assert!(line[0].starts_with("eth:ethertype:ip:udp"), "{line:?}");
    }
}

#[test]
fn encrypted_and_coded_packets_arrive_unchanged_despite_loss() {
    let _turn = alone();
    let folder = scratch();
    for mode in ["gcm", "ctr"] {
        let mode = format!("mode = \"{mode}\"");
        let code = "redundancy = 0.5";
        // The packets are coded last, and so decoded first: the other end has the functions in reverse order.
        let near = aes(folder.path(), 1, 'a', &mode) + &rlnc(1, code);
        let far = rlnc(
            0,
            &format!("{code}\norder = \"in-order\"\npatience = \"5s\""),
        ) + &aes(folder.path(), 0, 'a', &mode);
        let (mut near, mut far) = (Between::start(&near), Between::start(&far));
        let sent = distinct(100);
        near.send(0, &sent);
        // There is a repair packet for every second packet.
        let coded = near.receive_all(1, 145, SILENCE);
        let last = coded.len() - 14;
        let arrived: Vec<Vec<u8>> = coded
            .into_iter()
            .enumerate()
            .filter(|(index, _)| index % 9 != 4 || *index >= last)
            .map(|(_, frame)| frame)
            .collect();
        far.send(0, &arrived);
        let received = far.receive(1, sent.len());
        let in_order: Vec<&[u8]> = received.iter().map(|f| &f[PAYLOAD..]).collect();
        let wanted: Vec<&[u8]> = sent.iter().map(|f| &f[PAYLOAD..]).collect();
        assert!(in_order == wanted, "in their order, and whole");
        // On the return path, functions run in reverse order.
        far.send(1, &sent);
        let coded = far.receive_all(0, 145, SILENCE);
        near.send(1, &coded);
        assert!(payloads(&near.receive(0, sent.len())) == payloads(&sent));
        let outcomes = far.outcomes();
        assert!(
            outcomes["recovered, beside the above"].as_u64().unwrap() >= 5,
            "{outcomes}"
        );
        assert_eq!(outcomes["decrypted"], 100, "{outcomes}");
        assert_eq!(outcomes["lost for good, beside the above"], 0, "{outcomes}");
    }
}

#[test]
fn packets_not_encrypted_with_the_receivers_key_are_dropped() {
    let _turn = alone();
    let folder = scratch();
    let mut near = Between::start(&aes(folder.path(), 1, 'a', ""));
    // Receivers accept no packet from before they started.
    let mut stranger = Between::start(&aes(folder.path(), 0, 'b', ""));
    let mut far = Between::start(&aes(folder.path(), 0, 'a', ""));
    let sent = distinct(40);
    near.send(0, &sent);
    let encrypted = near.receive(1, sent.len());
    assert!(payloads(&encrypted).is_disjoint(&payloads(&sent)));

    // With another key nothing passes.
    stranger.send(0, &encrypted);
    stranger.send(0, &[marker()]);
    assert_eq!(stranger.receive(1, 1), [marker()]);
    let outcomes = stranger.outcomes();
    assert_eq!(outcomes["dropped: forged or another key"], 40, "{outcomes}");
    assert_eq!(outcomes["decrypted"], 0, "{outcomes}");

    // With the right key, packets that were changed, sent twice, or never encrypted do not pass.
    let forged: Vec<Vec<u8>> = encrypted
        .iter()
        .enumerate()
        .map(|(number, frame)| {
            let mut frame = frame.clone();
            // The change is in the packet's number, the tag or the ciphertext, which are authenticated, not in the
            // session's identifier.
            let at = PAYLOAD + 20 + number % 60;
            frame[at] ^= 1 << (number % 8);
            frame
        })
        .collect();
    far.send(0, &forged);
    far.send(0, &encrypted);
    far.send(0, &encrypted);
    far.send(0, &sent);
    far.send(0, &[marker()]);
    let received = far.receive(1, sent.len() + 1);
    assert_eq!(received.last(), Some(&marker()));
    assert!(payloads(&received[..sent.len()]) == payloads(&sent));
    let outcomes = far.outcomes();
    for (outcome, count) in [
        ("decrypted", 40),
        ("dropped: forged or another key", 40),
        ("dropped: replayed", 40),
        ("dropped: not encrypted", 40),
    ] {
        assert_eq!(outcomes[outcome], count, "{outcome}: {outcomes}");
    }

    // A restart does not make earlier packets acceptable.
    let mut far = Between::start(&aes(folder.path(), 0, 'a', ""));
    far.send(0, &encrypted);
    near.send(0, &sent);
    far.send(0, &near.receive(1, sent.len()));
    let received = far.receive(1, sent.len());
    assert!(payloads(&received) == payloads(&sent));
    let outcomes = far.outcomes();
    assert_eq!(
        outcomes["dropped: sent before this end began"], 40,
        "{outcomes}"
    );
    assert_eq!(outcomes["decrypted"], 40, "{outcomes}");
}

#[test]
fn a_restarted_sender_repeats_no_nonce_with_the_same_key() {
    let _turn = alone();
    let folder = scratch();
    for mode in ["gcm", "ctr"] {
        let functions = aes(folder.path(), 1, 'a', &format!("mode = \"{mode}\""));
        let sent = frames(20);
        let mut used: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
        let mut texts = BTreeSet::new();
        for _ in 0..3 {
            let mut sender = Between::start(&functions);
            sender.send(0, &sent);
            for frame in sender.receive(1, sent.len()) {
                // The session determines the key, and the number is the nonce.
                let session = &frame[PAYLOAD + 1..PAYLOAD + 10];
                let number = &frame[PAYLOAD + 16..PAYLOAD + 24];
                *used.entry([session, number].concat()).or_default() += 1;
                texts.insert(frame[PAYLOAD + 24..].to_vec());
            }
            sender.outcomes();
        }
        assert_eq!(used.len(), 60, "{used:?}");
        let sessions: BTreeSet<&[u8]> = used.keys().map(|key| &key[..9]).collect();
        assert_eq!(sessions.len(), 3);
        // Equal plaintexts have different ciphertexts.
        assert_eq!(texts.len(), 60);
    }
}

#[test]
fn packets_with_broken_coding_headers_are_counted_and_dropped() {
    let _turn = alone();
    let mut encoder = Between::start(&rlnc(1, ""));
    let sent = distinct(32);
    encoder.send(0, &sent);
    let coded = encoder.receive_all(1, 40, SILENCE);
    let mut decoder = Between::start(&rlnc(0, ""));
    let broken: Vec<Vec<u8>> = coded
        .iter()
        .map(|frame| {
            let mut frame = frame.clone();
            // Only two kinds of packets exist.
            frame[PAYLOAD + 2] = 3;
            frame
        })
        .collect();
    decoder.send(0, &broken);
    decoder.send(0, &[marker()]);
    assert_eq!(decoder.receive(1, 1), [marker()]);
    // The broken packets do not affect later ones.
    decoder.send(0, &coded);
    let sources = coded.iter().filter(|f| f[PAYLOAD + 2] == 1).count();
    assert_eq!(decoder.receive(1, sources).len(), sources);
    let outcomes = decoder.outcomes();
    assert_eq!(
        outcomes["dropped: broken coding header"],
        coded.len(),
        "{outcomes}"
    );
    assert_eq!(outcomes["uncoded"], sources as u64, "{outcomes}");
}
