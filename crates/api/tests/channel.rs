//! Both ends of the channel: sockets and their files, rights, hostile clients, mutual TLS.

#![allow(clippy::unwrap_used)]

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tally_api::client::{Client, ConnectError, Target, TcpTarget, connect};
use tally_api::proto::control_server::Control;
use tally_api::proto::view_server::View;
use tally_api::proto::{
    AddJobRequest, AddPortRequest, AddRingRequest, CaptureReply, CaptureRequest, Changed,
    ClearCountersRequest, DrainJobRequest, JobRequest, MacsReply, MacsRequest, ReloadRequest,
    RemoveRingRequest, ReportReply, ReportRequest, RotateKeyRequest, RotateTenantKeyRequest,
    SetJobRequest, SetPortRequest, TenantNameRequest, TenantRequest,
};
use tally_api::server::{
    Caller, Limits, ListenError, Listener, Rights, Running, Tls, UnixSocket, start,
};
use tempfile::TempDir;
use tonic::{Code, Request, Response, Status};

/// Says who called.
struct Echo;

type Answer<T> = Result<Response<T>, Status>;

fn changed<T>(request: &Request<T>) -> Answer<Changed> {
    let caller = Caller::with_control(request)?;
    Ok(Response::new(Changed {
        version: 2,
        changed: true,
        changes: vec![caller.to_string()],
        needs_restart: Vec::new(),
    }))
}

#[tonic::async_trait]
impl View for Echo {
    async fn report(&self, request: Request<ReportRequest>) -> Answer<ReportReply> {
        let caller = Caller::of(&request)?;
        Ok(Response::new(ReportReply {
            version: 1,
            json: caller.to_string(),
            cleared_s: None,
        }))
    }

    async fn macs(&self, _: Request<MacsRequest>) -> Answer<MacsReply> {
        std::future::pending().await
    }
}

