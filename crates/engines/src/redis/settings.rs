//! What can be configured, and why a start may fail.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionInfo, IntoConnectionInfo};

#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// Where Redis is: `host:port`, or a URL such as `redis://user:password@host:port/2`. Several are nodes of one Cluster, of
    /// which some may be missing; a Redis that is no Cluster has one address. Which it is, Redis says itself.
    pub urls: Vec<String>,
    /// Who signs in, where the URLs do not say so. Empty: the default user, or nobody where there is no password either.
    pub user: String,
    pub password: String,
    /// What every key begins with: two installations on one Redis need two.
    pub prefix: String,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long an answer may take. A call ends after both times together, whatever happens.
    pub response_timeout: Duration,
}

impl RedisSettings {
    pub fn new<S: Into<String>>(urls: impl IntoIterator<Item = S>) -> Self {
        Self {
            urls: urls.into_iter().map(Into::into).collect(),
            user: String::new(),
            password: String::new(),
            prefix: "whimbrel".to_owned(),
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(5),
        }
    }

    /// The addresses as the client takes them.
    pub(super) fn addresses(&self) -> Result<Vec<ConnectionInfo>, RedisStartError> {
        if self.urls.is_empty() {
            return Err(RedisStartError::NoAddress);
        }
        // Braces choose what a Cluster keeps together, and are ours to set.
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            return Err(RedisStartError::BadPrefix(self.prefix.clone()));
        }
        self.urls.iter().enumerate().map(|(position, url)| self.address_of(url, position + 1)).collect()
    }

    fn address_of(&self, url: &str, position: usize) -> Result<ConnectionInfo, RedisStartError> {
        let url = url.trim();
        let url = if url.contains("://") { url.to_owned() } else { format!("redis://{url}") };
        let info = url.into_connection_info();
        // The address itself may have a password in it and is not repeated.
        let info = info.map_err(|error| RedisStartError::BadAddress { position, reason: error.to_string() })?;
        let mut signing_in = info.redis_settings().clone();
        if signing_in.password().is_none() && !self.password.is_empty() {
            signing_in = signing_in.set_password(&self.password);
            if !self.user.is_empty() {
                signing_in = signing_in.set_username(&self.user);
            }
        }
        Ok(info.set_redis_settings(signing_in).set_tcp_settings(self.tcp()))
    }

    /// A small command must not wait for the acknowledgement of the one before it. And a machine that vanished without a word
    /// must break its connections, or they would be waited for instead of made anew.
    pub(super) fn tcp(&self) -> TcpSettings {
        let patience = self.patience();
        let settings = TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(patience));
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(patience);
        settings
    }

    /// How long a call may take.
    pub(super) fn patience(&self) -> Duration {
        self.connect_timeout + self.response_timeout
    }
}

/// Passwords are not shown, neither that of the settings nor one in a URL.
impl fmt::Debug for RedisSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisSettings")
            .field("urls", &self.urls.len())
            .field("user", &self.user)
            .field("prefix", &self.prefix)
            .field("connect_timeout", &self.connect_timeout)
            .field("response_timeout", &self.response_timeout)
            .finish_non_exhaustive()
    }
}

/// Why the engine could not start. Each says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisStartError {
    #[error("no Redis is named: set the address of one, such as 127.0.0.1:6379")]
    NoAddress,
    #[error(
        "address {position} of Redis is not understood: {reason}; write host:port or redis://user:password@host:port"
    )]
    BadAddress { position: usize, reason: String },
    #[error("`{0}` cannot be the prefix of keys in Redis: it must have at least one character, and no braces")]
    BadPrefix(String),
    #[error(
        "Redis at {address} cannot be reached within {waited_ms} ms: is it running, and is the address right? ({reason})"
    )]
    Unreachable { address: String, waited_ms: u128, reason: String },
    #[error("Redis at {address} is no Cluster, but several addresses are given: give one")]
    NoCluster { address: String },
    #[error("Redis at {address} is a replica, which takes no writes: give the address of its primary")]
    Replica { address: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_or_a_url() {
        for node in ["127.0.0.1:7000", "redis://127.0.0.1:7000", " redis://eva:secret@127.0.0.1:7000/2 "] {
            let addresses = RedisSettings::new([node]).addresses().unwrap();
            assert_eq!(addresses[0].addr().to_string(), "127.0.0.1:7000");
        }
    }

    #[test]
    fn what_is_wrong_with_an_address_is_said_without_its_password() {
        let error = RedisSettings::new(["a:1", "redis://:secret@host:port"]).addresses().unwrap_err();
        assert!(matches!(error, RedisStartError::BadAddress { position: 2, .. }), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(RedisSettings::new([""; 0]).addresses().unwrap_err(), RedisStartError::NoAddress);
    }

    #[test]
    fn who_signs_in_is_said_by_the_settings_unless_a_url_does() {
        let settings = RedisSettings {
            user: "eva".to_owned(),
            password: "secret".to_owned(),
            ..RedisSettings::new(["a:1", "redis://:other@a:2"])
        };
        let addresses = settings.addresses().unwrap();
        let signing_in: Vec<_> =
            addresses.iter().map(|each| (each.redis_settings().username(), each.redis_settings().password())).collect();
        assert_eq!(signing_in, [(Some("eva"), Some("secret")), (None, Some("other"))]);
        assert!(!format!("{settings:?}").contains("secret"), "{settings:?}");
    }

    #[test]
    fn a_prefix_that_would_choose_the_slot_is_refused() {
        for prefix in ["", "a{b", "}"] {
            let settings = RedisSettings { prefix: prefix.to_owned(), ..RedisSettings::new(["a:1"]) };
            assert_eq!(settings.addresses().unwrap_err(), RedisStartError::BadPrefix(prefix.to_owned()));
        }
    }
}
