//! The settings of the etcd engine, and the errors of its start.

use std::fmt;
use std::time::Duration;

/// The shortest session. etcd grants no lease below its election timeout, and only whole seconds.
const SESSION_MIN: Duration = Duration::from_secs(2);

/// The user and password for etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdLogin {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for EtcdLogin {
    /// Hides the password, because settings are logged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdSettings {
    /// `host:port`, or `http://host:port`, of each member of the etcd cluster.
    pub endpoints: Vec<String>,
    /// The prefix of every key. Two installations on one etcd need different prefixes.
    pub prefix: String,
    /// Required if etcd has authentication enabled.
    pub login: Option<EtcdLogin>,
    /// The time after which etcd expires the session of an unreachable node, in whole seconds. Then another node replaces it. A node that
    /// cannot reach etcd stops a little earlier by itself.
    pub session: Duration,
    /// The timeout of a request to etcd. Also the maximum time for which a start waits for etcd.
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

/// The reason why the engine could not start, with the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EtcdStartError {
    #[error("no etcd endpoint is set: set one, such as 127.0.0.1:2379")]
    NoEndpoint,
    #[error("the etcd endpoint `{endpoint}` begins with `{scheme}://`; only `http://` is supported")]
    OtherScheme { endpoint: String, scheme: String },
    #[error("`{endpoint}` is not a valid address of etcd: {reason}")]
    BadEndpoint { endpoint: String, reason: String },
    #[error("the session with etcd must be a whole number of seconds, at least 2")]
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
    fn an_unsupported_endpoint_is_named_in_the_error() {
        let refused = EtcdSettings::new(["https://a:2379"]).addresses();
        assert!(matches!(refused, Err(EtcdStartError::OtherScheme { .. })));
    }

    #[test]
    fn a_session_below_the_minimum_of_etcd_is_rejected() {
        let settings = EtcdSettings { session: Duration::from_millis(1500), ..EtcdSettings::new(["a:2379"]) };
        assert_eq!(settings.check(), Err(EtcdStartError::BadSession));
    }
}
