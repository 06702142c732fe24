//! The application as its users drive it: clicks by accessible name, keys, and what is then shown. No window, no renderer.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use egui::{Key, Modifiers};
use egui_kittest::Harness;
use egui_kittest::kittest::Queryable as _;
use viewer::App;
use viewer::state::{Action, PaneKind};

const SCENARIO: &str = r#"
name = "two replicas"
description = "A small run for tests."
[layout]
replicas = 2
[engine]
kind = "vllm_v1"
kv_blocks = 400
max_num_seqs = 8
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

/// A file that is dropped on the window.
#[derive(Debug)]
struct Dropped(PathBuf);

impl egui::DroppedFile for Dropped {
    fn path(&self) -> &Path {
        &self.0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.0).map_err(|e| e.to_string())
    }
}

struct Driver {
    harness: Harness<'static, App>,
    dir: tempfile::TempDir,
}

impl Driver {
    fn start() -> Driver {
        let dir = tempfile::tempdir().unwrap();
        let app = App::new(dir.path().to_owned());
        let harness = Harness::builder()
            .with_size(egui::vec2(1280.0, 720.0))
            .with_max_steps(12)
            .build_ui_state(|ui, app: &mut App| app.ui(ui), app);
        Driver { harness, dir }
    }

    /// With the small scenario run and shown.
    fn with_run() -> Driver {
        let mut driver = Driver::start();
        let file = driver.file("two.toml", SCENARIO);
        driver.ask(Action::Open(file.display().to_string()));
        driver.wait();
        assert!(driver.app().state.doc.is_some());
        driver
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn app(&self) -> &App {
        self.harness.state()
    }

    fn ask(&mut self, action: Action) {
        self.harness.state_mut().state.ask(action);
        self.steps();
    }

    fn steps(&mut self) {
        self.harness.run_steps(4);
    }

    /// Until nothing is under way.
    fn wait(&mut self) {
        let start = Instant::now();
        self.steps();
        while self.app().busy() {
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "it does not end"
            );
            std::thread::sleep(Duration::from_millis(10));
            self.harness.step();
        }
        self.steps();
    }

    fn click(&mut self, name: &str) {
        let node = self.harness.get_by_label(name);
        // What is scrolled out of sight is reached as a screen reader does.
        let screen = egui::Rect::from_min_size(egui::Pos2::ZERO, egui::vec2(1280.0, 720.0));
        if screen.shrink(30.0).contains(node.rect().center()) {
            node.click();
        } else {
            node.click_accesskit();
        }
        self.steps();
    }

    #[track_caller]
    fn shows(&self, text: &str) {
        let found = self.harness.query_all_by_label_contains(text).next();
        assert!(found.is_some(), "`{text}` is not shown");
    }

    fn key(&mut self, key: Key) {
        self.harness.key_press(key);
        self.steps();
    }

    fn written(&self, end: &str) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut paths = entries.map(|e| e.unwrap().path());
        paths.find(|p: &PathBuf| p.display().to_string().ends_with(end))
    }
}

#[test]
fn one_click_in_the_gallery_opens_a_picture() {
    let mut d = Driver::start();
    d.shows("See why a deployment behaves as it does");
    d.click("Run queue-m-d-1");
    d.wait();
    d.shows("requests finished");
    assert_eq!(d.app().state.doc.as_ref().unwrap().title, "queue-m-d-1");
    d.shows("Timeline lanes");
    d.click("Scenarios");
    d.shows("Start here");
    d.click("Back to the run");
    d.shows("Timeline lanes");
}

#[test]
fn keys_zoom_move_and_go_back() {
    let mut d = Driver::with_run();
    let all = d.app().state.time;
    d.key(Key::W);
    let zoomed = d.app().state.time;
    assert!(zoomed.width < all.width);
    d.key(Key::D);
    assert!(d.app().state.time.start > zoomed.start);
    d.harness.key_press_modifiers(Modifiers::COMMAND, Key::Z);
    d.steps();
    assert_eq!(d.app().state.time, zoomed);
    d.key(Key::F);
    assert!(d.app().state.time.is_all());
    d.click("Zoom in");
    assert!(!d.app().state.time.is_all());
    d.click("Show all");
    assert!(d.app().state.time.is_all());
}

