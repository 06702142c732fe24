//! A record of a million requests: how long it takes to open, and how long a frame takes to lay out and tessellate, without a window. And how soon
//! a slider over a scenario of 2000 requests answers, and what memory the application holds for the record.
//!
//! `cargo bench -p viewer --bench frame` prints them, with the 99th percentile over frames that zoom and pan.

use std::io::Cursor;
use std::time::Instant;

use sim::kernel::time::SimTime;
use sim::record::RequestRow;
use sim::report::RunReport;
use sim::request::Outcome;
use store::{Bin, Info, Rates, Record, Replica, Stat, StepSpan, build_levels};
use viewer::App;
use viewer::jobs::Doc;
use viewer::run_data::RunData;
use viewer::source::Source;
use viewer::state::Action;

const REQUESTS: u32 = 1_000_000;
const STEPS: u64 = 500_000;
const REPLICAS: u32 = 4;
const FRAMES: usize = 300;

/// A record of a busy hour: requests of some seconds on four replicas, steps of some milliseconds.
fn record() -> Record {
    let end = 3_600_000_000_000u64;
    let every = end / u64::from(REQUESTS);
    let mut requests: Vec<RequestRow> = (0..REQUESTS)
        .map(|id| {
            let arrival = u64::from(id) * every;
            let n = u64::from(id.wrapping_mul(2_654_435_761) >> 20);
            let at = |ns: u64| SimTime((arrival + ns).min(end));
            RequestRow {
                id,
                stream: 0,
                replica: id % REPLICAS,
                prompt_tokens: 500,
                cached_tokens: 0,
                output_tokens: 100,
                preemptions: 0,
                arrival: SimTime(arrival),
                first_scheduled: at(1_000 * n),
                first_token: at(10_000_000 + 2_000 * n),
                end: at(200_000_000 + 40_000 * n),
                outcome: Outcome::Finished,
            }
        })
        .collect();
    requests.sort_by_key(|r| (r.end, r.id));
    let per_replica = STEPS / u64::from(REPLICAS);
    let length = end / per_replica;
    let steps = (0..REPLICAS).flat_map(|replica| {
        (0..per_replica).map(move |i| StepSpan {
            replica,
            steps: 1,
            start: i * length,
            end: i * length + length * 9 / 10,
            busy: length * 9 / 10,
            parts: [0.004, 0.001, 0.0005 * (i % 20) as f32, 0.0, 0.0005, 0.0],
            prefill_tokens: if i % 5 == 0 { 500 } else { 0 },
            decode_tokens: 60 + i % 40,
            running: Stat::of(60 + i % 40),
            waiting: Stat::of(i % 7),
            kv_blocks: Stat::of(4000 + i % 3000),
            ..StepSpan::default()
        })
    });
    let levels = build_levels(steps, REPLICAS as usize);
    let replica = |i| Replica {
        name: format!("bench/{i}"),
        devices: 1,
        stages: 1,
        kv_blocks: 10_000,
        block_tokens: 16,
    };
    Record {
        info: Info {
            format: store::FORMAT,
            version: "bench".to_owned(),
            streams: vec!["all".to_owned()],
            replicas: (0..REPLICAS).map(replica).collect(),
            end,
            requests: REQUESTS.into(),
            request_rows: REQUESTS.into(),
            request_stride: 1,
            steps: STEPS,
            step_rows: levels.iter().map(|l| l.rows().len() as u64).collect(),
            step_merge: 1,
            bin_width: 1 << 31,
            ..Info::default()
        },
        report: report(),
        requests: requests.into_iter().collect(),
        steps: levels,
        transfers: store::Packed::default(),
        rates: Rates {
            width: 1 << 31,
            bins: vec![
                Bin {
                    sent: 600,
                    finished: 600,
                    ..Bin::default()
                };
                1676
            ],
        },
        cluster: None,
    }
}

/// The report of a run of one request: the views that are timed do not read it.
fn report() -> RunReport {
    let text = "[step]\nbase = \"5 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 400\n[[workload]]\nprompt = 20\noutput = 10\n\
        arrival = { kind = \"poisson\", rate = \"40 req/s\" }\n[run]\nrequests = 1\n";
    let scenario = sim::scenario::Scenario::parse(text, "bench.toml", &[]).expect("it is right");
    let run = scenario
        .run(&sim::simulation::RunOptions::default())
        .expect("it runs");
    RunReport::new(&run, 0.0)
}

/// The scenario whose rate the slider moves.
const SLIDER: &str = "name = \"slider\"\n[layout]\nreplicas = 2\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 4000\nmax_num_seqs = 64\n\
    [step]\nbase = \"5 ms\"\nper_token = \"20 us\"\n[[workload]]\nprompt = 200\noutput = { kind = \"uniform\", min = 10, max = 60 }\n\
    arrival = { kind = \"poisson\", rate = \"40 req/s\" }\n[run]\nrequests = 2000\n[slo]\nttft = \"200 ms\"\n";

/// One frame of a window.
fn frame(ctx: &egui::Context, app: &mut App, time: f64) -> egui::FullOutput {
    let size = egui::vec2(1920.0, 1080.0);
    let input = egui::RawInput {
        screen_rect: Some(egui::Rect::from_min_size(egui::Pos2::ZERO, size)),
        time: Some(time),
        ..egui::RawInput::default()
    };
    ctx.run_ui(input, |ui| app.ui(ui))
}

