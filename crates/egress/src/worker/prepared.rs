//! A target made ready once for all its calls: its URL taken apart, its headers parsed, its secrets keyed.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use whimbrel_model::ports::{CallFailure, CallTarget};
use whimbrel_model::subscription::Envelope;

use super::failure::Failure;
use super::names;
use super::origin::Origin;
use super::signature::Signers;
use whimbrel_api::endpoint::EndpointUrl;
use whimbrel_model::header_rules;

/// What says who calls.
const USER_AGENT: &str = concat!("whimbrel/", env!("CARGO_PKG_VERSION"));

pub(super) struct Prepared {
    /// Held, so that nothing else can come to lie at its address while this is found by it.
    pub(super) target: Arc<CallTarget>,
    /// `None` where each message brings its own.
    pub(super) destination: Option<Destination>,
    /// Headers of every call, the endpoint's own among them.
    pub(super) headers: HeaderMap,
    pub(super) signers: Signers,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Option<Duration>,
}

/// Where a request goes.
#[derive(Clone)]
pub(super) struct Destination {
    pub(super) origin: Arc<Origin>,
    pub(super) authority: HeaderValue,
    pub(super) path: PathAndQuery,
}

impl Prepared {
    pub(super) fn new(target: &Arc<CallTarget>) -> Result<Self, Failure> {
        let bad = |detail: String| Failure::new(CallFailure::BadTarget, detail);
        let endpoint = &target.endpoint;
        let destination = match &endpoint.url {
            Some(url) => {
                let place = EndpointUrl::parse(url).map_err(|error| bad(error.to_string()))?;
                let origin = Arc::new(Origin::new(&place, target.envelope == Envelope::Kmq));
                Some(Destination { origin, authority: place.authority, path: place.path })
            }
            None => None,
        };
        let mut headers = HeaderMap::with_capacity(endpoint.headers.len() + 2);
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if target.envelope != Envelope::Kmq {
            let name = HeaderValue::from_str(&target.subscription);
            headers.insert(names::SUBSCRIPTION, name.map_err(|_| bad("its name cannot be sent".to_owned()))?);
        }
        for (name, value) in &endpoint.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
            let (parsed_name, value) = parsed.ok_or_else(|| bad(format!("the header `{name}` cannot be sent")))?;
            if header_rules::belongs_to_the_connection(parsed_name.as_str()) {
                return Err(bad(format!("the header `{name}` is set by the call itself")));
            }
            headers.insert(parsed_name, value);
        }
        let signers = Signers::new(&target.secrets).map_err(|error| bad(error.to_string()))?;
        let timeout = Duration::from_millis(endpoint.timeout_ms);
        let connect_timeout = endpoint.connect_timeout_ms.map(Duration::from_millis);
        Ok(Self { target: Arc::clone(target), destination, headers, signers, timeout, connect_timeout })
    }
}