#[test]
fn a_wheel_over_the_lanes_zooms_at_the_pointer_and_a_drag_moves() {
    let mut d = Driver::with_run();
    let rect = d.harness.get_by_label("Timeline lanes").rect();
    let at = egui::pos2(rect.center().x, rect.top() + 12.0);
    d.harness.hover_at(at);
    d.steps();
    let before = d.app().state.hover.expect("the pointer is over the lanes");
    let wheel = egui::Event::MouseWheel {
        unit: egui::MouseWheelUnit::Point,
        delta: egui::vec2(0.0, 200.0),
        phase: egui::TouchPhase::Move,
        source: egui::MouseWheelSource::Unknown,
        modifiers: Modifiers::NONE,
    };
    d.harness.event(wheel);
    d.harness.run_steps(20);
    let state = &d.app().state;
    assert!(!state.time.is_all());
    assert!((state.hover.unwrap() - before).abs() < 0.01 * state.time.end);
    let start = state.time.start;
    d.harness.drag_at(at);
    d.steps();
    d.harness.hover_at(at - egui::vec2(120.0, 0.0));
    d.steps();
    d.harness.drop_at(at - egui::vec2(120.0, 0.0));
    d.steps();
    assert!(d.app().state.time.start > start);
}

#[test]
fn the_slowest_request_tells_its_life_and_is_found_in_the_timeline() {
    let mut d = Driver::with_run();
    d.click("Slowest requests");
    let run = d.app().state.run().unwrap();
    let (id, _) = run.slowest(sim::metrics::Metric::Ttft, 0..u64::MAX, 1)[0];
    d.click(&format!("#{id}"));
    d.shows("It waited");
    d.shows("(TTFT)");
    d.shows("objective");
    d.click("Show in timeline");
    assert!(!d.app().state.time.is_all());
    d.key(Key::Period);
    assert_eq!(d.app().state.request, run.neighbour(id, true));
    d.key(Key::Escape);
    assert_eq!(d.app().state.request, None);
}

#[test]
fn a_slider_runs_the_scenario_again_and_shows_both_runs() {
    let mut d = Driver::with_run();
    d.ask(Action::Show(PaneKind::WhatIf));
    d.shows("Move a slider");
    let before = d.app().state.doc.clone().unwrap();
    // The keyboard moves a slider that has the focus.
    let slider = d
        .harness
        .get_by_role_and_label(egui::Role::Slider, "replicas");
    slider.focus();
    d.steps();
    d.key(Key::ArrowRight);
    d.wait();
    let state = &d.app().state;
    let after = state.doc.clone().unwrap();
    assert_eq!(after.data.replicas(), 3);
    assert_eq!(state.base.as_ref().unwrap().data.replicas(), 2);
    assert_eq!(before.data.replicas(), 2);
    let sent = |d: &viewer::jobs::Doc| {
        let mut all: Vec<u64> = d.data.record.requests.iter().map(|r| r.arrival.0).collect();
        all.sort_unstable();
        all
    };
    assert_eq!(sent(&before), sent(&after), "the same requests");
    d.shows("TTFT p99 [ms]");
    d.shows("better");
    d.click("Copy as command");
    let copied = d.app().copied.clone().unwrap();
    assert!(copied.contains("--set layout.replicas=3"), "{copied}");
    d.click("Save as scenario");
    let saved = d.written("what-if.toml").expect("it is written");
    let text = std::fs::read_to_string(saved).unwrap();
    assert!(text.contains("replicas = 3"), "{text}");
    d.click("Put back");
    assert!(d.app().state.base.is_none());
    assert_eq!(d.app().state.doc.as_ref().unwrap().data.replicas(), 2);
}

#[test]
fn a_record_is_saved_opened_and_compared() {
    let mut d = Driver::with_run();
    d.click("Save record");
    let record = d.written(".servetwin").expect("it is written");
    let faster = SCENARIO
        .replace("5 ms", "3 ms")
        .replace("two replicas", "faster");
    let faster = d.file("faster.toml", &faster);
    d.ask(Action::Open(faster.display().to_string()));
    d.wait();
    d.ask(Action::OpenCompare(record.display().to_string()));
    d.wait();
    d.ask(Action::Show(PaneKind::Compare));
    d.shows("before: two replicas   after: faster");
    d.shows("step.base");
    d.shows("TPOT mean [ms]");
    let charts = viewer::views::distributions::charts(
        &d.app().state.run().unwrap(),
        &[viewer::views::distributions::Named {
            run: &d.app().state.base.as_ref().unwrap().data,
            name: "other".to_owned(),
        }],
        false,
    );
    assert!(charts.iter().all(|c| c.lines.len() == 2));
}

