//! Certificates of X.509's first version: what `openssl x509 -req` makes when it is told of no extensions. Go programs take
//! them from clients, the TLS library knows only the third version.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct};
use x509_parser::asn1_rs::Sequence;
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

/// Whether a certificate is of the first version.
pub fn is_first_version(certificate: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| parsed.version() == X509Version::V1)
}

/// Whether who shows such a certificate holds its key: it has signed the handshake.
pub fn verify_handshake(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signature: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let key = parsed.public_key();
    let kind = kind_of_key(key.raw).ok_or(CertificateError::BadEncoding)?;
    let known = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signature.scheme);
    let mut fitting =
        known.flat_map(|(_, algorithms)| *algorithms).filter(|own| *own.public_key_alg_id() == kind[..]);
    let bits = &key.subject_public_key.data;
    if fitting.any(|own| own.verify_signature(bits, message, signature.signature()).is_ok()) {
        return Ok(HandshakeSignatureValid::assertion());
    }
    Err(CertificateError::BadSignature.into())
}

/// The algorithm of a public key, as it is written.
fn kind_of_key(key: &[u8]) -> Option<Vec<u8>> {
    let (_, whole) = Sequence::from_der(key).ok()?;
    let (_, kind) = Sequence::from_der(&whole.content).ok()?;
    Some(kind.content.to_vec())
}

/// Whether a certificate of the first version was made by one of these authorities and is good now. It has no extensions, so
/// nothing says what it is not for.
pub fn is_vouched_for(
    certificate: &CertificateDer<'_>,
    authorities: &[CertificateDer<'static>],
    now: UnixTime,
) -> bool {
    let Ok((_, own)) = X509Certificate::from_der(certificate) else { return false };
    let made_by = |authority: &X509Certificate<'_>| {
        authority.subject().as_raw() == own.issuer().as_raw()
            && (authority.version() != X509Version::V3 || authority.is_ca())
            && is_good(authority, now)
            && own.verify_signature(Some(authority.public_key())).is_ok()
    };
    own.version() == X509Version::V1
        && is_good(&own, now)
        && authorities.iter().any(|one| X509Certificate::from_der(one).is_ok_and(|(_, one)| made_by(&one)))
}

