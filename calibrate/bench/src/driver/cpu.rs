//! Processor time of a thread.

/// Processor time that the calling thread has used [s]; `None` where the system does not tell (it is read from
/// `/proc/thread-self/schedstat`, so Linux only).
pub fn thread_cpu_s() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns: u64 = text.split_whitespace().next()?.parse().ok()?;
    Some(ns as f64 * 1e-9)
}
