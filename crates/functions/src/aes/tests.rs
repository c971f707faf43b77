#![allow(clippy::unwrap_used)]
use super::senders::{MOST_SESSIONS, NEW_AT_ONCE};
use super::*;
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use std::cell::Cell;
use std::collections::HashSet;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};
use taut_function::testing::{batch_of, seen};
use taut_wire::UdpFlow;

const OUT: Context = Context {
    now_ticks: 0,
    from_port: 0,
    to_port: 1,
    ports: 2,
};
const IN: Context = Context {
    now_ticks: 0,
    from_port: 1,
    to_port: 0,
    ports: 2,
};

thread_local! {
    static NOW: Cell<Duration> = const { Cell::new(Duration::from_secs(1_700_000_000)) };
}

fn pass_time(seconds: f64) {
    NOW.set(Duration::from_secs_f64(NOW.get().as_secs_f64() + seconds));
}

/// Creates a function that has begun long enough ago to accept packets sent now.
fn made(settings: &str, key: &str) -> Result<Aes, SettingsError> {
    let aes = just_made(settings, key);
    pass_time(1.5);
    aes
}

fn just_made(settings: &str, key: &str) -> Result<Aes, SettingsError> {
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
    let mut aes = Aes::new(settings_of(&text)?, || NOW.get(), 64)?;
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

/// Returns the frame as it leaves; none if it is dropped. `headroom` is the packet's headroom in bytes; it may differ
/// from that of a pool's packets.
fn through(aes: &mut Aes, context: &Context, frame: &[u8], headroom: u16) -> Option<Vec<u8>> {
    let mut batch = batch_of(frame, headroom);
    let context = Context {
        now_ticks: NOW.get().as_nanos() as u64,
        ..*context
    };
    aes.process(&mut batch, &context);
    let bytes = batch.packets()[0].bytes().to_vec();
    batch.is_kept(0).then_some(bytes)
}

fn count(aes: &Aes, outcome: Outcome) -> u64 {
    aes.counts[outcome as usize]
}

/// Returns a frame of `size` bytes without the frame check sequence.
fn frame(v6: bool, size: usize, seed: u64) -> Vec<u8> {
    let mut flow = UdpFlow::default();
    if v6 {
        flow.src_ip = "2001:db8::1".parse().unwrap();
        flow.dst_ip = "2001:db8::2".parse().unwrap();
    }
    let mut frame = flow.frame(2000).unwrap();
    let Seen::Datagram(it) = seen(&frame) else {
        panic!("a datagram")
    };
    let before = it.sum(&frame);
    frame.truncate(size);
    fastrand::Rng::with_seed(seed).fill(&mut frame[it.payload().start..]);
    it.ends_with(&mut frame).update_checksum(&mut frame, before);
    frame
}

/// Checks lengths and checksums with another library. Returns the payload.
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
fn encrypted_packets_are_valid_and_decrypt_to_the_original() {
    let key_256 = format!("{KEY}{KEY}");
    for (mode, grows) in [
        ("", 40),
        ("mode = \"ctr\"", 24),
        ("mode = \"ctr\"\nbyte_wise = true", 24),
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
            assert_eq!(count(&sender, Outcome::Encrypted), 42);
            assert_eq!(count(&receiver, Outcome::Decrypted), 42);
        }
    }
}

#[test]
fn encryption_preserves_wrong_and_missing_checksums() {
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
fn gcm_refuses_modified_and_misdirected_packets() {
    let (mut sender, mut receiver) = (gcm_128(), gcm_128());
    let sent = through(&mut sender, &OUT, &frame(false, 90, 1), 100).unwrap();
    // The changed bytes are those of addresses, ports, header, tag and text. The first byte of the header is excluded:
    // if it is wrong, there is no header.
    let bytes = (26..38).chain(43..sent.len());
    let mut tried = 0;
    for at in bytes {
        let mut changed = sent.clone();
        changed[at] ^= 0x10;
        pass_time(0.002);
        assert_eq!(through(&mut receiver, &IN, &changed, 0), None, "{at}");
        tried += 1;
    }
    let by_time = count(&receiver, Outcome::TooEarly) + count(&receiver, Outcome::Ahead);
    assert_eq!(count(&receiver, Outcome::Forged) + by_time, tried);
    assert!(by_time <= 6);
    // Forged packets occupy no session slot, and the sender of the genuine packet still counts as new.
    assert_eq!(receiver.senders.known(), 0);
    assert!(through(&mut receiver, &IN, &sent, 0).is_some());
    let mut stranger = made("encrypt = [1]", &"7".repeat(32)).unwrap();
    let sent = through(&mut sender, &OUT, &frame(false, 90, 1), 100).unwrap();
    assert_eq!(through(&mut stranger, &IN, &sent, 0), None);
    assert_eq!(count(&stranger, Outcome::Forged), 1);
}

#[test]
fn gcm_accepts_packets_once_in_any_order_and_refuses_reflections() {
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
    assert_eq!(count(&receiver, Outcome::Replayed), 60);
    assert_eq!(count(&sender, Outcome::Replayed), 60);
}

#[test]
fn key_nonce_pairs_never_repeat_across_restarts_or_counter_wraps() {
    let mut used = HashSet::new();
    let mut receiver = gcm_128();
    let plain = frame(false, 90, 1);
    for _ in 0..20 {
        let mut sender = gcm_128();
        sender.number = (1 << 32) - 3;
        for _ in 0..6 {
            let sent = through(&mut sender, &OUT, &plain, 100).unwrap();
            let header = Header::parse(&sent[42..]).unwrap();
            let (key, _) = (sender.master).derive(&header.session, header.epoch());
            assert!(used.insert((key, header.nonce())));
            assert_eq!(through(&mut receiver, &IN, &sent, 0).unwrap(), plain);
        }
        assert_eq!(sender.own.epoch, 1);
    }
    assert_eq!(used.len(), 120);
    let keys: HashSet<_> = used.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), 40);
}