#[test]
fn a_chart_is_exported_as_svg_and_csv() {
    let mut d = Driver::with_run();
    d.harness
        .get_by_label("Chart: Requests per second")
        .click_secondary();
    d.steps();
    d.click("Save as SVG");
    let svg = std::fs::read_to_string(d.written(".svg").unwrap()).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("Requests per second"));
    d.shows("written:");
    d.harness
        .get_by_label("Chart: Requests per second")
        .click_secondary();
    d.steps();
    d.click("Save as CSV");
    let csv = std::fs::read_to_string(d.written(".csv").unwrap()).unwrap();
    assert!(csv.starts_with("line,") && csv.lines().count() > 20);
}

#[test]
fn a_chart_is_exported_as_a_picture_and_the_run_as_a_trace() {
    let mut d = Driver::with_run();
    d.harness
        .get_by_label("Chart: Requests in engines")
        .click_secondary();
    d.steps();
    d.click("Save as PNG");
    let bytes = std::fs::read(d.written(".png").unwrap()).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
        .read_info()
        .unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (1440, 720));
    // The line of those that run is sky blue.
    let sky = pixels
        .as_chunks::<3>()
        .0
        .iter()
        .filter(|p| **p == [86, 180, 233])
        .count();
    assert!(sky > 500, "{sky}");
    d.click("Perfetto trace");
    d.wait();
    let trace = d
        .written("two-replicas.trace.json.gz")
        .expect("it is written");
    let start = std::fs::read(trace).unwrap();
    assert_eq!(start[..2], [0x1f, 0x8b], "gzip");
    assert!(start.len() > 5_000, "{}", start.len());
    d.click("HTML report");
    let copied = d.app().copied.clone().unwrap();
    assert!(copied.contains("two.toml --record"), "{copied}");
    assert!(copied.ends_with("--html report.html"), "{copied}");
}

#[test]
fn several_files_that_are_dropped_are_held_against_each_other() {
    let mut d = Driver::start();
    let variant =
        |name: &str, base: &str| SCENARIO.replace("two replicas", name).replace("5 ms", base);
    let files: Vec<_> = [("first", "5 ms"), ("second", "4 ms"), ("third", "3 ms")]
        .map(|(name, base)| d.file(&format!("{name}.toml"), &variant(name, base)))
        .into_iter()
        .map(|path| std::sync::Arc::new(Dropped(path)) as egui::DroppedFileHandle)
        .collect();
    d.harness.input_mut().dropped_files = files;
    d.harness.step();
    d.wait();
    let state = &d.app().state;
    assert_eq!(state.doc.as_ref().unwrap().title, "first");
    let others: Vec<String> = state.others().iter().map(|o| o.title.clone()).collect();
    assert_eq!(others, ["second", "third"]);
    d.ask(Action::Show(PaneKind::Compare));
    d.shows("first (shown)");
    d.shows("better");
    d.ask(Action::Show(PaneKind::Distributions));
    d.shows("Chart: TTFT");
    // One of them less, and then none.
    d.ask(Action::Show(PaneKind::Compare));
    d.click("second (2)");
    d.shows("before: third   after: first");
    d.click("Drop comparison");
    assert!(d.app().state.others().is_empty());
}

#[test]
fn a_variation_is_taken_back_and_what_it_was_held_against_stays() {
    let mut d = Driver::with_run();
    let faster = SCENARIO
        .replace("5 ms", "3 ms")
        .replace("two replicas", "faster");
    let faster = d.file("faster.toml", &faster);
    d.ask(Action::OpenCompare(faster.display().to_string()));
    d.wait();
    d.ask(Action::Show(PaneKind::WhatIf));
    let replicas = |d: &Driver| d.app().state.run().unwrap().replicas();
    d.ask(Action::WhatIf(vec!["layout.replicas=3".to_owned()]));
    d.wait();
    assert_eq!(replicas(&d), 3);
    let titles = |d: &Driver| -> Vec<String> {
        d.app()
            .state
            .others()
            .iter()
            .map(|o| o.title.clone())
            .collect()
    };
    assert_eq!(titles(&d), ["two replicas", "faster"]);
    // A second one a while later is a change of its own.
    d.harness.run_steps(80);
    d.ask(Action::WhatIf(vec!["layout.replicas=5".to_owned()]));
    d.wait();
    assert_eq!(replicas(&d), 5);
    for n in [3, 2] {
        d.harness.key_press_modifiers(Modifiers::COMMAND, Key::Z);
        d.wait();
        assert_eq!(replicas(&d), n);
    }
    assert_eq!(titles(&d), ["faster"]);
}

