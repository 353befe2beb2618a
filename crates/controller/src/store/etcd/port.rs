//! Whether the leader's process has ended, by TCP.
//!
//! A leader listens at a port that its kernel chooses, and sends each standby the number of its
//! lease. A standby keeps the connection. When a process ends, its kernel closes the connection at
//! once, and refuses the next one: then the standby need not wait for the end of the lease.
//!
//! Only a refused connection says so. A standby that cannot connect, or a machine that is gone, is
//! seen by the silence of the lease, later.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Standbys at a time. Others see the silence of the lease.
const STANDBYS_MAX: usize = 16;
/// Time limit of a connection and of the number of the lease. The controller stands still.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Where standbys connect to a leader.
pub(super) struct LeaderPort {
    pub(super) address: SocketAddr,
    lease: Arc<AtomicI64>,
}

impl LeaderPort {
    /// Listens at the address from which etcd is reached, while the process lives.
    pub(super) fn open(etcd: &str) -> io::Result<Self> {
        let target = etcd.to_socket_addrs()?.next().ok_or(ErrorKind::NotFound)?;
        let any = if target.is_ipv4() { "0.0.0.0" } else { "::" };
        // Connecting it sends nothing, and chooses the address.
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(target)?;
        let listener = TcpListener::bind((socket.local_addr()?.ip(), 0))?;
        let address = listener.local_addr()?;
        let lease = Arc::new(AtomicI64::new(0));
        let number = Arc::clone(&lease);
        let thread = std::thread::Builder::new().name("standbys".to_owned());
        thread.spawn(move || accept(&listener, &number))?;
        Ok(Self { address, lease })
    }

    /// The number of the lease from now on.
    pub(super) fn holds(&self, lease: i64) {
        self.lease.store(lease, Ordering::Relaxed);
    }
}

fn accept(listener: &TcpListener, lease: &AtomicI64) {
    let mut standbys = Vec::<TcpStream>::new();
    for standby in listener.incoming() {
        standbys.retain_mut(is_open);
        let Ok(mut standby) = standby else {
            // No descriptor is left, for example.
            std::thread::sleep(TIMEOUT);
            continue;
        };
        let number = lease.load(Ordering::Relaxed).to_be_bytes();
        let sent = standby.set_nonblocking(true);
        if standbys.len() < STANDBYS_MAX && sent.and_then(|()| standby.write_all(&number)).is_ok() {
            standbys.push(standby);
        }
    }
}

/// Whether the other end has not closed a connection that never brings anything.
fn is_open(stream: &mut TcpStream) -> bool {
    let read = stream.read(&mut [0]);
    read.is_err_and(|it| matches!(it.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted))
}

/// A standby's connection to the leader that has a lease.
pub(super) struct LeaderConnection {
    pub(super) lease: i64,
    address: Option<SocketAddr>,
    stream: Option<TcpStream>,
}

impl LeaderConnection {
    /// Connects to where a leader says that it listens.
    pub(super) fn open(lease: i64, address: Option<SocketAddr>) -> Self {
        let mut it = Self {
            lease,
            address,
            stream: None,
        };
        _ = it.connect();
        it
    }

    fn connect(&mut self) -> io::Result<()> {
        let Some(address) = self.address else {
            return Ok(());
        };
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut number = [0; 8];
        // Another process may have the port, or the machine be another one.
        let is_leader =
            stream.read_exact(&mut number).is_ok() && number == self.lease.to_be_bytes();
        if is_leader && stream.set_nonblocking(true).is_ok() {
            self.stream = Some(stream);
        }
        Ok(())
    }

    /// Whether the leader's process has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        if self.stream.as_mut().is_none_or(is_open) {
            return false;
        }
        self.stream = None;
        let again = self.connect();
        again.is_err_and(|it| it.kind() == ErrorKind::ConnectionRefused)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::time::Instant;

    /// Asks until the end of the connection has come.
    fn ends(connection: &mut LeaderConnection) -> bool {
        let until = Instant::now() + Duration::from_secs(10);
        while connection.stream.as_mut().is_some_and(is_open) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        connection.has_ended()
    }

    #[test]
    fn a_leader_that_listens_has_not_ended() {
        let port = LeaderPort::open("127.0.0.1:2379").unwrap();
        assert!(port.address.ip().is_loopback());
        port.holds(7);
        let mut connection = LeaderConnection::open(7, Some(port.address));
        assert!(connection.stream.is_some());
        assert!(!connection.has_ended());
        // The connection is lost, and the leader is not.
        let stream = connection.stream.as_ref().unwrap();
        stream.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(!ends(&mut connection));
        assert!(connection.stream.is_some());
        // Another term, and another process at the port.
        assert!(
            LeaderConnection::open(8, Some(port.address))
                .stream
                .is_none()
        );
        let all = (0..STANDBYS_MAX).map(|_| LeaderConnection::open(7, Some(port.address)));
        let all: Vec<_> = all.collect();
        assert!(all.iter().filter(|it| it.stream.is_none()).count() > 0);
        assert!(!LeaderConnection::open(7, Some(port.address)).has_ended());
    }

    #[test]
    fn a_process_whose_port_refuses_has_ended_if_it_was_the_leader() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let greet = |number: i64| {
            std::thread::scope(|scope| {
                let opened = scope.spawn(|| LeaderConnection::open(7, Some(address)));
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(&number.to_be_bytes()).unwrap();
                (opened.join().unwrap(), stream)
            })
        };
        let (mut leader, leader_end) = greet(7);
        let (mut other, other_end) = greet(8);
        assert!(!leader.has_ended());
        drop((listener, leader_end, other_end));
        assert!(ends(&mut leader));
        assert!(!other.has_ended());
        assert!(!LeaderConnection::open(7, Some(address)).has_ended());
        assert!(!LeaderConnection::open(7, None).has_ended());
    }
}
