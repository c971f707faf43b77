#![allow(clippy::unwrap_used)]
use super::*;
use crate::batch_of::batch_of;
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use taut_wire::UdpFlow;

const OUT: Context = Context {
    now_ticks: 0,
    from_port: 0,
    to_port: 1,
};
const IN: Context = Context {
    now_ticks: 0,
    from_port: 1,
    to_port: 0,
};

fn made(settings: &str, key: &str) -> Result<Aes, SettingsError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    let mut file = std::fs::OpenOptions::new();
    let mut file = file
        .create(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .unwrap();
    file.write_all(key.as_bytes()).unwrap();
    let text = format!("{settings}\nkey_file = {path:?}");
    let mut aes = Aes::new(settings_of(&text)?)?;
    aes.prepare().unwrap();
    Ok(aes)
}

fn settings_of(text: &str) -> Result<Settings, SettingsError> {
    settings(text.parse().unwrap())
}

const KEY: &str = "2b7e151628aed2a6abf7158809cf4f3c";

fn gcm_128() -> Aes {
    made("encrypt = [1]", KEY).unwrap()
}

/// As it leaves; with more headroom than packets of a pool have, less or none.
fn through(aes: &mut Aes, context: &Context, frame: &[u8], headroom: u16) -> Option<Vec<u8>> {
    let mut batch = batch_of(frame, headroom);
    aes.process(&mut batch, context);
    let bytes = batch.packets()[0].bytes().to_vec();
    batch.is_kept(0).then_some(bytes)
}

fn count(aes: &Aes, fate: Fate) -> u64 {
    aes.counts[fate as usize]
}

/// Of `size` bytes without the frame check sequence.
fn frame(v6: bool, size: usize, seed: u64) -> Vec<u8> {
    let mut flow = UdpFlow::default();
    if v6 {
        flow.src_ip = "2001:db8::1".parse().unwrap();
        flow.dst_ip = "2001:db8::2".parse().unwrap();
    }
    let mut frame = flow.frame(2000).unwrap();
    let Seen::Datagram(it) = Seen::of(&frame) else {
        panic!("a datagram")
    };
    let before = it.sum(&frame);
    frame.truncate(size);
    fastrand::Rng::with_seed(seed).fill(&mut frame[it.payload().start..]);
    it.ends_with(&mut frame).update_checksum(&mut frame, before);
    frame
}

/// Lengths and checksums, as seen by another library. Gives the payload.
fn checked(frame: &[u8]) -> Vec<u8> {
    let headers = PacketHeaders::from_ethernet_slice(frame).unwrap();
    let payload = headers.payload.slice();
    let Some(TransportHeader::Udp(udp)) = headers.transport else {
        panic!("no UDP")
    };
    let length = usize::from(udp.length);
    assert_eq!(length, payload.len() + 8);
    let checksum = match headers.net.unwrap() {
        NetHeaders::Ipv4(ip, _) => {
            assert_eq!(ip.header_checksum, ip.calc_header_checksum());
            assert_eq!(usize::from(ip.total_len), length + 20);
            udp.calc_checksum_ipv4(&ip, payload).unwrap()
        }
        NetHeaders::Ipv6(ip, _) => {
            assert_eq!(usize::from(ip.payload_length), length);
            udp.calc_checksum_ipv6(&ip, payload).unwrap()
        }
        NetHeaders::Arp(_) => panic!("no IP"),
    };
    assert_eq!(udp.checksum, checksum);
    payload.to_vec()
}

#[test]
fn whatever_is_encrypted_comes_back_as_it_was_and_is_sound_on_the_way() {
    let key_256 = format!("{KEY}{KEY}");
    for (mode, grows) in [
        ("", 40),
        ("mode = \"ctr\"", 24),
        ("mode = \"ctr\"\ntable_free = true", 24),
    ] {
        for key in [KEY, &key_256] {
            let settings = format!("encrypt = [1]\n{mode}");
            let mut sender = made(&settings, key).unwrap();
            let mut receiver = made(&settings, key).unwrap();
            for (v6, least) in [(false, 42), (true, 62)] {
                for size in [least, 63, 64, 128, 300, 511, 1400] {
                    for headroom in [0, grows - 1, 100] {
                        let plain = frame(v6, size, size as u64);
                        let mut padded = plain.clone();
                        padded.extend([0; 5]);
                        let sent = through(&mut sender, &OUT, &padded, headroom).unwrap();
                        assert_eq!(sent.len(), plain.len() + usize::from(grows));
                        let payload = checked(&sent);
                        let inside = checked(&plain);
                        assert!(inside.len() < 16 || !payload.ends_with(&inside));
                        let back = through(&mut receiver, &IN, &sent, headroom).unwrap();
                        assert_eq!(back, plain);
                    }
                }
            }
            assert_eq!(count(&sender, Fate::Encrypted), 42);
            assert_eq!(count(&receiver, Fate::Decrypted), 42);
        }
    }
}

