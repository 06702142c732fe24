//! Whatever the bytes, a record is refused with words or read; and what is read is written to the same.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(record) = store::read(Cursor::new(data)) {
        let mut out = Cursor::new(Vec::new());
        store::write(&mut out, &record).expect("memory does not run full");
        let again = store::read(Cursor::new(out.into_inner())).expect("what is written can be read");
        assert_eq!(record.requests, again.requests);
    }
});
