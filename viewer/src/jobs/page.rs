//! Work of a page: runs go to a web worker, which holds the same program, so that the page never freezes. What comes back is a record
//! as bytes.
//!
//! A worker that is done waits for the next task. One that is to stop is ended, and another starts in its place.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use sim::report::RunReport;
use wasm_bindgen::JsCast as _;
use wasm_bindgen::prelude::{Closure, JsValue};

use super::open::{Opened, opened};
use super::work::work;
use super::{Doc, Done, KneePoint, Outcome, Signals, Task, put};
use crate::gallery;
use crate::source::Source;

/// The script of a worker, beside the page.
const SCRIPT: &str = "worker.js";

/// What is sent to a worker.
#[derive(Serialize, Deserialize)]
struct Order {
    origin: String,
    text: String,
    overrides: Vec<String>,
    what: What,
}

/// What is wanted of a scenario.
#[derive(Serialize, Deserialize)]
enum What {
    /// Its record.
    Record,
    /// A sweep of these rates.
    Knee(Vec<(String, f64)>),
    /// A trace.
    Perfetto,
}

/// What is sent back, before a byte that says which it is.
const RECORD: u8 = b'R';
const KNEE: u8 = b'K';
const TRACE: u8 = b'T';
const FAILED: u8 = b'F';

thread_local! {
    /// A worker that waits for a task.
    static IDLE: RefCell<Option<web_sys::Worker>> = const { RefCell::new(None) };
}

/// Starts a worker, so that the first task finds one.
pub fn prepare() {
    let idle = IDLE.take().or_else(|| spawn().ok());
    IDLE.set(idle);
}

fn spawn() -> Result<web_sys::Worker, JsValue> {
    let options = web_sys::WorkerOptions::new();
    options.set_type(web_sys::WorkerType::Module);
    let worker = web_sys::Worker::new_with_options(SCRIPT, &options)?;
    // The program is compiled once; workers get it as it is.
    worker.post_message(&wasm_bindgen::module())?;
    Ok(worker)
}

/// A task in a worker.
pub struct Running {
    worker: web_sys::Worker,
    done: Rc<Cell<bool>>,
    _answer: Closure<dyn FnMut(web_sys::MessageEvent)>,
    _error: Closure<dyn FnMut(web_sys::ErrorEvent)>,
}

impl Running {
    /// Ends it.
    pub fn stop(&self) {
        self.worker.set_onmessage(None);
        self.worker.set_onerror(None);
        self.worker.terminate();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.done.get() {
            self.worker.set_onmessage(None);
            self.worker.set_onerror(None);
            IDLE.set(Some(self.worker.clone()));
        } else {
            self.stop();
            prepare();
        }
    }
}

/// Does what is quick at once; gives runs to a worker.
pub(super) fn start(
    task: Task,
    signals: &Signals,
    outcome: &Outcome,
    wake: impl Fn() + 'static,
) -> Option<Running> {
    let task = match task {
        Task::Bytes(name, bytes) => match opened(&name, bytes) {
            Ok(Opened::Scenario(source)) => Task::Run(source),
            Ok(Opened::Other(done)) => {
                put(outcome, done);
                return None;
            }
            Err(e) => {
                put(outcome, Done::Failed(e));
                return None;
            }
        },
        other => other,
    };
    let (source, what) = match task {
        Task::Run(source) => (source, What::Record),
        Task::Knee { source, keys } => (source, What::Knee(keys)),
        Task::Perfetto(source) => (source, What::Perfetto),
        other => {
            put(outcome, work(other, signals));
            return None;
        }
    };
    match send(source, what, signals, outcome, Rc::new(wake)) {
        Ok(running) => Some(running),
        Err(e) => {
            let why = format!("the browser starts no web worker, in which scenarios run: {e:?}");
            put(outcome, Done::Failed(why));
            None
        }
    }
}

