//! Figures that the dissertation prints: rates of lines, knees, the checked rate, chains, overload.
//! (Gallenmüller 2021, Tables 4.1, 4.2, 5.3, 5.5, 5.6, Figs. 4.5 and 5.1, section 5.2.2.)

use super::{Check, CheckError, Group, published_memory};
use crate::access::Structure;
use crate::chain::{Chain, Function};
use crate::estimate::{Estimate, WrongValue};
use crate::overload::{Interruption, Overload, interrupted_us_per_s};
use crate::resource::bandwidth::{XL710_CAP_PPS, ethernet_pps};
use crate::resource::{Costs, Machine, Packets};

/// Numbers as printed: half of the last digit of the shortest.
const ROUNDED: f64 = 0.006;

const RATES: Group = Group {
    name: "line rates",
    source: "Table 4.1, section 4.1.2",
    unit: "Mpkt/s",
    limit: ROUNDED,
    held_out: false,
};
const KNEES: Group = Group {
    name: "knees",
    source: "Fig. 4.5",
    unit: "cycles/packet",
    limit: 0.02,
    held_out: false,
};
const CHECKED: Group = Group {
    name: "calculation load",
    source: "section 5.1.4",
    unit: "Mpkt/s",
    limit: 0.05,
    held_out: false,
};
const CHAINS: Group = Group {
    name: "chains",
    source: "section 5.2.2",
    unit: "Mpkt/s",
    limit: 0.01,
    held_out: false,
};
const INTERRUPTED: Group = Group {
    name: "interruptions",
    source: "Table 5.6",
    unit: "µs/s",
    limit: ROUNDED,
    held_out: false,
};
const OVERLOAD: Group = Group {
    name: "overload, as printed",
    source: "Table 5.5",
    unit: "kpkt/s",
    limit: ROUNDED,
    held_out: false,
};
const OVERLOAD_SEEN: Group = Group {
    name: super::OVERLOAD_AS_SEEN,
    source: "Tables 5.3 and 5.5",
    limit: 0.0,
    ..OVERLOAD
};

pub(super) fn checks() -> Result<Vec<Check>, CheckError> {
    let mut checks = rates()?;
    checks.extend(knees()?);
    checks.extend(loads()?);
    checks.extend(chains()?);
    checks.extend(overload()?);
    Ok(checks)
}

fn rates() -> Result<Vec<Check>, CheckError> {
    let mut checks = Vec::new();
    for (line, bit_s, mpps) in [
        ("10G", 10e9, 14.88),
        ("40G", 40e9, 59.52),
        ("100G", 100e9, 148.81),
    ] {
        let rate = Estimate::given(ethernet_pps(bit_s, 64.0)? / 1e6)?;
        checks.push(RATES.number(format!("{line} at 64 B"), mpps, rate));
    }
    let from_128 = Estimate::given(ethernet_pps(40e9, 128.0)?.min(XL710_CAP_PPS) / 1e6)?;
    checks.push(RATES.number("XL710 at 128 B: line rate".to_owned(), 33.78, from_128));
    Ok(checks)
}

fn line(cores: u32, clock_hz: f64, bit_s: f64) -> Result<Machine, WrongValue> {
    Ok(Machine {
        ethernet_bit_s: Some(bit_s),
        ..Machine::new(cores, clock_hz)?
    })
}

fn knees() -> Result<Vec<Check>, CheckError> {
    let smallest = Packets::new(64.0, 1.0)?;
    let mut checks = Vec::new();
    for (cores, gbit_s, cycles) in [
        (1, 10, 222.0),
        (1, 40, 55.0),
        (1, 100, 22.0),
        (2, 10, 444.0),
        (3, 10, 665.0),
    ] {
        let machine = line(cores, 3.3e9, f64::from(gbit_s) * 1e9)?;
        let knee = machine.knee_cycles(&smallest)?.unwrap_or_default();
        let what = format!("{gbit_s}G, cores: {cores}, 3.3 GHz");
        checks.push(KNEES.number(what, cycles, Estimate::given(knee)?));
    }
    let machine = line(1, 3.3e9, 10e9)?;
    let busy = machine.busy_cycles(Estimate::ZERO, ethernet_pps(10e9, 64.0)?)?;
    let what = "c_IO + c_busy without a task at line rate (Fig. 5.2)".to_owned();
    checks.push(KNEES.number(what, 220.0, busy));
    Ok(checks)
}

fn loads() -> Result<Vec<Check>, CheckError> {
    let costs = Costs::per_packet(Estimate::given(100.0)?, Estimate::given(350.0)?);
    let carried = line(1, 3.3e9, 10e9)?.carried(&costs, &Packets::new(64.0, 1.0)?, None)?;
    let rate = carried.highest.estimate.times(1e-6);
    Ok(vec![
        CHECKED.number(
            "100 + 350 cycles at 3.3 GHz, predicted there".to_owned(),
            7.3,
            rate,
        ),
        CHECKED.number(
            "100 + 350 cycles at 3.3 GHz, measured there".to_owned(),
            7.1,
            rate,
        ),
    ])
}

