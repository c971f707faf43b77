//! Tests with packets that pass through the switch.

#![allow(clippy::unwrap_used)]
use super::action::{Action, Instructions, To};
use super::group::GroupKind;
use super::key::Field;
use super::openflow::{Shown, Why};
use super::scope::Of;
use super::shape::Table;
use super::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use taut_wire::{Ethernet, Mac, UdpFlow};

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn switch(settings: &str) -> Switch {
    let mut switch =
        Switch::new(settings.parse::<toml::Table>().unwrap().try_into().unwrap()).unwrap();
    switch.prepare().unwrap();
    switch
}

/// Returns the egress port of a frame that arrives at `from`; none if it is dropped.
fn sent(
    switch: &mut Switch,
    (source, destination): (Mac, Mac),
    from: usize,
    now_ticks: u64,
) -> Option<(Option<u8>, Vec<u8>)> {
    let mut frame = UdpFlow::default().frame(64).unwrap();
    let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
    ethernet.set_source(source);
    ethernet.set_destination(destination);
    let pool = PoolHandle::new(4, false).unwrap();
    let mut batch = Batch::new();
    pool.fill(&mut batch, 1, frame.len() as u16);
    batch.packets_mut()[0].bytes_mut().copy_from_slice(&frame);
    let context = Context {
        now_ticks,
        from_port: from,
        to_port: from ^ 1,
        ports: 4,
    };
    switch.process(&mut batch, &context);
    if !batch.is_kept(0) {
        return None;
    }
    let mut found = None;
    batch.scatter(|_, to, _, copies| {
        found = Some((
            to.or(Some(from as u8 ^ 1)),
            copies.iter().map(|(_, to)| *to).collect(),
        ));
    });
    found
}

#[test]
fn unknown_destinations_are_flooded_and_moved_hosts_are_learned_again() {
    let switch = &mut switch("");
    assert_eq!(
        sent(switch, (mac(1), mac(2)), 0, 1),
        Some((Some(1), vec![2, 3]))
    );
    assert_eq!(
        sent(switch, (mac(2), mac(1)), 3, 2),
        Some((Some(0), vec![]))
    );
    assert_eq!(
        sent(switch, (mac(1), mac(2)), 0, 3),
        Some((Some(3), vec![]))
    );
    // The host is now at another port.
    assert_eq!(
        sent(switch, (mac(2), mac(1)), 2, 4),
        Some((Some(0), vec![]))
    );
    assert_eq!(
        sent(switch, (mac(1), mac(2)), 0, 5),
        Some((Some(2), vec![]))
    );
    // Source and destination are at the same port, so the bridge does not send the frame.
    assert_eq!(sent(switch, (mac(3), mac(1)), 0, 6), None);
    let broadcast = Mac([255; 6]);
    assert_eq!(
        sent(switch, (mac(1), broadcast), 1, 7),
        Some((Some(0), vec![2, 3]))
    );
    let spanning_tree = Mac([1, 0x80, 0xc2, 0, 0, 0]);
    assert_eq!(sent(switch, (mac(1), spanning_tree), 1, 8), None);
    let counts: Vec<u64> = switch.outcomes().iter().map(|outcome| outcome.1).collect();
    assert_eq!(counts, [4, 2, 0, 1, 1, 0]);
}

/// Returns a frame of a UDP flow to the given address and port.
fn udp(destination: &str, port: u16) -> Vec<u8> {
    let flow = UdpFlow {
        src_ip: "198.18.0.1".parse().unwrap(),
        dst_ip: destination.parse().unwrap(),
        src_port: 1000,
        dst_port: port,
        ..UdpFlow::default()
    };
    flow.frame(100).unwrap()
}

/// The result for a frame that arrives at port 0 of four: its egress ports, its priority, and its bytes.
#[derive(Debug, Default, PartialEq)]
struct Went {
    ports: Vec<u8>,
    priority: Option<u8>,
    frame: Vec<u8>,
}

fn pass(switch: &mut Switch, frames: &[Vec<u8>]) -> Vec<Option<Went>> {
    let pool = PoolHandle::new(64, false).unwrap();
    let mut batch = Batch::new();
    for frame in frames {
        pool.fill(&mut batch, 1, frame.len() as u16);
        let last = batch.len() - 1;
        batch.packets_mut()[last].bytes_mut().copy_from_slice(frame);
    }
    let context = Context {
        now_ticks: taut_sys::ticks(),
        from_port: 0,
        to_port: 1,
        ports: 4,
    };
    switch.process(&mut batch, &context);
    let kept: Vec<bool> = (0..frames.len())
        .map(|index| batch.is_kept(index))
        .collect();
    let mut went = Vec::new();
    batch.scatter(|packet, to, priority, copies| {
        let mut ports = vec![to.unwrap_or(1)];
        ports.extend(copies.iter().map(|(_, to)| *to));
        went.push(Went {
            ports,
            priority: (priority < 8).then_some(priority),
            frame: packet.bytes().to_vec(),
        });
    });
    let each = went.into_iter().zip(kept);
    each.map(|(went, is_kept)| is_kept.then_some(went))
        .collect()
}

