//! End-to-end tests that wait for other programs more than they compute: `./run test` runs them in parallel with
//! everything else. None of them measures, and every test uses unique names.
#![allow(clippy::unwrap_used)]

mod support;

/// The common part of the test names in this module, by which `./run test` selects the tests.
mod parallel {
    mod bad_input;
    mod capture;
    mod capture_match;
    mod capture_page;
    mod chain;
    mod chain_manifest;
    mod chain_plan;
    mod chain_vm;
    mod decode;
    mod descriptors;
    mod doctor;
    mod experiment_slurm;
    mod experiment_ssh;
    mod experiment_vm;
    mod functions;
    mod functions_in_kernel;
    mod gallery;
    mod gtpc;
    mod gtpu;
    mod gtpu_in_kernel;
    mod host;
    mod ips;
    mod ips_evasion;
    mod json_schemas;
    mod libraries;
    mod lua_function;
    mod monitoring;
    mod openflow;
    mod packages;
    mod page_contrast;
    mod pages;
    mod plugin;
    mod route;
    mod route_agreement;
    mod route_driven;
    mod route_frames;
    mod route_in_kernel;
    mod route_scapy;
    mod route_vlans;
    mod serve_page;
    mod site;
    mod skips_nothing;
    mod style;
    mod switch;
    mod switch_beside;
    mod transport;
}