#[tonic::async_trait]
impl Control for Echo {
    async fn add_job(&self, request: Request<AddJobRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn set_job(&self, request: Request<SetJobRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn remove_job(&self, request: Request<JobRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn drain_job(&self, request: Request<DrainJobRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn rotate_key(&self, request: Request<RotateKeyRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn retire_key(&self, request: Request<JobRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn add_tenant(&self, request: Request<TenantRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn set_tenant(&self, request: Request<TenantRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn remove_tenant(&self, request: Request<TenantNameRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn rotate_tenant_key(&self, request: Request<RotateTenantKeyRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn retire_tenant_key(&self, request: Request<TenantNameRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn add_ring(&self, request: Request<AddRingRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn remove_ring(&self, request: Request<RemoveRingRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn add_port(&self, request: Request<AddPortRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn set_port(&self, request: Request<SetPortRequest>) -> Answer<Changed> {
        changed(&request)
    }
    type CaptureStream = tokio_stream::Empty<Result<CaptureReply, Status>>;

    async fn capture(&self, request: Request<CaptureRequest>) -> Answer<Self::CaptureStream> {
        Caller::with_control(&request)?;
        Ok(Response::new(tokio_stream::empty()))
    }
    async fn reload(&self, request: Request<ReloadRequest>) -> Answer<Changed> {
        changed(&request)
    }
    async fn clear_counters(&self, request: Request<ClearCountersRequest>) -> Answer<Changed> {
        changed(&request)
    }
}

const LIMITS: Limits = Limits {
    connections_of_peer: 4,
    connections: 8,
    calls: 8,
    first_call: Duration::from_millis(500),
    keepalive: Duration::from_millis(500),
    call: Duration::from_millis(500),
};

fn socket(folder: &Path, name: &str, rights: Rights) -> UnixSocket {
    UnixSocket {
        path: folder.join(name),
        mode: 0o600,
        group: None,
        rights,
    }
}

/// A server with a socket for changes and one to look.
fn server() -> (TempDir, Running) {
    let folder = tempfile::tempdir().unwrap();
    let listeners = [("control", Rights::Control), ("view", Rights::View)];
    let listeners = listeners
        .map(|(name, rights)| Listener::unix(&socket(folder.path(), name, rights)).unwrap());
    let running = start("api", listeners.into(), Echo, LIMITS).unwrap();
    (folder, running)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn at(folder: &TempDir, name: &str) -> Target {
    Target::Unix(folder.path().join(name))
}

async fn report(client: &mut Client) -> Result<String, Status> {
    let answer = client.view.report(ReportRequest::default()).await?;
    Ok(answer.into_inner().json)
}

async fn reload(client: &mut Client) -> Result<Changed, Status> {
    let answer = client.control.reload(ReloadRequest::default()).await?;
    Ok(answer.into_inner())
}

#[test]
fn the_control_socket_changes_and_the_other_one_shows() {
    let (folder, _running) = server();
    let me = format!(
        "user {}, process {}",
        fs::metadata("/proc/self").unwrap().uid(),
        std::process::id()
    );
    block_on(async {
        let mut client = connect(&at(&folder, "control")).await.unwrap();
        assert_eq!(report(&mut client).await.unwrap(), me);
        assert_eq!(reload(&mut client).await.unwrap().changes.concat(), me);
        let mut client = connect(&at(&folder, "view")).await.unwrap();
        assert_eq!(report(&mut client).await.unwrap(), me);
        let refused = reload(&mut client).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        for part in [
            me.as_str(),
            "may look and not change",
            "this one is read-only",
        ] {
            assert!(refused.message().contains(part), "{refused}");
        }
    });
}

#[test]
fn a_call_without_an_answer_ends_in_time() {
    let (folder, _running) = server();
    block_on(async {
        let mut client = connect(&at(&folder, "view")).await.unwrap();
        let begin = Instant::now();
        let status = client.view.macs(MacsRequest {}).await.unwrap_err();
        assert_eq!(status.code(), Code::Cancelled, "{status}");
        assert!(begin.elapsed() < Duration::from_secs(5));
        report(&mut client).await.unwrap();
    });
}

#[test]
fn sockets_have_their_mode_and_are_removed() {
    let (folder, running) = server();
    let path = folder.path().join("control");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "no temporary file"
    );
    drop(running);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // A folder that is missing is made, for everyone to search.
    let made = folder.path().join("tally");
    let listener = Listener::unix(&socket(&made, "control", Rights::Control)).unwrap();
    assert_eq!(fs::metadata(&made).unwrap().mode() & 0o777, 0o755);
    // A socket that another process has put there since stays.
    let path = made.join("control");
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
}

#[test]
fn a_leftover_is_replaced_and_a_live_socket_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let it = socket(folder.path(), "control", Rights::Control);
    drop(UnixListener::bind(&it.path).unwrap());
    assert!(it.path.exists(), "as after a crash");
    let first = Listener::unix(&it).unwrap();
    let why = Listener::unix(&it).map(drop).unwrap_err();
    assert!(
        matches!(&why, ListenError::InUse(path) if *path == it.path),
        "{why}"
    );
    drop(first);
    fs::write(&it.path, "a file").unwrap();
    let why = Listener::unix(&it).map(drop).unwrap_err();
    assert!(matches!(why, ListenError::NotSocket(_)), "{why}");
    assert_eq!(fs::read_to_string(&it.path).unwrap(), "a file");
    fs::remove_file(&it.path).unwrap();
    let group = Some("no-such-group".to_owned());
    let why = Listener::unix(&UnixSocket {
        group,
        ..it.clone()
    })
    .map(drop)
    .unwrap_err();
    assert!(
        why.to_string()
            .contains("group `no-such-group` does not exist"),
        "{why}"
    );
    let long = socket(
        &folder.path().join("x".repeat(100)),
        "control",
        Rights::Control,
    );
    let why = Listener::unix(&long).map(drop).unwrap_err();
    assert!(why.to_string().contains("at most 100 are allowed"), "{why}");
    let deep = socket(&folder.path().join("a/b"), "control", Rights::Control);
    let why = Listener::unix(&deep).map(drop).unwrap_err();
    assert!(why.to_string().contains("cannot make its folder"), "{why}");
}

#[test]
fn a_client_is_told_why_there_is_no_switch() {
    let folder = tempfile::tempdir().unwrap();
    let failed = |name: &str| block_on(connect(&at(&folder, name))).map(drop).unwrap_err();
    assert!(matches!(failed("none"), ConnectError::NotFound(_)));
    drop(UnixListener::bind(folder.path().join("left")).unwrap());
    assert!(matches!(failed("left"), ConnectError::Refused(_)));
    fs::write(folder.path().join("file"), "").unwrap();
    assert!(matches!(failed("file"), ConnectError::NotSocket(_)));
}

/// Whether the other end closes within the time for a first call and some.
fn closes(stream: &mut UnixStream) -> bool {
    stream
        .set_read_timeout(Some(LIMITS.first_call * 6))
        .unwrap();
    let mut bytes = Vec::new();
    // Garbage may be answered before the end.
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn clients_that_hang_or_talk_nonsense_cost_nothing() {
    let (folder, _running) = server();
    let path = folder.path().join("view");
    let mut hostile: Vec<_> = (0..3)
        .map(|_| UnixStream::connect(&path).unwrap())
        .collect();
    hostile[1].write_all(&[0xa5; 4096]).unwrap();
    hostile[2].write_all(b"PRI * HTTP/2.0\r\n\r\nSM").unwrap();
    block_on(async {
        let mut client = connect(&at(&folder, "view")).await.unwrap();
        report(&mut client).await.unwrap();
    });
    assert!(hostile.iter_mut().all(closes));
}

#[test]
fn a_thousand_connections_of_one_user_leave_room_for_control() {
    let (folder, _running) = server();
    let path = folder.path().join("view");
    let mut many: Vec<_> = (0..1000)
        .map_while(|_| UnixStream::connect(&path).ok())
        .collect();
    block_on(async {
        let mut client = connect(&at(&folder, "control")).await.unwrap();
        report(&mut client).await.unwrap();
    });
    assert!(
        many.iter_mut().all(closes),
        "beyond the limit at once, the others in time"
    );
    drop(many);
    block_on(async {
        let mut client = connect(&at(&folder, "view")).await.unwrap();
        report(&mut client).await.unwrap();
    });
}

#[test]
fn requests_have_a_size() {
    let (folder, _running) = server();
    block_on(async {
        let mut client = connect(&at(&folder, "control")).await.unwrap();
        let request = RotateKeyRequest {
            key: "0".repeat(100_000),
            ..RotateKeyRequest::default()
        };
        let status = client.control.rotate_key(request).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{status}");
        report(&mut client).await.unwrap();
    });
}

/// An authority, and a certificate of it with its key.
struct Pki {
    folder: TempDir,
}

impl Pki {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for authority in ["ours", "other"] {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let certificate = params.self_signed(&key).unwrap();
            let write = |name: &str, text: String| {
                let path = folder.path().join(format!("{authority}-{name}"));
                fs::write(&path, text).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
            };
            write("ca", certificate.pem());
            let issuer = rcgen::Issuer::new(params, key);
            for name in ["switch", "client"] {
                let key = rcgen::KeyPair::generate().unwrap();
                let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
                let certificate = params.signed_by(&key, &issuer).unwrap();
                write(&format!("{name}.crt"), certificate.pem());
                write(&format!("{name}.key"), key.serialize_pem());
            }
        }
        Self { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn listen(&self) -> Result<Listener, ListenError> {
        let tls = Tls {
            certificate: self.file("ours-switch.crt"),
            key: self.file("ours-switch.key"),
            client_ca: self.file("ours-ca"),
        };
        Listener::tcp(SocketAddr::from(([127, 0, 0, 1], 0)), &tls)
    }

    /// A client with a certificate of that authority, which trusts a switch of that one.
    fn target(&self, address: &str, own: &str, trusted: &str) -> Target {
        Target::Tcp(TcpTarget {
            address: address.to_owned(),
            certificate: self.file(&format!("{own}-client.crt")),
            key: self.file(&format!("{own}-client.key")),
            ca: self.file(&format!("{trusted}-ca")),
            name: Some("localhost".into()),
        })
    }
}

#[test]
fn tcp_is_for_those_with_a_certificate_of_the_authority() {
    let pki = Pki::new();
    let listener = pki.listen().unwrap();
    let address = listener.place();
    let _running = start("api", vec![listener], Echo, LIMITS).unwrap();
    let call = |target: Target| {
        block_on(async {
            let mut client = connect(&target).await.map_err(|error| error.to_string())?;
            let changed = reload(&mut client)
                .await
                .map_err(|status| status.to_string())?;
            Ok::<_, String>(changed.changes.join(" "))
        })
    };
    assert_eq!(
        call(pki.target(&address, "ours", "ours")).unwrap(),
        "host 127.0.0.1"
    );
    let stranger = call(pki.target(&address, "other", "ours")).unwrap_err();
    assert!(!stranger.contains("host 127"), "{stranger}");
    let impostor = call(pki.target(&address, "ours", "other")).unwrap_err();
    assert!(
        impostor.contains("UnknownIssuer") || impostor.contains("certificate"),
        "{impostor}"
    );
    // Without TLS at all, and without a certificate.
    let plain = block_on(async {
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint
            .timeout(Duration::from_secs(5))
            .connect()
            .await
            .map_err(drop)?;
        let mut client = tally_api::proto::view_client::ViewClient::new(channel);
        client.report(ReportRequest::default()).await.map_err(drop)
    });
    assert!(plain.is_err());
    let bare = block_on(async {
        let ca = tonic::transport::Certificate::from_pem(fs::read(pki.file("ours-ca")).unwrap());
        let tls = tonic::transport::ClientTlsConfig::new()
            .ca_certificate(ca)
            .domain_name("localhost");
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("https://{address}")).unwrap();
        let endpoint = endpoint
            .tls_config(tls)
            .unwrap()
            .timeout(Duration::from_secs(5));
        let channel = endpoint.connect().await.map_err(drop)?;
        let mut client = tally_api::proto::view_client::ViewClient::new(channel);
        client.report(ReportRequest::default()).await.map_err(drop)
    });
    assert!(bare.is_err());
    // A handshake that never ends, and then one that does.
    let hanging: Vec<_> = (0..3)
        .map(|_| std::net::TcpStream::connect(&address).unwrap())
        .collect();
    assert!(call(pki.target(&address, "ours", "ours")).is_ok());
    drop(hanging);
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let pki = Pki::new();
    let key = pki.file("ours-switch.key");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    let why = pki.listen().map(drop).unwrap_err().to_string();
    assert!(
        why.contains("mode 0644") && why.contains("chmod 600"),
        "{why}"
    );
    fs::remove_file(&key).unwrap();
    let why = pki.listen().map(drop).unwrap_err().to_string();
    assert!(why.contains("ours-switch.key: No such file"), "{why}");
}
