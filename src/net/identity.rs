//! The cluster key: one certificate and its private key, which every worker of a group holds.
//!
//! It is each worker's TLS identity, as client and as server, and both sides accept exactly this
//! certificate and no other. Whoever holds the file belongs to the group; names, dates and
//! authorities do not matter. So there is nothing to sign, to renew or to look up, and a peer
//! without the key is turned away in the handshake, before a byte of it is read.
//!
//! The key is Ed25519: its signatures are deterministic, so that a worker with a bad source of
//! randomness cannot give the key away by signing, and it is short. The cipher is AES-128-GCM, in
//! TLS 1.3 alone: all workers are annulet, so there is nothing to negotiate, and it is the fastest
//! on processors with AES instructions. It is ring's, which has code for vector AES on 256 bits: on
//! processors that have that and no AVX-512, twice as fast as AWS-LC's (5.2 GB/s against 2.6).

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

/// The name that clients ask for; nothing depends on it, but TLS wants one.
pub(super) const SERVER_NAME: &str = "annulet";

/// Tells annulet's connections from those of any other protocol over QUIC.
const ALPN: &[u8] = b"annulet";

/// No key file is anywhere near as long.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// A group's certificate and private key. Clones share them.
#[derive(Clone)]
pub struct ClusterKey {
    inner: Arc<Inner>,
}

struct Inner {
    certificate: CertificateDer<'static>,
    private_key: PrivateKeyDer<'static>,
    pem: String,
}

/// A cluster key that cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot make a cluster key: {0}")]
    Generate(#[source] rcgen::Error),
    #[error("not a cluster key: {0}; make one with `annulet key`")]
    Parse(String),
    #[error("cannot read the cluster key {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    InFile { path: PathBuf, source: Box<KeyError> },
    #[error(
        "the cluster key {} may be read by others (mode {mode:03o}); run: chmod 600 {}",
        path.display(), path.display()
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("cannot write the cluster key {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl ClusterKey {
    /// Makes a fresh key.
    pub fn generate() -> Result<ClusterKey, KeyError> {
        let key_pair =
            rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).map_err(KeyError::Generate)?;
        let certificate = rcgen::CertificateParams::new([SERVER_NAME.to_string()])
            .and_then(|params| params.self_signed(&key_pair))
            .map_err(KeyError::Generate)?;
        ClusterKey::from_pem(&(certificate.pem() + &key_pair.serialize_pem()))
    }

    /// Reads the text that [`to_pem`](ClusterKey::to_pem) gives: one certificate and the private
    /// key that belongs to it.
    pub fn from_pem(text: &str) -> Result<ClusterKey, KeyError> {
        let certificate = only_one(CertificateDer::pem_slice_iter(text.as_bytes()), "certificate")?;
        let private_key = only_one(PrivateKeyDer::pem_slice_iter(text.as_bytes()), "private key")?;
        let inner = Inner { certificate, private_key, pem: text.to_owned() };
        let key = ClusterKey { inner: Arc::new(inner) };
        // Building both configurations finds a broken key and a key of another certificate now,
        // and not when the first peer connects.
        key.server_config().and(key.client_config().map(drop)).map_err(|error| {
            KeyError::Parse(format!("its certificate and private key do not fit together: {error}"))
        })?;
        Ok(key)
    }

    /// The certificate and the private key as PEM. Keep it secret: it is the way into the group.
    pub fn to_pem(&self) -> &str {
        &self.inner.pem
    }

    /// Reads a key file. On Unix, one that others than its owner may read is refused.
    pub fn read(path: &Path) -> Result<ClusterKey, KeyError> {
        let failed = |source| KeyError::Read { path: path.to_owned(), source };
        let file = fs::File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        refuse_exposed(path, &metadata)?;
        if metadata.len() > FILE_BYTES_MAX {
            return Err(failed(io::Error::other("the file is too long for a key")));
        }
        let text = io::read_to_string(file).map_err(failed)?;
        ClusterKey::from_pem(&text)
            .map_err(|source| KeyError::InFile { path: path.to_owned(), source: Box::new(source) })
    }

    /// Writes the key to a new file that only its owner may read. An existing file is left as it
    /// is and is an error.
    pub fn write_new(&self, path: &Path) -> Result<(), KeyError> {
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options
            .open(path)
            .and_then(|mut file| {
                file.write_all(self.to_pem().as_bytes())?;
                file.sync_all()
            })
            .map_err(|source| KeyError::Write { path: path.to_owned(), source })
    }

    /// What the accepting side of a connection presents and demands.
    pub(super) fn server_config(&self) -> Result<rustls::ServerConfig, rustls::Error> {
        let pinned = Arc::new(Pinned::new(&self.inner.certificate));
        let mut config = rustls::ServerConfig::builder_with_provider(pinned.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(pinned)
            .with_single_cert(
                vec![self.inner.certificate.clone()],
                self.inner.private_key.clone_key(),
            )?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Connections last as long as the run; a resumed one would skip the certificate.
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    /// What the connecting side of a connection presents and demands.
    pub(super) fn client_config(&self) -> Result<rustls::ClientConfig, rustls::Error> {
        let pinned = Arc::new(Pinned::new(&self.inner.certificate));
        let mut config = rustls::ClientConfig::builder_with_provider(pinned.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_auth_cert(
                vec![self.inner.certificate.clone()],
                self.inner.private_key.clone_key(),
            )?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(config)
    }
}

impl fmt::Debug for ClusterKey {
    /// Names the type alone: the key is secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterKey").finish_non_exhaustive()
    }
}

fn only_one<T>(
    mut found: impl Iterator<Item = Result<T, pem::Error>>,
    what: &str,
) -> Result<T, KeyError> {
    match (found.next(), found.next()) {
        (Some(Ok(item)), None) => Ok(item),
        (None, _) => Err(KeyError::Parse(format!("it holds no {what}"))),
        (Some(Err(error)), _) | (_, Some(Err(error))) => Err(KeyError::Parse(error.to_string())),
        (Some(Ok(_)), Some(Ok(_))) => {
            Err(KeyError::Parse(format!("it holds more than one {what}")))
        }
    }
}

#[cfg(unix)]
fn refuse_exposed(path: &Path, metadata: &fs::Metadata) -> Result<(), KeyError> {
    let mode = std::os::unix::fs::MetadataExt::mode(metadata) & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::Exposed { path: path.to_owned(), mode });
    }
    Ok(())
}

