//! Pictures of every view of real runs, painted without a window: `viewer/screenshots.sh` makes what they show, and those of the book.
//!
//! `cargo run -p viewer --no-default-features --example pictures -- RECORD DIR [RESULT ...]`: a record, the folder for the pictures, and
//! results of plans, sweeps and twins. A scenario among them (`.toml`) is that of the plan that follows.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use egui::vec2;
use sim::metrics::Metric;
use viewer::App;
use viewer::picture::Painter;
use viewer::state::{Action, PaneKind};

/// The scenario whose cluster is shown.
const CLUSTER: &str = "cluster-flash-crowd";

/// The scenario whose pools are shown, each prefill with its transfer.
const POOLS: &str = "llama3.1-70b-p5.48xlarge-vllm-disaggregated";

/// Screens that are looked at besides, and not kept with the book: pixels, pixels per point, name.
const SCREENS: [(f32, f32, f32, &str); 2] = [
    (3840.0, 2160.0, 2.0, "4k"),
    (3840.0, 2160.0, 1.0, "4k-unscaled"),
];

fn main() -> ExitCode {
    let args: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let [record, dir, results @ ..] = args.as_slice() else {
        eprintln!("usage: pictures RECORD DIR [RESULT ...]");
        return ExitCode::from(2);
    };
    let mut book = Book {
        app: App::default(),
        painter: Painter::new(vec2(1280.0, 720.0), 1.0),
        dir: dir.clone(),
    };
    let made = book
        .run(record)
        .and_then(|()| book.pools())
        .and_then(|()| book.cluster())
        .and_then(|()| results.iter().try_for_each(|file| book.result(file)));
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

struct Book {
    app: App,
    painter: Painter,
    dir: PathBuf,
}

impl Book {
    fn write(&mut self, name: &str) -> Result<(), String> {
        let picture = self.painter.picture(&mut self.app, 8);
        let path = self.dir.join(format!("viewer-{name}.png"));
        let bytes = viewer::export::png_bytes(&picture).map_err(|e| e.to_string())?;
        std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{}", path.display());
        Ok(())
    }

    fn ask(&mut self, action: Action) {
        self.app.state.ask(action);
    }

    /// Until nothing is under way.
    fn wait(&mut self) {
        self.painter.picture(&mut self.app, 2);
        while self.app.busy() {
            std::thread::sleep(Duration::from_millis(20));
            self.painter.picture(&mut self.app, 1);
        }
    }

    /// The first screen, and every view of a record.
    fn run(&mut self, record: &Path) -> Result<(), String> {
        self.app.thumbnails = true;
        while self.app.thumbs() < viewer::gallery::SHIPPED.len() {
            self.painter.picture(&mut self.app, 1);
            std::thread::sleep(Duration::from_millis(2));
        }
        self.write("gallery")?;
        self.app.open(self.painter.ctx(), record);
        self.wait();
        let run = self.app.state.run().ok_or("the record did not open")?;
        let slowest = run.slowest(Metric::Ttft, 0..u64::MAX, 1);
        for (pane, name) in [
            (PaneKind::Timeline, "timeline"),
            (PaneKind::Distributions, "distributions"),
            (PaneKind::Roofline, "roofline"),
        ] {
            self.ask(Action::Show(pane));
            self.write(name)?;
        }
        self.ask(Action::Show(PaneKind::Timeline));
        self.ask(Action::Show(PaneKind::Series));
        self.ask(Action::Select(slowest.first().map(|s| s.0)));
        self.ask(Action::Fit);
        self.write("request")?;
        self.screens()?;
        self.ask(Action::ShowAll);
        self.ask(Action::Show(PaneKind::Knee));
        self.ask(Action::Sweep);
        self.wait();
        self.write("knee")?;
        self.ask(Action::Show(PaneKind::WhatIf));
        self.ask(Action::Show(PaneKind::Distributions));
        let rates = viewer::knobs::rates(&run.record.info.scenario);
        let (key, rate) = rates.first().ok_or("the record has no request rate")?;
        let set = format!("{key}={} req/s", 1.3 * rate);
        self.ask(Action::WhatIf(vec![set]));
        self.wait();
        self.write("what-if")?;
        self.app.set_dark(false);
        self.ask(Action::Show(PaneKind::Compare));
        self.write("light")?;
        self.app.set_dark(true);
        Ok(())
    }

    /// The same on other screens, where `SCREENS=DIR` asks for it.
    fn screens(&mut self) -> Result<(), String> {
        let Some(dir) = std::env::var_os("SCREENS") else {
            return Ok(());
        };
        let here = std::mem::replace(&mut self.dir, dir.into());
        for (width, height, scale, name) in SCREENS {
            let painter = Painter::new(vec2(width, height) / scale, scale);
            let small = std::mem::replace(&mut self.painter, painter);
            self.app.set_dark(true);
            let written = self.write(name);
            self.painter = small;
            self.app.set_dark(true);
            written?;
        }
        self.dir = here;
        Ok(())
    }

    fn shipped(&mut self, name: &str) -> Result<(), String> {
        let mut all = viewer::gallery::SHIPPED.iter();
        let i = all.position(|(n, _)| *n == name);
        self.ask(Action::RunShipped(
            i.ok_or(format!("{name} is not shipped"))?,
        ));
        self.wait();
        Ok(())
    }

    /// A run with pools for prefill and decode: a stretch of it, with a request whose KV went over.
    fn pools(&mut self) -> Result<(), String> {
        self.shipped(POOLS)?;
        let run = self.app.state.run().ok_or("it did not run")?;
        let moved = run.record.transfers.get(run.record.transfers.len() / 2);
        self.ask(Action::Show(PaneKind::Timeline));
        self.ask(Action::Show(PaneKind::Series));
        self.ask(Action::Select(moved.map(|t| t.request)));
        self.ask(Action::Fit);
        self.write("pools")
    }

    /// A run in a cluster: its rows, and its nodes at an instant.
    fn cluster(&mut self) -> Result<(), String> {
        self.shipped(CLUSTER)?;
        self.ask(Action::Show(PaneKind::Summary));
        self.ask(Action::Show(PaneKind::Series));
        self.ask(Action::Show(PaneKind::Timeline));
        self.write("cluster-timeline")?;
        self.ask(Action::Show(PaneKind::Cluster));
        self.painter.picture(&mut self.app, 2);
        self.app.state.playhead = 0.4 * self.app.state.time.end;
        self.write("cluster")
    }

    /// The result of a plan, a sweep or a twin.
    fn result(&mut self, file: &Path) -> Result<(), String> {
        self.ask(Action::Open(file.display().to_string()));
        self.wait();
        if file.extension().is_some_and(|e| e == "toml") {
            return Ok(());
        }
        let name = if file.extension().is_some_and(|e| e == "jsonl") {
            "live"
        } else {
            "pareto"
        };
        self.write(name)
    }
}
