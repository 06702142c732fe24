//! Whatever the bytes, files are refused with words or become a scenario that the simulator reads; every importer in turn.
#![no_main]

use deploy::import::{Kind, Options, import};
use deploy::Source;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // The first byte chooses the importer; 0 lets the content tell. A zero byte separates two files.
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let kind = usize::from(*first).checked_sub(1).and_then(|i| Kind::ALL.get(i)).copied();
    let sources: Vec<Source> = rest
        .splitn(2, |b| *b == 0)
        .enumerate()
        .map(|(i, bytes)| Source::new(format!("fuzz-{i}"), String::from_utf8_lossy(bytes)))
        .collect();
    let options = Options {
        kind,
        instance: Some("p5.48xlarge".into()),
        model: Some("llama-3.1-8b".into()),
    };
    // import() parses its own result: what comes back is a scenario.
    let _ = import(&sources, &options);
});
