//! End-to-end tests with third-party programs. All tests are in one program, which is linked once; those that measure
//! run one at a time.
#![allow(clippy::unwrap_used)]

mod support;

mod serial {
    mod agreement;
    mod bad_input;
    mod baselines;
    mod bench_costs;
    mod bench_generator;
    mod bench_io;
    mod bench_rfc2544;
    mod bench_switch;
    mod cards;
    mod circles;
    mod clocks;
    mod comparison_pages;
    mod control;
    mod demo;
    mod disturbances;
    mod dpdk_port;
    mod experiment;
    mod experiment_publish;
    mod forward_and_generate;
    mod generate_cores;
    mod generate_device;
    mod generate_output;
    mod impair;
    mod in_kernel;
    mod interruptions;
    mod lab;
    mod leaves_nothing_behind;
    mod links;
    mod model;
    mod notebook;
    mod payload_chain;
    mod private_folders;
    mod probe;
    mod python;
    mod replay;
    mod report_contrast;
    mod rooms;
    mod router_hosts;
    mod scripts;
    mod serve;
    mod set_up;
    mod stamps;
    mod standards;
    mod tap;
    mod testpmd;
    mod traces;
    mod tune;
    mod undisturbed;
    mod unsafe_list;
    mod updates;
    mod veth;
    mod waiting;
    mod walks;
    mod watch;
    mod workers;
}
