#![allow(clippy::unwrap_used)]
use super::*;
use taut_port::{Mark, PoolHandle};
use taut_wire::UdpFlow;

const CALL: Call = Call {
    now_ticks: 3_000_000_000,
    from_port: 1,
    to_port: 0,
    ports: 2,
};

fn start_with(source: &str, settings: &str, sends: bool) -> Result<FunctionScript, String> {
    let host = Host {
        settings: &settings.parse().unwrap(),
        worker: 1,
        workers: 3,
        sends,
        hz: 1e9,
        limit: LIMIT,
    };
    FunctionScript::start_source(source, Path::new("dir/x.lua"), &host)
}

fn start(source: &str) -> FunctionScript {
    start_with(source, "", false).unwrap()
}

/// Makes a batch of UDP datagrams to ports 1, 2, ...
pub(crate) fn datagrams(pool: &PoolHandle, n: u16) -> Batch {
    let mut batch = Batch::new();
    for dst_port in 1..=n {
        let flow = UdpFlow {
            dst_port,
            ..UdpFlow::default()
        };
        let frame = flow.frame(64).unwrap();
        let mut packet = pool.take(frame.len() as u16).unwrap();
        packet.bytes_mut().copy_from_slice(&frame);
        batch.push(packet);
    }
    batch
}

#[test]
fn a_script_can_modify_count_drop_punt_and_forward_packets() {
    let pool = PoolHandle::new(64, false).unwrap();
    let mut batch = datagrams(&pool, 4);
    let frame = batch.packets()[0].bytes().to_vec();
    let source = "local changed = taut.counter('changed')\n\
        function process(batch)\n\
            assert(batch.n == 4 and batch.from_port == 1 and batch.to_port == 0 and batch.ports == 2)\n\
            assert(batch.seconds == 3 and taut.worker == 1 and taut.workers == 3)\n\
            for _, packet in ipairs(batch) do\n\
                local port = packet.udp.dst_port\n\
                if port == taut.settings.drop then packet:drop() end\n\
                if port == taut.settings.list[2] then packet:punt() end\n\
                if port == 3 then packet:send_to(1) end\n\
                if port == 1 then packet.eth.src, packet.eth.dst = packet.eth.dst, packet.eth.src changed:add() end\n\
            end\n\
        end\n";
    let settings = "drop = 2\nlist = [9, 4]";
    let mut script = start_with(source, settings, true).unwrap();
    assert_eq!(script.process(&mut batch, &CALL), None);
    let marks: Vec<_> = (0..4).map(|index| batch.mark(index)).collect();
    let punted = Some(Mark::Punted(Punt::Local));
    assert_eq!(marks, [None, Some(Mark::Dropped), None, punted]);
    assert_eq!([0, 2].map(|index| batch.egress(index)), [None, Some(1)]);
    let swapped = batch.packets()[0].bytes();
    assert_eq!(
        (&swapped[..6], &swapped[6..12]),
        (&frame[6..12], &frame[..6])
    );
    assert_eq!(swapped[12..], frame[12..]);
    // Marked packets do not count, because other functions have dropped or punted them.
    assert_eq!(script.counts().seen, 4);
    let counted = script.counts();
    assert_eq!((counted.kept(), counted.dropped, counted.punted), (2, 1, 1));
    assert_eq!(script.counters(), [("changed".to_string(), 1)]);
}

#[test]
fn packets_marked_by_other_functions_are_hidden_from_the_script() {
    let pool = PoolHandle::new(64, false).unwrap();
    let mut batch = datagrams(&pool, 3);
    batch.mark_dropped(0);
    let mut script = start(
        "function process(batch) assert(batch.n == 2 and batch[1].udp.dst_port == 2) batch[2]:drop() end",
    );
    assert_eq!(script.process(&mut batch, &CALL), None);
    assert_eq!(
        (batch.is_kept(1), batch.mark(2)),
        (true, Some(Mark::Dropped))
    );
    assert_eq!(script.counts().seen, 2);
    let mut none = Batch::new();
    assert_eq!(script.process(&mut none, &CALL), None);
}

