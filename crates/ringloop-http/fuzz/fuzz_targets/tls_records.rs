#![no_main]

#[path = "../../tests/targets/mod.rs"]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::tls::records(data));