fn send(
    source: Source,
    what: What,
    signals: &Signals,
    outcome: &Outcome,
    wake: Rc<dyn Fn()>,
) -> Result<Running, JsValue> {
    let order = Order {
        origin: source.origin.clone(),
        text: source.text.clone(),
        overrides: source.overrides.clone(),
        what,
    };
    let order = serde_json::to_string(&order).map_err(|e| JsValue::from_str(&e.to_string()))?;
    let worker = match IDLE.take() {
        Some(worker) => worker,
        None => spawn()?,
    };
    let done = Rc::new(Cell::new(false));
    let answer = {
        let (done, wake) = (done.clone(), wake.clone());
        let (signals, outcome) = (signals.clone(), outcome.clone());
        Closure::new(move |event: web_sys::MessageEvent| {
            let data = event.data();
            if let Some(bytes) = data.dyn_ref::<js_sys::Uint8Array>() {
                done.set(true);
                put(&outcome, decode(bytes.to_vec(), source.clone()));
                wake();
            } else if let Some(far) = data.dyn_ref::<js_sys::Float64Array>() {
                signals
                    .ended
                    .store(far.get_index(0) as u64, Ordering::Relaxed);
                signals
                    .total
                    .store(far.get_index(1) as u64, Ordering::Relaxed);
                // It is seen in the next frame; none is painted for it.
            }
        })
    };
    let error = {
        let outcome = outcome.clone();
        Closure::new(move |event: web_sys::ErrorEvent| {
            let why = format!("the run broke off: {}", event.message());
            put(&outcome, Done::Failed(why));
            wake();
        })
    };
    worker.set_onmessage(Some(answer.as_ref().unchecked_ref()));
    worker.set_onerror(Some(error.as_ref().unchecked_ref()));
    worker.post_message(&JsValue::from_str(&order))?;
    Ok(Running {
        worker,
        done,
        _answer: answer,
        _error: error,
    })
}

fn decode(mut bytes: Vec<u8>, source: Source) -> Done {
    let Some(kind) = bytes.pop() else {
        return Done::Failed("the run gave nothing".to_owned());
    };
    match kind {
        RECORD => match store::from_bytes(&bytes) {
            Ok(record) => Done::Doc(Box::new(Doc::of(record, source))),
            Err(e) => Done::Failed(e.to_string()),
        },
        KNEE => match serde_json::from_slice::<Vec<(f64, RunReport)>>(&bytes) {
            Ok(points) => {
                let point = |(factor, report)| KneePoint { factor, report };
                Done::Knee(points.into_iter().map(point).collect())
            }
            Err(e) => Done::Failed(e.to_string()),
        },
        TRACE => match serde_json::from_slice::<(String, Vec<u8>)>(&bytes) {
            Ok((name, bytes)) => Done::File(name, bytes),
            Err(e) => Done::Failed(e.to_string()),
        },
        _ => Done::Failed(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// In a worker: does what `order` says; the answer is what the page decodes.
pub fn worked(order: &str) -> Vec<u8> {
    match answer(order) {
        Ok(bytes) => bytes,
        Err(why) => [why.as_bytes(), &[FAILED]].concat(),
    }
}

fn answer(order: &str) -> Result<Vec<u8>, String> {
    let order: Order = serde_json::from_str(order).map_err(|e| e.to_string())?;
    let signals = Signals {
        tell: Some(tell),
        ..Signals::default()
    };
    let source = Source {
        origin: order.origin,
        text: order.text,
        files: gallery::bundle(),
        overrides: order.overrides,
    };
    let words = |done| match done {
        Done::Failed(why) => why,
        _ => "cancelled".to_owned(),
    };
    let keys = match order.what {
        What::Record => {
            let record = super::work::record(&source, &signals).map_err(words)?;
            let mut bytes = store::to_bytes(&record).map_err(|e| e.to_string())?;
            bytes.push(RECORD);
            return Ok(bytes);
        }
        What::Perfetto => {
            let file = super::work::perfetto(&source, &signals).map_err(words)?;
            let mut bytes = serde_json::to_vec(&file).map_err(|e| e.to_string())?;
            bytes.push(TRACE);
            return Ok(bytes);
        }
        What::Knee(keys) => keys,
    };
    match work(Task::Knee { source, keys }, &signals) {
        Done::Knee(points) => {
            let pairs: Vec<(f64, RunReport)> =
                points.into_iter().map(|p| (p.factor, p.report)).collect();
            let mut bytes = serde_json::to_vec(&pairs).map_err(|e| e.to_string())?;
            bytes.push(KNEE);
            Ok(bytes)
        }
        other => Err(words(other)),
    }
}

/// Tells the page how far the run is.
fn tell(ended: u64, total: u64) {
    let scope = js_sys::global().unchecked_into::<web_sys::DedicatedWorkerGlobalScope>();
    let far = js_sys::Float64Array::new_with_length(2);
    far.set_index(0, ended as f64);
    far.set_index(1, total as f64);
    // Nobody to tell is no reason to stop.
    let _ = scope.post_message(&far);
}