/// Returns a rule that matches all packets in a table.
fn for_all(table: u8, does: impl Into<Instructions>) -> control::Rule {
    control::Rule {
        table,
        priority: 5,
        value: Key::default(),
        mask: Key::default(),
        does: does.into(),
        cookie: 0x100 + u64::from(table),
        flags: 0,
        idle_s: 0,
        hard_s: 0,
    }
}

#[derive(Debug, Default)]
struct Came {
    went: Vec<Went>,
    shown: Vec<(Shown, Vec<u8>)>,
    counts: Counts,
}

/// Passes frames through a switch of four ports; the frames arrive at port 0.
fn through(control: &mut Control, frames: &[Vec<u8>]) -> Came {
    control.tell();
    let (pool, facts) = (PoolHandle::new(128, false).unwrap(), Facts::new());
    let mut batch = Batch::new();
    for frame in frames {
        pool.fill(&mut batch, 1, frame.len() as u16);
        let last = batch.len() - 1;
        batch.packets_mut()[last].bytes_mut().copy_from_slice(frame);
    }
    let context = Context {
        now_ticks: taut_sys::ticks(),
        from_port: 0,
        to_port: 1,
        ports: 4,
    };
    let tables = Tables {
        context: &context,
        shape: control.shape(),
        memory: control.memory(),
        rule_counts: control.counts(),
        miss: Miss::Drop,
        pool: Some(&pool),
        clock: &Clock::calibrate(Duration::from_millis(1)),
        facts: &facts,
        is_worker: true,
    };
    let (mut came, mut shown) = (Came::default(), Vec::new());
    let bridge = &mut Bridge::new(4);
    let sets = &mut [ActionSet::EMPTY; BATCH_CAPACITY];
    let shows = Shows::Here(&mut shown);
    let mut pass = Pass::new(&tables, bridge, &mut came.counts, sets, shows);
    let between = Between {
        keys: &mut [Key::default(); BATCH_CAPACITY],
        found: &mut [Found::NOTHING; BATCH_CAPACITY],
        scratch: &mut Scratch::default(),
    };
    let wanted = (0..frames.len()).fold(0, |bits, index| bits | 1 << index);
    tables.pass(&mut batch, wanted, between, &mut pass);
    let kept: Vec<bool> = (0..batch.len()).map(|it| batch.is_kept(it)).collect();
    let mut kept = kept.into_iter();
    batch.scatter(|packet, to, priority, copies| {
        let mut ports = vec![to.unwrap_or(1)];
        ports.extend(copies.iter().map(|(_, to)| *to));
        if kept.next() == Some(true) {
            came.went.push(Went {
                ports,
                priority: (priority < 8).then_some(priority),
                frame: packet.bytes().to_vec(),
            });
        }
    });
    let shown = shown.into_iter();
    came.shown = shown
        .map(|(note, frame)| (packet_in::shown(note, control), frame))
        .collect();
    came
}

const SHOW: Action = Action::Output(To::Controller, 0xffff);
const OTHER: Action = Action::Set(Field::EthDestination, Of::Any, 0x0200_0000_0009);

