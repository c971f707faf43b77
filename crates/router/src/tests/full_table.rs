//! The cost of full routing tables: measurements for docs/runs/measured/full-table-load.toml and
//! kernel-routes-cost.toml. Run as root, built with `--release`.

use super::super::Settings;
use super::super::control::Control;
use super::super::follow::follow;
use super::super::taps::enter;
use super::{Batch, Context, Function};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use taut_lpm::{Rib, synthetic};
use taut_sys::{KernelFact, KernelRoutes};

/// Returns the CPU time of the calling thread, s.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the result of `work`, and its CPU time, s.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let begun = cpu_s();
    let done = work();
    (done, cpu_s() - begun)
}

/// A network namespace that is deleted when this value is dropped.
struct Namespace(String);

impl Drop for Namespace {
    fn drop(&mut self) {
        ip_command(&format!("netns del {}", self.0));
    }
}

fn ip_command(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status();
    assert!(done.unwrap().success(), "ip {words}");
}

/// Returns lines for `ip -batch` that apply the command `what` to all routes of a table.
fn lines(rib: &Rib<u32>, what: &str) -> String {
    rib.iter().fold(String::new(), |mut text, (prefix, _)| {
        let _ = writeln!(text, "route {what} {prefix} via 10.0.0.2 dev lan");
        text
    })
}

#[test]
#[ignore = "a measurement: cargo test --release -p taut-router --lib kernels_full_table -- --ignored --nocapture"]
fn the_cost_of_the_kernels_full_table_is_measured() {
    let namespace = Namespace(format!("taut-full-{}", std::process::id()));
    ip_command(&format!("netns add {}", namespace.0));
    // Programs that the thread starts run in the namespace too.
    enter(&namespace.0).unwrap();
    for words in [
        "link add lan type veth peer name far",
        "link set far up",
        "address add 10.0.0.1/24 dev lan",
        "link set lan up",
    ] {
        ip_command(words);
    }
    let rib = synthetic::full_table_v4(1, 1);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("routes").display().to_string();
    std::fs::write(&path, lines(&rib, "add")).unwrap();
    let settings =
        "routes = \"kernel\"\n[[interface]]\nname = \"lan\"\nmac = \"02:00:00:00:00:0a\"\n";
    let settings: Settings = toml::from_str(settings).unwrap();
    let checked = settings.check().unwrap();
    let new_control = || Arc::new(Mutex::new(Control::new(&checked, Instant::now()).unwrap()));
    let mut asking = KernelRoutes::open().unwrap();
    let mut lan = 0;
    let told = asking.ask(|fact| {
        if let KernelFact::Address {
            interface, address, ..
        } = fact
            && address.0 == super::ip("10.0.0.1")
        {
            lan = interface;
        }
    });
    assert!(told.unwrap());
    let count = rib.len();
    let each_ns = |cpu_s: f64| cpu_s * 1e9 / count as f64;

    for round in 1..=3 {
        // The routes arrive one by one.
        let control = new_control();
        let stop = Arc::new(AtomicBool::new(false));
        let kernel = KernelRoutes::open().unwrap();
        let (theirs, stopped) = (Arc::clone(&control), Arc::clone(&stop));
        let follower = std::thread::spawn(move || {
            let interface = |number| (number == lan).then_some(0);
            timed(|| follow(kernel, interface, &theirs, &stopped)).1
        });
        let status = || control.lock().unwrap().status();
        let is_there = || status().kernel.is_some_and(|it| it.routes >= count);
        while status().kernel.is_none_or(|it| it.asked_for_all == 0) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let begun = Instant::now();
        ip_command(&format!("-batch {path}"));
        let (kernel_s, has) = (begun.elapsed().as_secs_f64(), Instant::now());
        while !is_there() {
            assert!(has.elapsed() < Duration::from_secs(120), "{:?}", status());
            std::thread::sleep(Duration::from_millis(10));
        }
        let behind_s = has.elapsed().as_secs_f64();
        let overruns = status().kernel.unwrap().overruns;
        stop.store(true, Ordering::Relaxed);
        let cpu_s = follower.join().unwrap();
        println!(
            "{round}: {count} routes as they come: {kernel_s:.2} s until the kernel has them, {behind_s:.2} s more \
             until the router has; {cpu_s:.2} s of CPU time of its thread, {:.0} ns each; {overruns} overruns",
            each_ns(cpu_s)
        );
        drop(control);

        // All routes arrive together; reading and applying them are measured separately.
        let mut facts = Vec::new();
        let (told, cpu_s) = timed(|| asking.ask(|fact| facts.push(fact)).unwrap());
        assert!(told);
        println!("   all read at once: {:.0} ns each", each_ns(cpu_s));
        let control = new_control();
        let mut mirror = super::super::follow::Mirror::default();
        let (_, cpu_s) = timed(|| {
            let mut control = control.lock().unwrap();
            for fact in facts.drain(..) {
                mirror.take(fact, |_| Some(0), &mut control, Instant::now());
            }
        });
        println!("   taken into the tables: {:.0} ns each", each_ns(cpu_s));
        drop((control, mirror));
        ip_command("route flush proto boot");
    }
}

/// The longest times between two batches of a worker since the last call of `over`, ns.
#[derive(Default)]
struct Pauses {
    /// The longest time between two batches in which the worker was not preempted, ns.
    own: AtomicU64,
    /// The longest time between two batches in which the worker was preempted, ns.
    taken: AtomicU64,
    batches: AtomicU64,
}

impl Pauses {
    fn note(&self, pause_ns: u64, is_taken: bool) {
        let of = if is_taken { &self.taken } else { &self.own };
        of.fetch_max(pause_ns, Ordering::Relaxed);
    }

