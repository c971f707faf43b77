//! End to end, what waits for other programs more than it computes: `./run test` runs it beside everything else.
#![allow(clippy::unwrap_used)]

mod support;

/// A part of the tests' names, by which the others are run without these.
mod parallel {
    mod experiment_slurm;
    mod experiment_ssh;
    mod pages;
}
