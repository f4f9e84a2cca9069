//! The settings of the Redis engine, and the errors of its start.

use std::fmt;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionInfo, IntoConnectionInfo};

#[derive(Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// The addresses of Redis: `host:port`, or a URL such as `redis://user:password@host:port/2`. Several addresses are nodes of one
    /// Cluster, of which some may be unreachable. A single Redis has one address. The engine asks Redis whether it is a Cluster.
    pub urls: Vec<String>,
    /// The user name for URLs that have none. Empty: the default user, or no login if there is no password either.
    pub user: String,
    pub password: String,
    /// The prefix of every key. Two installations on one Redis need different prefixes.
    pub prefix: String,
    pub connect_timeout: Duration,
    /// The timeout of an answer. A call ends after the sum of both timeouts at the latest.
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

    /// The addresses in the form that the client takes.
    pub(super) fn addresses(&self) -> Result<Vec<ConnectionInfo>, RedisStartError> {
        if self.urls.is_empty() {
            return Err(RedisStartError::NoAddress);
        }
        // Braces choose the slot of a key in a Cluster. Only this engine may set them.
        if self.prefix.is_empty() || self.prefix.contains(['{', '}']) {
            return Err(RedisStartError::BadPrefix(self.prefix.clone()));
        }
        self.urls.iter().enumerate().map(|(position, url)| self.address_of(url, position + 1)).collect()
    }

    fn address_of(&self, url: &str, position: usize) -> Result<ConnectionInfo, RedisStartError> {
        let url = url.trim();
        let url = if url.contains("://") { url.to_owned() } else { format!("redis://{url}") };
        let info = url.into_connection_info();
        // The address may contain a password: the error does not repeat it.
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

    /// Disables Nagle's algorithm, so that a small command does not wait for the acknowledgement of the one before it. Sets a timeout for
    /// unacknowledged data, so that connections to a host that vanished break, and the client reconnects.
    pub(super) fn tcp(&self) -> TcpSettings {
        let call_timeout = self.call_timeout();
        let settings =
            TcpSettings::default().set_nodelay(true).set_keepalive(TcpKeepalive::new().with_time(call_timeout));
        #[cfg(target_os = "linux")]
        let settings = settings.set_user_timeout(call_timeout);
        settings
    }

    pub(super) fn call_timeout(&self) -> Duration {
        self.connect_timeout + self.response_timeout
    }
}

/// Hides passwords, both that of the settings and those in URLs.
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

/// The reason why the engine could not start, with the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisStartError {
    #[error("no address of Redis is set: set one, such as 127.0.0.1:6379")]
    NoAddress,
    #[error("address {position} of Redis is invalid: {reason}; write host:port or redis://user:password@host:port")]
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
    fn an_error_about_an_address_does_not_contain_its_password() {
        let error = RedisSettings::new(["a:1", "redis://:secret@host:port"]).addresses().unwrap_err();
        assert!(matches!(error, RedisStartError::BadAddress { position: 2, .. }), "{error:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
        assert_eq!(RedisSettings::new([""; 0]).addresses().unwrap_err(), RedisStartError::NoAddress);
    }

    #[test]
    fn a_login_in_a_url_takes_precedence_over_the_settings() {
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
    fn a_prefix_that_would_choose_the_slot_is_rejected() {
        for prefix in ["", "a{b", "}"] {
            let settings = RedisSettings { prefix: prefix.to_owned(), ..RedisSettings::new(["a:1"]) };
            assert_eq!(settings.addresses().unwrap_err(), RedisStartError::BadPrefix(prefix.to_owned()));
        }
    }
}
