//! Records of real runs: written, read back, thinned, mutated.

use std::io::Cursor;
use std::sync::OnceLock;

use proptest::prelude::*;
use sim::scenario::Scenario;
use sim::simulation::RunOptions;
use store::{Limits, Reader, Record, StoreError};

const SCENARIO: &str = r#"
name = "two replicas"

[layout]
replicas = 2

[engine]
kind = "vllm_v1"
kv_blocks = 400
max_num_seqs = 16

[step]
base = "5 ms"
per_token = "20 us"

[[workload]]
prompt = 200
output = { kind = "uniform", min = 10, max = 60 }
arrival = { kind = "poisson", rate = "40 req/s" }

[run]
requests = 300

[slo]
ttft = "200 ms"
"#;

fn recorded(limits: Limits) -> (sim::record::RunRecord, Record) {
    let scenario = Scenario::parse(SCENARIO, "test.toml", &[]).unwrap();
    let built = scenario.build().unwrap();
    store::run(built, &RunOptions::default(), limits, || 0.25).unwrap()
}

fn bytes(record: &Record) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    store::write(&mut out, record).unwrap();
    out.into_inner()
}

fn file() -> &'static Vec<u8> {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| bytes(&recorded(Limits::default()).1))
}

/// Equal, but for the last bits of the report's numbers.
fn assert_same(read: &Record, written: &Record) {
    let text =
        |r: &Record| sim::report::text::render(&r.report, sim::report::text::Detail::Verbose);
    assert_eq!(text(read), text(written));
    let read = Record {
        report: written.report.clone(),
        ..read.clone()
    };
    assert_eq!(&read, written);
}

/// Prefill and decode on replicas of their own.
fn apart() -> Scenario {
    let name = "llama3.1-70b-p5.48xlarge-vllm-disaggregated.toml";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scenarios")
        .join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    let sets = ["run.requests=60".to_owned()];
    Scenario::parse(&text, &path.display().to_string(), &sets).unwrap()
}

