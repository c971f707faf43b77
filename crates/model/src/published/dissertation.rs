//! Figures that the dissertation prints: line rates, a knee, the rate of a measurement, rates at overload. Unprinted
//! results, such as rates of chains and other knees, are in the tests of the models. (Gallenmüller 2021, Tables 4.1,
//! 5.3, 5.5 and 5.6; section 5.1.5 and Fig. 5.2.)

use super::{Check, CheckError, Group};
use crate::estimate::{Estimate, WrongValue};
use crate::overload::{Interruption, Overload, interrupted_us_per_s};
use crate::resource::bandwidth::ethernet_pps;
use crate::resource::{Costs, Machine, Packets};

/// Largest relative rounding error of the printed numbers: that of the number with the fewest digits, whose error is up
/// to half of its last digit.
const ROUNDED: f64 = 0.006;

const RATES: Group = Group {
    name: "line rates",
    source: "Table 4.1",
    unit: "Mpkt/s",
    limit: ROUNDED,
    held_out: false,
};
const KNEE: Group = Group {
    name: "knee",
    source: "section 5.1.5, Fig. 5.2",
    unit: "cycles/packet",
    limit: 0.02,
    held_out: false,
};
const CHECKED: Group = Group {
    name: "calculation load",
    source: "section 5.1.5",
    unit: "Mpkt/s",
    limit: 0.05,
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
    checks.push(knee()?);
    checks.extend(loads()?);
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
    Ok(checks)
}

fn line(cores: u32, clock_hz: f64, bit_s: f64) -> Result<Machine, WrongValue> {
    Ok(Machine {
        ethernet_bit_s: Some(bit_s),
        ..Machine::new(cores, clock_hz)?
    })
}

/// Checks how many cycles one core has for each packet at line rate; the dissertation prints "around 220".
fn knee() -> Result<Check, CheckError> {
    let machine = line(1, 3.3e9, 10e9)?;
    let busy = machine.busy_cycles(Estimate::ZERO, ethernet_pps(10e9, 64.0)?)?;
    let what = "c_IO + c_busy without a task at line rate".to_owned();
    Ok(KNEE.number(what, 220.0, busy))
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

/// Interruptions of the host in Table 5.6, as name, rate (Hz) and duration (µs).
const BARE: [(&str, f64, f64); 2] = [("timer", 166.7, 10.9), ("irq work", 83.3, 13.6)];
/// Interruptions of the host with its virtual machine in Table 5.6, as name, rate (Hz) and duration (µs).
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
    // Medians of the function and of l2fwd at 10 kpkt/s (µs), the printed bound, and the rate at which overload began
    // (kpkt/s).
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
