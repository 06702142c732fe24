//! Whatever the bytes, a trace is refused with words or read, in every format.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use sim::workload::TraceFormat;
use sim::workload::input::Lines;
use sim::workload::trace::{TraceReader, check_reader};

fuzz_target!(|data: &[u8]| {
    for format in [
        TraceFormat::Auto,
        TraceFormat::Azure,
        TraceFormat::Mooncake,
        TraceFormat::BurstGpt,
        TraceFormat::Csv,
        TraceFormat::Records,
    ] {
        let _ = Lines::from_reader(Box::new(Cursor::new(data.to_vec())), "fuzz")
            .and_then(|lines| TraceReader::new(lines, format))
            .and_then(check_reader);
    }
});
