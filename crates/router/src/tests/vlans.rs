//! Tests of interfaces that are VLANs on a port, with tables of their own.

use super::*;

/// The settings of two ports with an untagged interface each. The second port also has VLANs 7 and 8; VLAN 8 is in
/// table 100, together with VLAN 9 of the first port.
const TAGGED: &str = r#"
[[interface]]
name = "lan"
mac = "02:00:00:00:00:a0"
addresses = ["10.0.0.1/24"]
[[interface]]
name = "plain"
port = 1
mac = "02:00:00:00:00:a1"
addresses = ["10.0.1.1/24"]
[[interface]]
name = "seven"
port = 1
vlan = 7
mac = "02:00:00:00:00:a1"
addresses = ["10.0.7.1/24", "2001:db8:7::1/64"]
[[interface]]
name = "blue"
port = 1
vlan = 8
table = 100
mac = "02:00:00:00:00:a1"
addresses = ["10.0.0.1/24"]
[[interface]]
name = "blue-lan"
port = 0
vlan = 9
table = 100
mac = "02:00:00:00:00:a0"
addresses = ["10.0.9.1/24"]
"#;

fn bench() -> Bench {
    Bench::of(
        TAGGED,
        "10.5.0.0/16 via 10.0.7.2 dev seven\n10.5.0.0/16 via 10.0.9.2 dev blue-lan table 100\n",
        None,
    )
}

/// Returns the frame with a tag of VLAN `vlan` and priority 5.
fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    [&frame[..12], &[0x81, 0x00, 0xa0 | high, low], &frame[12..]].concat()
}

/// Returns the VLAN of a frame's tag, and the frame without the tag.
fn untagged(frame: &[u8]) -> (Option<u16>, Vec<u8>) {
    match frame[12..14] {
        [0x81, 0x00] => {
            let tag = u16::from_be_bytes([frame[14], frame[15]]) & 0xfff;
            (Some(tag), [&frame[..12], &frame[16..]].concat())
        }
        _ => (None, frame.to_vec()),
    }
}

/// Passes to the router a request of the neighbour `who` for the router's address `own`, with a tag if `vlan` is set.
fn introduce(bench: &mut Bench, port: usize, vlan: Option<u16>, who: &str, own: &str, at: Mac) {
    let mut frame = [0; resolution::LONGEST_BYTES];
    let header = EthernetRepr {
        destination: Mac::BROADCAST,
        source: at,
        vlan: Vlan::Untagged,
        ethertype: EtherType::ARP,
    };
    let asked = ArpRepr {
        operation: Operation::REQUEST,
        sender_mac: at,
        sender_ip: who.parse().unwrap(),
        target_mac: Mac::default(),
        target_ip: own.parse().unwrap(),
    };
    let length = resolution::arp_frame(&header, &asked, &mut frame).unwrap();
    let frame = &frame[..length];
    let frame = vlan.map_or(frame.to_vec(), |vlan| tagged(frame, vlan));
    let Fate::Slow(_, sent) = bench.pass(port, &frame) else {
        panic!("{who}");
    };
    let [(to, answer)] = sent.as_slice() else {
        panic!("{sent:?}")
    };
    assert_eq!((*to, untagged(answer).0), (port, vlan));
}

#[test]
fn packets_get_the_vlan_tag_of_their_egress_interface() {
    let mut bench = bench();
    introduce(&mut bench, 1, Some(7), "10.0.7.2", "10.0.7.1", mac(7));
    introduce(&mut bench, 1, None, "10.0.1.2", "10.0.1.1", mac(1));
    introduce(&mut bench, 0, None, "10.0.0.2", "10.0.0.1", mac(0));
    let from_lan = datagram(0, "10.0.0.2", "10.5.0.9", 100);
    let from_plain = datagram(1, "10.0.1.2", "10.0.0.2", 100);
    let from_seven = datagram(1, "10.0.7.2", "10.0.1.2", 100);
    for (port, frame, to, tag, source, next) in [
        // The cases are untagged to tagged, unchanged, tagged to untagged, and tagged to the same VLAN.
        (0, from_lan.clone(), 1, Some(7), OWN[1], mac(7)),
        (1, from_plain, 0, None, OWN[0], mac(0)),
        (1, tagged(&from_seven, 7), 1, None, OWN[1], mac(1)),
        (
            1,
            tagged(&datagram(1, "10.0.7.3", "10.5.0.9", 100), 7),
            1,
            Some(7),
            OWN[1],
            mac(7),
        ),
    ] {
        let Fate::Forwarded((port, sent)) = bench.pass(port, &frame) else {
            panic!("{frame:?}")
        };
        let (vlan, sent) = untagged(&sent);
        assert_eq!((port, vlan), (to, tag));
        assert_forwarded(&untagged(&frame).1, &sent, source, next);
    }
    // The tag's VLAN does not exist on the port.
    assert_eq!(bench.pass(0, &tagged(&from_lan, 7)), Fate::Dropped);
    assert_eq!(bench.pass(1, &tagged(&from_seven, 6)), Fate::Dropped);
    assert_eq!(bench.counted("dropped: the port has no interface"), 2);
    // The priority stays with a packet that gets another tag.
    let Fate::Forwarded((_, sent)) =
        bench.pass(1, &tagged(&datagram(1, "10.0.7.3", "10.5.0.9", 100), 7))
    else {
        panic!("not forwarded")
    };
    assert_eq!(sent[14] & 0xf0, 0xa0);
}