    /// Runs `window`. Returns its duration, the longest time between batches without and with preemption (µs), and the
    /// mean time of a batch (ns).
    fn over<T>(&self, window: impl FnOnce() -> T) -> (Duration, [f64; 3]) {
        for counter in [&self.own, &self.taken, &self.batches] {
            counter.store(0, Ordering::Relaxed);
        }
        let begun = Instant::now();
        window();
        let took = begun.elapsed();
        let [own, taken, batches] = [&self.own, &self.taken, &self.batches]
            .map(|counter| counter.load(Ordering::Relaxed) as f64);
        (
            took,
            [
                own / 1e3,
                taken / 1e3,
                took.as_nanos() as f64 / batches.max(1.0),
            ],
        )
    }
}

/// Returns the number of preemptions of the calling thread.
fn times_taken() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|it| it.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|it| it.trim().parse().ok())
        .unwrap_or_default()
}

#[test]
#[ignore = "a measurement: cargo test --release -p taut-router --lib full_table_is_loaded -- --ignored --nocapture"]
fn worker_pauses_are_measured_while_a_full_table_is_loaded() {
    const BATCH: usize = 32;
    /// The threshold of the time between two batches above which the worker checks whether it was preempted.
    const LONG_NS: u64 = 5_000;
    let (four, six) = (
        synthetic::full_table_v4(1, 1),
        synthetic::full_table_v6(1, 1),
    );
    let count = four.len() + six.len();
    // All routes lead to one neighbour, and then all to another one.
    let texts = [8, 9].map(|last| {
        let mut text = String::new();
        for (prefix, _) in four.iter() {
            let _ = writeln!(text, "{prefix} via 10.0.1.{last}");
        }
        for (prefix, _) in six.iter() {
            let _ = writeln!(text, "{prefix} via 2001:db8:1::{last}");
        }
        text
    });
    let every = |length: usize, wanted: usize| (0..wanted).map(move |at| at * (length / wanted));
    let all_four: Vec<_> = four.iter().map(|(prefix, _)| prefix.network()).collect();
    let all_six: Vec<_> = six.iter().map(|(prefix, _)| prefix.network()).collect();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for (at, other) in every(all_four.len(), 1 << 14).zip(every(all_six.len(), 1 << 14)) {
        let to = std::net::Ipv4Addr::from(all_four[at]).to_string();
        frames.push(super::datagram(0, "10.0.0.7", &to, 64));
        let to = std::net::Ipv6Addr::from(all_six[other]).to_string();
        frames.push(super::datagram(0, "2001:db8::7", &to, 84));
    }
    fastrand::Rng::with_seed(1).shuffle(&mut frames);

    let pauses = Arc::new(Pauses::default());
    let stop = Arc::new(AtomicBool::new(false));
    let (give, given) = std::sync::mpsc::channel();
    let (noted, stopped) = (Arc::clone(&pauses), Arc::clone(&stop));
    let worker = std::thread::spawn(move || {
        let mut bench = super::Bench::new("");
        let control = &bench.router.deciding.as_ref().unwrap().control;
        for last in [8, 9] {
            for neighbour in [format!("10.0.1.{last}"), format!("2001:db8:1::{last}")] {
                // The neighbour is configured, so no request is sent for it.
                let (at, mac) = ((1, super::ip(&neighbour)), Some(super::mac(last)));
                control
                    .lock()
                    .unwrap()
                    .hear_of(at, mac, true, Instant::now());
            }
        }
        give.send(Arc::clone(control)).unwrap();
        let context = Context {
            from_port: 0,
            to_port: 1,
            ports: 3,
            ..Context::default()
        };
        let mut before_taken = times_taken();
        let mut last = Instant::now();
        for frames in frames.chunks_exact(BATCH).cycle() {
            if stopped.load(Ordering::Relaxed) {
                break;
            }
            let mut batch = Batch::new();
            bench.pool.fill(&mut batch, BATCH, 84);
            for (packet, frame) in batch.packets_mut().iter_mut().zip(frames) {
                packet.bytes_mut()[..frame.len()].copy_from_slice(frame);
            }
            bench.router.process(&mut batch, &context);
            drop(batch);
            noted.batches.fetch_add(1, Ordering::Relaxed);
            let pause_ns = last.elapsed().as_nanos() as u64;
            if pause_ns > LONG_NS {
                let now_taken = times_taken();
                noted.note(pause_ns, now_taken != before_taken);
                before_taken = now_taken;
            } else {
                noted.note(pause_ns, false);
            }
            last = Instant::now();
        }
        bench.counted("forwarded")
    });
    let control: Arc<Mutex<Control>> = given.recv().unwrap();
    // The thread acts like the slow path: replaced memory is reused after a grace period.
    let (ticked, over) = (Arc::clone(&control), Arc::clone(&stop));
    let ticking = std::thread::spawn(move || {
        while !over.load(Ordering::Relaxed) {
            ticked.lock().unwrap().tick(Instant::now());
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    println!(
        "{count} routes; longest pause of the worker (when its core was taken away): while nothing changes, and while \
         all routes change"
    );
    for round in 0..8 {
        let text = &texts[round % 2];
        let (took, [own, taken, each]) = pauses.over(|| {
            let answer = super::super::server::add(text, true, &control);
            assert_eq!((answer.routes, answer.error), (Some(count), None));
        });
        let (_, [idle, idle_taken, idle_each]) = pauses.over(|| std::thread::sleep(took));
        println!(
            "  {idle:.1} us ({idle_taken:.0}), {idle_each:.0} ns a batch; {own:.1} us ({taken:.0}), {each:.0} ns a \
             batch, in {:.2} s",
            took.as_secs_f64()
        );
    }
    stop.store(true, Ordering::Relaxed);
    ticking.join().unwrap();
    println!("{} packets forwarded", worker.join().unwrap());
}