#[test]
fn packets_to_the_controller_contain_the_changes_of_earlier_actions() {
    let mut control = Control::new(64);
    control
        .add(for_all(0, vec![SHOW, Action::Goto(1)]))
        .unwrap();
    control
        .add(for_all(1, vec![OTHER, Action::port(2), SHOW]))
        .unwrap();
    let frame = udp("10.0.0.9", 42);
    let came = through(&mut control, std::slice::from_ref(&frame));
    assert_eq!(came.went[0].ports, [2]);
    let mut changed = frame.clone();
    changed[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    assert_eq!(came.went[0].frame, changed);
    let shown = |table| Shown {
        in_port: Some(0),
        table,
        why: Why::Action,
        cookie: 0x100 + u64::from(table),
        has_rule: true,
    };
    assert_eq!(came.shown, [(shown(0), frame), (shown(1), changed)]);
    assert_eq!((came.counts.sent, came.counts.shown_beside), (1, 1));
    // The table-miss rule reports that no other rule matched.
    let mut control = Control::new(64);
    let mut last = for_all(0, vec![SHOW]);
    last.priority = 0;
    control.add(last).unwrap();
    let came = through(&mut control, &[udp("10.0.0.9", 42)]);
    let (shown, _) = came.shown[0];
    assert_eq!((shown.why, shown.cookie), (Why::NoMatch, 0x100));
    assert!(came.went.is_empty() && came.counts.shown == 1 && came.counts.dropped == 0);
    let group = group::Group {
        id: 1,
        kind: GroupKind::All,
        buckets: [vec![SHOW], vec![Action::port(3)]]
            .map(|actions| group::Bucket {
                weight: 0,
                watch: None,
                actions,
            })
            .into(),
    };
    control.add_group(group).unwrap();
    control.add(for_all(0, vec![Action::Group(1)])).unwrap();
    let came = through(&mut control, &[udp("10.0.0.9", 42)]);
    assert_eq!(
        (came.went[0].ports.as_slice(), came.shown.len()),
        (&[3][..], 1)
    );
}

#[test]
fn written_actions_run_in_standard_order_after_the_last_table() {
    let writes = |write: &[Action]| Instructions {
        write: write.to_vec(),
        ..Instructions::default()
    };
    let applies = |apply: &[Action]| Instructions::from(apply.to_vec());
    let push = |kind| Action::PushVlan(kind);
    let customer = push(action::CUSTOMER_TAG);
    let vlan = Action::Set(Field::VlanId, Of::Any, 0x1007);
    let (one, two, three) = (Action::port(1), Action::port(2), Action::port(3));
    let goto = |mut does: Instructions, table| {
        does.apply.push(Action::Goto(table));
        does
    };
    let clears = |mut does: Instructions| {
        does.clears = true;
        does
    };
    let plain = udp("10.0.0.9", 42);
    let tagged = |kind: [u8; 2]| {
        let mut tagged = plain.clone();
        tagged.splice(12..12, [kind[0], kind[1], 0, 7]);
        tagged
    };
    let customers = tagged([0x81, 0]);
    let mut moved = plain.clone();
    moved[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    let v6 = Action::Set(Field::Source, Of::Ipv6, 0x2001 << 112 | 9);
    for (rules, want) in [
        (vec![writes(&[two, three])], vec![(vec![3], &plain)]),
        // Group 1 leads to port 1.
        (
            vec![writes(&[Action::Group(1), two])],
            vec![(vec![1], &plain)],
        ),
        (
            vec![writes(&[vlan, customer, two])],
            vec![(vec![2], &customers)],
        ),
        (
            vec![writes(&[push(action::SERVICE_TAG), customer, vlan, two])],
            vec![(vec![2], &customers)],
        ),
        (
            vec![goto(writes(&[two]), 1), applies(&[])],
            vec![(vec![2], &plain)],
        ),
        (
            vec![
                goto(writes(&[two]), 1),
                goto(writes(&[customer, vlan, three]), 2),
                applies(&[]),
            ],
            vec![(vec![3], &customers)],
        ),
        (vec![goto(writes(&[two]), 1), clears(applies(&[]))], vec![]),
        (
            vec![goto(writes(&[two, OTHER]), 1), clears(writes(&[three]))],
            vec![(vec![3], &plain)],
        ),
        // A packet that was sent by an immediately executed action stays unchanged.
        (
            vec![goto(writes(&[two, OTHER]), 1), applies(&[one, three])],
            vec![(vec![1, 3], &plain), (vec![2], &moved)],
        ),
        (
            vec![Instructions {
                apply: vec![one],
                clears: false,
                write: vec![OTHER, three],
            }],
            vec![(vec![1], &plain), (vec![3], &moved)],
        ),
        (
            vec![goto(writes(&[two, v6]), 1), applies(&[OTHER])],
            vec![(vec![2], &moved)],
        ),
        // The table does not exist: the packet is dropped.
        (vec![goto(writes(&[two]), 1)], vec![]),
    ] {
        let mut control = Control::new(64);
        let group = group::Group {
            id: 1,
            kind: GroupKind::Indirect,
            buckets: vec![group::Bucket {
                weight: 0,
                watch: None,
                actions: vec![one],
            }],
        };
        control.add_group(group).unwrap();
        for (table, does) in (0..).zip(rules.clone()) {
            control.add(for_all(table, does)).unwrap();
        }
        let came = through(&mut control, std::slice::from_ref(&plain));
        let went = came.went.iter();
        let went: Vec<_> = went.map(|it| (it.ports.clone(), &it.frame)).collect();
        assert_eq!(went, want, "{rules:?}");
    }
    // A packet that was sent before a group changes it stays unchanged as well.
    let mut control = Control::new(64);
    let bucket = group::Bucket {
        weight: 1,
        watch: None,
        actions: vec![OTHER, three],
    };
    let group = group::Group {
        id: 1,
        kind: GroupKind::Select,
        buckets: vec![bucket],
    };
    control.add_group(group).unwrap();
    let rule = for_all(0, vec![one, Action::Group(1), two]);
    control.add(rule).unwrap();
    assert!(control.makes_packets());
    let came = through(&mut control, std::slice::from_ref(&plain));
    let went = came.went.iter();
    let went: Vec<_> = went.map(|it| (it.ports.clone(), &it.frame)).collect();
    assert_eq!(went, [(vec![1, 2], &plain), (vec![3], &moved)]);
    // Each of many packets has its own action set.
    let mut control = Control::new(128);
    for port in 0..64 {
        let mut rule = for_all(0, goto(writes(&[Action::port(1 + port % 3)]), 1));
        rule.mask.set(Field::DestinationPort, 0xffff);
        rule.value.set(Field::DestinationPort, u128::from(port));
        control.add(rule).unwrap();
    }
    control.add(for_all(1, applies(&[OTHER]))).unwrap();
    let frames: Vec<_> = (0..64).map(|port| udp("10.0.0.9", port)).collect();
    let came = through(&mut control, &frames);
    let went: Vec<u8> = came.went.iter().flat_map(|it| it.ports.clone()).collect();
    assert_eq!(went, (0..64).map(|port| 1 + port % 3).collect::<Vec<u8>>());
}

#[test]
fn flows_retain_their_group_bucket_when_flow_entries_are_added() {
    let mut control = Control::new(64);
    let buckets = [1, 2].map(|port| group::Bucket {
        weight: 1,
        watch: None,
        actions: vec![Action::port(port)],
    });
    let group = group::Group {
        id: 1,
        kind: GroupKind::Select,
        buckets: buckets.into(),
    };
    control.add_group(group).unwrap();
    let mut rule = for_all(0, vec![Action::Group(1)]);
    rule.mask.set(Field::InPort, 0xffff);
    control.add(rule).unwrap();
    let flows: Vec<Vec<u8>> = (0..400).map(|port| udp("10.0.0.9", port)).collect();
    let ways = |control: &mut Control, flows: &[Vec<u8>]| -> Vec<u8> {
        let parts = flows.chunks(BATCH_CAPACITY);
        let came = parts.flat_map(|some| through(control, some).went);
        came.map(|went| went.ports[0]).collect()
    };
    let before = ways(&mut control, &flows);
    let first = before.iter().filter(|port| **port == 1).count();
    assert!((100..300).contains(&first), "{first}");
    let mut other = for_all(0, Vec::new());
    other.mask.set(Field::EthType, 0xffff);
    other.value.set(Field::EthType, 0x0800);
    other.mask.set(Field::Source, 0xffff_ffff);
    other.value.set(Field::Source, 7);
    control.add(other).unwrap();
    assert_eq!(ways(&mut control, &flows), before);
    // Fragments of a datagram take the same path, whatever their payload.
    for port in 0..16 {
        let mut first = udp("10.0.0.9", port);
        first[20] = 0x20;
        let mut last = first.clone();
        last[20..22].copy_from_slice(&[0, 8]);
        let ways = ways(&mut control, &[first, last]);
        assert_eq!(ways[0], ways[1]);
    }
}

fn ports(went: &Option<Went>) -> Vec<u8> {
    went.as_ref().map_or(Vec::new(), |went| went.ports.clone())
}

#[test]
fn the_matching_rule_of_highest_priority_determines_the_egress_ports() {
    let switch = &mut switch(
        "[[rule]]\npriority = 1\nactions = [\"flood\"]\n\
         [[rule]]\npriority = 5\nip_dst = \"10.0.0.0/8\"\nactions = [\"output:2\"]\n\
         [[rule]]\npriority = 9\nip_dst = \"10.0.0.9\"\nudp_dst = 42\nactions = [\"queue:7\", \"output:3\", \"output:1\"]\n\
         [[rule]]\npriority = 10\nudp_dst = 7\nactions = [\"drop\"]\n",
    );
    let went = pass(
        switch,
        &[
            udp("192.0.2.1", 42),
            udp("10.0.0.9", 43),
            udp("10.0.0.9", 42),
            udp("10.0.0.9", 7),
            vec![0; 20],
        ],
    );
    assert_eq!(ports(&went[0]), [1, 2, 3]);
    assert_eq!(ports(&went[1]), [2]);
    assert_eq!(ports(&went[2]), [3, 1]);
    assert_eq!(went[2].as_ref().unwrap().priority, Some(7));
    assert_eq!(went[3], None);
    assert_eq!(ports(&went[4]), [1, 2, 3]);
    let port_counts = |port| switch.facts.port_counts(port);
    let (usual, last) = (went[0].as_ref().unwrap().frame.len() as u64, 20);
    assert_eq!(port_counts(0), [(5, 4 * usual + last), (0, 0)]);
    assert_eq!(port_counts(1)[1], (3, 2 * usual + last));
    assert_eq!(port_counts(2)[1], (3, 2 * usual + last));
    assert_eq!(port_counts(3)[1], (3, 2 * usual + last));
    assert_eq!(switch.facts.table_counts[0].read(), (5, 5));
    let outcomes = switch.outcomes();
    let count = |name| outcomes.iter().find(|it| it.0 == name).unwrap().1;
    assert_eq!(
        (count("sent by a rule"), count("dropped by a rule")),
        (4, 1)
    );
    assert_eq!(outcomes.iter().map(|it| it.1).sum::<u64>(), 5);
}

#[test]
fn later_tables_match_fields_changed_by_earlier_tables() {
    let switch = &mut switch(
        "[[rule]]\nudp_dst = 42\nactions = [\"set:port_dst=43\", \"set:ip_dst=10.0.0.1\", \"dec_ttl\", \"goto:3\"]\n\
         [[rule]]\npriority = 1\nactions = [\"goto:5\"]\n\
         [[rule]]\ntable = 3\nudp_dst = 43\nip_dst = \"10.0.0.1\"\nttl = 63\nactions = [\"push_vlan\", \"set:vlan=7\", \"goto:4\"]\n\
         [[rule]]\ntable = 4\nvlan = 7\nactions = [\"output:3\"]\n",
    );
    let went = pass(switch, &[udp("192.0.2.1", 42), udp("192.0.2.1", 41)]);
    let first = went[0].as_ref().unwrap();
    assert_eq!(first.ports, [3]);
    assert_eq!(first.frame[12..18], [0x81, 0, 0, 7, 8, 0]);
    // There is no rule in table 5.
    assert_eq!(went[1], None);
    let counts = [0, 3, 4, 5].map(|table| switch.facts.table_counts[table].read());
    assert_eq!(counts, [(2, 2), (1, 1), (1, 1), (1, 0)]);
}

#[test]
fn different_hash_seeds_separate_flows_of_the_same_bucket() {
    let bucket = |seed, frame: &[u8]| pass::flow_of(seed, frame, taut_wire::Headers::of(frame)) & 7;
    let flows = (0..4000).map(|port| udp("10.0.0.9", port));
    let chosen: Vec<_> = flows.filter(|frame| bucket(1, frame) == 0).collect();
    assert!((400..600).contains(&chosen.len()), "{}", chosen.len());
    let met = chosen.iter().filter(|frame| bucket(2, frame) == 0);
    assert!(met.count() < 120);
}

#[test]
fn frames_of_any_length_are_changed_or_dropped_and_counted() {
    let every_change = "\"push_vlan\", \"pop_vlan\", \"dec_ttl\", \"set:eth_dst=02:00:00:00:00:09\", \"set:vlan=7\", \
         \"set:vlan_pcp=3\", \"set:ip_src=10.0.0.1\", \"set:ip_dst=2001:db8::1\", \"set:ip_dscp=1\", \"set:ip_ecn=1\", \
         \"set:ttl=9\", \"set:port_src=1\", \"set:port_dst=1\"";
    for actions in every_change.split(", ") {
        let switch = &mut switch(&format!(
            "[[group]]\nid = 1\ntype = \"all\"\nbuckets = [{{ actions = [\"output:1\"] }}, {{ actions = [\"output:3\"] }}]\n\
             [[group]]\nid = 2\ntype = \"select\"\nbuckets = [{{ actions = [{actions}, \"output:2\"] }}]\n\
             [[rule]]\ntable = 0\nactions = [{actions}, \"goto:1\"]\n\
             [[rule]]\ntable = 1\nudp_dst = 42\nactions = [{actions}, \"group:1\"]\n\
             [[rule]]\ntable = 1\npriority = 1\nactions = [{actions}, \"group:2\"]\n"
        ));
        let whole = udp("10.0.0.9", 42);
        let mut tagged = whole.clone();
        tagged.splice(12..12, [0x81, 0, 0xa0, 5]);
        let lengths = (0..60).collect::<Vec<_>>();
        let cut = lengths
            .iter()
            .flat_map(|length| [whole[..*length].to_vec(), tagged[..*length].to_vec()]);
        let frames: Vec<_> = cut.collect();
        let mut kept = Vec::new();
        for some in frames.chunks(BATCH_CAPACITY) {
            kept.extend(pass(switch, some).iter().map(Option::is_some));
        }
        for (frame, is_kept) in frames.iter().zip(kept) {
            assert_eq!(is_kept, frame.len() >= 14, "{actions} {}", frame.len());
        }
        let short = switch.count_of("dropped: too short to be changed");
        assert_eq!(short, Some(28), "{actions}");
    }
}

#[test]
fn groups_copy_packets_or_fail_over_when_a_port_dies() {
    let switch = &mut switch(
        "[[group]]\nid = 1\ntype = \"all\"\nbuckets = [{ actions = [\"output:1\"] }, { actions = [\"output:3\"] }]\n\
         [[group]]\nid = 2\ntype = \"fast-failover\"\nbuckets = [{ watch_port = 2, actions = [\"output:2\"] }, \
         { watch_port = 3, actions = [\"set:ip_dscp=46\", \"output:3\"] }]\n\
         [[rule]]\nudp_dst = 1\nactions = [\"group:1\"]\n\
         [[rule]]\nudp_dst = 2\nactions = [\"group:2\"]\n",
    );
    let frames = [udp("192.0.2.1", 1), udp("192.0.2.1", 2)];
    let went = pass(switch, &frames);
    assert_eq!((ports(&went[0]), ports(&went[1])), (vec![1, 3], vec![2]));
    switch.link_changed(2, false);
    let went = pass(switch, &frames);
    assert_eq!(ports(&went[1]), [3]);
    assert_eq!(went[1].as_ref().unwrap().frame[15], 46 << 2);
    switch.link_changed(3, false);
    assert_eq!(pass(switch, &frames)[1], None);
}

#[test]
fn a_meter_passes_its_burst_and_ignores_other_flows() {
    let switch = &mut switch(
        "[[meter]]\nid = 1\npps = 1\nburst = 3\n\
         [[rule]]\nudp_dst = 1\nactions = [\"meter:1\", \"output:1\"]\n\
         [[rule]]\npriority = 1\nactions = [\"normal\"]\n",
    );
    let went = pass(switch, &vec![udp("192.0.2.1", 1); 20]);
    let passed = went.iter().flatten().count();
    assert!((3..=4).contains(&passed), "{passed}");
    assert!(pass(switch, &[udp("192.0.2.1", 2)])[0].is_some());
}

#[test]
fn duplicate_rules_and_invalid_references_are_refused() {
    for (text, want) in [
        (
            "[[rule]]\nactions = [\"output:1\"]\n[[rule]]\nactions = [\"output:2\"]\n",
            "rule 2: another rule has this match and priority",
        ),
        ("[[rule]]\nactions = [\"group:1\"]\n", "rule 1: no group"),
        ("[[rule]]\nactions = [\"meter:1\"]\n", "rule 1: no meter"),
        (
            "[[rule]]\nactions = [\"goto:200\"]\n",
            "tables are numbered 0 to 63",
        ),
        ("most_rules = 0\n", "most_rules: expected 1 to"),
        (
            "rules = \"/nowhere/rules.toml\"\n",
            "rules: /nowhere/rules.toml: ",
        ),
    ] {
        let settings = text.parse::<toml::Table>().unwrap().try_into().unwrap();
        let message = Switch::new(settings).err().unwrap().0;
        assert!(message.contains(want), "{text}: {message}");
    }
}

#[test]
fn lookups_find_the_same_entries_as_a_linear_search() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut control = Control::new(4096);
    let mut list: Vec<(control::RuleId, control::Rule)> = Vec::new();
    let steps = if cfg!(miri) { 300 } else { 20_000 };
    let mut next = 0;
    for step in 0..steps {
        if random.u8(..) < 150 {
            let mut rule = control::Rule {
                table: 0,
                priority: random.u16(..16),
                value: Key::default(),
                mask: Key::default(),
                does: Instructions::default(),
                cookie: next,
                flags: 0,
                idle_s: 0,
                hard_s: 0,
            };
            for field in [Field::Source, Field::DestinationPort, Field::InPort] {
                let mask = [0, 0x3, 0xc, 0xf][random.usize(..4)];
                rule.mask.set(field, mask);
                rule.value.set(field, u128::from(random.u8(..16)) & mask);
            }
            match control.add(rule.clone()) {
                Ok(id) => list.push((id, rule)),
                Err(why) => {
                    let same = list.iter().any(|(_, it)| {
                        (it.priority, it.value, it.mask) == (rule.priority, rule.value, rule.mask)
                    });
                    let is_full = list.len() > 3500;
                    assert!(
                        same && why == refusal::Refused::Duplicate || is_full,
                        "{why}"
                    );
                }
            }
            next += 1;
        } else if !list.is_empty() {
            let (id, _) = list.swap_remove(random.usize(..list.len()));
            assert!(control.remove(id).is_some());
        }
        if step % 100 == 0 {
            let (mut shape, _) = control.follow();
            let mut keys = [Key::default(); BATCH_CAPACITY];
            for key in &mut keys {
                for field in [Field::Source, Field::DestinationPort, Field::InPort] {
                    key.set(field, u128::from(random.u8(..16)));
                }
            }
            let mut found = [Found::NOTHING; BATCH_CAPACITY];
            let tables = &shape.get().tables;
            let empty = Table::default();
            let table = tables.first().unwrap_or(&empty);
            let scratch = &mut Scratch::default();
            control.memory().find(
                (&table.tuples, &table.asked),
                &keys,
                u64::MAX,
                &mut found,
                scratch,
            );
            // The list is sorted, so the first matching rule is the best one.
            let mut rules: Vec<&control::Rule> = list.iter().map(|(_, rule)| rule).collect();
            rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority));
            for (key, found) in keys.iter().zip(&found) {
                let own = found.slot().map(|_| {
                    let (_, rule) = list.iter().find(|(id, _)| *id == found.counter).unwrap();
                    (rule.priority, rule.value == key.and(&rule.mask))
                });
                let mut rules = rules.iter();
                let best = rules.find(|rule| rule.value == key.and(&rule.mask));
                assert_eq!(own, best.map(|rule| (rule.priority, true)));
            }
        }
    }
}

