//! A sweep survives kills: this test starts itself as the process that is killed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use planner::sweep::{self, Shard, Sweep, SweepResult};

const SCENARIO: &str = "name = \"small\"\n[step]\nbase = \"10 ms\"\nper_token = \"20 us\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 1000\n[[workload]]\nname = \
    \"chat\"\narrival = { kind = \"poisson\", rate = \"5 req/s\" }\nprompt = { kind = \"uniform\", min = 50, max = 150 }\noutput = { kind = \"uniform\", min = \
    1, max = 40 }\n[run]\nrequests = 200\n[slo]\nttft = \"200 ms\"\n";

/// 288 short runs.
const SWEEP: &str = "scenario = \"small.toml\"\nseeds = 2\n[[axis]]\nkey = \"workload.chat.arrival.rate\"\nfrom = 1\nto = 9\nsteps = 36\nunit = \"req/s\"\n\
    [[axis]]\nkey = \"engine.max_num_seqs\"\nvalues = [2, 4, 8, 16]\n";
const RUNS: usize = 288;

/// The folder of the sweep that a child process makes.
const CHILD: &str = "SERVETWIN_SWEEP_CHILD";

fn written(dir: &Path) -> PathBuf {
    std::fs::write(dir.join("small.toml"), SCENARIO).unwrap();
    let file = dir.join("sweep.toml");
    std::fs::write(&file, SWEEP).unwrap();
    file
}

/// Makes what is left of the sweep; its table.
fn swept(file: &Path, out: &Path) -> String {
    let sweep = Sweep::load(file, &[]).unwrap();
    assert_eq!(sweep.runs(), RUNS as u64);
    let rows = sweep::run(&sweep, Shard::WHOLE, out, &|_, _| {}, &|_| {}).unwrap();
    SweepResult::new(&sweep, rows).csv().unwrap()
}

/// Does nothing, but in the process that the test below starts and kills.
#[test]
fn child() {
    if let Some(dir) = std::env::var_os(CHILD) {
        let dir = PathBuf::from(dir);
        swept(&dir.join("sweep.toml"), &dir.join("killed"));
    }
}

#[test]
fn a_sweep_killed_twenty_times_ends_with_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path());
    let whole = swept(&file, &dir.path().join("whole"));
    assert_eq!(whole.lines().count(), RUNS + 1);

    let killed = dir.path().join("killed");
    let journal = killed.join(Shard::WHOLE.journal());
    let lines = || std::fs::read(&journal).map_or(0, |t| t.iter().filter(|b| **b == b'\n').count());
    let mut cut_short = 0;
    for i in 0..20u64 {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sweep::child"])
            .env(CHILD, dir.path())
            // One thread, so that there is something left to kill.
            .env("RAYON_NUM_THREADS", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Until some more lines are there, and then an odd moment longer: kills land before, between and inside of writes.
        let wanted = lines() + 1 + (i as usize % 4);
        for _ in 0..20_000 {
            if lines() >= wanted || process.try_wait().unwrap().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_micros(300));
        }
        std::thread::sleep(Duration::from_micros(i * 7919 % 2000));
        cut_short += u32::from(process.try_wait().unwrap().is_none());
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert!(
        cut_short >= 10,
        "only {cut_short} of 20 kills came before the end"
    );
    // Not assert_eq: it would print the tables.
    assert!(
        whole == swept(&file, &killed),
        "the table of the killed sweep differs"
    );
    // A line for the sweep, one for each of its runs, and none twice.
    let text = std::fs::read_to_string(&journal).unwrap();
    let run = |l: &str| {
        l.split_once("\"run\":")
            .unwrap()
            .1
            .split(',')
            .next()
            .unwrap()
            .to_owned()
    };
    let mut runs: Vec<String> = text.lines().skip(1).map(run).collect();
    runs.sort_unstable();
    runs.dedup();
    assert_eq!((text.lines().count(), runs.len()), (RUNS + 1, RUNS));
}

#[test]
fn shards_merge_to_the_table_of_the_whole_and_missing_ones_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path());
    let whole = swept(&file, &dir.path().join("whole"));
    let parts = dir.path().join("parts");
    let sweep = Sweep::load(&file, &[]).unwrap();
    let shard = |index| {
        sweep::run(
            &sweep,
            Shard { index, count: 3 },
            &parts,
            &|_, _| {},
            &|_| {},
        )
        .unwrap()
        .len()
    };
    assert_eq!((shard(1), shard(3)), (96, 96));
    let e = sweep::merge(&sweep, &[&parts]).unwrap_err().to_string();
    assert!(
        e.contains("96 of 288 runs are missing in 2 journals"),
        "{e}"
    );
    shard(2);
    let merged = sweep::merge(&sweep, &[&parts]).unwrap().csv().unwrap();
    assert!(merged == whole, "the merged table differs");
    // A flipped byte costs its run, which the same command makes anew.
    let journal = parts.join("journal-2-of-3.jsonl");
    let mut bytes = std::fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&journal, &bytes).unwrap();
    let e = sweep::merge(&sweep, &[&parts]).unwrap_err().to_string();
    assert!(e.contains("1 of 288 runs") && e.contains("checksum"), "{e}");
    let said = std::cell::RefCell::new(Vec::new());
    let say = |text: &str| said.borrow_mut().push(text.to_owned());
    let second = Shard { index: 2, count: 3 };
    sweep::run(&sweep, second, &parts, &|_, _| {}, &say).unwrap();
    assert!(said.borrow()[0].contains("made anew"), "{said:?}");
    let mended = sweep::merge(&sweep, &[&parts]).unwrap().csv().unwrap();
    assert!(mended == whole, "the mended table differs");
    // Another sweep does not go on there.
    std::fs::write(
        dir.path().join("small.toml"),
        SCENARIO.replace("20 us", "21 us"),
    )
    .unwrap();
    let other = Sweep::load(&file, &[]).unwrap();
    assert!(
        sweep::merge(&other, &[&parts])
            .unwrap_err()
            .to_string()
            .contains("another sweep")
    );
    assert!(
        sweep::run(
            &other,
            Shard { index: 1, count: 3 },
            &parts,
            &|_, _| {},
            &|_| {}
        )
        .unwrap_err()
        .to_string()
        .contains("another sweep")
    );
}

