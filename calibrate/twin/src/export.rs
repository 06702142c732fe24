//! The twin's own `/metrics`.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// The page that is served. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Page {
    text: Arc<Mutex<String>>,
}

impl Page {
    /// Puts up a new text.
    pub fn set(&self, text: String) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn get(&self) -> String {
        self.text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Serves `page` at `/metrics` until the future is dropped.
pub async fn serve(listener: TcpListener, page: Page) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            continue;
        };
        let page = page.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answer = answer(&request, &page);
            async move { Ok::<_, Infallible>(answer) }
        });
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

fn answer(request: &Request<Incoming>, page: &Page) -> Response<Full<Bytes>> {
    let (status, text) = match request.uri().path() {
        "/metrics" => (StatusCode::OK, page.get()),
        _ => (
            StatusCode::NOT_FOUND,
            "the twin's metrics are at /metrics\n".into(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"),
    );
    response
}
