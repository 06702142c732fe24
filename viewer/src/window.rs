//! The application in a window of its own.

use std::path::PathBuf;
use std::process::ExitCode;

use viewer::App;

const HELP: &str = "The servetwin viewer.

Usage: servetwin-viewer [OPTIONS] [FILE ...]

  FILE                 scenario, record, result of a plan or a sweep, or folder of bench --csv to open;
                       several: the first is shown, the others are held against it
  --twin ADDRESS       connect to the twin that serves its metrics there
  --light              light colours
  --pane NAME          bring this pane to the front, e.g. timeline, what-if
  --screenshot PNG     write a picture of the window when the file is open, and end
  --write-page DIR     write the files of the viewer as a page into DIR, for any web server, and end
  --help, --version

See docs/viewer.md.";

#[derive(Default)]
struct Args {
    files: Vec<String>,
    screenshot: Option<PathBuf>,
    write_page: Option<PathBuf>,
    pane: Option<viewer::state::PaneKind>,
    light: bool,
    twin: Option<String>,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
    let mut parsed = Args::default();
    let mut args = args;
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(None);
            }
            "--version" | "-V" => {
                println!("servetwin-viewer {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            "--light" => parsed.light = true,
            "--twin" => parsed.twin = Some(value()?),
            "--screenshot" => parsed.screenshot = Some(value()?.into()),
            "--write-page" => parsed.write_page = Some(value()?.into()),
            "--pane" => {
                let name = value()?;
                let found = viewer::state::PaneKind::named(&name);
                parsed.pane = Some(found.ok_or_else(|| format!("there is no pane `{name}`"))?);
            }
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            file => parsed.files.push(file.to_owned()),
        }
    }
    Ok(Some(parsed))
}

/// The application, and a picture of it when it has nothing more to do.
struct Window {
    app: App,
    screenshot: Option<PathBuf>,
    still: u32,
}

impl eframe::App for Window {
    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        self.app.ui(ui);
        let Some(path) = &self.screenshot else {
            return;
        };
        let ctx = ui.ctx();
        self.still = if self.app.busy() { 0 } else { self.still + 1 };
        match self.still {
            12 => viewer::export::png(ctx, path),
            n if n > 12 && path.exists() => ctx.send_viewport_cmd(egui::ViewportCommand::Close),
            _ => {}
        }
        ctx.request_repaint();
    }
}

/// Reads the command line, and shows the window until it is closed.
pub fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(Some(args)) => args,
        Ok(None) => return ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    if let Some(dir) = args.write_page {
        return match viewer::site::write(viewer::site::PAGE, &dir) {
            Ok(said) => {
                print!("{said}");
                ExitCode::SUCCESS
            }
            Err(e) => {
                eprintln!("error: {e}");
                ExitCode::FAILURE
            }
        };
    }
    let options = eframe::NativeOptions {
        viewport: egui::ViewportBuilder::default()
            .with_title("servetwin")
            .with_inner_size([1280.0, 800.0]),
        ..eframe::NativeOptions::default()
    };
    let result = eframe::run_native(
        "servetwin",
        options,
        Box::new(move |cc| {
            let mut app = App::default();
            app.set_dark(!args.light);
            app.thumbnails = true;
            if let Some(file) = viewer::recent::place(|name| std::env::var_os(name)) {
                app.keep_recent(file);
            }
            if let Some(address) = args.twin {
                app.state.live_address.clone_from(&address);
                app.state.ask(viewer::state::Action::Connect(address));
            }
            app.open_all(&cc.egui_ctx, args.files);
            if let Some(pane) = args.pane {
                app.show_pane(pane);
            }
            Ok(Box::new(Window {
                app,
                screenshot: args.screenshot,
                still: 0,
            }))
        }),
    );
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!(
                "error: no window can be opened: {e}\n\
                 The viewer needs a display (X11) and OpenGL; on a machine without one, open the record elsewhere, or print it: servetwin report FILE"
            );
            ExitCode::FAILURE
        }
    }
}
