//! A target prepared once for all its calls: its URL and headers are parsed, and the signers of its secrets created.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue};
use whimbrel_model::ports::{CallFailure, CallTarget};
use whimbrel_model::subscription::Envelope;

use super::failed_call::FailedCall;
use super::header_names;
use super::origin_pool::OriginPool;
use super::signature::Signers;
use whimbrel_api::endpoint::EndpointUrl;
use whimbrel_model::header_rules;

/// The `User-Agent` of callbacks.
const USER_AGENT: &str = concat!("whimbrel/", env!("CARGO_PKG_VERSION"));

pub(super) struct PreparedTarget {
    /// The entry holds the target, so that its address, which is the key of the entry, is not reused.
    pub(super) target: Arc<CallTarget>,
    /// `None`: each message names its own callback.
    pub(super) destination: Option<RequestTarget>,
    /// The headers of every call, including those of the endpoint's settings.
    pub(super) headers: HeaderMap,
    pub(super) signers: Signers,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Option<Duration>,
}

#[derive(Clone)]
pub(super) struct RequestTarget {
    pub(super) origin: Arc<OriginPool>,
    pub(super) authority: HeaderValue,
    pub(super) path: PathAndQuery,
}

impl PreparedTarget {
    pub(super) fn new(target: &Arc<CallTarget>) -> Result<Self, FailedCall> {
        let bad = |detail: String| FailedCall::new(CallFailure::BadTarget, detail);
        let endpoint = &target.endpoint;
        let destination = match &endpoint.url {
            Some(url) => {
                let place = EndpointUrl::parse(url).map_err(|error| bad(error.to_string()))?;
                let origin = Arc::new(OriginPool::new(&place, target.envelope == Envelope::Kmq));
                Some(RequestTarget { origin, authority: place.authority, path: place.path })
            }
            None => None,
        };
        let mut headers = HeaderMap::with_capacity(endpoint.headers.len() + 2);
        headers.insert(http::header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        if target.envelope != Envelope::Kmq {
            let name = HeaderValue::from_str(&target.subscription);
            headers.insert(
                header_names::SUBSCRIPTION,
                name.map_err(|_| bad("its name is invalid in a header".to_owned()))?,
            );
        }
        for (name, value) in &endpoint.headers {
            let parsed = HeaderName::from_bytes(name.as_bytes()).ok().zip(HeaderValue::from_str(value).ok());
            let (parsed_name, value) = parsed.ok_or_else(|| bad(format!("the header `{name}` is invalid")))?;
            if header_rules::belongs_to_the_connection(parsed_name.as_str()) {
                return Err(bad(format!("the header `{name}` is set by Whimbrel")));
            }
            headers.insert(parsed_name, value);
        }
        let signers = Signers::new(&target.secrets).map_err(|error| bad(error.to_string()))?;
        let timeout = Duration::from_millis(endpoint.timeout_ms);
        let connect_timeout = endpoint.connect_timeout_ms.map(Duration::from_millis);
        Ok(Self { target: Arc::clone(target), destination, headers, signers, timeout, connect_timeout })
    }
}

#[cfg(test)]
pub(super) mod testing {
    use whimbrel_model::subscription::Endpoint;

    use super::*;

    /// A target at that URL with the default envelope, and without secrets.
    pub(in crate::worker) fn target_at(url: &str) -> CallTarget {
        let url = Some(url.to_owned());
        CallTarget {
            subscription: "billing".to_owned(),
            endpoint: Endpoint { url, timeout_ms: 1_000, connect_timeout_ms: None, headers: Vec::new() },
            envelope: Envelope::Binary,
            secrets: Vec::new(),
            workers: None,
        }
    }
}