#[test]
fn a_flow_entry_expires_and_its_slot_is_reused() {
    let mut control = Control::new(2);
    let rule = |port: u128, idle_s, hard_s| {
        let mut rule = control::Rule {
            table: 0,
            priority: 1,
            value: Key::default(),
            mask: Key::default(),
            does: vec![Action::port(1)].into(),
            cookie: 0,
            flags: 0,
            idle_s,
            hard_s,
        };
        rule.mask.set(Field::InPort, 0xffff);
        rule.value.set(Field::InPort, port);
        rule
    };
    let second = 1_000_000_000;
    let idle = control.add(rule(1, 1, 0)).unwrap();
    let hard = control.add(rule(2, 0, 5)).unwrap();
    assert_eq!(control.add(rule(3, 0, 0)), Err(refusal::Refused::TableFull));
    let (now, now_ticks) = (std::time::Instant::now(), taut_sys::ticks());
    assert!(control.expired(now, now_ticks, second * 1000).0.is_empty());
    let (gone, _) = control.expired(now, now_ticks + 2 * second * 1000, second * 1000);
    assert_eq!(
        gone.iter().map(|it| (it.0, it.2)).collect::<Vec<_>>(),
        [(idle, true)]
    );
    let later = now + Duration::from_secs(6);
    let (gone, _) = control.expired(later, now_ticks, second);
    assert_eq!(
        gone.iter().map(|it| (it.0, it.2)).collect::<Vec<_>>(),
        [(hard, false)]
    );
    for port in 0..100 {
        let id = control.add(rule(port, 0, 0)).unwrap();
        control.remove(id).unwrap();
    }
}

