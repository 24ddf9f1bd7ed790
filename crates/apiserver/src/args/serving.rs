//! Where and as whom the server listens, if the flags leave it open.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use pki::{Algorithm, Pair, PkiError, PrivateKey, San, Subject, Usages};
use tokio::net::TcpSocket;

use super::ArgsError;
use crate::config::KeyPair;

const BACKLOG: u32 = 1024;
const VALID_FOR: SignedDuration = SignedDuration::from_hours(24 * 365);

/// Listens. Unless the port is shared, a second server on it is refused; its address can be used again at once.
pub fn listen(address: IpAddr, port: u16, shared: bool) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(shared)?;
    socket.bind(SocketAddr::new(address, port))?;
    socket.listen(BACKLOG)?.into_std()
}

/// The address of the interface that leads out of this machine: asked of the kernel, nothing is sent.
pub fn own_address(family: IpAddr) -> Option<IpAddr> {
    let (any, far): (IpAddr, IpAddr) = match family {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        IpAddr::V6(_) => {
            (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into())
        }
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((far, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

/// The certificate in a directory; one that nobody signed is made there if it is missing.
pub fn certificate(dir: &Path, own: Option<IpAddr>, host: Option<&str>) -> Result<KeyPair, ArgsError> {
    let (certificate, key) = (dir.join("apiserver.crt"), dir.join("apiserver.key"));
    if !(certificate.exists() && key.exists()) {
        let failed = |source| ArgsError::Make { path: dir.to_owned(), source };
        let pair = make(own, host).map_err(failed)?;
        let write = |path: &Path, text: String, secret: bool| {
            std::fs::create_dir_all(dir)
                .and_then(|()| write_private(path, &text, secret))
                .map_err(|source| ArgsError::Read { flag: "cert-dir", path: path.to_owned(), source })
        };
        write(&key, pair.key_pem(), true)?;
        write(&certificate, pair.certificate_pem(), false)?;
    }
    Ok(KeyPair { certificate: super::read("cert-dir", &certificate)?, key: super::read("cert-dir", &key)? })
}

fn write_private(path: &Path, text: &str, secret: bool) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mode = if secret { 0o600 } else { 0o644 };
    let mut file =
        std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())
}

fn make(own: Option<IpAddr>, host: Option<&str>) -> Result<Pair, PkiError> {
    let mut sans: Vec<San> =
        ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "localhost", "127.0.0.1"]
            .map(San::parse)
            .into();
    sans.extend(own.map(San::Ip));
    sans.extend(host.map(San::parse));
    let now = Timestamp::now();
    let request = pki::Request {
        subject: Subject::new(host.unwrap_or("kube-apiserver"), &[]),
        sans,
        usages: Usages::server(),
        is_ca: false,
        not_before: now - SignedDuration::from_hours(1),
        not_after: now + VALID_FOR,
    };
    Pair::self_signed(&request, Arc::new(PrivateKey::generate(Algorithm::default())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let own = Some("10.1.2.3".parse().unwrap());
        let made = certificate(&dir.path().join("a"), own, Some("api.example.org")).unwrap();
        let again = certificate(&dir.path().join("a"), None, None).unwrap();
        assert_eq!(made.certificate, again.certificate);
        let parsed = pki::Certificate::from_pem(&made.certificate).unwrap();
        assert!(parsed.sans.contains(&San::Ip("10.1.2.3".parse().unwrap())));
        assert!(parsed.sans.contains(&San::parse("api.example.org")));
    }

    #[tokio::test]
    async fn a_port_is_shared_only_if_wanted() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        let first = listen(local, 0, true).unwrap();
        let port = first.local_addr().unwrap().port();
        assert!(listen(local, port, true).is_ok());
        assert!(listen(local, port, false).is_err());
    }
}
