//! The twin's proxy: what goes in comes out, streams stream, and nobody is left hanging.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::beside::{
    LONG, Twin, read_all, read_until, split, text, twin, twin_with, upstream, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use twin::proxy::ProxyConfig;
use twin::window::{Counted, Row, Seen};

/// The payload of a chunked body.
fn dechunk(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let Some(i) = body.windows(2).position(|w| w == b"\r\n") else {
            return out;
        };
        let size = usize::from_str_radix(text(&body[..i]).trim(), 16).expect("a chunk size");
        body = &body[i + 2..];
        if size == 0 {
            return out;
        }
        out.extend_from_slice(&body[..size]);
        body = &body[size + 2..];
    }
}

/// Waits until the observer has closed `n` rows.
async fn rows(twin: &Twin, n: usize) -> Vec<Row> {
    within("observing", async {
        loop {
            let rows = twin.observer.window(LONG, LONG).rows;
            if rows.iter().filter(|r| r.end_ns.is_some()).count() >= n {
                return rows;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

#[tokio::test]
async fn requests_and_answers_pass_as_they_came_but_for_what_belongs_to_a_connection() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    for (method, path, status) in [
        ("POST", "/v1/other?x=%2F&y=a+b", "200 OK"),
        ("PUT", "/a//b/../c", "404 Not Found"),
        ("PATCH", "/v1/completions", "503 Service Unavailable"),
        ("DELETE", "/x;y=1", "422 Unprocessable Entity"),
    ] {
        let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
        let body = [0u8, 255, 13, 10, 7];
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: my.host\r\nX-Odd-CASE: a\r\nX-Odd-CASE: b\r\nAuthorization: Bearer k\r\n\
             Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nTE: trailers, gzip\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        client.write_all(head.as_bytes()).await.expect("written");
        client.write_all(&body).await.expect("written");
        let mut server = within("connecting", upstreams.recv())
            .await
            .expect("a connection");
        let got = read_until(&mut server, &body).await;
        let (got_head, got_body) = split(&got);
        assert_eq!(got_body, body);
        assert!(
            got_head.starts_with(&format!("{method} {path} HTTP/1.1\r\n")),
            "{got_head}"
        );
        for line in [
            "Host: my.host",
            "X-Odd-CASE: a",
            "X-Odd-CASE: b",
            "Authorization: Bearer k",
            "Content-Length: 5",
        ] {
            assert!(got_head.contains(line), "{line} not in {got_head}");
        }
        let lower = got_head.to_lowercase();
        assert!(
            lower.contains("te: trailers") && !lower.contains("gzip"),
            "{got_head}"
        );
        assert!(lower.contains("via: 1.1 servetwin"), "{got_head}");
        for gone in ["x-hop", "keep-alive"] {
            assert!(!lower.contains(gone), "{gone} in {got_head}");
        }
        let answer = format!(
            "HTTP/1.1 {status}\r\nX-Answer: Yes\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nKeep-Alive: timeout=9\r\n\
             Content-Length: 4\r\n\r\n\0\u{1}\u{2}\u{3}"
        );
        server.write_all(answer.as_bytes()).await.expect("written");
        let got = read_until(&mut client, b"\0\x01\x02\x03").await;
        let (head, body) = split(&got);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        assert_eq!(body, b"\0\x01\x02\x03");
        for line in ["X-Answer: Yes", "Set-Cookie: a=1", "Set-Cookie: b=2"] {
            assert!(head.contains(line), "{line} not in {head}");
        }
        assert!(!head.to_lowercase().contains("keep-alive"), "{head}");
        assert!(!head.to_lowercase().contains("date:"), "{head}");
    }
}

#[tokio::test]
async fn head_and_empty_answers_keep_their_shape() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    for (method, answer) in [
        ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n"),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n",
        ),
        (
            "HEAD",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\n\r\n",
        ),
    ] {
        let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
        let ask = format!("{method} /file HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        client.write_all(ask.as_bytes()).await.expect("written");
        let mut server = within("connecting", upstreams.recv())
            .await
            .expect("a connection");
        read_until(&mut server, b"\r\n\r\n").await;
        server.write_all(answer.as_bytes()).await.expect("written");
        let got = read_all(&mut client).await;
        let (head, body) = split(&got);
        let (first, rest) = answer.split_once("\r\n").expect("a status line");
        assert!(head.starts_with(first), "{head}");
        if let Some(field) = rest.lines().next().filter(|l| !l.is_empty()) {
            assert!(head.contains(field), "{head}");
        }
        assert!(body.is_empty(), "{:?}", text(body));
    }
}

#[tokio::test]
async fn every_frame_goes_out_as_it_comes_and_the_observer_sees_the_tokens() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
    let body = r#"{"prompt":"Once upon a time","max_tokens":3,"stream":true}"#;
    let ask = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(ask.as_bytes()).await.expect("written");
    let mut server = within("connecting", upstreams.recv())
        .await
        .expect("a connection");
    read_until(&mut server, body.as_bytes()).await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await
        .expect("written");
    let mut sent = Vec::new();
    let mut got = read_until(&mut client, b"\r\n\r\n").await;
    // Each event is held back until the one before has arrived at the client: nothing may wait in between.
    for event in [
        "data: {\"choices\":[{\"text\":\" there\"}]}\n\n",
        "data: {\"choices\":[{\"text\":\" was\"}]}\n\n",
        "data: {\"choices\":[{\"text\":\" a\",\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    ] {
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        server.write_all(chunk.as_bytes()).await.expect("written");
        sent.extend_from_slice(event.as_bytes());
        got.extend(read_until(&mut client, event.as_bytes()).await);
    }
    server.write_all(b"0\r\n\r\n").await.expect("written");
    got.extend(read_until(&mut client, b"0\r\n\r\n").await);
    let (_, chunked) = split(&got);
    assert_eq!(text(&dechunk(chunked)), text(&sent));
    let row = rows(&twin, 1).await.remove(0);
    assert_eq!(row.outcome, Seen::Finished);
    assert_eq!((row.prompt_tokens, row.prompt_counted), (4, Counted::Usage));
    assert_eq!(
        (row.output_tokens, row.chunks, row.max_tokens),
        (3, 3, Some(3))
    );
    assert_eq!(row.gaps_us.len(), 2);
    let (first, end) = (row.first_ns.expect("a token"), row.end_ns.expect("an end"));
    assert!(row.arrival_ns <= first && first <= end);
    assert!(!row.lossy && row.stream);
}

#[tokio::test]
async fn trailers_pass() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
    client
        .write_all(b"GET /t HTTP/1.1\r\nHost: h\r\nTE: trailers\r\n\r\n")
        .await
        .expect("written");
    let mut server = within("connecting", upstreams.recv())
        .await
        .expect("a connection");
    read_until(&mut server, b"\r\n\r\n").await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 42\r\n\r\n")
        .await
        .expect("written");
    let got = text(&read_until(&mut client, b"42\r\n\r\n").await);
    assert!(got.to_lowercase().contains("x-sum: 42"), "{got}");
}

#[tokio::test]
async fn big_bodies_pass_both_ways_unchanged() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let big: Vec<u8> = (0..24usize << 20).map(|i| (i * 31 % 251) as u8).collect();
    let client = TcpStream::connect(twin.address).await.expect("the proxy");
    let (mut reader, mut writer) = client.into_split();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        big.len()
    );
    let outgoing = big.clone();
    let sending = tokio::spawn(async move {
        writer.write_all(head.as_bytes()).await.expect("written");
        writer.write_all(&outgoing).await.expect("written");
        writer
    });
    let mut server = within("connecting", upstreams.recv())
        .await
        .expect("a connection");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("the head", server.read_u8()).await.expect("a byte"));
    }
    let mut got = vec![0; big.len()];
    within("the body", server.read_exact(&mut got))
        .await
        .expect("all of it");
    assert!(got == big, "the request's body changed");
    let writer = sending.await.expect("sent");
    let answering = big.clone();
    tokio::spawn(async move {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            answering.len()
        );
        server.write_all(head.as_bytes()).await.expect("written");
        server.write_all(&answering).await.expect("written");
        server
    });
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("the head", reader.read_u8()).await.expect("a byte"));
    }
    within("the answer", reader.read_exact(&mut got))
        .await
        .expect("all of it");
    assert!(got == big, "the answer's body changed");
    drop(writer);
}