/// The settings of two ports with rules, two of which the kernel applies itself. The kernel passes all frames except
/// untagged IPv4 to the worker.
const IN_KERNEL: &str = r#"
rule = [
    { priority = 9, in_port = 0, udp_dst = 42, actions = ["set:eth_dst=02:00:00:00:00:09", "output:2"] },
    { priority = 8, in_port = 0, udp_dst = 43, actions = ["drop"] },
    { priority = 7, in_port = 0, udp_dst = 44, actions = ["flood"] },
    { priority = 7, in_port = 0, udp_dst = 47, actions = ["output:2", "output:1"] },
    { priority = 6, in_port = 0, udp_dst = 45, actions = ["queue:7", "output:1"] },
    { priority = 5, udp_dst = 46, actions = ["output:0"] },
]
"#;

#[test]
fn the_kernel_acts_like_the_worker_or_punts_the_frame() {
    let (rules, reads_headers) = in_kernel::rules(IN_KERNEL.parse().unwrap(), 3).unwrap();
    assert!(reads_headers);
    let kernel = match taut_xdp::switch::KernelSwitch::new(&rules, reads_headers, 3) {
        Ok(kernel) => kernel,
        Err(e) if e.is_missing() => {
            println!("skipped: {e}");
            return;
        }
        Err(e) => panic!("{e}"),
    };
    let program = kernel.dry_run(0).unwrap();
    let frame = |dst_port| {
        let flow = UdpFlow {
            dst_port,
            ..UdpFlow::default()
        };
        flow.frame(100).unwrap()
    };
    let pass = |frame: &[u8]| {
        let before = kernel.counts();
        let left = program.pass(frame, 1).unwrap().frame;
        let now = kernel.counts();
        let counts = [
            now.sent - before.sent,
            now.stopped - before.stopped,
            now.missed - before.missed,
            now.too_much - before.too_much,
        ];
        (left, counts)
    };
    let (left, counts) = pass(&frame(42));
    let left = left.unwrap();
    assert_eq!(left[..6], [2, 0, 0, 0, 0, 9]);
    assert_eq!(left[6..], frame(42)[6..]);
    assert_eq!(counts, [1, 0, 0, 0]);
    assert_eq!(pass(&frame(43)), (None, [0, 1, 0, 0]));
    assert_eq!(pass(&frame(44)).1, [1, 0, 0, 0]);
    assert_eq!(pass(&frame(47)).1, [1, 0, 0, 0]);
    assert_eq!(pass(&frame(1)), (None, [0, 0, 1, 0]));
    // The worker decides about packets for a queue, packets that might return to the ingress port, and packets with a
    // tag.
    let mut tagged = frame(42);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    for up in [frame(45), frame(46), tagged] {
        assert_eq!(pass(&up), (None, [0; 4]));
    }
}

