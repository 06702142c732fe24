//! Pictures of every view of a record, without a window: `cargo run -p viewer --no-default-features --example pictures -- run.servetwin docs/img`

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use egui::vec2;
use sim::metrics::Metric;
use viewer::App;
use viewer::picture::Painter;
use viewer::state::{Action, PaneKind};

fn main() -> ExitCode {
    let args: Vec<PathBuf> = std::env::args().skip(1).map(PathBuf::from).collect();
    let [record, dir] = args.as_slice() else {
        eprintln!("usage: pictures RECORD DIR");
        return ExitCode::from(2);
    };
    match pictures(record, dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn pictures(record: &Path, dir: &Path) -> Result<(), String> {
    let mut app = App::default();
    let mut painter = Painter::new(vec2(1280.0, 720.0), 1.0);
    let write = |painter: &mut Painter, app: &mut App, name: &str| {
        let picture = painter.picture(app, 8);
        let path = dir.join(format!("viewer-{name}.png"));
        let bytes = viewer::export::png_bytes(&picture).map_err(|e| e.to_string())?;
        std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{}", path.display());
        Ok::<(), String>(())
    };
    write(&mut painter, &mut app, "gallery")?;
    app.open(painter.ctx(), record);
    wait(&mut painter, &mut app);
    let run = app.state.run().ok_or("the record did not open")?;
    let slowest = run
        .slowest(Metric::Ttft, 0..u64::MAX, 1)
        .first()
        .map(|s| s.0);
    for (pane, name) in [
        (PaneKind::Timeline, "timeline"),
        (PaneKind::Distributions, "distributions"),
        (PaneKind::Roofline, "roofline"),
        (PaneKind::Cluster, "cluster"),
    ] {
        app.state.ask(Action::Show(pane));
        app.state.playhead = 0.4 * app.state.time.end;
        write(&mut painter, &mut app, name)?;
    }
    app.state.ask(Action::Show(PaneKind::Timeline));
    app.state.ask(Action::Select(slowest));
    app.state.ask(Action::Fit);
    write(&mut painter, &mut app, "request")?;
    app.state.ask(Action::ShowAll);
    app.state.ask(Action::Show(PaneKind::WhatIf));
    app.state.ask(Action::Show(PaneKind::Distributions));
    if let Some((key, rate)) = viewer::knobs::rates(&run.record.info.scenario).first() {
        app.state
            .ask(Action::WhatIf(vec![format!("{key}={} req/s", 1.3 * rate)]));
        wait(&mut painter, &mut app);
        write(&mut painter, &mut app, "what-if")?;
    }
    app.set_dark(false);
    app.state.ask(Action::Show(PaneKind::Compare));
    write(&mut painter, &mut app, "light")
}

/// Until nothing is under way.
fn wait(painter: &mut Painter, app: &mut App) {
    painter.picture(app, 2);
    while app.busy() {
        std::thread::sleep(Duration::from_millis(20));
        painter.picture(app, 1);
    }
}