fn is_good(certificate: &X509Certificate<'_>, now: UnixTime) -> bool {
    let validity = certificate.validity();
    let (begin, end) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    i64::try_from(now.as_secs()).is_ok_and(|now| (begin..=end).contains(&now))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{PrivateKeyDer, ServerName};

    use super::*;
    use crate::tls;

    /// Made by `openssl req -x509` and `openssl x509 -req`.
    const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBejCCASGgAwIBAgIUMgtVdPY+Pk6eXswUzAj9MZ6H2LUwCgYIKoZIzj0EAwIw\n\
        EjEQMA4GA1UEAwwHdGVzdC1jYTAgFw0yNjExMTYxNDU2MzBaGA8yMTI2MTAyMzE0\n\
        NTYzMFowEjEQMA4GA1UEAwwHdGVzdC1jYTBZMBMGByqGSM49AgEGCCqGSM49AwEH\n\
        A0IABKVGLWQ9V2dCopMa1MIjRiwhgM9Wj3HEKMqEDHkOEXMFnsxB8JIM+hvPluCa\n\
        MK9NFyqORGlUxfnyv0epHio3daGjUzBRMB0GA1UdDgQWBBSR/ev/lWrQlO6iS4Cu\n\
        viKUsdrQqzAfBgNVHSMEGDAWgBSR/ev/lWrQlO6iS4CuviKUsdrQqzAPBgNVHRMB\n\
        Af8EBTADAQH/MAoGCCqGSM49BAMCA0cAMEQCIHHaWnU9MHcXBJKSiS1G5ejYAhU9\n\
        Cq72ItY46Tl8aoObAiB13Xr3pyXWBYDaCfVSckChCErIQ0QY8vyOfOhu+uD5KA==\n\
        -----END CERTIFICATE-----\n";
    const AUTHORITYS_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSBLLwaK/yZirTEeE\n\
        B1wb04Ej3+uPVNoAl6x3565/anyhRANCAASlRi1kPVdnQqKTGtTCI0YsIYDPVo9x\n\
        xCjKhAx5DhFzBZ7MQfCSDPobz5bgmjCvTRcqjkRpVMX58r9HqR4qN3Wh\n\
        -----END PRIVATE KEY-----\n";
    const JANE: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBLDCB0gIUBErjtNqNr8DOATiCLf6SerSZtb4wCgYIKoZIzj0EAwIwEjEQMA4G\n\
        A1UEAwwHdGVzdC1jYTAgFw0yNjExMTYxNDU2MzBaGA8yMTI2MTAyMzE0NTYzMFow\n\
        HTENMAsGA1UEAwwEamFuZTEMMAoGA1UECgwDZGV2MFkwEwYHKoZIzj0CAQYIKoZI\n\
        zj0DAQcDQgAE/Ehu9m5jhFmrXpJS3s1OoJefj82mxcHUJGIUnfW3Wlwjmr0P7aKS\n\
        bTv6fstCxrA3FNUMhV9MJlX6maep9gxJTDAKBggqhkjOPQQDAgNJADBGAiEA4mTY\n\
        flOIUnitss3CzWUEDL5TTUMM4eWJVwJTHmmsO0gCIQCrrXIBWOZqEOqATcIFXO/Y\n\
        Yg8+DipN0HNfezaTm/3rMg==\n\
        -----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgrSK72uh7HNTFWztk\n\
        eP8mZk9tTrNWayUW585gVNucPH2hRANCAAT8SG72bmOEWateklLezU6gl5+PzabF\n\
        wdQkYhSd9bdaXCOavQ/topJtO/p+y0LGsDcU1QyFX0wmVfqZp6n2DElM\n\
        -----END PRIVATE KEY-----\n";

    fn one(pem: &str) -> CertificateDer<'static> {
        tls::certificates(pem.as_bytes(), "a test's").unwrap().remove(0)
    }

    #[test]
    fn a_certificate_is_good_if_the_authority_made_it() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let now = 2_000_000_000;
        assert!(is_vouched_for(&one(JANE), &[one(AUTHORITY)], at(now)));
        assert!(!is_vouched_for(&one(JANE), &[one(AUTHORITY)], at(1000)), "not good yet");
        assert!(!is_vouched_for(&one(JANE), &[one(JANE)], at(now)), "another authority");
        assert!(!is_vouched_for(&one(AUTHORITY), &[one(AUTHORITY)], at(now)), "of the third version");
        let mut spoiled = one(JANE).to_vec();
        let place = spoiled.len() - 3;
        spoiled[place] ^= 1;
        assert!(!is_vouched_for(&spoiled.into(), &[one(AUTHORITY)], at(now)), "the signature");
    }

    fn shake_hands(
        asking: &mut rustls::ClientConnection,
        answering: &mut rustls::ServerConnection,
    ) -> Result<(), rustls::Error> {
        for _ in 0..10 {
            let mut wire = Vec::new();
            asking.write_tls(&mut wire).unwrap();
            answering.read_tls(&mut wire.as_slice()).unwrap();
            answering.process_new_packets()?;
            wire.clear();
            answering.write_tls(&mut wire).unwrap();
            asking.read_tls(&mut wire.as_slice()).unwrap();
            asking.process_new_packets()?;
        }
        assert!(!asking.is_handshaking() && !answering.is_handshaking());
        Ok(())
    }

    #[test]
    fn the_handshake_shows_who_holds_the_key() {
        let signing = |pem: &str| {
            let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).unwrap();
            rustls::crypto::ring::sign::any_supported_type(&key).unwrap()
        };
        let serving = tls::ServingCertificates::new(AUTHORITY.as_bytes(), AUTHORITYS_KEY.as_bytes()).unwrap();
        let serving =
            tls::server_config(Arc::new(serving), Vec::new(), &tls::Limits::default(), true).unwrap();
        let serving = Arc::new(serving);
        for (version, key, taken) in [
            (&rustls::version::TLS13, signing(KEY), true),
            (&rustls::version::TLS12, signing(KEY), true),
            (&rustls::version::TLS13, signing(AUTHORITYS_KEY), false),
            (&rustls::version::TLS12, signing(AUTHORITYS_KEY), false),
        ] {
            let shown = rustls::sign::CertifiedKey::new(vec![one(JANE)], key);
            let mut config = rustls::ClientConfig::builder_with_provider(tls::provider())
                .with_protocol_versions(&[version])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(client::any_server(tls::provider()))
                .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(shown)));
            config.enable_sni = false;
            let name = ServerName::try_from("server").unwrap();
            let mut asking = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
            let mut answering = rustls::ServerConnection::new(serving.clone()).unwrap();
            let outcome = shake_hands(&mut asking, &mut answering);
            assert_eq!(outcome.is_ok(), taken, "{version:?} {outcome:?}");
        }
    }
}
