//! Whatever the bytes, a scenario is refused with words or read; and what is shown of it reads back to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sim::scenario::{Scenario, document};

fuzz_target!(|data: &[u8]| {
    // Everything behind a zero byte is an override.
    let mut parts = data.splitn(2, |b| *b == 0);
    let text = parts.next().unwrap_or_default().to_vec();
    let overrides: Vec<String> = parts
        .next()
        .map(|o| String::from_utf8_lossy(o).into_owned())
        .into_iter()
        .collect();
    let Ok(text) = document::text_of(text, "fuzz.toml") else {
        return;
    };
    if let Ok(scenario) = Scenario::parse(&text, "fuzz.toml", &overrides) {
        let shown = scenario.show();
        let again = Scenario::parse(&shown, "fuzz.toml", &[]).expect("what is shown can be read");
        assert_eq!(scenario, again);
    }
});
