//! `client.csv`: what only a client knows of each request.

use std::io::{self, Write};

use crate::driver::RawRun;

/// Writes a row per request in the order of sending. Instants are seconds after the start of the run; what never came is empty.
///
/// # Errors
/// Those of `out`.
pub fn write(out: &mut impl Write, run: &RawRun) -> io::Result<()> {
    writeln!(
        out,
        "id,planned_s,sent_s,late_s,connected_s,headers_s,first_token_s,last_token_s,end_s,output_tokens,chunks,multi_token_chunks,reused_connection,status,error"
    )?;
    for (id, s) in run.samples.iter().enumerate() {
        let t = &s.trace;
        let secs = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        let at =
            |ns: Option<u64>| ns.map_or(String::new(), |ns| secs(s.sent_ns.saturating_add(ns)));
        writeln!(
            out,
            "{id},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            secs(s.planned_ns),
            secs(s.sent_ns),
            secs(s.lateness_ns()),
            at(t.connected_ns),
            at(t.headers_ns),
            at(t.first_token_ns()),
            at(t.last_token_ns()),
            secs(s.sent_ns.saturating_add(t.end_ns)),
            t.output_tokens(),
            t.chunks.len(),
            t.multi_token_chunks(),
            t.reused,
            t.status.map_or(String::new(), |s| s.to_string()),
            t.error.as_ref().map_or(String::new(), |e| e.kind.name()),
        )?;
    }
    Ok(())
}