/// A function that makes accesses, on Snabb's costs at 3.2 GHz.
fn chains() -> Result<Vec<Check>, CheckError> {
    const CLOCK_HZ: f64 = 3.2e9;
    let memory = published_memory()?;
    let chain = |functions: usize, structure: Option<Structure>| -> Result<f64, CheckError> {
        let function = Function {
            name: "sheep".to_owned(),
            calculation_cycles: Estimate::ZERO,
            structure,
        };
        let chain = Chain {
            io_cycles: Estimate::given(100.0)?,
            hand_over_cycles: Estimate::given(35.0)?,
            functions: vec![function; functions],
        };
        Ok(CLOCK_HZ / chain.cycles(Some(&memory))?.total.value / 1e6)
    };
    let rate = |mpps: f64| Estimate::given(mpps);
    let five = chain(5, None)?;
    let mut checks = vec![CHAINS.number(
        "five functions without a task".to_owned(),
        13.3,
        rate(five)?,
    )];
    // Rates that follow from the printed costs where one level answers all of 100 accesses.
    for (level, (name, mpps)) in [("L1", 2.13), ("L2", 1.39), ("L3", 0.80)]
        .into_iter()
        .enumerate()
    {
        let cycles = 100.0 + 100.0 * memory.level_cycles(level);
        let what = format!("100 accesses that {name} answers");
        checks.push(CHAINS.number(what, mpps, rate(CLOCK_HZ / cycles / 1e6)?));
    }
    for (accesses, mpps) in [(100.0, 0.123), (400.0, 0.0307)] {
        let bytes = 8.0 * 1024f64.powi(3);
        let structure = Structure { bytes, accesses };
        let what = format!("{accesses} accesses to 8 GB");
        checks.push(CHAINS.number(what, mpps, rate(chain(1, Some(structure))?)?));
    }
    Ok(checks)
}

/// Table 5.6: what interrupts the host, and the host and its virtual machine together.
const BARE: [(&str, f64, f64); 2] = [("timer", 166.7, 10.9), ("irq work", 83.3, 13.6)];
const VIRTUAL: [(&str, f64, f64); 3] = [
    ("timer", 166.7, 17.5),
    ("irq work", 83.3, 19.2),
    ("timer of the virtual machine", 250.0, 17.5),
];

fn overload() -> Result<Vec<Check>, CheckError> {
    let interruptions = |table: &[(&str, f64, f64)]| -> Vec<Interruption> {
        let interruption = |(name, rate_hz, duration_us): &(&str, f64, f64)| Interruption {
            name: (*name).to_owned(),
            rate_hz: *rate_hz,
            duration_us: *duration_us,
        };
        table.iter().map(interruption).collect()
    };
    let (bare, virtual_machine) = (interruptions(&BARE), interruptions(&VIRTUAL));
    let mut checks = Vec::new();
    for (name, table, printed) in [("bare", &bare, 2_949.9), ("VM", &virtual_machine, 8_891.6)] {
        let sum = Estimate::given(interrupted_us_per_s(table)?)?;
        checks.push(INTERRUPTED.number(name.to_owned(), printed, sum));
    }
    // Medians of the function and of l2fwd at 10 kpkt/s (µs), the printed bound, and where overload began (kpkt/s).
    let cases = [
        ("Snort-fwd, bare", &bare, (14.5, 3.1), 87.4, (80.0, 90.0)),
        (
            "Snort-fwd, VM",
            &virtual_machine,
            (15.9, 3.3),
            78.7,
            (80.0, 90.0),
        ),
        ("Snort-filter, bare", &bare, (17.4, 3.1), 69.7, (60.0, 70.0)),
        (
            "Snort-filter, VM",
            &virtual_machine,
            (18.4, 3.3),
            65.6,
            (60.0, 70.0),
        ),
    ];
    let mut seen = Vec::new();
    for (name, table, (function_us, forwarder_us), printed, bracket) in cases {
        let (function, forwarder) = (
            Estimate::given(function_us)?,
            Estimate::given(forwarder_us)?,
        );
        let highest = Overload::new(function, forwarder, table)?.highest_rate(None);
        let kpps = highest.estimate.times(1e-3);
        checks.push(OVERLOAD.number(name.to_owned(), printed, kpps));
        seen.push(OVERLOAD_SEEN.within(format!("{name}: highest rate seen"), bracket, kpps));
    }
    checks.extend(seen);
    Ok(checks)
}