#[test]
fn script_errors_at_start_are_reported_in_one_line() {
    for (source, said) in [
        ("x = = 1", "dir/x.lua:1: unexpected symbol"),
        (
            "\nlocal n = nil + 1",
            "dir/x.lua:2: attempt to perform arithmetic",
        ),
        ("process = 7", "dir/x.lua: has no function process(batch)"),
        ("io.open('/etc/passwd')", "attempt to index global 'io'"),
        (
            "taut.counter('')",
            "dir/x.lua:1: taut.counter: expected a name",
        ),
        (
            "for i = 1, 65 do taut.counter('c' .. i) end",
            "the maximum per function is 64",
        ),
        (
            "\n\nwhile true do end",
            "dir/x.lua:3: did not finish within 1 s",
        ),
        (
            "local t = {} while true do t[#t + 1] = ('x'):rep(1e6) .. #t end",
            "not enough memory: a function in Lua has 64 MB",
        ),
    ] {
        let error = start_with(source, "", false).unwrap_err();
        assert!(error.contains(said) && !error.contains('\n'), "{error}");
        assert!(error.starts_with("dir/x.lua"), "{error}");
    }
}

#[test]
fn a_failing_script_drops_its_batch_and_is_reported_once() {
    let pool = PoolHandle::new(64, false).unwrap();
    let mut script = start(
        "n = 0\nfunction process(batch)\nn = n + 1\nif n < 3 then batch[1]:drop() error('odd') end\nend",
    );
    for round in 0..3 {
        let mut batch = datagrams(&pool, 2);
        let said = script.process(&mut batch, &CALL);
        assert_eq!(said.is_some(), round == 0);
        if let Some(said) = said {
            assert!(said.starts_with("dir/x.lua:4: odd"), "{said}");
            assert!(!said.contains('\n'));
        }
        assert_eq!(batch.dropped(), if round < 2 { 2 } else { 0 });
    }
    let counted = script.counts();
    assert_eq!(
        (
            counted.seen,
            counted.failed,
            counted.dropped,
            counted.kept()
        ),
        (6, 4, 0, 2)
    );
}

#[test]
fn a_script_that_never_ends_is_not_called_again() {
    let pool = PoolHandle::new(64, false).unwrap();
    let mut script = start("function process(batch)\nwhile true do end\nend");
    let mut batch = datagrams(&pool, 2);
    let said = script.process(&mut batch, &CALL).unwrap();
    let want = "dir/x.lua:2: did not finish within 1 s: it is not called again";
    assert!(said.starts_with(want), "{said}");
    let mut batch = datagrams(&pool, 2);
    let begun = std::time::Instant::now();
    assert_eq!(script.process(&mut batch, &CALL), None);
    assert!(begun.elapsed() < LIMIT / 2);
    assert_eq!((batch.dropped(), script.counts().failed), (2, 4));
}

#[test]
fn unknown_ports_and_fields_are_refused_with_the_script_line() {
    let pool = PoolHandle::new(64, false).unwrap();
    for (line, sends, want) in [
        (
            "batch[1]:send_to(0)",
            false,
            "send_to: the chain file has to say so: sends = true",
        ),
        (
            "batch[1]:send_to(2)",
            true,
            "send_to: expected a port of the chain, 0 to 1, got 2",
        ),
        ("batch[1]:send_to(-1)", true, "0 to 1, got -1"),
        ("batch[1]:send_to(0.5)", true, "0 to 1, got 0.5"),
        ("batch[1]:send_to({})", true, "0 to 1, got table"),
        (
            "batch[1].ip6.src = '::1'",
            false,
            "the packet has no such header",
        ),
        ("batch[1]:send_back()", false, "a packet has no send_back"),
        (
            "kept = kept or batch[1] kept:set_u8(1000, 1)",
            false,
            "bytes 1000 to 1000 are not in",
        ),
    ] {
        let source = format!("function process(batch)\n{line}\nend");
        let mut script = start_with(&source, "", sends).unwrap();
        let mut batch = datagrams(&pool, 1);
        let said = script.process(&mut batch, &CALL).unwrap();
        assert!(
            said.starts_with("dir/x.lua:2: ") && said.contains(want),
            "{said}"
        );
    }
}