#[test]
fn the_longest_idle_sender_is_evicted_from_a_full_table() {
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
    assert_eq!(receiver.senders.known(), MOST_SESSIONS);
    // The session is still known, so its first packet is known as well.
    assert_eq!(through(&mut receiver, &IN, &first, 0), None);
    assert_eq!(count(&receiver, Outcome::TooManySenders), 0);
}

#[test]
fn a_restarted_receiver_accepts_no_packet_twice() {
    let plain = frame(false, 90, 1);
    // Each number is the time, s, by which the sender's clock is ahead of the receiver's clock. The limit is one
    // second, and packets take 10 ms.
    for ahead in [-5.0, -1.0, -0.1, 0.0, 0.1, 0.999, 1.02, 5.0] {
        let mut before = gcm_128();
        let mut sender = gcm_128();
        pass_time(10.0);
        let mut recorded = Vec::new();
        for _ in 0..100 {
            pass_time(ahead);
            let sent = through(&mut sender, &OUT, &plain, 100).unwrap();
            pass_time(0.01 - ahead);
            if through(&mut before, &IN, &sent, 0).is_some() {
                recorded.push(sent);
            }
        }
        assert_eq!(recorded.is_empty(), ahead > 1.0, "{ahead}");
        drop(before);
        let mut after = just_made("encrypt = [1]", KEY).unwrap();
        let mut taken = 0;
        for number in 0..700 {
            pass_time(ahead);
            let sent = through(&mut sender, &OUT, &plain, 100).unwrap();
            pass_time(0.01 - ahead);
            if number % 100 == 0 {
                for sent in &recorded {
                    assert_eq!(through(&mut after, &IN, sent, 0), None, "{ahead}");
                }
            }
            // The continuing session is accepted again.
            taken += u32::from(through(&mut after, &IN, &sent, 0).is_some());
        }
        // The receiver accepts packets once the sender's clock is one second later than the receiver's clock was at the
        // start.
        let expected = if ahead > 1.0 {
            0.0
        } else {
            600.0 + 100.0 * ahead
        };
        assert!(
            (f64::from(taken) - expected).abs() < 3.0,
            "{ahead}: {taken}"
        );
        let ahead_of_it = count(&after, Outcome::Ahead);
        assert_eq!(ahead_of_it > 0, ahead > 1.0, "{ahead}: {ahead_of_it}");
    }
}

#[test]
fn reflected_packets_are_refused_by_all_workers_of_the_sender() {
    let plain = frame(false, 90, 1);
    for mode in ["gcm", "ctr"] {
        let end = |end: &str| made(&format!("encrypt = [1]\nmode = {mode:?}\n{end}"), KEY).unwrap();
        let mut near = end("end = 'a'");
        let mut beside = end("end = 'a'");
        let mut far = end("end = 'b'");
        let sent = through(&mut near, &OUT, &plain, 100).unwrap();
        assert_eq!(through(&mut near, &IN, &sent, 0), None);
        // In mode `ctr`, which has no authentication, the result is only noise.
        assert_ne!(through(&mut beside, &IN, &sent, 0), Some(plain.clone()));
        let mut near = end("end = 'a'");
        assert_ne!(through(&mut near, &IN, &sent, 0), Some(plain.clone()));
        assert_eq!(through(&mut far, &IN, &sent, 0), Some(plain.clone()));
        // The other direction has keys of its own.
        let back = through(&mut far, &OUT, &plain, 100).unwrap();
        assert_eq!(through(&mut near, &IN, &back, 0), Some(plain.clone()));
        // Without a configured end, a function refuses only the packets that it has sent itself.
        let (mut one, mut other) = (end(""), end(""));
        let sent = through(&mut one, &OUT, &plain, 100).unwrap();
        assert_eq!(through(&mut one, &IN, &sent, 0), None);
        assert_eq!(through(&mut other, &IN, &sent, 0), Some(plain.clone()));
        let mut named = end("end = 'a'");
        let sent = through(&mut one, &OUT, &plain, 100).unwrap();
        assert_ne!(through(&mut named, &IN, &sent, 0), Some(plain.clone()));
    }
}

/// Returns a packet of a session that does not exist.
fn forged(sent: &[u8], number: u64) -> Vec<u8> {
    let mut forged = sent.to_vec();
    forged[43..51].copy_from_slice(&number.to_be_bytes());
    forged
}