#[cfg(not(unix))]
fn refuse_exposed(_path: &Path, _metadata: &fs::Metadata) -> Result<(), KeyError> {
    Ok(())
}

/// Accepts one certificate, compared byte by byte, and a peer that signs with its key.
#[derive(Debug)]
struct Pinned {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

/// The peer's certificate is not the pinned one.
#[derive(Debug, thiserror::Error)]
#[error("the peer holds another cluster key")]
struct OtherKey;

impl Pinned {
    fn new(certificate: &CertificateDer<'static>) -> Pinned {
        let provider = CryptoProvider {
            cipher_suites: vec![ring::cipher_suite::TLS13_AES_128_GCM_SHA256],
            ..ring::default_provider()
        };
        Pinned { certificate: certificate.clone(), provider: Arc::new(provider) }
    }

    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if *presented == self.certificate {
            return Ok(());
        }
        Err(CertificateError::Other(rustls::OtherError(Arc::new(OtherKey))).into())
    }
}

/// The part of a verifier that rustls asks of servers and of clients alike, by two traits.
macro_rules! signature_checks {
    () => {
        /// TLS 1.2 is not offered, so nothing can ask for its signatures.
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(rustls::PeerIncompatible::Tls12NotOfferedOrEnabled.into())
        }

        /// That the peer holds the private key, and did not merely copy the certificate.
        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }
    };
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    signature_checks!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    signature_checks!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text() {
        let key = ClusterKey::generate().expect("a key");
        let read = ClusterKey::from_pem(key.to_pem()).expect("its own text");
        assert_eq!(read.inner.certificate, key.inner.certificate);
        assert_eq!(read.inner.private_key, key.inner.private_key);
        assert_ne!(ClusterKey::generate().expect("another key").to_pem(), key.to_pem());
    }

    #[test]
    fn debug_does_not_show_the_secret() {
        let key = ClusterKey::generate().expect("a key");
        assert_eq!(format!("{key:?}"), "ClusterKey { .. }");
    }

    #[test]
    fn what_is_not_one_key_is_refused() {
        let (a, b) =
            (ClusterKey::generate().expect("a key"), ClusterKey::generate().expect("a key"));
        let private = |key: &ClusterKey| {
            let at = key.to_pem().find("-----BEGIN PRIVATE KEY").expect("a private key");
            key.to_pem()[at..].to_owned()
        };
        let certificate = a.to_pem().replace(&private(&a), "");
        for (text, expected) in [
            (String::new(), "no certificate"),
            ("no PEM at all".into(), "no certificate"),
            (certificate.clone(), "no private key"),
            (private(&a), "no certificate"),
            (a.to_pem().to_owned() + b.to_pem(), "more than one certificate"),
            (certificate.clone() + &private(&b), "do not fit together"),
            (a.to_pem().replace("-----END PRIVATE KEY-----", ""), "missing"),
        ] {
            let error = ClusterKey::from_pem(&text).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_key_file_is_written_once_and_read_back() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cluster.key");
        let key = ClusterKey::generate().expect("a key");
        key.write_new(&path).expect("a new file");
        assert_eq!(ClusterKey::read(&path).expect("the file").to_pem(), key.to_pem());
        let error = key.write_new(&path).expect_err("the file is there").to_string();
        assert!(error.contains("cluster.key") && error.contains("exists"), "{error}");
        assert_eq!(ClusterKey::read(&path).expect("unchanged").to_pem(), key.to_pem());
    }

    #[cfg(unix)]
    #[test]
    fn a_key_file_that_others_may_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cluster.key");
        ClusterKey::generate().expect("a key").write_new(&path).expect("a new file");
        assert_eq!(fs::metadata(&path).expect("metadata").permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
        let error = ClusterKey::read(&path).expect_err("the group may read it").to_string();
        assert!(error.contains(&format!("chmod 600 {}", path.display())), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).expect("chmod");
        ClusterKey::read(&path).expect("the owner alone may read it");
    }

    #[test]
    fn faults_of_a_file_name_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("cluster.key");
        let error = ClusterKey::read(&path).expect_err("no file").to_string();
        assert!(error.contains("cluster.key"), "{error}");
    }

    /// A TLS handshake in memory: the client's and the server's verdict.
    fn handshake(
        client: rustls::ClientConfig,
        server: rustls::ServerConfig,
    ) -> (Result<(), rustls::Error>, Result<(), rustls::Error>) {
        let name = ServerName::try_from(SERVER_NAME).expect("a name");
        let client = rustls::ClientConnection::new(Arc::new(client), name).expect("a client");
        let server = rustls::ServerConnection::new(Arc::new(server)).expect("a server");
        let mut sides = [rustls::Connection::from(client), rustls::Connection::from(server)];
        let mut verdicts = [Ok(()), Ok(())];
        // Three flights, and one more for an alert.
        for from in [0, 1, 0, 1] {
            let mut flight = Vec::new();
            while sides[from].wants_write() {
                sides[from].write_tls(&mut flight).expect("memory takes it");
            }
            let mut flight = flight.as_slice();
            while !flight.is_empty() && verdicts[1 - from].is_ok() {
                sides[1 - from].read_tls(&mut flight).expect("memory gives it");
                verdicts[1 - from] = sides[1 - from].process_new_packets().map(drop);
            }
        }
        verdicts.into()
    }

    fn configs(key: &ClusterKey) -> (rustls::ClientConfig, rustls::ServerConfig) {
        (key.client_config().expect("a client"), key.server_config().expect("a server"))
    }

    fn is_other_key(verdict: &Result<(), rustls::Error>) -> bool {
        let Err(rustls::Error::InvalidCertificate(CertificateError::Other(error))) = verdict else {
            return false;
        };
        error.0.is::<OtherKey>()
    }

    #[test]
    fn holders_of_the_same_key_meet() {
        let (client, server) = configs(&ClusterKey::generate().expect("a key"));
        assert_eq!(handshake(client, server), (Ok(()), Ok(())));
    }

    #[test]
    fn holders_of_different_keys_do_not() {
        let (client, _) = configs(&ClusterKey::generate().expect("a key"));
        let (_, server) = configs(&ClusterKey::generate().expect("another key"));
        let (client, server) = handshake(client, server);
        assert!(is_other_key(&client), "{client:?}");
        assert!(matches!(server, Err(rustls::Error::AlertReceived(_))), "{server:?}");
    }

    /// A client that takes the server for what it is, and presents what it is told to.
    fn trusting_client(
        key: &ClusterKey,
    ) -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
        let pinned = Arc::new(Pinned::new(&key.inner.certificate));
        rustls::ClientConfig::builder_with_provider(pinned.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3 is there")
            .dangerous()
            .with_custom_certificate_verifier(pinned)
    }

    #[test]
    fn a_peer_without_the_private_key_is_refused() {
        let key = ClusterKey::generate().expect("a key");
        let (_, server) = configs(&key);
        let mut client = trusting_client(&key).with_no_client_auth();
        client.alpn_protocols = vec![ALPN.to_vec()];
        let (_, verdict) = handshake(client, server.clone());
        assert_eq!(verdict, Err(rustls::Error::NoCertificatesPresented));

        let other = ClusterKey::generate().expect("another key");
        let certificate = vec![other.inner.certificate.clone()];
        let mut client = trusting_client(&key)
            .with_client_auth_cert(certificate, other.inner.private_key.clone_key())
            .expect("they fit");
        client.alpn_protocols = vec![ALPN.to_vec()];
        let (_, verdict) = handshake(client, server.clone());
        assert!(is_other_key(&verdict), "{verdict:?}");

        // One that has seen the certificate, which is no secret, and signs with a key of its own.
        let provider = Pinned::new(&key.inner.certificate).provider;
        let signer = provider.key_provider.load_private_key(other.inner.private_key.clone_key());
        let copied = rustls::sign::CertifiedKey::new(
            vec![key.inner.certificate.clone()],
            signer.expect("a key"),
        );
        let resolver = rustls::sign::SingleCertAndKey::from(copied);
        let mut client = trusting_client(&key).with_client_cert_resolver(Arc::new(resolver));
        client.alpn_protocols = vec![ALPN.to_vec()];
        let (_, verdict) = handshake(client, server);
        let bad_signature = rustls::Error::InvalidCertificate(CertificateError::BadSignature);
        assert_eq!(verdict, Err(bad_signature));
    }
}
