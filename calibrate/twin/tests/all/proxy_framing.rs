//! The twin's proxy and the borders of messages: no length is said twice, and what comes before an answer passes.

use std::time::Duration;

use crate::beside::{Twin, read_all, read_until, split, text, twin, twin_with, upstream, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use twin::proxy::ProxyConfig;

/// A client's connection to `twin`, with `bytes` written.
async fn sends(twin: &Twin, bytes: &str) -> TcpStream {
    let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
    client.write_all(bytes.as_bytes()).await.expect("written");
    client
}

async fn next(upstreams: &mut mpsc::Receiver<TcpStream>) -> TcpStream {
    let stream = within("connecting", upstreams.recv()).await;
    stream.expect("a connection")
}

async fn answers(server: &mut TcpStream, bytes: &str) {
    server.write_all(bytes.as_bytes()).await.expect("written");
}

/// Nothing comes; what would come, waits for `patience`.
async fn is_silent(client: &mut TcpStream) {
    let mut byte = [0];
    let read = tokio::time::timeout(Duration::from_millis(150), client.read(&mut byte)).await;
    assert!(read.is_err(), "{read:?} {byte:?}");
}

#[tokio::test]
async fn a_request_with_two_lengths_goes_on_with_its_chunks_and_its_connection_ends() {
    for lengths in [
        "Content-Length: 6\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 6",
    ] {
        let (address, mut upstreams) = upstream().await;
        let twin = twin(address, 1000, true).await;
        // By its Content-Length, the body ends in front of a second request.
        let ask = format!(
            "POST /a HTTP/1.1\r\nHost: h\r\n{lengths}\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
        );
        let mut client = sends(&twin, &ask).await;
        let mut server = next(&mut upstreams).await;
        let got = text(&read_until(&mut server, b"0\r\n\r\n").await).to_lowercase();
        assert!(got.contains("transfer-encoding: chunked"), "{got}");
        assert!(!got.contains("content-length"), "{got}");
        answers(
            &mut server,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
        let got = text(&read_all(&mut client).await);
        assert_eq!(got.matches("HTTP/1.1 ").count(), 1, "{got}");
        assert!(got.ends_with("ok"), "{got}");
        assert!(upstreams.try_recv().is_err(), "no second request");
    }
}

#[tokio::test]
async fn an_answer_with_two_lengths_goes_on_with_its_chunks_and_its_connection_is_not_used_again() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let mut client = sends(&twin, "GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let mut server = next(&mut upstreams).await;
    read_until(&mut server, b"\r\n\r\n").await;
    answers(
        &mut server,
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    )
    .await;
    let got = text(&read_until(&mut client, b"0\r\n\r\n").await);
    assert!(!got.to_lowercase().contains("content-length"), "{got}");
    assert!(got.ends_with("5\r\nhello\r\n0\r\n\r\n"), "{got}");
    client
        .write_all(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        .await
        .expect("written");
    let mut other = next(&mut upstreams).await;
    let got = text(&read_until(&mut other, b"\r\n\r\n").await);
    assert!(got.starts_with("GET /b "), "{got}");
}

#[tokio::test]
async fn a_length_said_twice_is_passed_on_once() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let mut client = sends(&twin, "GET /a HTTP/1.1\r\nHost: h\r\n\r\n").await;
    let mut server = next(&mut upstreams).await;
    read_until(&mut server, b"\r\n\r\n").await;
    answers(
        &mut server,
        "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    let got = text(&read_until(&mut client, b"ok").await).to_lowercase();
    assert_eq!(got.matches("content-length: 2\r\n").count(), 1, "{got}");
    assert_eq!(got.matches("content-length").count(), 1, "{got}");
}

#[tokio::test]
async fn chunks_of_a_get_are_not_lost() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let ask =
        "GET /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let _client = sends(&twin, ask).await;
    let mut server = next(&mut upstreams).await;
    let got = text(&read_until(&mut server, b"0\r\n\r\n").await);
    assert!(got.ends_with("3\r\nabc\r\n0\r\n\r\n"), "{got}");
}

#[tokio::test]
async fn early_hints_pass_before_the_answer_and_not_to_clients_of_http_1_0() {
    for (version, passes) in [("1.1", true), ("1.0", false)] {
        let (address, mut upstreams) = upstream().await;
        let twin = twin(address, 1000, true).await;
        let ask = format!("GET /a HTTP/{version}\r\nHost: h\r\n\r\n");
        let mut client = sends(&twin, &ask).await;
        let mut server = next(&mut upstreams).await;
        read_until(&mut server, b"\r\n\r\n").await;
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\nKeep-Alive: timeout=9\r\n\r\n";
        answers(&mut server, hints).await;
        if passes {
            // It is there before the answer is.
            let got = text(&read_until(&mut client, b"\r\n\r\n").await).to_lowercase();
            assert!(got.starts_with("http/1.1 103 early hints\r\n"), "{got}");
            assert!(got.contains("link: </a.css>; rel=preload\r\n"), "{got}");
            assert!(!got.contains("keep-alive"), "{got}");
        }
        let rest = "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        answers(&mut server, rest).await;
        let got = text(&read_until(&mut client, b"ok").await);
        let heads: Vec<&str> = got.lines().filter(|l| l.starts_with("HTTP/")).collect();
        if passes {
            assert_eq!(heads, ["HTTP/1.1 102 Processing", "HTTP/1.1 200 OK"]);
        } else {
            assert_eq!(heads.len(), 1, "{got}");
            assert!(heads[0].ends_with("200 OK"), "{got}");
        }
    }
}

/// A proxy that waits so long for the upstream's `100 Continue`, and a request that does.
async fn expecting(patience: Duration) -> (Twin, mpsc::Receiver<TcpStream>, TcpStream, TcpStream) {
    let (address, mut upstreams) = upstream().await;
    let mut config = ProxyConfig::new(&format!("http://{address}")).expect("an endpoint");
    config.continue_timeout = patience;
    let twin = twin_with(config, 1000, true).await;
    let ask = "POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let client = sends(&twin, ask).await;
    let mut server = next(&mut upstreams).await;
    let got = text(&read_until(&mut server, b"\r\n\r\n").await);
    assert!(got.to_lowercase().contains("expect: 100-continue"), "{got}");
    (twin, upstreams, client, server)
}

const FOREVER: Duration = Duration::from_secs(600);

#[tokio::test]
async fn the_clients_100_continue_is_the_upstreams() {
    let (_twin, _upstreams, mut client, mut server) = expecting(FOREVER).await;
    is_silent(&mut client).await;
    answers(&mut server, "HTTP/1.1 100 Continue\r\n\r\n").await;
    let got = text(&read_until(&mut client, b"\r\n\r\n").await);
    assert_eq!(got, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.expect("written");
    assert_eq!(read_until(&mut server, b"body").await, b"body");
    answers(
        &mut server,
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    )
    .await;
    let got = text(&read_until(&mut client, b"ok").await);
    assert!(got.starts_with("HTTP/1.1 200 OK"), "{got}");
}

#[tokio::test]
async fn an_upstream_that_does_not_want_the_body_is_not_sent_it() {
    let (_twin, _upstreams, mut client, mut server) = expecting(FOREVER).await;
    answers(
        &mut server,
        "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno",
    )
    .await;
    let got = read_all(&mut client).await;
    let (head, body) = split(&got);
    assert!(head.starts_with("HTTP/1.1 417"), "{head}");
    assert!(head.to_lowercase().contains("connection: close"), "{head}");
    assert_eq!(body, b"no");
    assert!(read_all(&mut server).await.is_empty(), "nothing follows");
}

#[tokio::test]
async fn an_upstream_that_never_asks_for_the_body_gets_it_all_the_same() {
    let (_twin, _upstreams, mut client, mut server) = expecting(Duration::from_millis(20)).await;
    let got = text(&read_until(&mut client, b"\r\n\r\n").await);
    assert_eq!(got, "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"body").await.expect("written");
    assert_eq!(read_until(&mut server, b"body").await, b"body");
}