#[tokio::test]
async fn an_upstream_that_is_down_is_answered_with_502_that_says_so() {
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = gone.local_addr().expect("an address");
    drop(gone);
    let twin = twin(address, 1000, true).await;
    let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
    client
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        .await
        .expect("written");
    let got = read_all(&mut client).await;
    let (head, body) = split(&got);
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    let json: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    let message = json["error"]["message"].as_str().expect("a message");
    assert!(message.contains(&address.to_string()), "{message}");
    assert!(message.to_lowercase().contains("refused"), "{message}");
    assert_eq!(twin.counters.unreachable.load(Ordering::Relaxed), 1);
    assert_eq!(rows(&twin, 1).await[0].outcome, Seen::Failed);
}

#[tokio::test]
async fn a_client_that_vanishes_cancels_its_upstream_request() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let body = r#"{"prompt":"x","stream":true}"#;
    let ask = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // Once while it waits for the answer's head, once in the middle of the stream.
    for streaming in [false, true] {
        let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
        client.write_all(ask.as_bytes()).await.expect("written");
        let mut server = within("connecting", upstreams.recv())
            .await
            .expect("a connection");
        read_until(&mut server, body.as_bytes()).await;
        if streaming {
            let event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
                event.len()
            );
            server.write_all(answer.as_bytes()).await.expect("written");
            read_until(&mut client, event.as_bytes()).await;
        }
        drop(client);
        let mut rest = Vec::new();
        // The end of the connection, by FIN or by RST.
        let _ = within("the upstream's end", server.read_to_end(&mut rest)).await;
        assert!(rest.is_empty());
    }
    let rows = rows(&twin, 2).await;
    let seen: Vec<_> = rows.iter().map(|r| (r.outcome, r.output_tokens)).collect();
    assert_eq!(seen, [(Seen::Cancelled, 0), (Seen::Cancelled, 1)]);
    assert_eq!(twin.counters.active.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_upstream_that_breaks_off_breaks_off_the_answer() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let body = r#"{"prompt":"x","stream":true}"#;
    let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
    let ask = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(ask.as_bytes()).await.expect("written");
    let mut server = within("connecting", upstreams.recv())
        .await
        .expect("a connection");
    read_until(&mut server, body.as_bytes()).await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n")
        .await
        .expect("written");
    drop(server);
    let got = read_all(&mut client).await;
    assert!(text(&got).contains("abcd"));
    assert!(
        !got.ends_with(b"0\r\n\r\n"),
        "a broken stream must not look complete"
    );
    assert_eq!(rows(&twin, 1).await[0].outcome, Seen::Failed);
}