#[test]
fn wrong_checksums_stay_wrong_and_none_stays_none() {
    let (mut sender, mut receiver) = (gcm_128(), gcm_128());
    let mut plain = frame(false, 100, 1);
    for checksum in [[0, 0], [plain[40] ^ 1, plain[41]]] {
        plain[40..42].copy_from_slice(&checksum);
        let sent = through(&mut sender, &OUT, &plain, 100).unwrap();
        assert_eq!(sent[40..42] == [0, 0], checksum == [0, 0]);
        assert_eq!(through(&mut receiver, &IN, &sent, 0).unwrap(), plain);
    }
}

#[test]
fn in_gcm_nothing_that_was_changed_or_sent_elsewhere_is_forwarded() {
    let (mut sender, mut receiver) = (gcm_128(), gcm_128());
    let sent = through(&mut sender, &OUT, &frame(false, 90, 1), 100).unwrap();
    // Addresses, ports, header, tag and text, all but the first byte of the header, which is no header then.
    let bytes = (26..38).chain(43..sent.len());
    let mut tried = 0;
    for at in bytes {
        let mut changed = sent.clone();
        changed[at] ^= 0x10;
        assert_eq!(through(&mut receiver, &IN, &changed, 0), None, "{at}");
        tried += 1;
    }
    assert_eq!(count(&receiver, Fate::Forged), tried);
    // Forged ones take nobody's place, and the true one still counts as new.
    assert!(receiver.others.is_empty());
    assert!(through(&mut receiver, &IN, &sent, 0).is_some());
    let mut stranger = made("encrypt = [1]", &"7".repeat(32)).unwrap();
    assert_eq!(through(&mut stranger, &IN, &sent, 0), None);
    assert_eq!(count(&stranger, Fate::Forged), 1);
}

#[test]
fn in_gcm_a_packet_is_taken_once_in_any_order_and_never_by_its_sender() {
    let (mut sender, mut receiver) = (gcm_128(), gcm_128());
    let plain = frame(false, 90, 1);
    let mut sent: Vec<_> = (0..60)
        .map(|_| through(&mut sender, &OUT, &plain, 100).unwrap())
        .collect();
    fastrand::Rng::with_seed(1).shuffle(&mut sent);
    for sent in &sent {
        assert!(through(&mut receiver, &IN, sent, 0).is_some());
    }
    for sent in &sent {
        assert_eq!(through(&mut receiver, &IN, sent, 0), None);
        assert_eq!(through(&mut sender, &IN, sent, 0), None);
    }
    assert_eq!(count(&receiver, Fate::Replayed), 60);
    assert_eq!(count(&sender, Fate::Replayed), 60);
}

#[test]
fn no_key_and_nonce_come_twice_over_restarts_and_over_ends_of_numbers() {
    let mut used = std::collections::HashSet::new();
    let mut receiver = gcm_128();
    let plain = frame(false, 90, 1);
    for _ in 0..20 {
        let mut sender = gcm_128();
        sender.number = (1 << 32) - 3;
        for _ in 0..6 {
            let sent = through(&mut sender, &OUT, &plain, 100).unwrap();
            let header = Header::parse(&sent[42..]).unwrap();
            let (key, _) = (sender.master).derive(&header.session, (header.number >> 32) as u32);
            assert!(used.insert((key, header.nonce())));
            assert_eq!(through(&mut receiver, &IN, &sent, 0).unwrap(), plain);
        }
        assert_eq!(sender.own.epoch, 1);
    }
    assert_eq!(used.len(), 120);
    let keys: std::collections::HashSet<_> = used.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), 40);
}

#[test]
fn of_too_many_senders_the_one_unheard_for_longest_is_forgotten() {
    let mut receiver = gcm_128();
    let plain = frame(false, 90, 1);
    let mut steady = gcm_128();
    let first = through(&mut steady, &OUT, &plain, 100).unwrap();
    assert!(through(&mut receiver, &IN, &first, 0).is_some());
    for _ in 0..MOST_SESSIONS + 5 {
        let sent = through(&mut gcm_128(), &OUT, &plain, 100).unwrap();
        assert!(through(&mut receiver, &IN, &sent, 0).is_some());
        let sent = through(&mut steady, &OUT, &plain, 100).unwrap();
        assert!(through(&mut receiver, &IN, &sent, 0).is_some());
    }
    assert_eq!(receiver.others.len(), MOST_SESSIONS);
    // Still known, so that its first packet is known as well.
    assert_eq!(through(&mut receiver, &IN, &first, 0), None);
}

