//! Clients of all kinds.

use super::*;
use std::io::{Read, Write};
use std::net::TcpStream as Client;
use std::sync::atomic::{AtomicUsize, Ordering};
use tally_schema::metrics::{Families, state};

#[derive(Default)]
struct Counting(Arc<AtomicUsize>);

impl Source for Counting {
    fn snapshot(&self) -> Option<Snapshot> {
        let n = self.0.fetch_add(1, Ordering::Relaxed);
        let mut families = Families::default();
        families.one(&state("asked", "n", "Asked.", &[], None), &[], n as u64);
        Some(Snapshot {
            families: families.into_vec(),
            json: format!("{{\"asked\":{n}}}\n"),
        })
    }

    fn page(&self) -> Option<&'static str> {
        Some("<script nonce=NONCE>1</script>")
    }
}

fn server() -> (Server, Arc<AtomicUsize>) {
    let section = MetricsSection {
        listen: "127.0.0.1:0".parse().unwrap(),
        hosts: vec!["switch.example".into()],
    };
    let asked = Arc::new(AtomicUsize::new(0));
    let source = Counting(Arc::clone(&asked));
    (
        Server::start(Listener::bind(&section).unwrap(), source).unwrap(),
        asked,
    )
}

/// All that the server says to these bytes.
fn say(server: &Server, bytes: &str) -> String {
    let mut client = Client::connect(server.address()).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    client.write_all(bytes.as_bytes()).unwrap();
    let mut text = Vec::new();
    let _ = client.read_to_end(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn get(server: &Server, path: &str, headers: &str) -> String {
    say(
        server,
        &format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:9469\r\n{headers}\r\n"),
    )
}

#[test]
fn each_path_has_its_type_and_what_changes_nothing_is_allowed() {
    let (server, _) = server();
    let text = get(&server, "/metrics", "");
    assert!(
        text.starts_with("HTTP/1.1 200") && text.contains("version=0.0.4"),
        "{text}"
    );
    assert!(
        text.contains("# TYPE tally_asked gauge\ntally_asked 0\n"),
        "{text}"
    );
    assert!(
        text.contains("# TYPE tally_log_limited_events_total counter"),
        "{text}"
    );
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let text = get(&server, "/metrics", accept);
    assert!(
        text.contains("application/openmetrics-text") && text.ends_with("# EOF\n"),
        "{text}"
    );
    let text = get(&server, "/report.json", "");
    assert!(
        text.contains("application/json") && text.ends_with("{\"asked\":0}\n"),
        "{text}"
    );
    for header in [
        "nosniff",
        "DENY",
        "no-store",
        "default-src 'none'",
        "same-origin",
    ] {
        assert!(text.contains(header), "{header}: {text}");
    }
    assert!(get(&server, "/../etc/passwd", "").starts_with("HTTP/1.1 404"));
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let request = format!(
            "{method} /report.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        );
        let text = say(&server, &request);
        assert!(
            text.starts_with("HTTP/1.1 405") && text.contains("GET, HEAD"),
            "{text}"
        );
    }
    let head = say(&server, "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
}

#[test]
fn the_page_runs_its_own_script_alone() {
    let (server, _) = server();
    let nonce = || {
        let text = get(&server, "/", "");
        let (_, page) = text.rsplit_once("nonce=").unwrap();
        let nonce = page.split('>').next().unwrap().to_owned();
        assert!(
            text.contains(&format!("script-src 'nonce-{nonce}'")),
            "{text}"
        );
        nonce
    };
    assert_ne!(nonce(), nonce());
}

#[test]
fn names_that_are_not_ours_are_refused() {
    let (server, _) = server();
    let host = |host: &str| {
        let text = say(&server, &format!("GET /report.json HTTP/1.1\r\n{host}\r\n"));
        text.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for ours in [
        "10.0.0.1",
        "10.0.0.1:9469",
        "[::1]:9469",
        "[::1]",
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "switch.example",
        "Switch.Example:9469",
    ] {
        assert_eq!(host(&format!("Host: {ours}\r\n")), "200", "{ours}");
    }
    for other in [
        "evil.example",
        "switch.example.evil",
        "127.0.0.1.evil.example",
        "localhost.evil:80",
        "",
        "a b",
        "[::1",
        "evil.example:127.0.0.1",
    ] {
        let status = host(&format!("Host: {other}\r\n"));
        assert!(["421", "400"].contains(&&status[..]), "{other}: {status}");
    }
    assert_eq!(host(""), "421", "HTTP/1.1 without Host");
    assert_eq!(
        host("Host: localhost\r\nHost: evil.example\r\n"),
        "421",
        "two"
    );
    assert!(say(&server, "GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200"));
}

#[test]
fn many_clients_cost_one_snapshot() {
    let (server, asked) = server();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert!(get(&server, "/metrics", "").starts_with("HTTP/1.1 200")));
        }
    });
    assert!(asked.load(Ordering::Relaxed) <= 2, "{asked:?}");
}

#[test]
fn clients_that_hang_or_speak_nonsense_cost_no_other() {
    let (server, _) = server();
    // More than the places: some are closed, all others end in time.
    let hanging: Vec<_> = (0..CLIENTS_MAX * 2)
        .map(|_| {
            let mut client = Client::connect(server.address()).unwrap();
            client
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: loc");
            client
        })
        .collect();
    let deadline = Instant::now() + HEADERS_WITHIN * 4;
    while !get(&server, "/metrics", "").starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < deadline, "no place became free");
        std::thread::sleep(Duration::from_millis(100));
    }
    for mut client in hanging {
        let mut text = Vec::new();
        let ended = client.read_to_end(&mut text);
        assert!(ended.is_ok() || ended.is_err_and(|why| why.kind() != io::ErrorKind::WouldBlock));
    }
    for nonsense in ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "SSH-2.0-x\r\n\r\n"] {
        let text = say(&server, nonsense);
        assert!(
            text.is_empty() || text.starts_with("HTTP/1.1 400"),
            "{text}"
        );
    }
    let long = format!(
        "GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(HEADERS_MAX * 2)
    );
    assert!(!say(&server, &long).starts_with("HTTP/1.1 200"));
    assert!(get(&server, "/metrics", "").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_port_that_is_taken_is_an_error_and_a_dropped_server_frees_it() {
    let (server, _) = server();
    let section = MetricsSection {
        listen: server.address(),
        hosts: Vec::new(),
    };
    let error = Listener::bind(&section).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    drop(server);
    let deadline = Instant::now() + Duration::from_secs(5);
    while Listener::bind(&section).is_err() {
        assert!(Instant::now() < deadline, "still taken");
        std::thread::sleep(Duration::from_millis(20));
    }
}
