//! A server of the toy on a free port, and a client without a library: what goes over the wire is seen as it is.

use std::sync::Arc;
use std::time::Duration;

use engine::engine::{Engine, EngineSpec};
use engine::http::Service;
use engine::http::chat::ChatTemplate;
use engine::http::server::{Drained, Server};
use hwmodels::EngineKind;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::{Toy, policy, spec};

/// A server on a free port.
pub struct Running {
    /// Where it listens.
    pub address: std::net::SocketAddr,
    /// What it serves.
    pub engine: Arc<Engine>,
    /// Tells it to stop.
    pub stop: Option<oneshot::Sender<()>>,
    /// What it says at its end.
    pub served: tokio::task::JoinHandle<Drained>,
}

/// A server whose steps take `delay`.
pub async fn serve(delay: Duration, change: impl FnOnce(&mut EngineSpec)) -> Running {
    serve_with(delay, None, Duration::from_secs(20), change).await
}

/// A server with a key, and with a limit on how long it drains.
pub async fn serve_with(
    delay: Duration,
    api_key: Option<String>,
    drain_timeout: Duration,
    change: impl FnOnce(&mut EngineSpec),
) -> Running {
    let p = policy(EngineKind::VllmV1, "max_num_seqs = 64", 2000, 1);
    let mut toy = Toy::new(&p, 1);
    toy.delay = delay;
    let mut s = spec(p);
    change(&mut s);
    let text = s.text.clone();
    let engine = Engine::start(s, vec![Box::new(toy)]).unwrap();
    let template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
    let service = Arc::new(Service {
        engine: engine.clone(),
        text,
        chat: Some(ChatTemplate::new(template, "", "").unwrap()),
        api_key,
        max_body_bytes: 100_000,
        created: 0,
        ignored: Default::default(),
    });
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), service)
        .await
        .unwrap();
    let address = server.address().unwrap();
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(server.run(
        async {
            let _ = stopped.await;
        },
        std::future::pending(),
        drain_timeout,
    ));
    Running {
        address,
        engine,
        stop: Some(stop),
        served,
    }
}

/// Sends a request on a connection of its own.
pub async fn send(r: &Running, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
    let mut s = TcpStream::connect(r.address).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    s.write_all(head.as_bytes()).await.unwrap();
    // A server may answer and close before it has read all of a large body.
    let _ = s.write_all(body.as_bytes()).await;
    s
}

/// Status, head and body of the answer.
pub async fn answer(mut s: TcpStream) -> (u16, String, String) {
    let mut bytes = Vec::new();
    let _ = s.read_to_end(&mut bytes).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|c| c.parse().ok());
    let body = if head.contains("transfer-encoding: chunked") {
        unchunk(body)
    } else {
        body.to_string()
    };
    (status.unwrap_or(0), head.to_lowercase(), body)
}

/// The content of a chunked body.
pub fn unchunk(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let n = usize::from_str_radix(size, 16).unwrap_or(0);
        if n == 0 || rest.len() < n {
            break;
        }
        out.push_str(&rest[..n]);
        body = rest[n..].trim_start_matches("\r\n");
    }
    out
}

/// Sends JSON; status and JSON of the answer.
pub async fn post(r: &Running, path: &str, body: &Value) -> (u16, Value) {
    let (status, _, body) = answer(send(r, "POST", path, "", &body.to_string()).await).await;
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

/// The events of a stream, but for the last line.
pub fn events(body: &str) -> Vec<Value> {
    let lines = body.lines().filter_map(|l| l.strip_prefix("data: "));
    lines
        .filter(|l| *l != "[DONE]")
        .map(|l| serde_json::from_str(l).unwrap())
        .collect()
}