#[test]
fn settings_that_the_kernel_does_not_support_are_reported() {
    for (text, want) in [
        ("openflow = \"127.0.0.1:6653\"", "openflow: in the kernel"),
        (
            "addresses = 64",
            "rule: the kernel does not learn addresses",
        ),
        (
            "rule = [{ idle_timeout = \"5s\", actions = [] }]",
            "idle_timeout: in the kernel",
        ),
        ("rule = [{ colour = 1, actions = [] }]", "colour"),
    ] {
        let said = in_kernel::rules(text.parse().unwrap(), 3).unwrap_err();
        assert!(said.0.contains(want), "{text}: {said}");
    }
    let rule = |port| format!("{{ in_port = {port}, actions = [\"flood\"] }}");
    let many = |many| {
        format!(
            "rule = [{}]",
            (0..many).map(rule).collect::<Vec<_>>().join(", ")
        )
    };
    assert!(!in_kernel::rules(many(63).parse().unwrap(), 64).unwrap().1);
    in_kernel::rules(many(64).parse().unwrap(), 64).unwrap_err();
}

/// Reads bytes from a connection until it is closed or `many` bytes have arrived.
fn comes(stream: &mut TcpStream, many: usize) -> Vec<u8> {
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut came = vec![0; many];
    let mut at = 0;
    while at < many {
        match stream.read(&mut came[at..]) {
            Ok(0) | Err(_) => break,
            Ok(read) => at += read,
        }
    }
    came.truncate(at);
    came
}

