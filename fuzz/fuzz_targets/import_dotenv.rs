//! Whatever the bytes, the dotenv parser of deployment files refuses them with a line of theirs or reads them.
#![no_main]

use deploy::text;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    if let Err(wrong) = text::dotenv::variables(&text) {
        assert!(wrong.line >= 1 && wrong.line as usize <= text.lines().count() + 2);
    }
});
