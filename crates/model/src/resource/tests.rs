//! Tests of the resource model against the published figures, and of its errors for invalid input.

#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn given(value: f64) -> Estimate {
    Estimate::given(value).unwrap()
}

fn smallest() -> Packets {
    Packets::new(64.0, 32.0).unwrap()
}

fn machine(cores: u32, line_bit_s: f64) -> Machine {
    Machine {
        ethernet_bit_s: Some(line_bit_s),
        ..Machine::new(cores, 3.3e9).unwrap()
    }
}

#[test]
fn the_dissertation_example_yields_7_33_million_packets_per_second() {
    // Gallenmüller 2021, section 5.1.5: packets cost 100 cycles of I/O and 350 of task at 3.3 GHz; 7.1 Mpkt/s were
    // measured.
    let costs = Costs::per_packet(given(100.0), given(350.0));
    let carried = machine(1, 10e9).carried(&costs, &smallest(), None).unwrap();
    assert!((carried.highest.estimate.value - 7.333e6).abs() < 1e3);
    assert_eq!(carried.binding, Resource::Processor);
    let ethernet = &carried.limits[0];
    assert!((ethernet.headroom.unwrap() - (1.0 - 7.3333 / 14.881)).abs() < 1e-4);
    assert!(!ethernet.may_bind);
    assert_eq!(
        (carried.limits[2].rate_pps, carried.limits[2].headroom),
        (None, None)
    );
}

#[test]
fn knees_are_the_cycles_per_packet_available_at_line_rate() {
    // Results of this model; Gallenmüller 2021, Fig. 4.5 draws such knees, and prints none of these numbers.
    for (cores, line, cycles) in [
        (1, 10e9, 222.0),
        (1, 40e9, 55.0),
        (1, 100e9, 22.0),
        (2, 10e9, 444.0),
        (3, 10e9, 665.0),
    ] {
        let knee = machine(cores, line)
            .knee_cycles(&smallest())
            .unwrap()
            .unwrap();
        assert!((knee - cycles).abs() <= 0.5, "{cores} cores: {knee}");
    }
    assert_eq!(
        Machine::new(1, 3.3e9).unwrap().knee_cycles(&smallest()),
        Ok(None)
    );
}

#[test]
fn throughput_is_line_rate_up_to_the_knee_then_falls() {
    // Gallenmüller 2021, Fig. 4.5.
    for cores in 1..=3 {
        let machine = machine(cores, 10e9);
        let knee = machine.knee_cycles(&smallest()).unwrap().unwrap();
        let rate = |cycles: f64| {
            let costs = Costs::per_packet(given(cycles), Estimate::ZERO);
            machine.carried(&costs, &smallest(), None).unwrap()
        };
        let before = rate(knee * 0.9);
        assert_eq!(before.binding, Resource::Ethernet);
        assert!((before.highest.estimate.value / 1e6 - 14.881).abs() < 1e-3);
        let behind = rate(knee * 2.0);
        assert_eq!(behind.binding, Resource::Processor);
        assert!((behind.highest.estimate.value * 2.0 / 1e6 - 14.881).abs() < 1e-3);
    }
}

#[test]
fn limits_with_overlapping_intervals_are_reported_as_possible_bottlenecks() {
    let io = Estimate::new(230.0, 200.0, 260.0, 0.95).unwrap();
    let costs = Costs::per_packet(io, Estimate::ZERO);
    let carried = machine(1, 10e9).carried(&costs, &smallest(), None).unwrap();
    assert_eq!(carried.binding, Resource::Processor);
    assert!(carried.limits[0].may_bind);
    let highest = carried.highest.estimate;
    assert!(
        (highest.high / 1e6 - 14.881).abs() < 1e-3,
        "the line caps the interval: {highest:?}"
    );
    assert!((highest.low - 3.3e9 / 260.0).abs() < 1.0);
}

#[test]
fn model_errors_apply_to_the_rate_if_the_processor_limits() {
    let errors = Errors::of(crate::estimate::ErrorBasis::HeldOut, [(1.02, 1.0)]);
    let outside = crate::estimate::Outside {
        variable: "load_cycles".to_owned(),
        asked: 450.0,
        min: 0.0,
        max: 400.0,
    };
    let cycles = |value| Prediction {
        estimate: given(value),
        unit: "cycles/packet".to_owned(),
        errors,
        outside: vec![outside.clone()],
    };
    let of = |value| {
        machine(1, 10e9)
            .carried_by_model(&cycles(value), &smallest())
            .unwrap()
    };
    let slow = of(450.0).highest;
    assert_eq!((slow.errors, slow.outside.len()), (errors, 1));
    let at_the_line = of(100.0).highest;
    assert_eq!((at_the_line.errors, at_the_line.outside.len()), (None, 0));
}