fn free_address() -> SocketAddr {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    free.local_addr().unwrap()
}

const GREETING: [u8; 8] = [4, 0, 0, 8, 0, 0, 0, 1];

#[test]
fn a_controller_receives_packets_without_a_flow_entry() {
    let address = free_address();
    let switch = &mut switch(&format!("openflow = \"{address}\"\nmiss = \"controller\""));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&GREETING).unwrap();
    // The bytes are the switch's hello and the echo reply. The echo reply shows that the controller's hello has been
    // processed.
    stream.write_all(&[4, 2, 0, 8, 0, 0, 0, 1]).unwrap();
    assert_eq!(comes(&mut stream, 24)[17], 3);
    let frame = udp("10.0.0.9", 42);
    let went = pass(switch, std::slice::from_ref(&frame));
    assert_eq!(went, [None]);
    let told = comes(&mut stream, 42 + frame.len());
    assert_eq!(told[1], 10);
    // The message has no buffer and contains the complete packet. Its reason is "no match", in table 0, without a
    // cookie.
    assert_eq!(told[8..14], [255, 255, 255, 255, 0, frame.len() as u8]);
    assert_eq!(told[14..24], [0, 0, 255, 255, 255, 255, 255, 255, 255, 255]);
    assert_eq!(told[42..], frame);
    assert_eq!(switch.count_of("shown to the controller"), Some(1));
}