#[tokio::test]
async fn an_observer_that_does_not_keep_up_loses_events_and_the_traffic_none() {
    let (address, mut upstreams) = upstream().await;
    // Nobody reads the feed, and it holds four events.
    let twin = twin(address, 4, false).await;
    let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
    let body = r#"{"prompt":"x","stream":true}"#;
    let ask = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(ask.as_bytes()).await.expect("written");
    let mut server = within("connecting", upstreams.recv())
        .await
        .expect("a connection");
    read_until(&mut server, body.as_bytes()).await;
    server
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await
        .expect("written");
    let mut sent = Vec::new();
    let mut got = read_until(&mut client, b"\r\n\r\n").await;
    for i in 0..200 {
        let event = format!("data: {{\"choices\":[{{\"text\":\"t{i}\"}}]}}\n\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        server.write_all(chunk.as_bytes()).await.expect("written");
        got.extend(read_until(&mut client, event.as_bytes()).await);
        sent.extend_from_slice(event.as_bytes());
    }
    server.write_all(b"0\r\n\r\n").await.expect("written");
    got.extend(read_until(&mut client, b"0\r\n\r\n").await);
    assert_eq!(text(&dechunk(split(&got).1)), text(&sent));
    assert!(twin.counters.dropped_events.load(Ordering::Relaxed) >= 190);
}

#[tokio::test]
async fn connections_are_kept_and_the_proxy_stops_when_its_requests_have_ended() {
    let (address, mut upstreams) = upstream().await;
    let twin = twin(address, 1000, true).await;
    let mut client = TcpStream::connect(twin.address).await.expect("the proxy");
    for i in 0..3 {
        let ask = format!("GET /{i} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.write_all(ask.as_bytes()).await.expect("written");
        let mut server = within("connecting", upstreams.recv())
            .await
            .expect("a connection");
        read_until(&mut server, b"\r\n\r\n").await;
        if i == 2 {
            twin.stop.send(true).expect("it listens");
        }
        server
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            .await
            .expect("written");
        let got = text(&read_until(&mut client, b"ok").await);
        assert!(got.starts_with("HTTP/1.1 200"), "{got}");
    }
    assert!(read_all(&mut client).await.is_empty());
    within("refusing", async {
        while TcpStream::connect(twin.address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_behind_tls_is_called_by_its_name_and_its_certificate_is_checked() {
    let cert = include_bytes!("../../../bench/src/testing/cert.pem");
    let key = include_bytes!("../../../bench/src/testing/key.der");
    let tls = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(cert).expect("a certificate")],
            PrivateKeyDer::Pkcs8(key.as_slice().into()),
        )
        .expect("a key");
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let dir = tempfile::tempdir().expect("a folder");
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, cert).expect("written");
    for trusted in [true, false] {
        let (address, mut connections) = upstream().await;
        let mut config = ProxyConfig::new(&format!("https://localhost:{}", address.port()))
            .expect("an endpoint");
        config.tls.ca_file = trusted.then(|| ca.clone());
        let twin = twin_with(config, 64, true).await;
        let mut client = TcpStream::connect(twin.address).await.expect("connects");
        client
            .write_all(b"GET /v1/models HTTP/1.1\r\nHost: proxy\r\n\r\n")
            .await
            .expect("written");
        let stream = within("a connection", connections.recv())
            .await
            .expect("one");
        let stream = within("a handshake", acceptor.accept(stream)).await;
        if trusted {
            let mut stream = stream.expect("TLS");
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(within("the head", stream.read_u8()).await.expect("a byte"));
            }
            let head = text(&head).to_ascii_lowercase();
            assert!(
                head.contains(&format!("host: localhost:{}", address.port())),
                "{head}"
            );
            // Each piece goes on before the next is there.
            stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsome")
                .await
                .expect("written");
            let got = text(&read_until(&mut client, b"some").await);
            assert!(got.starts_with("HTTP/1.1 200"), "{got}");
            stream.write_all(b"more").await.expect("written");
            read_until(&mut client, b"more").await;
        } else {
            assert!(stream.is_err(), "the proxy hangs up");
            let got = text(&read_until(&mut client, b"\r\n\r\n").await);
            assert!(got.starts_with("HTTP/1.1 502"), "{got}");
        }
    }
}

#[test]
fn endpoints_that_cannot_be_are_refused_with_what_would_be_right() {
    for (endpoint, words) in [
        ("127.0.0.1:8000", "http://"),
        ("ftp://host", "http://"),
        ("http://h/?q=1", "query"),
        ("http://h h", "no URL"),
    ] {
        let error = ProxyConfig::new(endpoint).expect_err("refused").to_string();
        assert!(error.contains(words), "{endpoint}: {error}");
    }
}
