//! Functions of a chain in Lua: arbitrary text, and words of the language.
#![no_main]

#[path = "../bodies/lua_function.rs"]
mod lua_function;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| lua_function::run(bytes));
