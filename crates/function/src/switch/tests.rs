//! Packets through the switch.

#![allow(clippy::unwrap_used)]
use super::*;
use taut_wire::{Mac, UdpFlow};

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn switch(settings: &str) -> Switch {
    let mut switch =
        Switch::new(settings.parse::<toml::Table>().unwrap().try_into().unwrap()).unwrap();
    switch.prepare().unwrap();
    switch
}

/// Returns where a frame goes that comes in through `from`; none if it is dropped.
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
fn an_address_is_flooded_to_until_it_was_seen_and_moves_with_its_frames() {
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
    // It has been plugged in elsewhere.
    assert_eq!(
        sent(switch, (mac(2), mac(1)), 2, 4),
        Some((Some(0), vec![]))
    );
    assert_eq!(
        sent(switch, (mac(1), mac(2)), 0, 5),
        Some((Some(2), vec![]))
    );
    // Both on one side: it has arrived already.
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

/// Frame of a flow to that port, and its headers' places.
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

/// Where a frame goes that comes in through port 0 of four, at which priority, and as what.
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

fn ports(went: &Option<Went>) -> Vec<u8> {
    went.as_ref().map_or(Vec::new(), |went| went.ports.clone())
}

#[test]
fn the_rule_of_highest_priority_says_where_a_packet_goes() {
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
    let outcomes = switch.outcomes();
    let count = |name| outcomes.iter().find(|it| it.0 == name).unwrap().1;
    assert_eq!(
        (count("sent by a rule"), count("dropped by a rule")),
        (4, 1)
    );
    assert_eq!(outcomes.iter().map(|it| it.1).sum::<u64>(), 5);
}

#[test]
fn tables_follow_one_another_and_see_what_was_changed() {
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
}

#[test]
fn groups_share_packets_out_and_move_when_a_port_dies() {
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
fn a_meter_lets_a_burst_pass_and_the_packets_of_others() {
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
fn rules_that_do_not_go_together_are_refused() {
    for (text, want) in [
        (
            "[[rule]]\nactions = [\"output:1\"]\n[[rule]]\nactions = [\"output:2\"]\n",
            "rule 2: another rule of this priority asks for the same",
        ),
        (
            "[[rule]]\nactions = [\"group:1\"]\n",
            "rule 1: there is no group",
        ),
        (
            "[[rule]]\nactions = [\"meter:1\"]\n",
            "rule 1: there is no meter",
        ),
        (
            "[[rule]]\nactions = [\"goto:200\"]\n",
            "there are tables 0 to 63",
        ),
        ("most_rules = 0\n", "most_rules: want 1 to"),
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
fn the_rules_found_are_those_that_a_list_would_find_whatever_comes_and_goes() {
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
                actions: Vec::new(),
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
                        same && why == control::Refused::Duplicate || is_full,
                        "{why}"
                    );
                }
            }
            next += 1;
        } else if !list.is_empty() {
            let (id, _) = list.swap_remove(random.usize(..list.len()));
            assert!(control.remove(id).is_some());
        }
        if step % 50 == 0 {
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
            let rules: Vec<control::Rule> = list.iter().map(|(_, rule)| rule.clone()).collect();
            for (key, found) in keys.iter().zip(&found) {
                let own = found.slot().map(|_| {
                    let (_, rule) = list.iter().find(|(id, _)| *id == found.counter).unwrap();
                    (rule.priority, rule.value == key.and(&rule.mask))
                });
                let best = rules
                    .iter()
                    .filter(|rule| rule.value == key.and(&rule.mask));
                let best = best.map(|rule| rule.priority).max();
                assert_eq!(own, best.map(|priority| (priority, true)));
            }
        }
    }
}

#[test]
fn a_rule_goes_when_its_time_is_over_and_its_slot_serves_again() {
    let mut control = Control::new(2);
    let rule = |port: u128, idle_s, hard_s| {
        let mut rule = control::Rule {
            table: 0,
            priority: 1,
            value: Key::default(),
            mask: Key::default(),
            actions: vec![action::Action::Output(1)],
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
    assert_eq!(control.add(rule(3, 0, 0)), Err(control::Refused::TableFull));
    let (now, now_ticks) = (std::time::Instant::now(), taut_sys::ticks());
    assert!(control.expired(now, now_ticks, second * 1000).is_empty());
    let gone = control.expired(now, now_ticks + 2 * second * 1000, second * 1000);
    assert_eq!(
        gone.iter().map(|it| (it.0, it.2)).collect::<Vec<_>>(),
        [(idle, true)]
    );
    let later = now + Duration::from_secs(6);
    let gone = control.expired(later, now_ticks, second);
    assert_eq!(
        gone.iter().map(|it| (it.0, it.2)).collect::<Vec<_>>(),
        [(hard, false)]
    );
    for port in 0..100 {
        let id = control.add(rule(port, 0, 0)).unwrap();
        control.remove(id).unwrap();
    }
}

/// Rules for the kernel: two of them it does itself, and what is not IPv4 without tags it leaves to the process.
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
fn the_kernel_does_to_frames_what_the_worker_does_or_leaves_them_to_it() {
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
    // What the worker decides: a queue, what might go back, a tag.
    let mut tagged = frame(42);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    for up in [frame(45), frame(46), tagged] {
        assert_eq!(pass(&up), (None, [0; 4]));
    }
}

#[test]
fn what_cannot_be_in_the_kernel_is_said() {
    for (text, want) in [
        ("openflow = \"127.0.0.1:6653\"", "openflow: in the kernel"),
        ("addresses = 64", "rule: in the kernel there is no learning"),
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