#[test]
fn byte_and_batch_costs_add_to_the_cycles_per_packet() {
    let costs = Costs {
        io_cycles: given(100.0),
        task_cycles: given(50.0),
        byte_cycles: given(0.25),
        batch_cycles: given(640.0),
    };
    let cycles = |bytes, batch| costs.cycles(&Packets::new(bytes, batch).unwrap()).value;
    assert_eq!(cycles(64.0, 32.0), 100.0 + 50.0 + 16.0 + 20.0);
    assert_eq!(cycles(1_024.0, 1.0), 100.0 + 50.0 + 256.0 + 640.0);
}

#[test]
fn the_smallest_of_bus_nic_and_memory_limits_applies() {
    let costs = Costs::per_packet(given(20.0), Estimate::ZERO);
    let wide = machine(8, 40e9);
    let capped = Machine {
        card_pps: Some(bandwidth::XL710_CAP_PPS),
        ..wide
    };
    let carried = capped.carried(&costs, &smallest(), None).unwrap();
    assert_eq!(carried.binding, Resource::Card);
    let narrow = Machine {
        pcie_bit_s: bandwidth::pcie_bit_s(2, 4),
        ..wide
    };
    let carried = narrow
        .carried(&costs, &Packets::new(1_518.0, 32.0).unwrap(), None)
        .unwrap();
    assert_eq!(carried.binding, Resource::Pcie);
    let slow = Machine {
        memory_bit_s: Some(10e9),
        ..wide
    };
    let carried = slow
        .carried(&costs, &Packets::new(1_518.0, 32.0).unwrap(), None)
        .unwrap();
    assert_eq!(carried.binding, Resource::Memory);
}

#[test]
fn unused_cycles_per_packet_are_spent_on_polling() {
    let machine = machine(1, 10e9);
    let busy = machine.busy_cycles(given(450.0), 5e6).unwrap();
    assert!((busy.value - (660.0 - 450.0)).abs() < 1e-9);
    assert_eq!(machine.busy_cycles(given(450.0), 10e6).unwrap().value, 0.0);
}

#[test]
fn cycles_of_other_tasks_on_a_core_are_subtracted() {
    let costs = Costs::per_packet(given(450.0), Estimate::ZERO);
    let shared = Machine {
        other_cycles_per_s: 0.33e9,
        ..machine(2, 100e9)
    };
    let carried = shared.carried(&costs, &smallest(), None).unwrap();
    assert!((carried.highest.estimate.value - 2.0 * 2.97e9 / 450.0).abs() < 1.0);
    let nothing_left = Machine {
        other_cycles_per_s: 3.3e9,
        ..shared
    };
    let error = nothing_left.carried(&costs, &smallest(), None).unwrap_err();
    assert!(error.to_string().contains("left for packets"), "{error}");
}

#[test]
fn machines_with_invalid_values_are_refused() {
    assert!(Machine::new(0, 3e9).is_err());
    assert!(Machine::new(1, f64::NAN).is_err());
    assert!(Packets::new(-64.0, 1.0).is_err());
    assert!(Packets::new(64.0, 0.0).is_err());
    let free = Costs::per_packet(Estimate::ZERO, Estimate::ZERO);
    assert!(machine(1, 10e9).carried(&free, &smallest(), None).is_err());
}

proptest! {
    #[test]
    fn the_bottleneck_is_the_lowest_limit_and_has_no_headroom(
        cores in 1..64_u32,
        clock_hz in 1e8..6e9_f64,
        cycles in 10.0..1e5_f64,
        wide in 1.0..2.0_f64,
        frame_bytes in 64.0..9_000.0_f64,
        known in prop::collection::vec(prop::option::of(1e9..1e12_f64), 5),
    ) {
        let machine = Machine {
            ethernet_bit_s: known[0],
            card_pps: known[1],
            pcie_bit_s: known[2],
            memory_bit_s: known[3],
            interconnect_bit_s: known[4],
            ..Machine::new(cores, clock_hz).unwrap()
        };
        let cycles = Estimate::new(cycles, cycles / wide, cycles * wide, 0.95).unwrap();
        let costs = Costs::per_packet(cycles, Estimate::ZERO);
        let packets = Packets::new(frame_bytes, 1.0).unwrap();
        let carried = machine.carried(&costs, &packets, None).unwrap();
        let highest = carried.highest.estimate;
        prop_assert!(highest.low <= highest.value && highest.value <= highest.high);
        for limit in &carried.limits {
            let rate = limit.rate_pps.map_or(f64::INFINITY, |rate| rate.value);
            prop_assert!(rate >= highest.value);
            if limit.resource == carried.binding {
                prop_assert_eq!(limit.headroom, Some(0.0));
                prop_assert!(limit.may_bind);
            }
        }
    }
}
