//! The service as its callers meet it: real sockets on the loopback address.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use api::Limits;
use api::server::Server;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// A service on a port of its own.
struct Service {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<usize>>,
}

/// An answer.
struct Answer {
    status: u16,
    head: String,
    body: Value,
}

fn service(limits: Limits) -> Service {
    let (stop, stopped) = oneshot::channel();
    let (say, told) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let server = Server::bind("127.0.0.1:0".parse().unwrap(), limits)
                .await
                .unwrap();
            say.send(server.address().unwrap()).unwrap();
            let stop = async {
                let _ = stopped.await;
            };
            server
                .run(stop, std::future::pending(), Duration::from_secs(20))
                .await
                .unwrap()
        })
    });
    Service {
        address: told.recv().unwrap(),
        stop: Some(stop),
        thread: Some(thread),
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Service {
    /// Sends bytes and reads the answer to its end.
    fn raw(&self, bytes: &[u8]) -> Answer {
        let mut s = TcpStream::connect(self.address).unwrap();
        s.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        s.write_all(bytes).unwrap();
        let mut all = Vec::new();
        let _ = s.read_to_end(&mut all);
        let text = String::from_utf8(all).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or(0);
        Answer {
            status,
            head: head.to_ascii_lowercase(),
            body: serde_json::from_str(body).unwrap_or(Value::Null),
        }
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let n = body.len();
        self.raw(
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {n}\r\n{headers}\r\n{body}").as_bytes(),
        )
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask(
            "POST",
            path,
            "content-type: application/json\r\n",
            &body.to_string(),
        )
    }

    /// Posts a job and waits for its end.
    fn done(&self, path: &str, body: &Value) -> Value {
        let taken = self.post(path, body);
        assert_eq!(taken.status, 202, "{}", taken.body);
        let url = taken.body["url"].as_str().unwrap().to_owned();
        assert!(
            taken.head.contains(&format!("location: {url}")),
            "{}",
            taken.head
        );
        self.end(&url)
    }

    fn end(&self, url: &str) -> Value {
        let start = Instant::now();
        loop {
            let job = self.get(&format!("{url}?wait=10"));
            assert_eq!(job.status, 200, "{}", job.body);
            let state = job.body["state"].as_str().unwrap();
            if !["queued", "running"].contains(&state) {
                return job.body;
            }
            assert!(start.elapsed() < Duration::from_secs(300), "{}", job.body);
        }
    }

    /// The result of a job that succeeded.
    fn result(&self, path: &str, body: &Value) -> Value {
        let job = self.done(path, body);
        assert_eq!(job["state"], "succeeded", "{job}");
        let result = self.get(job["result_url"].as_str().unwrap());
        assert_eq!(result.status, 200);
        result.body
    }

    /// The error of a job that failed.
    fn refused(&self, path: &str, body: &Value) -> Value {
        let job = self.done(path, body);
        assert_eq!(job["state"], "failed", "{job}");
        let result = self.get(&format!("{}/result", job["url"].as_str().unwrap()));
        assert_eq!(result.body["error"], job["error"]);
        job["error"].clone()
    }
}

/// A replica of constant step times under `n` requests.
fn small(n: u64) -> String {
    format!(
        "[step]\nbase = \"10 ms\"\nper_token = \"20 us\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 1000\n[[workload]]\nname = \"chat\"\narrival = {{ kind = \
         \"poisson\", rate = \"5 req/s\" }}\nprompt = {{ kind = \"uniform\", min = 50, max = 150 }}\noutput = {{ kind = \"uniform\", min = 1, max = 40 }}\n\
         [run]\nrequests = {n}\n[slo]\nttft = \"200 ms\"\n"
    )
}

/// A scenario that takes far longer than any test.
fn endless() -> Value {
    json!({"scenario": small(1_000_000), "set": ["workload[0].output=2000", "layout.replicas=64", "workload[0].arrival.rate=20 req/s"]})
}

#[test]
fn a_run_gives_the_report_of_the_command() {
    let s = service(Limits::default());
    let result = s.result(
        "/v1/run",
        &json!({"scenario": small(100), "set": ["run.requests=50"]}),
    );
    assert_eq!(result["requests"]["finished"], 50);
    let own = sim::scenario::Scenario::parse(&small(50), "scenario.toml", &[]).unwrap();
    let own = own.run(&Default::default()).unwrap();
    let own = serde_json::to_value(sim::report::RunReport::new(&own, 0.0)).unwrap();
    assert_eq!(result["fingerprint"], own["fingerprint"]);
    // The same scenario as an object.
    let object: Value = toml::from_str(&small(50)).unwrap();
    let again = s.result("/v1/run", &json!({"scenario": object}));
    assert_eq!(again["fingerprint"], result["fingerprint"]);
}

#[test]
fn files_come_with_the_request() {
    let s = service(Limits::default());
    let trace = "arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n0.5,20,6\n1.0,30,7\n";
    let text = small(10);
    let set = json!(["workload[0].arrival={ kind = \"trace\", file = \"t.csv\" }"]);
    let text = text
        .replace("prompt = { kind = \"uniform\", min = 50, max = 150 }\n", "")
        .replace("output = { kind = \"uniform\", min = 1, max = 40 }\n", "");
    let result = s.result(
        "/v1/run",
        &json!({"scenario": text, "set": set, "files": {"t.csv": trace}}),
    );
    assert_eq!(result["requests"]["finished"], 3);
    let error = s.refused("/v1/run", &json!({"scenario": text, "set": set}));
    assert!(error["why"].as_str().unwrap().contains("t.csv"), "{error}");
}

#[test]
fn no_file_of_the_server_is_read() {
    let s = service(Limits::default());
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret.csv");
    std::fs::write(&secret, "arrival_s,prompt_tokens,output_tokens\n0.0,10,5\n").unwrap();
    let secret = secret.display().to_string();
    let dots = format!("../../../../../../../../{secret}");
    for name in [
        secret.as_str(),
        dots.as_str(),
        "/etc/passwd",
        "/proc/self/environ",
        "Cargo.toml",
    ] {
        for key in [
            format!("workload[0].arrival={{ kind = \"trace\", file = \"{name}\" }}"),
            format!("workload[0].prompt={{ kind = \"empirical\", file = \"{name}\" }}"),
            format!("workload[0].arrival={{ kind = \"rate_table\", file = \"{name}\" }}"),
        ] {
            let error = s.refused("/v1/run", &json!({"scenario": small(10), "set": [key]}));
            let why = error.to_string();
            assert!(
                !why.contains("root:") && !why.contains("workspace"),
                "{why}"
            );
        }
        let text = "[model]\nconfig = \"NAME\"\n[hardware]\ninstance = \"g5.2xlarge\"\nprofile = \"PROFILE\"\ncatalog = \"NAME\"\n[engine]\nkind = \"vllm\"\n[[workload]]\narrival = { kind = \
                    \"poisson\", rate = \"1 req/s\" }\nprompt = 10\noutput = 10\n[run]\nrequests = 5\n"
            .replace("NAME", name)
            .replace("PROFILE", &format!("{name}.toml"));
        for path in ["/v1/run", "/v1/whatif", "/v1/capacity"] {
            s.refused(path, &json!({"scenario": text}));
        }
        s.refused(
            "/v1/plan",
            &json!({"question": format!("slo = \"ttft.p99 < 1 s\"\n{text}")}),
        );
    }
}

#[test]
fn a_plan_a_whatif_and_a_table_are_those_of_the_planner() {
    let s = service(Limits::default());
    let plan = s.result(
        "/v1/plan",
        &json!({
            "quick": {"model": "llama-3.1-8b", "rate": "4 req/s", "prompt": 200, "output": {"kind": "uniform", "min": 10, "max": 50},
                      "slo": ["ttft.p99 < 2 s"], "instances": ["g6e.xlarge"]},
            "set": ["run.requests=200", "engine.kind=vllm", "engine.max_num_seqs=[64]", "engine.max_num_batched_tokens=[2048]"],
            "draws": 0,
        }),
    );
    assert_eq!(plan["report"]["winner"]["instance"], "g6e.xlarge", "{plan}");
    assert!(plan["scenario"].as_str().unwrap().contains("[hardware]"));
    let whatif = s.result("/v1/whatif", &json!({"scenario": small(100)}));
    assert!(!whatif["changes"].as_array().unwrap().is_empty());
    let table = s.result(
        "/v1/capacity",
        &json!({"scenario": small(100), "scales": [1, 2]}),
    );
    assert_eq!(table["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn errors_say_what_where_and_why() {
    let s = service(Limits::default());
    let error = s.refused(
        "/v1/run",
        &json!({"scenario": format!("{}\nnonsense = 1\n", small(10))}),
    );
    assert_eq!(error["code"], "bad_input");
    assert!(
        error["where"]
            .as_str()
            .unwrap()
            .starts_with("scenario.toml:"),
        "{error}"
    );
    assert!(!error["why"].as_str().unwrap().is_empty());
    let error = s.refused("/v1/plan", &json!({"draws": 1}));
    assert!(error["why"].as_str().unwrap().contains("quick"), "{error}");
    let error = s.refused(
        "/v1/capacity",
        &json!({"scenario": small(10), "slo": ["fast"]}),
    );
    assert_eq!(error["where"], "slo");
    assert_eq!(s.get("/nowhere").status, 404);
    assert_eq!(s.get("/v1/plan").status, 405);
    assert_eq!(s.get("/v1/jobs/abc").status, 404);
    assert_eq!(
        s.get("/v1/jobs/abc/result").body["error"]["code"],
        "not_found"
    );
    assert_eq!(s.ask("DELETE", "/v1/jobs/abc", "", "").status, 404);
    assert_eq!(s.get("/v1/jobs/%00%ff").status / 100, 4);
    for query in [
        "wait=",
        "wait=-1",
        "wait=1e9",
        "wait=NaN",
        "x=1",
        "wait=1&wait=2",
    ] {
        assert_eq!(
            s.get(&format!("/v1/jobs/abc?{query}")).status,
            400,
            "{query}"
        );
    }
}

#[test]
fn hostile_bodies_are_refused() {
    let s = service(Limits {
        body_bytes: 100_000,
        ..Limits::default()
    });
    let json = "content-type: application/json\r\n";
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{\"scenario\": 1}",
        "{\"scenario\": \"\", \"more\": 1}",
        "\u{0}",
        "{\"scenario\": \"x\", \"scenario\": \"y\"}",
    ] {
        let a = s.ask("POST", "/v1/run", json, body);
        assert_eq!(
            (a.status, &a.body["error"]["code"]),
            (400, &"bad_request".into()),
            "{body}: {}",
            a.body
        );
    }
    let deep = "[".repeat(50_000);
    assert_eq!(s.ask("POST", "/v1/run", json, &deep).status, 400);
    let a = s.ask("POST", "/v1/run", json, &"x".repeat(100_001));
    assert_eq!(
        (a.status, &a.body["error"]["code"]),
        (413, &"too_large".into())
    );
    // A length that is only announced, and one that is not announced.
    let head = "POST /v1/run HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
    assert_eq!(
        s.raw(format!("{head}content-length: 99999999999\r\n\r\n").as_bytes())
            .status,
        413
    );
    let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000)).repeat(5);
    assert_eq!(
        s.raw(format!("{head}transfer-encoding: chunked\r\n\r\n{chunk}0\r\n\r\n").as_bytes())
            .status,
        413
    );
    // What a form of a foreign page can send.
    for kind in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
    ] {
        assert_eq!(s.ask("POST", "/v1/run", kind, "{}").status, 415, "{kind}");
    }
    assert_eq!(s.raw(b"nonsense\r\n\r\n").status, 400);
    let foreign =
        s.raw(b"GET /v1/jobs HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert_eq!(
        (foreign.status, &foreign.body["error"]["code"]),
        (403, &"wrong_host".into())
    );
    let deep_toml = format!("x = {}", "[".repeat(20_000));
    for scenario in [
        deep_toml.as_str(),
        "a.".repeat(10_000).as_str(),
        "",
        "x = 1e999",
        "\u{feff}\u{0}",
    ] {
        s.refused("/v1/run", &json!({"scenario": scenario}));
    }
    // It still works.
    s.result("/v1/run", &json!({"scenario": small(10)}));
}

