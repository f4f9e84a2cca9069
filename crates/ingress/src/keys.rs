//! Authentication and authorization: `Authorization: Bearer <key>`, scopes, topic patterns.
//!
//! Secrets are stored as SHA-256 only. A presented key is hashed and looked up by its hash, so the time of the comparison reveals nothing
//! about a secret. Without keys, every request is allowed; the server must then restrict its listening address.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use whimbrel_model::push::PUSH_TOPIC;

use crate::problem::{ApiProblem, Code};

#[derive(Clone)]
pub struct ApiKey {
    pub name: String,
    pub secret: KeySecret,
    pub scopes: Vec<Scope>,
    /// Patterns of topics; `*` matches any run of characters. Empty means every topic.
    pub topics: Vec<String>,
}

#[derive(Clone)]
pub enum KeySecret {
    Plain(String),
    /// Its SHA-256, so that the configuration need not contain the secret.
    Sha256([u8; 32]),
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKey({}, {:?}, {:?})", self.name, self.scopes, self.topics)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    Publish,
    Consume,
    Push,
    Admin,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Publish, Self::Consume, Self::Push, Self::Admin];

    pub const fn word(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Consume => "consume",
            Self::Push => "push",
            Self::Admin => "admin",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scope| scope.word() == word)
    }
}

/// All keys, indexed by the hash of their secret.
pub(crate) struct KeyRing {
    by_hash: HashMap<[u8; 32], Arc<ApiKey>>,
}

/// The bearer of a key, or an anonymous client if there are no keys.
#[derive(Clone)]
pub(crate) struct Caller(Option<Arc<ApiKey>>);

