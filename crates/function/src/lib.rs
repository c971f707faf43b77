//! Trait `Function` and one file per network function.
