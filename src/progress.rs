//! Progress of long work, on standard error: only on a terminal that can move its cursor, and not with `--quiet`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::message;

const TICK: Duration = Duration::from_millis(200);

/// A bar over `total` runs; silent where standard error is no terminal.
pub fn runs(total: u64, what: &str) -> ProgressBar {
    let bar = bar(Some(total), what);
    bar.enable_steady_tick(TICK);
    bar
}

/// A sign of life for work of unknown length; silent where standard error is no terminal.
pub fn spinner(what: &str) -> ProgressBar {
    let bar = bar(None, what);
    bar.enable_steady_tick(TICK);
    bar
}

/// Progress of one run, and the counter of ended requests that moves it.
pub fn requests(total: Option<u64>) -> (RunProgress, Arc<AtomicU64>) {
    let bar = bar(total, "requests");
    let ended = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let thread = (!bar.is_hidden()).then(|| {
        let (bar, ended, stop) = (bar.clone(), ended.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                bar.set_position(ended.load(Ordering::Relaxed));
                std::thread::park_timeout(TICK);
            }
        })
    });
    (RunProgress { bar, stop, thread }, ended)
}

/// Progress of a measured run: `look` gets the elapsed time [s] and says how many requests have ended and what to show.
pub fn live(
    total: Option<u64>,
    look: impl Fn(f64) -> (u64, String) + Send + 'static,
) -> RunProgress {
    let bar = bar(total, "");
    let stop = Arc::new(AtomicBool::new(false));
    let thread = (!bar.is_hidden()).then(|| {
        let (bar, stop) = (bar.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let (ended, text) = look(bar.elapsed().as_secs_f64());
                bar.set_position(ended);
                bar.set_message(text);
                std::thread::park_timeout(TICK);
            }
        })
    });
    RunProgress { bar, stop, thread }
}

/// See [`requests`].
pub struct RunProgress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RunProgress {
    /// Takes the bar away.
    pub fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            // The thread only draws; whatever became of it, the run is over.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

fn bar(total: Option<u64>, what: &str) -> ProgressBar {
    let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
    let target = if dumb || message::is_quiet() {
        ProgressDrawTarget::hidden()
    } else {
        // indicatif hides a bar by itself where standard error is not a terminal.
        ProgressDrawTarget::stderr()
    };
    let bar = ProgressBar::with_draw_target(total, target);
    let template = if total.is_some() {
        "{msg} [{bar:30}] {pos}/{len} {elapsed}"
    } else {
        "{msg} {pos} {elapsed}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what.to_string());
    bar
}
