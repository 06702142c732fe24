// What every importer's target does: whatever the bytes, the file is refused with words or becomes a scenario that the simulator reads.

use deploy::Source;
use deploy::import::{Kind, Options, import};

/// Imports `data` as a file of `kind`, on a machine and with a model that are given.
pub fn importer(kind: Kind, data: &[u8]) {
    let source = Source::new("fuzz", String::from_utf8_lossy(data));
    let options = Options {
        kind: Some(kind),
        instance: Some("p5.48xlarge".into()),
        model: Some("llama-3.1-8b".into()),
    };
    // import() parses its own result: what comes back is a scenario.
    if let Err(error) = import(&[source], &options) {
        assert!(!error.faults.is_empty());
    }
}