/// From each of `moves` of the slider until a frame shows the new figures [ms], sorted.
fn slider(moves: usize) -> Vec<f64> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("slider.toml");
    std::fs::write(&file, SLIDER).expect("written");
    let (ctx, mut app) = (egui::Context::default(), App::default());
    let mut frames = 0.0;
    let mut until_done = |app: &mut App| {
        loop {
            frames += 1.0;
            frame(&ctx, app, frames / 60.0).textures_delta.clear();
            if !app.busy() {
                break;
            }
        }
    };
    app.state.ask(Action::Open(file.display().to_string()));
    until_done(&mut app);
    app.state.ask(Action::Show(viewer::state::PaneKind::WhatIf));
    until_done(&mut app);
    let mut times: Vec<f64> = (0..moves)
        .map(|i| {
            let rate = 30 + i % 20;
            let start = Instant::now();
            app.state.ask(Action::WhatIf(vec![format!(
                "workload[0].arrival.rate={rate} req/s"
            )]));
            until_done(&mut app);
            let ms = start.elapsed().as_secs_f64() * 1e3;
            assert!(app.state.base.is_some(), "both runs are shown");
            ms
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Memory of this process [MB]: `VmRSS` what it holds, `VmHWM` the most that it held; none where the system does not tell.
fn memory(what: &str) -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix(what))?;
    let kib: f64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

/// In a process of its own, which has made no record: opens the one in `file` as the application does, and says what it holds more than before.
fn opened(file: &str) {
    let (ctx, mut app) = (egui::Context::default(), App::default());
    let mut frames = 0.0;
    let mut show = |app: &mut App, n: u32| {
        for _ in 0..n {
            frames += 1.0;
            let mut output = frame(&ctx, app, frames / 60.0);
            output.textures_delta.clear();
            std::hint::black_box(ctx.tessellate(output.shapes, output.pixels_per_point));
        }
    };
    show(&mut app, 10);
    let before = memory("VmRSS");
    app.open(&ctx, std::path::Path::new(file));
    show(&mut app, 1);
    while app.busy() {
        std::thread::sleep(std::time::Duration::from_millis(1));
        show(&mut app, 1);
    }
    // What views need is made in the background meanwhile.
    for kind in viewer::state::PaneKind::ALL {
        app.state.ask(Action::Show(kind));
        show(&mut app, 3);
    }
    std::thread::sleep(std::time::Duration::from_secs(3));
    show(&mut app, 3);
    assert!(app.state.doc.is_some(), "it opened");
    if let (Some(before), Some(after), Some(most)) = (before, memory("VmRSS"), memory("VmHWM")) {
        println!("{} {}", after - before, most - before);
    }
}

/// Prints what memory a record takes that is open.
fn held(compressed: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bench.servetwin");
    std::fs::write(&file, compressed).expect("written");
    let this = std::env::current_exe().expect("the system knows");
    let done = std::process::Command::new(this)
        .arg("--open")
        .arg(&file)
        .output();
    let done = done.expect("it starts");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let text = String::from_utf8_lossy(&done.stdout);
    let numbers: Vec<f64> = text
        .split_whitespace()
        .filter_map(|n| n.parse().ok())
        .collect();
    let [after, most] = numbers[..] else {
        println!("memory: this system does not tell");
        return;
    };
    println!(
        "memory for it: {after:.0} MB, {:.2} times its file; while opening {most:.0} MB",
        after / (compressed.len() as f64 / 1e6)
    );
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let Some(at) = args.iter().position(|a| a == "--open") {
        return opened(&args[at + 1]);
    }
    // `cargo test` runs benches too, to see that they run.
    let timed = std::env::args().any(|a| a == "--bench");
    let mut file = Cursor::new(Vec::new());
    store::write(&mut file, &record()).expect("memory does not run full");
    let bytes = file.into_inner();
    if timed {
        held(&bytes);
    }
    println!(
        "record of {REQUESTS} requests and {STEPS} steps: {:.1} MB",
        bytes.len() as f64 / 1e6
    );

    let start = Instant::now();
    let read = store::read_slice(&bytes).expect("it was written");
    let decoded = start.elapsed();
    let data = RunData::new(read);
    println!(
        "opened in {:.3} s, {:.3} s of them reading",
        start.elapsed().as_secs_f64(),
        decoded.as_secs_f64()
    );

    let mut app = App::default();
    app.show(Doc {
        title: "bench".to_owned(),
        data: std::sync::Arc::new(data),
        source: Source {
            origin: "bench".to_owned(),
            text: String::new(),
            files: std::sync::Arc::new(hwmodels::files::Bundle::default()),
            overrides: Vec::new(),
        },
    });
    let ctx = egui::Context::default();
    let mut times: Vec<f64> = Vec::new();
    let frames = if timed { FRAMES } else { 3 };
    for i in 0..frames {
        // In, along, and out again.
        app.state.ask(match i % 60 {
            0 => Action::ShowAll,
            1..=25 => Action::Zoom(1.3),
            26..=40 => Action::Pan(0.15),
            _ => Action::Zoom(0.8),
        });
        let start = Instant::now();
        let mut output = frame(&ctx, &mut app, i as f64 / 60.0);
        output.textures_delta.clear();
        let shapes = ctx.tessellate(output.shapes, output.pixels_per_point);
        // The first frames make fonts.
        if i >= 5 || !timed {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        std::hint::black_box(shapes);
    }
    times.sort_by(f64::total_cmp);
    let at = |p: f64| times[((times.len() - 1) as f64 * p) as usize];
    println!(
        "frame, layout and tessellation: p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
    let answers = slider(if timed { 40 } else { 1 });
    println!(
        "slider over 2000 requests: p50 {:.1} ms, max {:.1} ms",
        answers[answers.len() / 2],
        answers[answers.len() - 1]
    );
}