#[test]
fn the_parquet_file_holds_what_the_csv_file_holds() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let dir = tempfile::tempdir().unwrap();
    let text = SWEEP.replace("steps = 36", "steps = 3")
        + "[[axis]]\nkey = \"engine.max_num_batched_tokens\"\nvalues = [512, 0]\n";
    std::fs::write(dir.path().join("small.toml"), SCENARIO).unwrap();
    let file = dir.path().join("sweep.toml");
    std::fs::write(&file, text).unwrap();
    let sweep = Sweep::load(&file, &[]).unwrap();
    let rows = sweep::run(
        &sweep,
        Shard::WHOLE,
        &dir.path().join("out"),
        &|_, _| {},
        &|_| {},
    )
    .unwrap();
    let result = SweepResult::new(&sweep, rows);
    assert!(result.failed() > 0 && result.failed() < result.runs.len());
    let bytes = result.parquet().unwrap();
    assert_eq!(bytes, result.parquet().unwrap());
    let read = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    // As the CSV file has it: null is empty, numbers are as Rust writes them.
    let word = |field: &parquet::record::Field| match field {
        parquet::record::Field::Null => String::new(),
        parquet::record::Field::Long(n) => n.to_string(),
        parquet::record::Field::Double(x) => x.to_string(),
        parquet::record::Field::Str(s) => s.clone(),
        other => panic!("{other:?}"),
    };
    let table: Vec<Vec<String>> = read
        .get_row_iter(None)
        .unwrap()
        .map(|row| {
            row.unwrap()
                .get_column_iter()
                .map(|(_, f)| word(f))
                .collect()
        })
        .collect();
    let csv = result.csv().unwrap();
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let names: Vec<String> = reader
        .headers()
        .unwrap()
        .iter()
        .map(str::to_owned)
        .collect();
    let schema = read.metadata().file_metadata().schema_descr();
    let columns: Vec<String> = schema
        .columns()
        .iter()
        .map(|c| c.name().to_owned())
        .collect();
    assert_eq!(columns, names);
    let expected: Vec<Vec<String>> = reader
        .records()
        .map(|r| r.unwrap().iter().map(str::to_owned).collect())
        .collect();
    assert_eq!(table, expected);
}

#[test]
fn a_point_that_cannot_be_run_is_a_row_with_its_reason_and_a_misspelt_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path());
    let text = "scenario = \"small.toml\"\n[[axis]]\nkey = \"engine.max_num_batched_tokens\"\nvalues = [0, 512]\n";
    std::fs::write(&file, text).unwrap();
    let sweep = Sweep::load(&file, &[]).unwrap();
    let rows = sweep::run(
        &sweep,
        Shard::WHOLE,
        &dir.path().join("out"),
        &|_, _| {},
        &|_| {},
    )
    .unwrap();
    let result = SweepResult::new(&sweep, rows);
    assert_eq!(result.failed(), 1);
    assert!(
        result.runs[0]
            .error
            .as_ref()
            .unwrap()
            .contains("must be >= 1"),
        "{:?}",
        result.runs[0].error
    );
    std::fs::write(&file, text.replace("batched_tokens", "batched")).unwrap();
    let e = Sweep::load(&file, &[]).unwrap_err();
    assert!(
        e.is_input() && e.to_string().contains("max_num_batched"),
        "{e}"
    );
}

/// The shipped sweep is read, and its first run made.
#[test]
fn the_shipped_sweep_runs() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans/sweep-limits.toml");
    let sweep = Sweep::load(&file, &["run.requests=30".to_owned()]).unwrap();
    assert_eq!(sweep.runs(), 12);
    let dir = tempfile::tempdir().unwrap();
    let rows = sweep::run(
        &sweep,
        Shard {
            index: 1,
            count: 12,
        },
        dir.path(),
        &|_, _| {},
        &|_| {},
    )
    .unwrap();
    assert!(rows.len() == 1 && rows[0].error.is_none(), "{rows:?}");
}