#[test]
fn a_long_variation_dims_what_is_of_before() {
    let mut d = Driver::with_run();
    d.ask(Action::WhatIf(vec!["run.requests=2000000".to_owned()]));
    assert!(d.app().busy() && d.app().state.stale);
    d.harness.run_steps(30);
    assert!(d.app().state.dim, "it is not there after half a second");
    d.shows("Cancel");
    d.click("Cancel");
    assert!(!d.app().state.dim && !d.app().busy());
    assert_eq!(d.app().state.run().unwrap().record.info.requests, 300);
}

#[test]
fn a_requests_life_names_its_chunks_and_the_cause_of_each_gap() {
    let mut d = Driver::with_run();
    d.ask(Action::Select(Some(17)));
    d.shows("Its prompt was prefilled in");
    d.shows("Each step of its replica gave it a token");
    d.shows("Chart: Gap before each token");
    d.shows("longest gaps");
}

#[test]
fn prefill_and_decode_apart_have_pools_and_a_transfer() {
    let mut d = Driver::start();
    let all = viewer::gallery::SHIPPED.iter();
    let name = "llama3.1-70b-p5.48xlarge-vllm-disaggregated";
    let i = all.clone().position(|(n, _)| *n == name).unwrap();
    d.ask(Action::RunShipped(i));
    d.wait();
    let run = d.app().state.run().unwrap();
    assert!(!run.record.transfers.is_empty());
    let pools = viewer::views::pool_lanes::pools(&run);
    assert_eq!(pools.len(), 2);
    let label = format!("- pool {} ({})", pools[0].name, pools[0].replicas.len());
    let first = run.record.info.replicas[pools[0].replicas[0]].name.clone();
    d.shows(&format!("+ {first}"));
    d.click(&label);
    let lane = format!("+ {first}");
    assert!(
        d.harness.query_by_label_contains(&lane).is_none(),
        "it is hidden"
    );
    d.ask(Action::Select(Some(run.record.transfers.row(5).request)));
    d.shows("The KV of");
    d.shows("of which it waited");
    d.shows("Each step of its replica gave it a token");
    // Its lane is opened, so that it is seen.
    let r = run.request(run.record.transfers.row(5).request).unwrap();
    d.shows(&format!(
        "- {}",
        run.record.info.replicas[r.replica as usize].name
    ));
    let exact = |t: &store::Transfer| {
        let r = run.request(t.request).unwrap();
        r.preemptions > 0 || viewer::life::of(&run, &r).unwrap().is_exact()
    };
    let n = run.record.transfers.iter().filter(exact).count();
    assert!(n * 10 > run.record.transfers.len() * 9, "{n}");
}

#[test]
fn a_pipeline_has_a_lane_per_stage() {
    let text = SCENARIO.replace("replicas = 2", "replicas = 1\npp = 2");
    let mut d = Driver::start();
    let file = d.file("pp.toml", &text);
    d.ask(Action::Open(file.display().to_string()));
    d.wait();
    let run = d.app().state.run().unwrap();
    assert_eq!(run.record.info.replicas[0].stages, 2);
    let lanes = d.harness.get_by_label("Timeline lanes").rect();
    // Below the replica's own lane: the second of two stages.
    d.harness
        .hover_at(egui::pos2(lanes.center().x, lanes.top() + 32.0));
    d.harness.run_steps(10);
    d.shows("per step:");
}

#[test]
fn files_that_cannot_be_opened_are_told_and_the_run_stays() {
    let mut d = Driver::with_run();
    for (name, text, said) in [
        ("cut.servetwin", "PK\u{3}\u{4} cut", "no record file"),
        ("bad.toml", "[engine", "bad.toml"),
        ("notes.txt", "hello", "is not, or was cut off from"),
    ] {
        let file = d.file(name, text);
        d.ask(Action::Open(file.display().to_string()));
        d.wait();
        d.shows(said);
        d.key(Key::Escape);
    }
    d.ask(Action::Open(
        Path::new("/no/such.toml").display().to_string(),
    ));
    d.wait();
    d.shows("cannot read /no/such.toml");
    assert!(d.app().state.doc.is_some());
}

#[test]
fn the_palette_finds_commands_by_their_letters() {
    let mut d = Driver::with_run();
    d.harness.key_press_modifiers(Modifiers::COMMAND, Key::P);
    d.steps();
    d.shows("Show Timeline");
    d.harness.event(egui::Event::Text("show all".to_owned()));
    d.key(Key::W);
    let zoomed = d.app().state.time;
    assert!(zoomed.is_all(), "keys belong to the palette");
    d.key(Key::Enter);
    assert!(d.harness.query_by_label("Show Timeline").is_none());
}

