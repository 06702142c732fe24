//! The application as a page: what `web/index.html` and `web/worker.js` call.

use viewer::state::{Action, PaneKind};
use viewer::{App, gallery, page};
use wasm_bindgen::JsCast as _;
use wasm_bindgen::prelude::*;

/// The application, with what the browser is told of it.
struct Page {
    app: App,
    title: String,
    painted: bool,
    answered_s: Option<f64>,
}

impl eframe::App for Page {
    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        self.app.ui(ui);
        if !self.painted {
            page::mark("servetwin: first frame");
            self.painted = true;
            // What is not seen comes after what is.
            viewer::jobs::page::prepare();
            self.app.thumbnails = true;
        }
        if self.answered_s != self.app.state.answered_s {
            self.answered_s = self.app.state.answered_s;
            page::mark("servetwin: what-if answered");
        }
        let title = match &self.app.state.doc {
            Some(doc) => format!("{} - servetwin", doc.title),
            None => "servetwin viewer".to_owned(),
        };
        if title != self.title {
            page::set_title(&title);
            page::mark(&format!("servetwin: shows {title}"));
            self.title = title;
        }
    }
}

/// Shows the application on the canvas of this id. The page's address may say what to open: `?file=run.servetwin` from where the page
/// comes from, or `?scenario=NAME` of the shipped ones; `?twin=ADDRESS` connects to a twin; `&pane=NAME` brings a pane to the front, `&light` makes it light.
///
/// The promise is kept when it is shown, and broken where there is no such canvas, or no WebGL.
#[wasm_bindgen]
pub fn start(canvas: String) -> js_sys::Promise {
    js_sys::futures::future_to_promise(async move {
        shown(&canvas).await?;
        Ok(JsValue::UNDEFINED)
    })
}

/// Makes the canvas's context, of which there is one, without multisampling: edges are smoothed by the triangles themselves, and several
/// samples of each pixel cost a browser without a GPU most of its time.
fn plain_edges(canvas: &web_sys::HtmlCanvasElement) -> Result<(), JsValue> {
    let options = js_sys::Object::new();
    js_sys::Reflect::set(&options, &"antialias".into(), &false.into())?;
    for kind in ["webgl2", "webgl"] {
        if canvas
            .get_context_with_context_options(kind, &options)?
            .is_some()
        {
            break;
        }
    }
    Ok(())
}

async fn shown(canvas: &str) -> Result<(), JsValue> {
    let document = web_sys::window().and_then(|w| w.document());
    let canvas = document
        .and_then(|d| d.get_element_by_id(canvas))
        .ok_or("the page has no such canvas")?
        .dyn_into::<web_sys::HtmlCanvasElement>()?;
    plain_edges(&canvas)?;
    let create: eframe::AppCreator<'static> = Box::new(|cc| {
        let mut app = App::default();
        app.set_dark(page::parameter("light").is_none());
        if let Some(address) = page::parameter("file") {
            page::fetch(&cc.egui_ctx, &app.inbox(), address);
        }
        if let Some(name) = page::parameter("scenario") {
            let found = gallery::SHIPPED.iter().position(|(n, _)| *n == name);
            app.state.ask(match found {
                Some(i) => Action::RunShipped(i),
                None => Action::Say(format!("there is no shipped scenario `{name}`")),
            });
        }
        if let Some(address) = page::parameter("twin") {
            app.state.live_address.clone_from(&address);
            app.state.ask(Action::Connect(address));
        }
        if let Some(kind) = page::parameter("pane").and_then(|name| PaneKind::named(&name)) {
            app.show_pane(kind);
        }
        Ok(Box::new(Page {
            app,
            title: String::new(),
            painted: false,
            answered_s: None,
        }))
    });
    let options = eframe::WebOptions {
        // Nothing is painted with gradients that noise would smooth.
        dithering: false,
        ..eframe::WebOptions::default()
    };
    eframe::WebRunner::new()
        .start(canvas, options, create)
        .await
}

/// In a worker: does a task.
#[wasm_bindgen]
pub fn work(order: &str) -> Vec<u8> {
    viewer::jobs::page::worked(order)
}