#[test]
fn each_table_has_its_own_routes_for_the_same_addresses() {
    let mut bench = bench();
    introduce(&mut bench, 1, Some(7), "10.0.7.2", "10.0.7.1", mac(7));
    introduce(&mut bench, 0, Some(9), "10.0.9.2", "10.0.9.1", mac(9));
    // The same address belongs to different hosts on the two VLANs.
    introduce(&mut bench, 0, None, "10.0.0.2", "10.0.0.1", mac(2));
    introduce(&mut bench, 1, Some(8), "10.0.0.2", "10.0.0.1", mac(8));
    let main = datagram(0, "10.0.0.2", "10.5.0.9", 100);
    let blue = tagged(&datagram(1, "10.0.0.2", "10.5.0.9", 100), 8);
    let back = tagged(&datagram(0, "10.0.9.2", "10.0.0.2", 100), 9);
    for (port, frame, to, tag, next) in [
        (0, main, 1, 7, mac(7)),
        (1, blue, 0, 9, mac(9)),
        (0, back, 1, 8, mac(8)),
    ] {
        let Fate::Forwarded((port, sent)) = bench.pass(port, &frame) else {
            panic!("{frame:?}")
        };
        assert_eq!((port, untagged(&sent).0), (to, Some(tag)));
        assert_eq!(Ethernet::new(&sent[..]).unwrap().destination(), next);
    }
    // Neither table has the networks of the other one. The ICMP error has the tag of the packet's VLAN.
    let lost = tagged(&datagram(1, "10.0.0.2", "10.0.7.2", 100), 8);
    let Fate::Slow(taut_port::Punt::Unknown, sent) = bench.pass(1, &lost) else {
        panic!("{lost:?}")
    };
    assert_eq!((sent[0].0, untagged(&sent[0].1).0), (1, Some(8)));
    let control = bench
        .router
        .deciding
        .as_ref()
        .unwrap()
        .control
        .lock()
        .unwrap();
    let routes: Vec<_> = control
        .list()
        .into_iter()
        .map(|route| route.route)
        .collect();
    assert!(
        routes.contains(&"10.5.0.0/16 via 10.0.9.2 dev blue-lan table 100".to_string()),
        "{routes:?}"
    );
    assert_eq!(
        control.show(1, ip("10.5.0.9")).unwrap().0.prefix,
        "10.5.0.0/16"
    );
    assert!(control.show(1, ip("10.0.7.2")).is_none());
}

#[test]
fn each_packet_of_a_batch_uses_its_own_routing_table() {
    let mut bench = bench();
    introduce(&mut bench, 1, Some(7), "10.0.7.2", "10.0.7.1", mac(7));
    introduce(&mut bench, 0, Some(9), "10.0.9.2", "10.0.9.1", mac(9));
    introduce(&mut bench, 0, None, "10.0.0.2", "10.0.0.1", mac(2));
    let frames = [
        tagged(&datagram(1, "10.0.7.3", "10.5.0.9", 100), 7),
        tagged(&datagram(1, "10.0.0.2", "10.5.0.9", 100), 8),
        datagram(1, "10.0.1.2", "10.0.0.2", 104),
    ];
    let mut batch = Batch::new();
    bench.pool.fill(&mut batch, 3, 100);
    for (packet, frame) in batch.packets_mut().iter_mut().zip(&frames) {
        packet.bytes_mut().copy_from_slice(frame);
    }
    let context = Context {
        from_port: 1,
        to_port: 0,
        ports: 2,
        ..Context::default()
    };
    bench.router.process(&mut batch, &context);
    let fates: Vec<_> = (0..3)
        .map(|at| (batch.egress(at), untagged(batch.packets()[at].bytes()).0))
        .collect();
    assert_eq!(
        fates,
        [(Some(1), Some(7)), (Some(0), Some(9)), (Some(0), None)]
    );
}

#[test]
fn errors_quote_invalid_vlans_and_tables() {
    let one = |more: &str| {
        format!("[[interface]]\nmac = \"02:00:00:00:00:a0\"\naddresses = [\"10.0.0.1/24\"]\n{more}")
    };
    let second =
        "[[interface]]\nmac = \"02:00:00:00:00:a0\"\naddresses = [\"10.0.1.1/24\"]\nport = 0\n";
    for (text, wanted) in [
        (one("vlan = 0"), "vlan = 0: expected 1 to 4094"),
        (one("vlan = 4095"), "vlan = 4095: expected 1 to 4094"),
        (one("port = 64"), "port: a chain has ports 0 to 63, not 64"),
        (one("table = 255"), "table = 255"),
        (one(second), "another interface on it needs `vlan`"),
        (
            one(&format!("vlan = 3\n{second}vlan = 3")),
            "vlan 3 of port 0 is interface 0 already",
        ),
    ] {
        let settings: Settings = toml::from_str(&text).unwrap();
        let wrong = settings.check().unwrap_err().0;
        assert!(wrong.contains(wanted), "{text}: {wrong}");
    }
    let wrong = crate::in_kernel::router_settings(TAGGED.parse().unwrap()).unwrap_err();
    assert!(wrong.0.contains("leave `place` out"), "{wrong}");
}