#[test]
fn every_pane_shows_something_in_both_themes_and_before_a_run() {
    let mut d = Driver::start();
    for kind in PaneKind::ALL {
        d.ask(Action::Show(kind));
    }
    let mut d = Driver::with_run();
    for dark in [true, false] {
        d.harness.state_mut().set_dark(dark);
        for (kind, text) in [
            (PaneKind::Summary, "What the time went to"),
            (PaneKind::Timeline, "Timeline lanes"),
            (PaneKind::Series, "Chart: KV cache use"),
            (PaneKind::Distributions, "Chart: TTFT"),
            (PaneKind::Requests, "Slowest requests by"),
            (PaneKind::WhatIf, "Copy as command"),
            (PaneKind::Compare, "Hold against"),
            (PaneKind::Knee, "Sweep the load"),
            (PaneKind::Roofline, "Chart: Steps"),
            (PaneKind::Cluster, "Play"),
            (PaneKind::Pareto, "Open the result of a plan"),
            (PaneKind::Live, "Connect to a twin"),
        ] {
            d.ask(Action::Show(kind));
            d.shows(text);
        }
    }
}

#[test]
fn the_knee_is_swept_and_playback_moves() {
    let mut d = Driver::with_run();
    d.ask(Action::Show(PaneKind::Knee));
    d.click("Sweep the load");
    d.wait();
    d.shows("Chart: TTFT against load");
    assert_eq!(d.app().state.knee.as_ref().unwrap().len(), 8);
    d.ask(Action::Show(PaneKind::Cluster));
    d.click("Play");
    d.harness.run_steps(10);
    assert!(d.app().state.playhead > 0.0);
    d.click("Pause");
    let at = d.app().state.playhead;
    d.harness.run_steps(5);
    assert_eq!(d.app().state.playhead, at);
}

#[test]
fn the_tour_goes_from_pane_to_pane() {
    let mut d = Driver::with_run();
    d.key(Key::T);
    for _ in 0..viewer::overlay::TOUR.len() - 1 {
        d.click("Next stop");
    }
    d.shows("plays the run");
    d.click("Done");
    assert!(d.harness.query_by_label("Next stop").is_none());
    d.key(Key::F1);
    d.shows("All commands");
    d.click("Close");
}

#[test]
fn a_sweep_opens_as_candidates_and_a_click_runs_one() {
    let mut d = Driver::with_run();
    let csv = "point,seed,layout.replicas,ttft_ms.p99,throughput.output_tokens_per_s,fingerprint,error\n\
        0,1,1,900,300,a,\n1,1,3,40,700,b,\n2,1,9,60,690,c,\n";
    let file = d.file("results.csv", csv);
    d.ask(Action::Open(file.display().to_string()));
    d.wait();
    d.shows("layout.replicas=9");
    let all = d.app().state.candidates.clone().unwrap();
    assert_eq!(viewer::candidates::front(&all, all.axes.0, all.axes.1), [1]);
    d.click("layout.replicas=3");
    d.wait();
    assert_eq!(d.app().state.run().unwrap().replicas(), 3);
}

#[test]
fn a_candidate_without_a_scenario_asks_for_it() {
    let mut d = Driver::start();
    let csv = "point,seed,layout.replicas,ttft_ms.p99,fingerprint,error\n0,1,2,900,a,\n";
    let file = d.file("results.csv", csv);
    d.ask(Action::Open(file.display().to_string()));
    d.wait();
    d.click("layout.replicas=2");
    d.shows("name the scenario of the plan or sweep");
    let scenario = d.file("two.toml", SCENARIO);
    d.harness.state_mut().state.candidate_base = scenario.display().to_string();
    d.click("layout.replicas=2");
    d.wait();
    assert_eq!(d.app().state.run().unwrap().replicas(), 2);
}

