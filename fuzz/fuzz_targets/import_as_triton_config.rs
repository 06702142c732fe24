//! The importer of `triton-config`.
#![no_main]

mod importer;

use deploy::import::Kind;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| importer::importer(Kind::TritonConfig, data));
