//! A provider on loopback: HTTP/1.1 and HTTP/2, with or without TLS. It records requests and sends scripted responses.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A request to a provider.
#[derive(Debug, Clone)]
pub struct Asked {
    pub version: Version,
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Asked {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Status, headers, body.
pub type Answer = (u16, Vec<(&'static str, String)>, String);

pub fn answer(status: u16, body: &str) -> Answer {
    (status, Vec::new(), body.to_owned())
}

pub fn answer_later(status: u16, body: &str, seconds: u64) -> Answer {
    (status, vec![("retry-after", seconds.to_string())], body.to_owned())
}

type Behaviour = dyn Fn(&Asked) -> Answer + Send + Sync;

pub struct Provider {
    pub url: String,
    /// The certificate to trust, if the provider has TLS.
    pub certificate: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Provider {
    pub async fn start(manner: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::listen(Arc::new(manner), None).await
    }

    pub async fn start_with_tls(manner: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut config = config.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tls = TlsAcceptor::from(Arc::new(config));
        let provider = Self::listen(Arc::new(manner), Some(tls)).await;
        Self { certificate: certified.cert.pem(), ..provider }
    }

    async fn listen(manner: Arc<Behaviour>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = if tls.is_some() { format!("https://localhost:{port}") } else { format!("http://127.0.0.1:{port}") };
        let asked = Arc::new(Mutex::new(Vec::new()));
        let remembered = Arc::clone(&asked);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (manner, asked, tls) = (Arc::clone(&manner), Arc::clone(&remembered), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, manner, asked).await;
                            }
                        }
                        None => serve(stream, manner, asked).await,
                    }
                });
            }
        });
        Self { url, certificate: String::new(), asked }
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// The only request.
    pub fn only(&self) -> Asked {
        let asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.into_iter().next().unwrap()
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    manner: Arc<Behaviour>,
    remembered: Arc<Mutex<Vec<Asked>>>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (manner, remembered) = (Arc::clone(&manner), Arc::clone(&remembered));
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let path = head.uri.path_and_query().map_or(String::new(), ToString::to_string);
            let method = head.method.to_string();
            let asked = Asked { version: head.version, method, path, headers: head.headers, body };
            let (status, headers, text) = manner(&asked);
            remembered.lock().unwrap().push(asked);
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            Ok::<_, hyper::Error>(response.body(Full::new(Bytes::from(text))).unwrap())
        }
    });
    // The provider ignores clients that disconnect.
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}
