//! URLs of endpoints: the validation rules, and the parts that a call needs.

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Uri};
use rustls_pki_types::ServerName;

/// Maximum length of a URL, in bytes.
pub const URL_BYTES_MAX: usize = 8 << 10;

/// A URL that Whimbrel cannot call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{url}` cannot be called: {why}")]
pub struct BadUrl {
    pub url: String,
    pub why: &'static str,
}

/// Checks that a URL can be called.
pub fn check_url(url: &str) -> Result<(), BadUrl> {
    EndpointUrl::parse(url).map(drop)
}

/// The host of a callable URL, for [`super::AddressGuard::check_host`].
pub fn host_of(url: &str) -> Result<String, BadUrl> {
    Ok(EndpointUrl::parse(url)?.host.into())
}

/// A parsed URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUrl {
    pub is_tls: bool,
    /// Without brackets.
    pub host: Box<str>,
    pub port: u16,
    /// The value of the `host` header.
    pub authority: HeaderValue,
    /// The request target of the HTTP request line.
    pub path: PathAndQuery,
}

impl EndpointUrl {
    pub fn parse(url: &str) -> Result<Self, BadUrl> {
        let bad = |why| BadUrl { url: url.chars().take(200).collect(), why };
        if url.len() > URL_BYTES_MAX {
            return Err(bad("it has more than 8192 bytes"));
        }
        // The fragment is never sent to a server.
        let called = url.split('#').next().unwrap_or_default();
        let uri: Uri = called.parse().map_err(|_| bad("it is not a valid URL"))?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(bad("it does not begin with http:// or https://")),
        };
        let authority = uri.authority().ok_or_else(|| bad("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(bad("it has a user name: put an Authorization header into the endpoint's headers instead"));
        }
        let bracketed = authority.host();
        let host = bracketed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(bracketed);
        if host.is_empty() {
            return Err(bad("it has no host"));
        }
        // `port_u16` is also `None` for a port that is not a number.
        let after_host = &authority.as_str()[bracketed.len()..];
        let port = match (after_host, authority.port_u16()) {
            ("" | ":", _) => 80 + 363 * u16::from(is_tls),
            (_, Some(port)) if port > 0 => port,
            _ => return Err(bad("its port is invalid")),
        };
        let is_usual = port == if is_tls { 443 } else { 80 };
        let text = if is_usual { bracketed.to_owned() } else { format!("{bracketed}:{port}") };
        let authority = HeaderValue::from_str(&text).map_err(|_| bad("its host is invalid"))?;
        if is_tls && ServerName::try_from(host).is_err() {
            return Err(bad("its host is not a valid TLS server name"));
        }
        let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(Self { is_tls, host: host.into(), port, authority, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_into_its_parts() {
        let url = EndpointUrl::parse("https://Hooks.example.com/a/b?c=d#e").unwrap();
        assert!(url.is_tls);
        assert_eq!((&*url.host, url.port, url.path.as_str()), ("Hooks.example.com", 443, "/a/b?c=d"));
        assert_eq!(url.authority, "Hooks.example.com");
        let url = EndpointUrl::parse("http://127.0.0.1:9000").unwrap();
        assert_eq!((&*url.host, url.port, url.path.as_str()), ("127.0.0.1", 9000, "/"));
        assert_eq!(url.authority, "127.0.0.1:9000");
        let url = EndpointUrl::parse("http://[::1]:80/x").unwrap();
        assert_eq!((&*url.host, url.port), ("::1", 80));
        assert_eq!(url.authority, "[::1]");
    }

    #[test]
    fn a_url_that_cannot_be_called_is_rejected() {
        let long = format!("http://a/{}", "x".repeat(URL_BYTES_MAX));
        for bad in [
            "",
            "/hook",
            "hook",
            "ftp://a/",
            "http://",
            "http:///x",
            "http://a b/",
            "http://user:secret@a/",
            "http://a:0/",
            "http://a:99999/",
            "http://a:x/",
            "https://a_b!/",
            &long,
        ] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
    }
}
