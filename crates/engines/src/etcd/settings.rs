//! What can be configured of the etcd engine.

use std::fmt;
use std::time::Duration;

/// The shortest session: etcd itself gives no lease below its election timeout, in whole seconds.
const SESSION_MIN: Duration = Duration::from_secs(2);

/// Who etcd shall know us as.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdLogin {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for EtcdLogin {
    /// Without the password: settings are shown to people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How the engine reaches etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `host:port`, or `http://host:port`, of each member of the etcd cluster.
    pub endpoints: Vec<String>,
    /// What every key begins with: two installations on one etcd need two.
    pub prefix: String,
    /// Where etcd asks for one.
    pub login: Option<EtcdLogin>,
    /// How long etcd keeps a node that it does not hear from, in whole seconds. A node that dies is replaced after that; one
    /// that cannot reach etcd stops a little earlier by itself.
    pub session: Duration,
    /// How long a question to etcd may take; also how long a start waits for it.
    pub request_timeout: Duration,
}

impl EtcdSettings {
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            prefix: "whimbrel/".to_owned(),
            login: None,
            session: Duration::from_secs(5),
            request_timeout: Duration::from_secs(3),
        }
    }

    pub(super) fn check(&self) -> Result<(), EtcdStartError> {
        if self.endpoints.is_empty() {
            return Err(EtcdStartError::NoEndpoint);
        }
        if self.session < SESSION_MIN || self.session.subsec_nanos() != 0 {
            return Err(EtcdStartError::BadSession);
        }
        if self.request_timeout.is_zero() {
            return Err(EtcdStartError::BadRequestTimeout);
        }
        Ok(())
    }

    /// Each endpoint as an address to dial.
    pub(super) fn addresses(&self) -> Result<Vec<String>, EtcdStartError> {
        let address = |endpoint: &String| match endpoint.split_once("://") {
            None => Ok(format!("http://{endpoint}")),
            Some(("http", _)) => Ok(endpoint.clone()),
            Some((scheme, _)) => {
                Err(EtcdStartError::OtherScheme { endpoint: endpoint.clone(), scheme: scheme.to_owned() })
            }
        };
        self.endpoints.iter().map(address).collect()
    }
}

/// Why the engine could not start. Each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdStartError {
    #[error("no etcd is named: set its endpoints, such as 127.0.0.1:2379")]
    NoEndpoint,
    #[error("the etcd endpoint `{endpoint}` begins with `{scheme}://`; only `http://` can be spoken")]
    OtherScheme { endpoint: String, scheme: String },
    #[error("`{endpoint}` is no address of etcd: {reason}")]
    BadEndpoint { endpoint: String, reason: String },
    #[error("the session with etcd must be of whole seconds, and at least two")]
    BadSession,
    #[error("the request timeout of etcd must be above zero")]
    BadRequestTimeout,
    #[error(
        "etcd at {endpoints} cannot be reached within {waited_ms} ms: is it running, and is the address right? ({reason})"
    )]
    Unreachable { endpoints: String, waited_ms: u128, reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_may_leave_its_scheme_out() {
        let settings = EtcdSettings::new(["a:2379", "http://b:2379"]);
        assert_eq!(settings.addresses(), Ok(vec!["http://a:2379".to_owned(), "http://b:2379".to_owned()]));
    }

    #[test]
    fn an_endpoint_that_cannot_be_spoken_to_is_refused_by_name() {
        let refused = EtcdSettings::new(["https://a:2379"]).addresses();
        assert!(matches!(refused, Err(EtcdStartError::OtherScheme { .. })));
    }

    #[test]
    fn a_session_below_what_etcd_gives_is_refused() {
        let settings = EtcdSettings { session: Duration::from_millis(1500), ..EtcdSettings::new(["a:2379"]) };
        assert_eq!(settings.check(), Err(EtcdStartError::BadSession));
    }
}
