//! What a page asks of its browser: files that were dropped, chosen or named in its address, and downloads.

use egui::{Context, DroppedFileHandle};
use js_sys::futures::{JsFuture, spawn_local};
use wasm_bindgen::JsCast as _;
use wasm_bindgen::prelude::{Closure, JsValue};

use crate::inbox::{Arrived, Inbox};

/// Reads a file that was dropped.
pub fn dropped(ctx: &Context, inbox: &Inbox, file: DroppedFileHandle) {
    let (ctx, inbox) = (ctx.clone(), inbox.clone());
    spawn_local(async move {
        let name = file.path().display().to_string();
        inbox.put(
            file.bytes_async()
                .await
                .map(|bytes| Arrived::Bytes(name, bytes)),
        );
        ctx.request_repaint();
    });
}

/// Lets the browser ask for files, and reads them.
///
/// # Errors
/// The page has no document.
pub fn pick(ctx: &Context, inbox: &Inbox) -> Result<(), JsValue> {
    let document = document()?;
    let input: web_sys::HtmlInputElement = document.create_element("input")?.unchecked_into();
    input.set_type("file");
    input.set_accept(".servetwin,.toml,.json,.jsonl,.csv");
    let (ctx, inbox, of) = (ctx.clone(), inbox.clone(), input.clone());
    let chosen = Closure::once_into_js(move || {
        let Some(file) = of.files().and_then(|list| list.get(0)) else {
            return;
        };
        spawn_local(async move {
            let name = file.name();
            let read = JsFuture::from(file.array_buffer()).await;
            inbox.put(match read {
                Ok(buffer) => {
                    let bytes = js_sys::Uint8Array::new(&buffer).to_vec();
                    Ok(Arrived::Bytes(name, bytes))
                }
                Err(e) => Err(format!("cannot read {name}: {e:?}")),
            });
            ctx.request_repaint();
        });
    });
    input.set_onchange(Some(chosen.unchecked_ref()));
    input.click();
    Ok(())
}

/// Gives the browser a file to keep.
///
/// # Errors
/// The browser refuses.
pub fn download(name: &str, bytes: &[u8]) -> Result<(), JsValue> {
    let part = js_sys::Array::of1(&js_sys::Uint8Array::from(bytes));
    let blob = web_sys::Blob::new_with_u8_array_sequence(&part)?;
    let url = web_sys::Url::create_object_url_with_blob(&blob)?;
    let link: web_sys::HtmlAnchorElement = document()?.create_element("a")?.unchecked_into();
    link.set_href(&url);
    link.set_download(name);
    link.click();
    web_sys::Url::revoke_object_url(&url)
}

/// Fetches a file from where the page comes from, and from nowhere else.
pub fn fetch(ctx: &Context, inbox: &Inbox, address: String) {
    let (ctx, inbox) = (ctx.clone(), inbox.clone());
    spawn_local(async move {
        let read = fetched(&address).await.map_err(|e| {
            let why = e.as_string().unwrap_or_else(|| format!("{e:?}"));
            format!("cannot open {address}: {why}")
        });
        inbox.put(read.map(|bytes| Arrived::Bytes(address, bytes)));
        ctx.request_repaint();
    });
}

async fn fetched(address: &str) -> Result<Vec<u8>, JsValue> {
    let window = web_sys::window().ok_or("there is no window")?;
    let url = web_sys::Url::new_with_base(address, &window.location().href()?)?;
    if url.origin() != window.location().origin()? {
        return Err("only files from where this page comes from are opened; drop the file on the page instead".into());
    }
    let response = JsFuture::from(window.fetch_with_str(&url.href())).await?;
    let response: web_sys::Response = response.dyn_into()?;
    if !response.ok() {
        return Err(format!("the server answers {}", response.status()).into());
    }
    let buffer = JsFuture::from(response.array_buffer()?).await?;
    Ok(js_sys::Uint8Array::new(&buffer).to_vec())
}

/// The value of a parameter in the page's address: `?file=run.servetwin`.
pub fn parameter(name: &str) -> Option<String> {
    let search = web_sys::window()?.location().search().ok()?;
    web_sys::UrlSearchParams::new_with_str(&search)
        .ok()?
        .get(name)
}

/// Says in the browser's tab what is shown.
pub fn set_title(title: &str) {
    if let Ok(document) = document() {
        document.set_title(title);
    }
}

/// Leaves a mark in the browser's list of performance entries.
pub fn mark(name: &str) {
    let performance = web_sys::window().and_then(|w| w.performance());
    if let Some(performance) = performance {
        // A mark that is not taken is nothing to stop for.
        let _ = performance.mark(name);
    }
}

fn document() -> Result<web_sys::Document, JsValue> {
    let document = web_sys::window().and_then(|w| w.document());
    document.ok_or_else(|| "the page has no document".into())
}

/// What an address says.
///
/// # Errors
/// In words: why it says nothing.
pub async fn text(address: &str) -> Result<String, String> {
    let words = |e: JsValue| {
        format!("the browser does not get it ({e:?}); a page may only ask where it comes from")
    };
    let window = web_sys::window().ok_or("there is no window")?;
    let response = JsFuture::from(window.fetch_with_str(address)).await;
    let response: web_sys::Response = response.map_err(words)?.unchecked_into();
    let text = JsFuture::from(response.text().map_err(words)?).await;
    text.map_err(words)?
        .as_string()
        .ok_or_else(|| "no text".to_owned())
}

/// Comes back after `seconds`.
pub async fn sleep(seconds: f64) {
    let promise = js_sys::Promise::new(&mut |resolve, _| {
        if let Some(window) = web_sys::window() {
            let ms = (seconds * 1e3) as i32;
            // Without a timer it comes back at once.
            let _ = window.set_timeout_with_callback_and_timeout_and_arguments_0(&resolve, ms);
        }
    });
    let _ = JsFuture::from(promise).await;
}
