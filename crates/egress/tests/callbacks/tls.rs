//! Endpoints with TLS: trusted only by their certificates.

use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use whimbrel_egress::worker::{Worker, WorkerSettings};
use whimbrel_model::ports::{CallFailure, CallOutcome, Callbacks};

use crate::endpoint::{answering, call, failure_of, status_of, target, worker};

const WITHIN: Duration = Duration::from_secs(10);

/// An endpoint with a self-signed certificate for `name`: its port, and the certificate.
async fn self_signed(name: &str) -> (u16, String) {
    let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut buffer = vec![0; 64 << 10];
                while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    stream.write_all(b"HTTP/1.1 204 Done\r\n\r\n").await.unwrap();
                }
            });
        }
    });
    (port, certified.cert.pem())
}

async fn called(worker: &Worker, port: u16) -> CallOutcome {
    worker.call(call(&Arc::new(target(Some(format!("https://localhost:{port}/")), WITHIN)))).await.outcome
}

/// A worker that trusts this certificate too.
fn trusting(pem: String) -> Worker {
    Worker::new(WorkerSettings { extra_roots_pem: pem.into_bytes(), ..WorkerSettings::default() }).unwrap()
}

#[tokio::test]
async fn a_self_signed_certificate_is_rejected() {
    let (port, _) = self_signed("localhost").await;
    assert_eq!(failure_of(&called(&worker(), port).await), CallFailure::Tls);
}

#[tokio::test]
async fn a_certificate_that_the_operator_added_is_trusted() {
    let (port, pem) = self_signed("localhost").await;
    assert_eq!(status_of(&called(&trusting(pem), port).await), 204);
}

#[tokio::test]
async fn a_certificate_of_another_name_is_rejected() {
    let (port, pem) = self_signed("hooks.example.com").await;
    assert_eq!(failure_of(&called(&trusting(pem), port).await), CallFailure::Tls);
}

#[tokio::test]
async fn an_endpoint_without_tls_is_a_tls_failure() {
    let (address, _) = answering("HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n").await;
    let outcome = tokio::time::timeout(WITHIN, called(&worker(), address.port())).await.unwrap();
    // The endpoint waits for an HTTP head that never arrives, or answers with bytes that are not TLS.
    assert!([CallFailure::Tls, CallFailure::Timeout].contains(&failure_of(&outcome)), "{outcome:?}");
}

#[test]
fn invalid_root_certificates_are_rejected() {
    let broken = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_vec();
    let settings = WorkerSettings { extra_roots_pem: broken, ..WorkerSettings::default() };
    assert!(Worker::new(settings).is_err());
}