#[test]
fn nobody_takes_more_than_his_share() {
    let s = service(Limits {
        requests: 1000,
        replicas: 10,
        candidates: 3,
        ..Limits::default()
    });
    for (set, place) in [
        (json!(["run.requests=1001"]), "run.requests"),
        (json!(["layout.replicas=11"]), "layout.replicas"),
        (
            json!(["layout.replicas=10", "engine.kv_blocks=16777216"]),
            "layout.replicas",
        ),
    ] {
        let error = s.refused("/v1/run", &json!({"scenario": small(10), "set": set}));
        assert_eq!(error["where"], place, "{error}");
    }
    let by_time = small(10).replace("requests = 10", "duration = \"1000 s\"");
    let error = s.refused("/v1/run", &json!({"scenario": by_time}));
    assert_eq!(error["where"], "run.duration", "{error}");
    let error = s.refused(
        "/v1/plan",
        &json!({"quick": {"model": "llama-3.1-8b", "rate": "1 req/s", "prompt": 10, "output": 10, "slo": ["ttft.p99 < 1 s"], "instances": ["g6e.xlarge"]}}),
    );
    assert!(
        error["why"]
            .as_str()
            .unwrap()
            .contains("more than 3 candidates"),
        "{error}"
    );
    let error = s.refused(
        "/v1/capacity",
        &json!({"scenario": small(10), "scales": vec![1.0; 65]}),
    );
    assert_eq!(error["where"], "scales");
}