#[test]
fn forged_sessions_have_bounded_cost_and_evict_no_session() {
    let plain = frame(false, 90, 1);
    let (mut receiver, mut steady) = (gcm_128(), gcm_128());
    let begun = NOW.get();
    let (mut flood, mut failed, mut new_ones) = (0, 0, 0);
    for round in 0..300 {
        pass_time(0.001);
        let sent = through(&mut steady, &OUT, &plain, 100).unwrap();
        assert!(through(&mut receiver, &IN, &sent, 0).is_some());
        for number in 0..20 {
            flood += 1;
            let forged = forged(&sent, round * 100 + number);
            assert_eq!(through(&mut receiver, &IN, &forged, 0), None);
        }
        if round % 100 == 99 {
            // A new sender has to retry repeatedly, but is accepted.
            let mut new = gcm_128();
            pass_time(-1.5);
            new_ones += 1;
            let tries = (0..5).take_while(|_| {
                pass_time(0.001);
                let sent = through(&mut new, &OUT, &plain, 100).unwrap();
                through(&mut receiver, &IN, &sent, 0).is_none()
            });
            failed += tries.count() as u64;
        }
    }
    let seconds = (NOW.get() - begun).as_secs_f64();
    let derived = count(&receiver, Outcome::Forged);
    assert!(
        derived as f64 <= NEW_AT_ONCE as f64 + 1024.0 * seconds,
        "{derived} in {seconds} s"
    );
    assert!(derived > 100);
    assert_eq!(
        derived + count(&receiver, Outcome::TooManySenders),
        flood + failed
    );
    assert_eq!(receiver.senders.known(), 1 + new_ones);
}

#[test]
fn packets_that_fail_encryption_or_decryption_are_counted_by_cause() {
    let mut aes = made("encrypt = [1]\nmtu = 600", KEY).unwrap();
    let plain = frame(false, 90, 1);
    assert_eq!(through(&mut aes, &IN, &plain, 0), None);
    let mut ctr = made("encrypt = [1]\nmode = \"ctr\"", KEY).unwrap();
    let other_mode = through(&mut ctr, &OUT, &plain, 100).unwrap();
    assert_eq!(through(&mut aes, &IN, &other_mode, 0), None);
    assert_eq!(count(&aes, Outcome::NotEncrypted), 2);
    // An IP packet of 600 bytes is a frame of 614, 40 of which are needed.
    assert!(through(&mut aes, &OUT, &frame(false, 574, 1), 100).is_some());
    assert_eq!(through(&mut aes, &OUT, &frame(false, 575, 1), 100), None);
    assert_eq!(count(&aes, Outcome::TooBig), 1);
    let mut fragment = plain.clone();
    fragment[20] = 0x20;
    assert_eq!(through(&mut aes, &OUT, &fragment, 100), None);
    assert_eq!(count(&aes, Outcome::Fragment), 1);
    assert_eq!(through(&mut aes, &OUT, &plain[..40], 100), None);
    assert_eq!(count(&aes, Outcome::Malformed), 1);
    let mut tcp = plain.clone();
    tcp[23] = 6;
    fragment[23] = 6;
    for passes in [tcp, fragment] {
        assert_eq!(through(&mut aes, &OUT, &passes, 9), Some(passes.clone()));
    }
    // All buffers of its own pool belong to packets that are not sent yet.
    aes.pool = Some(PoolHandle::new(1, false).unwrap());
    let held = aes.pool.as_ref().unwrap().take(1);
    assert_eq!(through(&mut aes, &OUT, &plain, 39), None);
    assert_eq!(count(&aes, Outcome::NoRoom), 1);
    drop(held);
    assert!(through(&mut aes, &OUT, &plain, 39).is_some());
    assert_eq!(aes.outcomes().iter().map(|(_, n)| n).sum::<u64>(), 10);
}

#[test]
fn invalid_settings_are_refused_with_a_remedy() {
    let wrong = |text: &str| made(text, KEY).err().unwrap().0;
    assert!(wrong("").contains("encrypt"));
    assert!(wrong("encrypt = []").contains("[1]"));
    assert!(wrong("encrypt = [1]\nmode = \"cbc\"").contains("gcm"));
    assert!(wrong("encrypt = [1]\nbyte_wise = true").contains("mode = \"ctr\""));
    assert!(wrong("encrypt = [1]\nmtu = 70").contains("576 to 65535"));
    assert!(wrong("encrypt = [1]\nkey_env = \"K\"").contains("needs either"));
    assert!(wrong("encrypt = [1]\nkey = \"00\"").contains("key"));
    assert!(wrong("encrypt = [1]\nend = \"c\"").contains("\"a\" or \"b\""));
    assert!(wrong("encrypt = [1]\nclock_error = \"long\"").contains("such as 1s"));
    assert!(wrong("encrypt = [1]\nmode = \"ctr\"\nclock_error = \"1s\"").contains("gcm"));
}

#[test]
fn openssl_decrypts_packets_encrypted_in_counter_mode() {
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
        let (derived, length) = aes.master.derive(&header.session, header.epoch());
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