impl KeyRing {
    pub(crate) fn new(keys: &[ApiKey]) -> Self {
        let hash_of = |secret: &KeySecret| match secret {
            KeySecret::Plain(text) => Sha256::digest(text.as_bytes()).into(),
            KeySecret::Sha256(hash) => *hash,
        };
        Self { by_hash: keys.iter().map(|key| (hash_of(&key.secret), Arc::new(key.clone()))).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Authenticates a request by its headers.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Result<Caller, ApiProblem> {
        if self.by_hash.is_empty() {
            return Ok(Caller(None));
        }
        let presented = headers
            .get(AUTHORIZATION)
            .ok_or_else(|| ApiProblem::new(Code::KeyMissing, "no API key: send `Authorization: Bearer <key>`"))?;
        let secret = bearer(presented.as_bytes())
            .ok_or_else(|| ApiProblem::new(Code::KeyUnknown, "`Authorization` must be `Bearer <key>`"))?;
        let hash: [u8; 32] = Sha256::digest(secret).into();
        let key = self.by_hash.get(&hash);
        key.map(|key| Caller(Some(Arc::clone(key))))
            .ok_or_else(|| ApiProblem::new(Code::KeyUnknown, "this server has no such API key"))
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

impl Caller {
    /// The owner of claims: the name of the key, or empty without keys.
    pub(crate) fn owner(&self) -> &str {
        self.0.as_ref().map_or("", |key| &key.name)
    }

    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.0.as_ref().is_none_or(|key| key.scopes.contains(&scope))
    }

    pub(crate) fn covers(&self, topic: &str) -> bool {
        let matches_one = |key: &Arc<ApiKey>| key.topics.iter().any(|pattern| matches(pattern, topic));
        self.0.as_ref().is_none_or(|key| key.topics.is_empty() || matches_one(key))
    }

    /// Whether the key covers some topics only. A pattern that is only `*` covers all.
    pub(crate) fn is_restricted(&self) -> bool {
        let is_for_all = |key: &Arc<ApiKey>| key.topics.is_empty() || key.topics.iter().any(|pattern| is_any(pattern));
        self.0.as_ref().is_some_and(|key| !is_for_all(key))
    }

    /// Requires a scope that may see holds: `publish` or `consume`. [`Self::require_holds_of`] checks the topic.
    pub(crate) fn require_view(&self) -> Result<(), ApiProblem> {
        if self.has(Scope::Publish) { Ok(()) } else { self.require(Scope::Consume) }
    }

    /// Requires access to the topic of a hold. Held pushes reveal users, so they require the scope `push`.
    pub(crate) fn require_holds_of(&self, topic: &str) -> Result<(), ApiProblem> {
        if topic == PUSH_TOPIC { self.require_topic(Scope::Push, topic) } else { self.require_topic_access(topic) }
    }

    /// Whether this key may see the holds of every topic.
    pub(crate) fn is_for_all_holds(&self) -> bool {
        !self.is_restricted() && self.has(Scope::Push)
    }

    pub(crate) fn require(&self, scope: Scope) -> Result<(), ApiProblem> {
        if self.has(scope) {
            return Ok(());
        }
        Err(ApiProblem::new(Code::Forbidden, format!("key `{}` lacks the scope `{}`", self.owner(), scope.word())))
    }

    pub(crate) fn require_topic(&self, scope: Scope, topic: &str) -> Result<(), ApiProblem> {
        self.require(scope)?;
        self.require_topic_access(topic)
    }

    /// Requires that the key covers the topic, whatever its scopes.
    pub(crate) fn require_topic_access(&self, topic: &str) -> Result<(), ApiProblem> {
        if self.covers(topic) {
            return Ok(());
        }
        Err(ApiProblem::new(Code::Forbidden, format!("key `{}` does not cover the topic `{topic}`", self.owner())))
    }
}

fn is_any(pattern: &str) -> bool {
    !pattern.is_empty() && pattern.bytes().all(|byte| byte == b'*')
}

/// Whether a pattern with `*` matches the whole text. Backtracking goes to the last `*` only: earlier matches can stay as they are. The
/// time is at most pattern length times text length.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            last_star = Some((p, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((star, covered)) = last_star {
            last_star = Some((star, covered + 1));
            p = star + 1;
            t = covered + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn ring() -> KeyRing {
        let key = |name: &str, secret, scope, topics: &[&str]| {
            let topics = topics.iter().map(|pattern| (*pattern).to_owned()).collect();
            ApiKey { name: name.into(), secret, scopes: vec![scope], topics }
        };
        let (plain, hashed) = (|secret: &str| KeySecret::Plain(secret.into()), Sha256::digest(b"two").into());
        KeyRing::new(&[
            key("shop", plain("one"), Scope::Publish, &["orders.*"]),
            key("ops", KeySecret::Sha256(hashed), Scope::Admin, &[]),
            key("all", plain("four"), Scope::Consume, &["*"]),
        ])
    }

    fn caller(ring: &KeyRing, value: Option<&'static str>) -> Result<Caller, Code> {
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
        }
        ring.caller(&headers).map_err(|problem| problem.code())
    }

    #[test]
    fn without_keys_every_request_is_allowed() {
        let anybody = caller(&KeyRing::new(&[]), None).unwrap();
        assert!(anybody.require_topic(Scope::Admin, "orders").is_ok());
        assert_eq!(anybody.owner(), "");
    }

    #[test]
    fn a_missing_or_wrong_key_is_refused() {
        assert_eq!(caller(&ring(), None).err(), Some(Code::KeyMissing));
        assert_eq!(caller(&ring(), Some("Bearer three")).err(), Some(Code::KeyUnknown));
        assert_eq!(caller(&ring(), Some("Basic one")).err(), Some(Code::KeyUnknown));
        assert_eq!(caller(&ring(), Some("x")).err(), Some(Code::KeyUnknown));
    }

    #[test]
    fn a_key_is_limited_to_its_scopes_and_patterns() {
        let shop = caller(&ring(), Some("bearer one")).unwrap();
        assert_eq!(shop.owner(), "shop");
        assert!(shop.require_topic(Scope::Publish, "orders.eu").is_ok());
        assert!(shop.require_topic(Scope::Publish, "payments").is_err());
        assert!(shop.require_topic(Scope::Consume, "orders.eu").is_err());
        assert!(caller(&ring(), Some("Bearer two")).unwrap().require_topic(Scope::Admin, "payments").is_ok());
    }

    #[test]
    fn a_key_is_restricted_if_its_patterns_do_not_cover_every_topic() {
        let is_restricted = |value| caller(&ring(), Some(value)).unwrap().is_restricted();
        assert!(is_restricted("Bearer one"));
        assert!(!is_restricted("Bearer two"), "no pattern covers every topic");
        assert!(!is_restricted("Bearer four"), "`*`, which configured keys have, covers every topic");
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text, covers) in [
            ("*", "", true),
            ("a*", "abc", true),
            ("a*c", "abc", true),
            ("a*c*", "aXcYc", true),
            ("*b", "abc", false),
            ("abc", "abcd", false),
            ("a**d", "abcd", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, text), covers, "{pattern} {text}");
        }
    }
}