#[test]
fn what_is_too_much_is_refused_before_it_is_tried() {
    let s = service(Limits::default());
    let long = small(10) + &"\n# more".repeat(200_000);
    let sets = vec!["run.requests=10"; 1001];
    // Far beyond what a second can simulate, were it begun.
    let by_time = small(10).replace("requests = 10", "duration = \"1000000000 s\"");
    for (body, place) in [
        (json!({"scenario": long}), "scenario"),
        (json!({"scenario": small(10), "set": sets}), "set"),
        (json!({"scenario": by_time}), "run.duration"),
    ] {
        let job = s.done("/v1/run", &body);
        assert_eq!(job["error"]["where"], place, "{job}");
        let took = job["ended_s"].as_f64().unwrap() - job["started_s"].as_f64().unwrap();
        assert!(took < 5.0, "{place}: {took} s");
    }
}

#[test]
fn connections_that_say_nothing_delay_nobody() {
    let s = service(Limits::default());
    let job = s.post("/v1/run", &endless()).body;
    let url = job["url"].as_str().unwrap();
    // One that waits for its answer outlives those that never ask.
    let mut waiting = TcpStream::connect(s.address).unwrap();
    let poll = format!("GET {url}?wait=3 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    waiting.write_all(poll.as_bytes()).unwrap();
    // Enough time for it to be read before the others come.
    assert_eq!(s.get("/health").status, 200);
    let mut half_open = Vec::new();
    for _ in 0..300 {
        let mut c = TcpStream::connect(s.address).unwrap();
        c.write_all(b"GET /health HTTP/1.1\r\nhost: local").unwrap();
        half_open.push(c);
    }
    let start = Instant::now();
    assert_eq!(s.get("/health").status, 200);
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    let mut answer = String::new();
    waiting.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    s.ask("DELETE", url, "", "");
}

#[test]
fn jobs_queue_are_cancelled_and_forgotten() {
    let s = service(Limits {
        queue: 1,
        kept: 2,
        ..Limits::default()
    });
    let first = s.post("/v1/run", &endless()).body;
    let second = s.post("/v1/run", &endless()).body;
    let third = s.post("/v1/run", &endless());
    assert_eq!(
        (third.status, &third.body["error"]["code"]),
        (429, &"queue_full".into())
    );
    assert!(third.head.contains("retry-after"), "{}", third.head);
    let url = |job: &Value| job["url"].as_str().unwrap().to_owned();
    assert_eq!(s.get(&url(&second)).body["state"], "queued");
    assert_eq!(s.get(&format!("{}/result", url(&first))).status, 409);
    // It goes on while nobody asks.
    let start = Instant::now();
    while s.get(&url(&first)).body["progress"]["done"]
        .as_u64()
        .unwrap_or(0)
        == 0
    {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        s.get("/health").body["jobs"],
        json!({"queued": 1, "running": 1, "kept": 0})
    );
    assert_eq!(
        s.ask("DELETE", &url(&second), "", "").body["state"],
        "cancelled"
    );
    assert_eq!(s.ask("DELETE", &url(&first), "", "").status, 200);
    let ended = s.end(&url(&first));
    assert_eq!(
        (&ended["state"], &ended["error"]["code"]),
        (&"cancelled".into(), &"cancelled".into())
    );
    assert_eq!(s.get("/v1/jobs").body["jobs"].as_array().unwrap().len(), 2);
    // The oldest goes when more end; the others go when told.
    let last = s.done("/v1/run", &json!({"scenario": small(10)}));
    assert_eq!(s.get(&url(&second)).status, 404);
    assert_eq!(s.ask("DELETE", &url(&last), "", "").status, 204);
    assert_eq!(s.get(&url(&last)).status, 404);
}

#[test]
fn a_job_has_its_time() {
    let s = service(Limits {
        job_time: Duration::from_millis(200),
        ..Limits::default()
    });
    let error = s.refused("/v1/run", &endless());
    assert_eq!(error["code"], "job_timeout", "{error}");
    let error = s.refused("/v1/whatif", &endless());
    assert_eq!(error["code"], "job_timeout", "{error}");
    let question = "slo = [\"ttft.p99 < 1 s\"]\n[model]\nname = \"llama-3.1-8b\"\n[[workload]]\narrival = { kind = \"poisson\", rate = \"100 req/s\" }\nprompt = 500\n\
                    output = 500\n[run]\nrequests = 100000\n";
    let error = s.refused("/v1/plan", &json!({"question": question}));
    assert_eq!(error["code"], "job_timeout", "{error}");
}

#[test]
fn a_key_is_asked_for_where_there_is_one() {
    let s = service(Limits {
        key: Some("secret".into()),
        ..Limits::default()
    });
    for headers in [
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: secret\r\n",
    ] {
        let a = s.ask("GET", "/v1/jobs", headers, "");
        assert_eq!(
            (a.status, &a.body["error"]["code"]),
            (401, &"unauthorized".into())
        );
    }
    assert_eq!(
        s.ask("GET", "/v1/jobs", "authorization: Bearer secret\r\n", "")
            .status,
        200
    );
    assert_eq!(s.get("/health").status, 200);
}

#[test]
fn the_end_waits_for_what_runs_and_cancels_what_waits() {
    let mut s = service(Limits::default());
    let running = s.post("/v1/run", &json!({"scenario": small(20_000)})).body;
    let waiting = s.post("/v1/run", &endless()).body;
    let address = s.address;
    let url = running["url"].as_str().unwrap().to_owned();
    let ask = std::thread::spawn(move || {
        let s = Service {
            address,
            stop: None,
            thread: None,
        };
        s.get(&format!("{url}?wait=30")).body["state"].clone()
    });
    std::thread::sleep(Duration::from_millis(50));
    s.stop.take();
    let cut = s.thread.take().unwrap().join().unwrap();
    assert_eq!(cut, 0, "{waiting}");
    assert_eq!(ask.join().unwrap(), "succeeded");
}

#[test]
fn the_document_describes_every_path() {
    let s = service(Limits::default());
    let document = s.get("/openapi.json").body;
    assert_eq!(document["openapi"], "3.1.0");
    // Every reference leads somewhere.
    let text = document.to_string();
    for name in text.split("#/components/schemas/").skip(1) {
        let name = name.split('"').next().unwrap();
        assert!(
            document["components"]["schemas"][name].is_object(),
            "{name}"
        );
    }
    // Every path that it names is there: none is answered 404 as a path.
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let a = s.ask(&method.to_uppercase(), &path.replace("{id}", "x"), "", "");
            assert_ne!(
                a.body["error"]["what"], "there is no such path",
                "{method} {path}"
            );
            let listed = &methods[method]["responses"][a.status.to_string()];
            assert!(
                listed.is_object(),
                "{method} {path}: {} is not listed",
                a.status
            );
        }
    }
    assert_eq!(document["paths"].as_object().unwrap().len(), 9);
}

/// The committed document is that of the code. After a change: `SERVETWIN_WRITE_SCHEMAS=1 cargo test -p api`.
#[test]
fn the_committed_document_is_current() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/openapi.json");
    let current = serde_json::to_string_pretty(&api::openapi::document()).unwrap() + "\n";
    if std::env::var_os("SERVETWIN_WRITE_SCHEMAS").is_some() {
        std::fs::write(&path, &current).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == current,
        "docs/schema/openapi.json is out of date: SERVETWIN_WRITE_SCHEMAS=1 cargo test -p api"
    );
}