#[test]
fn a_measured_benchmark_is_opened_and_held_against_a_prediction() {
    let mut d = Driver::with_run();
    let run = d.app().state.run().unwrap();
    let folder = d.dir.path().join("bench");
    std::fs::create_dir(&folder).unwrap();
    let mut table = Vec::new();
    let rows: Vec<_> = run.record.requests.iter().collect();
    sim::report::csv::write_requests(&mut table, &rows).unwrap();
    std::fs::write(folder.join("requests.csv"), table).unwrap();
    let summary = serde_json::json!({"bench_contract": 1, "run": run.record.report, "client": {}});
    std::fs::write(folder.join("summary.json"), summary.to_string()).unwrap();
    d.ask(Action::OpenCompare(folder.display().to_string()));
    d.wait();
    let base = d.app().state.base.clone().expect("it is compared");
    assert_eq!(base.data.record.requests.len(), 300);
    assert!(base.data.record.steps.iter().all(|l| l.rows().is_empty()));
    d.ask(Action::Show(PaneKind::Compare));
    d.shows("TTFT p99 [ms]");
    // Alone it has requests, and no steps.
    d.ask(Action::Open(
        folder.join("requests.csv").display().to_string(),
    ));
    d.wait();
    d.shows("Timeline lanes");
    d.ask(Action::Show(PaneKind::Summary));
    d.click("Slowest requests");
    d.shows("#");
    std::fs::write(folder.join("summary.json"), "{").unwrap();
    d.ask(Action::Open(folder.display().to_string()));
    d.wait();
    d.shows("summary.json");
}

#[test]
fn a_cluster_has_rows_of_nodes_pods_and_decisions() {
    let mut d = Driver::start();
    d.click("Run cluster-gke-t4-from-zero");
    d.wait();
    let run = d.app().state.run().unwrap();
    let cluster = run.record.cluster.as_ref().expect("it has one");
    assert!(!cluster.nodes.is_empty() && !cluster.pods.is_empty());
    assert!(!cluster.decisions.is_empty() && cluster.samples.len() > 10);
    let nodes = format!("nodes ({})", cluster.nodes.len());
    d.shows(&nodes);
    let lanes = d.harness.get_by_label("Timeline lanes").rect();
    // The first row is that of the decisions: the pointer on a mark tells its reason.
    let mut changes = cluster.decisions.iter().filter(|d| d.from != d.to);
    let decision = changes.next_back().expect("it grows").clone();
    let share = decision.at as f32 / run.end() as f32;
    let x = lanes.left() + 150.0 + share * (lanes.width() - 150.0);
    d.harness.hover_at(egui::pos2(x, lanes.top() + 8.0));
    d.harness.run_steps(10);
    d.shows(&format!("{} at ", decision.controller));
    d.ask(Action::Show(PaneKind::Series));
    d.shows("Chart: Replicas");
    d.shows("Chart: Nodes");
    d.click(&nodes);
    d.shows("Timeline lanes");
}

#[test]
fn the_lines_of_a_twin_show_where_drift_began() {
    let mut d = Driver::start();
    let line = |t: u32, drift: bool| {
        format!(
            r#"{{"endpoint":"http://h:1","comparison":{{"at_unix_s":{t},"compared":25,"figures":[{{"name":"ttft_p50","unit":"ms","measured":50,"predicted":40}}]}},"verdicts":[{{"figure":"ttft_p50","usual_ratio":0,"limit_ratio":0.1,"drift":{drift}}}]}}"#
        )
    };
    let text = format!("{}\n{}\n", line(1000, false), line(1030, true));
    let file = d.file("twin.jsonl", &text);
    d.ask(Action::Open(file.display().to_string()));
    d.wait();
    d.shows("DRIFT in TTFT p50");
    d.shows("Chart: TTFT p50");
    d.click("Disconnect");
    d.shows("Connect to a twin");
    d.ask(Action::Connect("127.0.0.1:1".to_owned()));
    let start = Instant::now();
    while d
        .harness
        .query_by_label_contains("nothing answers at")
        .is_none()
    {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
        d.harness.step();
    }
}

#[test]
fn what_was_opened_is_on_the_first_screen_the_next_time() {
    let mut d = Driver::start();
    let kept = d.dir.path().join("state/recent");
    d.harness.state_mut().keep_recent(kept.clone());
    let file = d.file("two.toml", SCENARIO);
    d.ask(Action::Open(file.display().to_string()));
    d.wait();
    let mut again = Driver::start();
    again.harness.state_mut().keep_recent(kept);
    again.steps();
    again.click(&file.display().to_string());
    again.wait();
    assert_eq!(again.app().state.run().unwrap().replicas(), 2);
}

#[test]
fn the_first_screen_makes_pictures_of_the_scenarios() {
    let mut d = Driver::start();
    d.harness.state_mut().thumbnails = true;
    let start = Instant::now();
    while d.app().thumbs() < 3 {
        assert!(start.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
        d.harness.step();
        assert!(!d.app().busy(), "nobody waits for pictures");
    }
}