#[test]
fn what_cannot_be_encrypted_or_was_not_is_dropped_by_cause_and_other_packets_pass() {
    let mut aes = made("encrypt = [1]\nmtu = 600", KEY).unwrap();
    let plain = frame(false, 90, 1);
    assert_eq!(through(&mut aes, &IN, &plain, 0), None);
    let mut ctr = made("encrypt = [1]\nmode = \"ctr\"", KEY).unwrap();
    let other_mode = through(&mut ctr, &OUT, &plain, 100).unwrap();
    assert_eq!(through(&mut aes, &IN, &other_mode, 0), None);
    assert_eq!(count(&aes, Fate::NotEncrypted), 2);
    // 600 bytes of IP packet are 614 of frame, 40 of which are needed.
    assert!(through(&mut aes, &OUT, &frame(false, 574, 1), 100).is_some());
    assert_eq!(through(&mut aes, &OUT, &frame(false, 575, 1), 100), None);
    assert_eq!(count(&aes, Fate::TooBig), 1);
    let mut fragment = plain.clone();
    fragment[20] = 0x20;
    assert_eq!(through(&mut aes, &OUT, &fragment, 100), None);
    assert_eq!(count(&aes, Fate::Fragment), 1);
    assert_eq!(through(&mut aes, &OUT, &plain[..40], 100), None);
    assert_eq!(count(&aes, Fate::Malformed), 1);
    let mut tcp = plain.clone();
    tcp[23] = 6;
    fragment[23] = 6;
    for passes in [tcp, fragment] {
        assert_eq!(through(&mut aes, &OUT, &passes, 9), Some(passes.clone()));
    }
    // Copies of its own are all with packets that are not sent yet.
    aes.pool = Some(PoolHandle::new(1, false).unwrap());
    let held = aes.pool.as_ref().unwrap().take(1);
    assert_eq!(through(&mut aes, &OUT, &plain, 39), None);
    assert_eq!(count(&aes, Fate::NoRoom), 1);
    drop(held);
    assert!(through(&mut aes, &OUT, &plain, 39).is_some());
    assert_eq!(aes.fates().iter().map(|(_, n)| n).sum::<u64>(), 10);
}

#[test]
fn settings_that_make_no_sense_are_refused_with_what_to_do() {
    let wrong = |text: &str| made(text, KEY).err().unwrap().0;
    assert!(wrong("").contains("encrypt"));
    assert!(wrong("encrypt = []").contains("[1]"));
    assert!(wrong("encrypt = [1]\nmode = \"cbc\"").contains("gcm"));
    assert!(wrong("encrypt = [1]\ntable_free = true").contains("mode = \"ctr\""));
    assert!(wrong("encrypt = [1]\nmtu = 70").contains("576 to 65535"));
    assert!(wrong("encrypt = [1]\nkey_env = \"K\"").contains("one of them"));
    assert!(wrong("encrypt = [1]\nkey = \"00\"").contains("key"));
}

#[test]
fn openssl_decrypts_counter_mode() {
    if Command::new("openssl").arg("version").output().is_err() {
        eprintln!("skipped: needs openssl");
        return;
    }
    for (key, name) in [
        (KEY.to_string(), "-aes-128-ctr"),
        (KEY.repeat(2), "-aes-256-ctr"),
    ] {
        let mut aes = made("encrypt = [1]\nmode = \"ctr\"", &key).unwrap();
        aes.number = 0x0102_0304_0506_0708;
        let plain = frame(false, 1000, 4);
        let sent = through(&mut aes, &OUT, &plain, 100).unwrap();
        let header = Header::parse(&sent[42..]).unwrap();
        let epoch = (header.number >> 32) as u32;
        let (derived, length) = aes.master.derive(&header.session, epoch);
        let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
        let mut openssl = Command::new("openssl")
            .args(["enc", "-d", name, "-K", &hex(&derived[..length]), "-iv"])
            .arg(hex(&header.nonce()) + "00000000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let text = &sent[42 + Header::LEN_BYTES..];
        openssl.stdin.take().unwrap().write_all(text).unwrap();
        assert_eq!(openssl.wait_with_output().unwrap().stdout, plain[42..]);
    }
}