#[test]
fn transfers_of_kv_are_kept_with_the_requests_that_they_are_of() {
    let built = apart().build().unwrap();
    let limits = Limits {
        requests: 40,
        ..Limits::default()
    };
    let (run, record) = store::run(built, &RunOptions::default(), limits, || 0.25).unwrap();
    let all = run.transfers.unwrap().rows.unwrap();
    assert!(all.len() > 50, "{}", all.len());
    assert_eq!(record.info.request_stride, 2);
    let even = all.iter().filter(|t| t.request % 2 == 0).count();
    assert_eq!(record.transfers.len(), even);
    let mut read = store::read(Cursor::new(bytes(&record))).unwrap();
    assert_same(&read, &record);
    for t in &read.transfers {
        let r = read.requests.iter().find(|r| r.id == t.request).unwrap();
        assert!(r.arrival.0 <= t.prefilled && t.prefilled <= t.ended);
    }
    let (was, replicas) = (read.transfers.row(0), read.info.replicas.len() as u32);
    for (wrong, why) in [
        (
            store::Transfer {
                to: replicas,
                ..was
            },
            "a replica that is not there",
        ),
        (store::Transfer { ended: 0, ..was }, "ends before it begins"),
        (
            store::Transfer {
                request: u32::MAX,
                ..was
            },
            "not in order",
        ),
    ] {
        let rest = record.transfers.iter().skip(1);
        read.transfers = std::iter::once(wrong).chain(rest).collect();
        let e = store::read(Cursor::new(bytes(&read)))
            .unwrap_err()
            .to_string();
        assert!(e.contains(why), "{e}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    let (run, record) = recorded(Limits::default());
    let file = bytes(&record);
    assert_eq!(file, bytes(&record), "the same bytes every time");
    let read = store::read(Cursor::new(&file)).unwrap();
    assert_same(&read, &record);
    let json = Reader::open(Cursor::new(&file)).unwrap().report_json();
    let printed = serde_json::to_string_pretty(&record.report).unwrap();
    assert_eq!(json.unwrap(), printed + "\n");
    assert_eq!(Some(read.requests.iter().collect()), run.request_rows);
    assert_eq!(read.info.steps, run.steps);
    assert_eq!(read.steps[0].rows().len() as u64, run.steps);
    assert_eq!(read.info.thinned(), None);
    let sent: u64 = read.rates.bins.iter().map(|b| b.sent).sum();
    let tokens: u64 = read.rates.bins.iter().map(|b| b.output_tokens).sum();
    assert_eq!((sent, tokens), (run.counts.offered, run.tokens.output));
    // The scenario in it runs, to the same end.
    let again = Scenario::parse(&read.info.scenario, "record", &[]).unwrap();
    let again = again.run(&RunOptions::default()).unwrap();
    assert_eq!(
        format!("{:016x}", again.fingerprint),
        read.report.fingerprint
    );
}

#[test]
fn watching_a_run_does_not_change_it() {
    let scenario = Scenario::parse(SCENARIO, "test.toml", &[]).unwrap();
    let plain = scenario.run(&RunOptions::default()).unwrap();
    assert_eq!(plain.fingerprint, recorded(Limits::default()).0.fingerprint);
}

#[test]
fn beyond_the_limits_rows_are_thinned_and_sums_stay() {
    let all = recorded(Limits::default()).1;
    let limits = Limits {
        requests: 100,
        steps: 64,
        bins: 16,
    };
    let few = recorded(limits).1;
    assert!(few.info.request_stride >= 4 && few.requests.len() <= 100);
    assert!(few.info.step_merge > 1 && few.steps[0].rows().len() <= 64);
    assert!(few.info.thinned().unwrap().contains("of 300 requests"));
    let sums = |r: &Record| -> (u64, u64, u64, u64) {
        let rows = r.steps[0].rows();
        (
            rows.iter().map(|s| u64::from(s.steps)).sum(),
            rows.iter().map(|s| s.decode_tokens).sum(),
            rows.iter().map(|s| s.busy).sum(),
            r.rates.bins.iter().map(|b| b.finished).sum(),
        )
    };
    assert_eq!(sums(&all), sums(&few));
    assert_eq!(all.report.ttft_ms, few.report.ttft_ms);
    assert_same(&store::read(Cursor::new(bytes(&few))).unwrap(), &few);
}

#[test]
fn parts_are_read_alone() {
    let mut reader = Reader::open(Cursor::new(file())).unwrap();
    let coarse = reader.levels() - 1;
    assert!(coarse > 0);
    let (top, all) = (reader.steps(coarse).unwrap(), reader.steps(0).unwrap());
    assert!(top.rows().len() * 6 < all.rows().len());
    let window = 1_000_000_000..1_500_000_000;
    let some = all.within(1, window.clone());
    assert!(!some.is_empty() && some.len() < all.of(1).len());
    assert!(
        some.iter()
            .all(|s| s.start < window.end && s.end > window.start)
    );
}

/// The file with the text of `info.json` changed.
fn with_info(change: impl Fn(&mut serde_json::Value)) -> Vec<u8> {
    let mut old = zip::ZipArchive::new(Cursor::new(file())).unwrap();
    let mut new = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for i in 0..old.len() {
        let part = old.by_index(i).unwrap();
        if part.name().unwrap() == "info.json" {
            let mut info: serde_json::Value = serde_json::from_reader(part).unwrap();
            change(&mut info);
            let options = zip::write::SimpleFileOptions::default();
            new.start_file("info.json", options).unwrap();
            serde_json::to_writer(&mut new, &info).unwrap();
        } else {
            new.raw_copy_file(part).unwrap();
        }
    }
    new.finish().unwrap().into_inner()
}

/// A cluster that grows from nothing.
fn clustered() -> Record {
    let text = include_str!("../../../scenarios/cluster-gke-t4-from-zero.toml");
    let scenario = Scenario::parse(text, "cluster.toml", &[]).unwrap();
    let built = scenario.build().unwrap();
    let limits = Limits::default();
    store::run(built, &RunOptions::default(), limits, || 0.25)
        .unwrap()
        .1
}

#[test]
fn a_cluster_is_written_and_read_back() {
    let record = clustered();
    let cluster = record.cluster.as_ref().expect("it has one");
    assert!(!cluster.nodes.is_empty() && !cluster.decisions.is_empty());
    assert!(cluster.pods.iter().any(|p| p.ready.is_some()));
    assert!(cluster.replicas.iter().any(|r| !r.served.is_empty()));
    let file = bytes(&record);
    assert_same(&store::read(Cursor::new(&file)).unwrap(), &record);
    assert_same(&store::read_slice(&file).unwrap(), &record);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.servetwin");
    std::fs::write(&path, &file).unwrap();
    assert_same(&store::read_file(&path).unwrap(), &record);
    // From one part of a program to another.
    let memory = store::to_bytes(&record).unwrap();
    assert_same(&store::from_bytes(&memory).unwrap(), &record);
    assert!(store::from_bytes(&memory[..memory.len() - 1]).is_err());
    assert!(store::from_bytes(&file).is_err());
    // An index that is not there is damage.
    let mut wrong = record.clone();
    if let Some(cluster) = &mut wrong.cluster {
        cluster.pods[0].node = Some(99);
    }
    let e = refused(&bytes(&wrong));
    assert!(e.contains("cluster.json") && e.contains("pod 0"), "{e}");
    wrong.info.replicas.clear();
    wrong.requests = store::Packed::default();
    assert!(store::read_slice(&bytes(&wrong)).is_err());
}

#[test]
fn files_of_the_first_format_are_read() {
    let first = with_info(|i| i["format"] = 1.into());
    let record = store::read(Cursor::new(&first)).unwrap();
    assert_eq!((record.info.format, record.cluster), (1, None));
    assert_eq!(record.requests.len(), 300);
    assert_same(
        &store::read_slice(file()).unwrap(),
        &recorded(Limits::default()).1,
    );
}

fn refused(bytes: &[u8]) -> String {
    store::read(Cursor::new(bytes)).unwrap_err().to_string()
}

#[test]
fn newer_formats_damage_and_other_files_are_refused_with_words() {
    assert!(store::read(Cursor::new(with_info(|_| {}))).is_ok());
    let newer = refused(&with_info(|i| {
        i["format"] = 99.into();
        i["version"] = "9.9.9".into();
    }));
    assert!(
        newer.contains("format 99") && newer.contains("9.9.9"),
        "{newer}"
    );
    let e = refused(&with_info(|i| i["request_rows"] = u64::MAX.into()));
    assert!(e.contains("at most"), "{e}");
    let e = refused(&with_info(|i| i["request_rows"] = 301.into()));
    assert!(
        e.contains("requests/0/id.npy") && e.contains("300 rows, not 301"),
        "{e}"
    );
    let e = refused(&with_info(|i| i["replicas"] = serde_json::json!([])));
    assert!(e.contains("replica"), "{e}");
    let e = refused(&with_info(|i| {
        i["step_rows"] = serde_json::json!([4_000_000]);
    }));
    assert!(e.contains("steps/0"), "{e}");
    let half = &file()[..file().len() / 2];
    for other in [&b""[..], b"hello", b"PK\x03\x04 and no more", half] {
        let e = refused(other);
        assert!(e.contains("no record file"), "{e}");
    }
    assert!(matches!(
        store::read(Cursor::new(b"id,stream\n")),
        Err(StoreError::NotARecord(_))
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_records_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = file().clone();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = store::read(Cursor::new(bytes));
    }

    #[test]
    fn mutated_numbers_of_the_head_never_panic(
        key in prop::sample::select(vec![
            "end", "warmup", "requests", "request_rows", "request_stride", "steps", "step_merge", "bin_width", "format",
        ]),
        value in prop::sample::select(vec![0, 1, 299, 65_536, u64::from(u32::MAX), u64::MAX]),
    ) {
        let bytes = with_info(|i| i[key] = value.into());
        let _ = store::read(Cursor::new(bytes));
    }
}

/// A file on a disk with room for so many bytes.
struct Disk(Cursor<Vec<u8>>, usize);

impl std::io::Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.position() as usize + bytes.len() > self.1 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        std::io::Write::write(&mut self.0, bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl std::io::Seek for Disk {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        std::io::Seek::seek(&mut self.0, to)
    }
}

#[test]
fn a_full_disk_is_an_error_wherever_it_comes() {
    let record = store::read(Cursor::new(file())).unwrap();
    let whole = bytes(&record).len();
    for room in (0..whole).step_by(whole / 200 + 1) {
        let disk = || Disk(Cursor::default(), room);
        // As files are written, the error comes with a later write or with a seek.
        let buffered = std::io::BufWriter::with_capacity(1 << 12, disk());
        for e in [
            store::write(disk(), &record).unwrap_err(),
            store::write(buffered, &record).unwrap_err(),
        ] {
            let store::StoreError::Io(e) = e else {
                panic!("{e}");
            };
            assert_eq!(e.kind(), std::io::ErrorKind::StorageFull, "{room}");
        }
    }
}