#[test]
fn a_controller_receives_all_entries_after_half_closing_its_connection() {
    let address = free_address();
    let rules = (0..4000).map(|number: u32| {
        let [_, _, c, d] = number.to_be_bytes();
        format!("[[rule]]\neth_src = \"02:00:00:00:{c:02x}:{d:02x}\"\nactions = [\"output:1\"]\n")
    });
    let rules: String = rules.collect();
    let _switch = switch(&format!("openflow = \"{address}\"\n{rules}"));
    let mut stream = TcpStream::connect(address).unwrap();
    let question = [
        &GREETING[..],
        &[4, 18, 0, 56, 0, 0, 0, 1],
        &[0, 1, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0],
        &[0xff; 8],
        &[0; 20],
        &[0, 1, 0, 4, 0, 0, 0, 0],
    ];
    stream.write_all(&question.concat()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let heard = comes(&mut stream, 1 << 20);
    let (mut left, mut many, mut is_last) = (&heard[16..], 0, false);
    while !left.is_empty() {
        let length = |at: &[u8]| usize::from(u16::from_be_bytes([at[0], at[1]]));
        let (part, rest) = left.split_at(length(&left[2..]));
        is_last = part[11] & 1 == 0;
        assert_eq!((part[1], is_last), (19, rest.is_empty()));
        let mut entries = &part[16..];
        while !entries.is_empty() {
            entries = &entries[length(entries)..];
            many += 1;
        }
        left = rest;
    }
    assert!(is_last && many == 4000, "{many}");
}

#[test]
fn the_configured_controller_reconnects_although_all_connections_are_in_use() {
    let address = free_address();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let called = listener.local_addr().unwrap();
    let _switch = switch(&format!(
        "openflow = \"{address}\"\ncontroller = \"{called}\""
    ));
    let (first, _) = listener.accept().unwrap();
    let mut silent = Vec::new();
    for _ in 0..80 {
        let mut stream = TcpStream::connect(address).unwrap();
        // The connection gets a hello, or nothing.
        if !comes(&mut stream, 8).is_empty() {
            silent.push(stream);
        }
    }
    assert!(silent.len() >= 64, "{}", silent.len());
    drop(first);
    let (mut second, _) = listener.accept().unwrap();
    assert_eq!(comes(&mut second, 8)[..2], [4, 0]);
    // Connections without a hello lose their slots.
    for stream in &mut silent {
        comes(stream, 1 << 16);
    }
    let mut stream = TcpStream::connect(address).unwrap();
    assert_eq!(comes(&mut stream, 8)[..2], [4, 0]);
}

#[test]
fn a_flooded_packet_reaches_every_port_of_the_largest_chain() {
    let context = |ports| Context {
        from_port: 3,
        ports,
        ..Context::default()
    };
    assert_eq!(others(&context(4)).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(others(&context(255)).count(), 254);
    assert_eq!(others(&context(256)).count(), 254);
}

#[test]
fn all_expired_rules_are_deleted_in_bounded_batches() {
    let mut control = Control::new(20_000);
    for number in 0..20_000 {
        let mut rule = control::Rule {
            table: 0,
            priority: 1,
            value: Key::default(),
            mask: Key::default(),
            does: Instructions::default(),
            cookie: 0,
            flags: 0,
            idle_s: 0,
            hard_s: 5,
        };
        rule.mask.set(Field::EthSource, Field::EthSource.whole());
        rule.value.set(Field::EthSource, number);
        control.add(rule).unwrap();
    }
    let later = std::time::Instant::now() + Duration::from_secs(6);
    let (mut gone, mut turns) = (0, 0);
    loop {
        let (over, is_end) = control.expired(later, 0, 1);
        assert!(over.len() <= 5000);
        (gone, turns) = (gone + over.len(), turns + 1);
        if is_end {
            break;
        }
    }
    assert!(gone == 20_000 && turns > 3, "{gone} {turns}");
}
