//! Tokens of devices: JWTs, verified with the operator's keys.
//!
//! A key has one algorithm, determined by the key and never by the token: a token whose header names another algorithm finds no key. The
//! time is passed in. A token names the user (`sub`) and the expiry (`exp`), and may name a platform (`plat`).

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use whimbrel_model::Timestamp;
use whimbrel_model::people::{Platform, Uid};

/// Bytes of a secret, at least. Shorter ones can be guessed; RFC 7518 requires the length of the hash.
pub const SECRET_MIN_BYTES: usize = 32;
/// Tolerated difference between clocks.
pub const LEEWAY_DEFAULT: Duration = Duration::from_secs(30);

/// A key that verifies tokens.
#[derive(Clone, PartialEq, Eq)]
pub enum ClientKey {
    /// For HS256.
    Secret(Vec<u8>),
    /// A public key: RSA for RS256, P-256 for ES256, Ed25519 for EdDSA.
    Pem(String),
}

/// Keys and rules for verifying tokens.
#[derive(Clone)]
pub struct TokenSettings {
    /// Keys, each with its name (`kid`), if any.
    pub keys: Vec<(Option<String>, ClientKey)>,
    /// The contents of JWKS files.
    pub jwks: Vec<String>,
    /// Accepted values of `aud`. Empty: any.
    pub audiences: Vec<String>,
    /// Accepted values of `iss`. Empty: any.
    pub issuers: Vec<String>,
    pub leeway: Duration,
}

impl Default for TokenSettings {
    fn default() -> Self {
        let (keys, jwks, audiences, issuers) = Default::default();
        Self { keys, jwks, audiences, issuers, leeway: LEEWAY_DEFAULT }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientKeyError {
    #[error("the secret for tokens has fewer than {SECRET_MIN_BYTES} bytes")]
    ShortSecret,
    #[error("not a public key in PEM of RSA, P-256 or Ed25519")]
    BadPem,
    #[error("not a JWKS: {0}")]
    BadJwks(String),
    #[error("key {0} of the JWKS is not for RS256, ES256, EdDSA or HS256")]
    UnusableJwk(usize),
    #[error("key {0} of the JWKS is a secret of fewer than {SECRET_MIN_BYTES} bytes")]
    ShortJwk(usize),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("the token expired at {0}")]
    Expired(Timestamp),
    #[error("the token is not a JWT")]
    Malformed,
    #[error("this server has no key for the token's algorithm and `kid`")]
    NoKey,
    #[error("the token's signature is wrong")]
    BadSignature,
    #[error("the token is for another audience")]
    BadAudience,
    #[error("the token is from another issuer")]
    BadIssuer,
    #[error("the token has no `exp`")]
    NoExpiry,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token's `sub` is not a valid user id")]
    BadSubject,
    #[error("the token's `plat` is not a valid platform name")]
    BadPlatform,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedToken {
    pub uid: Uid,
    /// The deadline for a refresh, the leeway included.
    pub ends_at: Timestamp,
    /// The only platform that it is valid for, if it names one.
    pub platform: Option<Platform>,
}

pub struct TokenVerifier {
    keys: Vec<Key>,
    leeway: Duration,
}

struct Key {
    kid: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    validation: Validation,
}

#[derive(Deserialize)]
struct TokenClaims {
    sub: Option<String>,
    exp: Option<f64>,
    nbf: Option<f64>,
    plat: Option<String>,
}

impl TokenVerifier {
    pub fn new(settings: &TokenSettings) -> Result<Self, ClientKeyError> {
        let mut keys = Vec::new();
        let key = |kid, algorithm, key| Key { kid, algorithm, key, validation: validation(algorithm, settings) };
        for (kid, one) in &settings.keys {
            let (algorithm, decoding) = decoding_key(one)?;
            keys.push(key(kid.clone(), algorithm, decoding));
        }
        for text in &settings.jwks {
            let set: JwkSet = serde_json::from_str(text).map_err(|error| ClientKeyError::BadJwks(error.to_string()))?;
            for (index, jwk) in set.keys.iter().enumerate() {
                if is_short_secret(jwk) {
                    return Err(ClientKeyError::ShortJwk(index));
                }
                let decoding = DecodingKey::from_jwk(jwk).ok();
                let (Some(algorithm), Some(decoding)) = (algorithm_of(jwk), decoding) else {
                    return Err(ClientKeyError::UnusableJwk(index));
                };
                keys.push(key(jwk.common.key_id.clone(), algorithm, decoding));
            }
        }
        Ok(Self { keys, leeway: settings.leeway })
    }

    /// Whether there is any key. Without one, no token is valid.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    pub fn check(&self, token: &str, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| TokenError::Malformed)?;
        let is_for = |key: &&Key| {
            let names_match = header.kid.is_none() || key.kid.is_none() || header.kid == key.kid;
            key.algorithm == header.alg && names_match
        };
        let mut outcome = Err(TokenError::NoKey);
        for key in self.keys.iter().filter(is_for) {
            outcome = decode(token, key);
            if outcome.is_ok() {
                break;
            }
        }
        self.validate(outcome?, now)
    }

    fn validate(&self, claims: TokenClaims, now: Timestamp) -> Result<VerifiedToken, TokenError> {
        let leeway_ms = self.leeway.as_millis() as i64;
        // A cast from float saturates, whatever the token contains.
        let millis = |seconds: f64| (seconds * 1000.0) as i64;
        let expires_at = millis(claims.exp.ok_or(TokenError::NoExpiry)?);
        let ends_at = expires_at.saturating_add(leeway_ms);
        if now.as_millis() >= ends_at {
            return Err(TokenError::Expired(Timestamp::from_millis(expires_at.max(0))));
        }
        if claims.nbf.is_some_and(|nbf| millis(nbf) > now.as_millis().saturating_add(leeway_ms)) {
            return Err(TokenError::NotYet);
        }
        let uid = claims.sub.and_then(|sub| Uid::new(&sub).ok()).ok_or(TokenError::BadSubject)?;
        let platform = claims.plat.map(|plat| Platform::new(&plat)).transpose();
        let platform = platform.map_err(|_| TokenError::BadPlatform)?;
        Ok(VerifiedToken { uid, ends_at: Timestamp::from_millis(ends_at), platform })
    }
}

fn decode(token: &str, key: &Key) -> Result<TokenClaims, TokenError> {
    use jsonwebtoken::errors::ErrorKind;
    let decoded = jsonwebtoken::decode::<TokenClaims>(token, &key.key, &key.validation);
    decoded.map(|decoded| decoded.claims).map_err(|error| match error.kind() {
        ErrorKind::InvalidSignature => TokenError::BadSignature,
        ErrorKind::InvalidAudience => TokenError::BadAudience,
        ErrorKind::InvalidIssuer => TokenError::BadIssuer,
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => TokenError::BadAudience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => TokenError::BadIssuer,
        _ => TokenError::Malformed,
    })
}

/// The library validates the signature, `aud` and `iss`. The times are validated here, with the time passed in.
fn validation(algorithm: Algorithm, settings: &TokenSettings) -> Validation {
    let mut validation = Validation::new(algorithm);
    validation.validate_exp = false;
    validation.validate_nbf = false;
    let mut required = Vec::new();
    validation.validate_aud = !settings.audiences.is_empty();
    if validation.validate_aud {
        validation.set_audience(&settings.audiences);
        required.push("aud");
    }
    if !settings.issuers.is_empty() {
        validation.set_issuer(&settings.issuers);
        required.push("iss");
    }
    validation.set_required_spec_claims(&required);
    validation
}

fn decoding_key(key: &ClientKey) -> Result<(Algorithm, DecodingKey), ClientKeyError> {
    match key {
        ClientKey::Secret(secret) if secret.len() < SECRET_MIN_BYTES => Err(ClientKeyError::ShortSecret),
        ClientKey::Secret(secret) => Ok((Algorithm::HS256, DecodingKey::from_secret(secret))),
        ClientKey::Pem(pem) => {
            let pem = pem.as_bytes();
            // Each of these accepts only keys of its own kind.
            let rsa = DecodingKey::from_rsa_pem(pem).map(|key| (Algorithm::RS256, key));
            let ec = |_| DecodingKey::from_ec_pem(pem).map(|key| (Algorithm::ES256, key));
            let ed = |_| DecodingKey::from_ed_pem(pem).map(|key| (Algorithm::EdDSA, key));
            rsa.or_else(ec).or_else(ed).map_err(|_| ClientKeyError::BadPem)
        }
    }
}

/// Whether a JWKS key is a secret that can be guessed. Invalid base64 is rejected elsewhere.
fn is_short_secret(jwk: &Jwk) -> bool {
    match &jwk.algorithm {
        AlgorithmParameters::OctetKey(key) => {
            URL_SAFE_NO_PAD.decode(&key.value).is_ok_and(|secret| secret.len() < SECRET_MIN_BYTES)
        }
        _ => false,
    }
}

/// The algorithm of a JWKS key, by its kind. `None` if the key names another one.
fn algorithm_of(jwk: &Jwk) -> Option<Algorithm> {
    let by_kind = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => Algorithm::ES256,
        AlgorithmParameters::OctetKeyPair(_) => Algorithm::EdDSA,
        AlgorithmParameters::OctetKey(_) => Algorithm::HS256,
        _ => return None,
    };
    match jwk.common.key_algorithm {
        None => Some(by_kind),
        Some(said) => Algorithm::try_from(said).ok().filter(|said| *said == by_kind),
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
    use serde_json::{Value, json};

    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn with_secret() -> TokenSettings {
        TokenSettings { keys: vec![(None, ClientKey::Secret(SECRET.to_vec()))], ..TokenSettings::default() }
    }

    fn signed(claims: &Value) -> String {
        encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET)).unwrap()
    }

    fn check(settings: &TokenSettings, token: &str) -> Result<VerifiedToken, TokenError> {
        TokenVerifier::new(settings).unwrap().check(token, NOW)
    }

    fn good() -> Value {
        json!({"sub": "u1", "exp": 1_800_000_060})
    }

    #[test]
    fn a_valid_token_has_a_user_and_an_expiry() {
        let token = check(&with_secret(), &signed(&good())).unwrap();
        assert_eq!(token.uid.as_str(), "u1");
        assert_eq!(token.ends_at.as_millis(), 1_800_000_090_000);
        assert_eq!(token.platform, None);
        let bound = json!({"sub": "u1", "exp": 1_800_000_060, "plat": "ios"});
        assert_eq!(check(&with_secret(), &signed(&bound)).unwrap().platform.unwrap().as_str(), "ios");
    }

    #[test]
    fn the_times_of_a_token_have_a_leeway() {
        let outcome_of = |claims: Value| check(&with_secret(), &signed(&claims)).map(|_| ());
        assert_eq!(outcome_of(json!({"sub": "u", "exp": 1_799_999_971})), Ok(()));
        let expired = Timestamp::from_millis(1_799_999_970_000);
        assert_eq!(outcome_of(json!({"sub": "u", "exp": 1_799_999_970})), Err(TokenError::Expired(expired)));
        assert_eq!(outcome_of(json!({"sub": "u"})), Err(TokenError::NoExpiry));
        assert_eq!(outcome_of(json!({"sub": "u", "exp": 1e300})), Ok(()));
        assert_eq!(
            outcome_of(json!({"sub": "u", "exp": 1_900_000_000, "nbf": 1_800_000_031})),
            Err(TokenError::NotYet)
        );
    }

    #[test]
    fn a_token_without_a_valid_user_or_platform_is_rejected() {
        let outcome_of = |claims: Value| check(&with_secret(), &signed(&claims)).unwrap_err();
        assert_eq!(outcome_of(json!({"exp": 1_900_000_000})), TokenError::BadSubject);
        assert_eq!(outcome_of(json!({"sub": "", "exp": 1_900_000_000})), TokenError::BadSubject);
        assert_eq!(outcome_of(json!({"sub": "u", "exp": 1_900_000_000, "plat": "I O S"})), TokenError::BadPlatform);
        assert_eq!(outcome_of(json!({"sub": 7, "exp": 1_900_000_000})), TokenError::Malformed);
    }

    #[test]
    fn a_token_without_a_valid_signature_is_rejected() {
        let token = signed(&good());
        let foreign = encode(&Header::default(), &good(), &EncodingKey::from_secret(&[7; 32])).unwrap();
        assert_eq!(check(&with_secret(), &foreign), Err(TokenError::BadSignature));
        for bad in ["", "a.b.c", "no token", &token[..token.len() - 8]] {
            assert!(check(&with_secret(), bad).is_err(), "{bad}");
        }
        // `{"alg":"none"}` with the claims of the valid token.
        let claims = token.split('.').nth(1).unwrap();
        assert!(check(&with_secret(), &format!("eyJhbGciOiJub25lIn0.{claims}.")).is_err());
    }

    #[test]
    fn the_algorithm_of_a_public_key_follows_from_the_key() {
        let kinds = [
            (Algorithm::RS256, &PKCS_RSA_SHA256),
            (Algorithm::ES256, &PKCS_ECDSA_P256_SHA256),
            (Algorithm::EdDSA, &PKCS_ED25519),
        ];
        for (algorithm, kind) in kinds {
            let pair = KeyPair::generate_for(kind).unwrap();
            let private = pair.serialize_pem();
            let key = match algorithm {
                Algorithm::RS256 => EncodingKey::from_rsa_pem(private.as_bytes()),
                Algorithm::ES256 => EncodingKey::from_ec_pem(private.as_bytes()),
                _ => EncodingKey::from_ed_pem(private.as_bytes()),
            };
            let token = encode(&Header::new(algorithm), &good(), &key.unwrap()).unwrap();
            let keys = vec![(None, ClientKey::Pem(pair.public_key_pem()))];
            let settings = TokenSettings { keys, ..TokenSettings::default() };
            assert_eq!(check(&settings, &token).unwrap().uid.as_str(), "u1", "{algorithm:?}");
        }
    }

    #[test]
    fn a_public_key_cannot_be_used_as_a_secret() {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let pem = pair.public_key_pem();
        let forged = encode(&Header::new(Algorithm::HS256), &good(), &EncodingKey::from_secret(pem.as_bytes()));
        let settings = TokenSettings { keys: vec![(None, ClientKey::Pem(pem))], ..TokenSettings::default() };
        assert_eq!(check(&settings, &forged.unwrap()), Err(TokenError::NoKey));
    }

    #[test]
    fn a_named_key_is_found_by_its_name() {
        let keys = vec![
            (Some("old".to_owned()), ClientKey::Secret(vec![1; 32])),
            (Some("new".to_owned()), ClientKey::Secret(SECRET.to_vec())),
        ];
        let settings = TokenSettings { keys, ..TokenSettings::default() };
        let named = |kid: Option<&str>| {
            let header = Header { kid: kid.map(str::to_owned), ..Header::new(Algorithm::HS256) };
            encode(&header, &good(), &EncodingKey::from_secret(SECRET)).unwrap()
        };
        assert!(check(&settings, &named(Some("new"))).is_ok());
        assert!(check(&settings, &named(None)).is_ok());
        assert_eq!(check(&settings, &named(Some("old"))), Err(TokenError::BadSignature));
        assert_eq!(check(&settings, &named(Some("other"))), Err(TokenError::NoKey));
    }

    #[test]
    fn audience_and_issuer_are_checked_if_configured() {
        let settings = TokenSettings { audiences: vec!["app".into()], issuers: vec!["me".into()], ..with_secret() };
        let with = |aud: &str, iss: &str| {
            check(&settings, &signed(&json!({"sub": "u", "exp": 1_900_000_000, "aud": aud, "iss": iss}))).map(|_| ())
        };
        assert_eq!(with("app", "me"), Ok(()));
        assert_eq!(with("other", "me"), Err(TokenError::BadAudience));
        assert_eq!(with("app", "you"), Err(TokenError::BadIssuer));
        assert!(check(&settings, &signed(&good())).is_err());
        let foreign = json!({"sub": "u", "exp": 1_900_000_000, "aud": "x", "iss": "y"});
        assert!(check(&with_secret(), &signed(&foreign)).is_ok());
    }

    #[test]
    fn a_jwks_provides_its_keys() {
        let secret = URL_SAFE_NO_PAD.encode(SECRET);
        let jwks = json!({"keys": [{"kty": "oct", "kid": "a", "alg": "HS256", "k": secret}]}).to_string();
        let settings = TokenSettings { jwks: vec![jwks], ..TokenSettings::default() };
        assert!(check(&settings, &signed(&good())).is_ok());
        let odd = json!({"keys": [{"kty": "oct", "alg": "HS512", "k": secret}]}).to_string();
        let made = TokenVerifier::new(&TokenSettings { jwks: vec![odd], ..TokenSettings::default() });
        assert_eq!(made.err(), Some(ClientKeyError::UnusableJwk(0)));
    }

    #[test]
    fn short_secrets_and_malformed_keys_are_rejected() {
        let made =
            |key| TokenVerifier::new(&TokenSettings { keys: vec![(None, key)], ..TokenSettings::default() }).err();
        assert_eq!(made(ClientKey::Secret(vec![1; 31])), Some(ClientKeyError::ShortSecret));
        assert_eq!(made(ClientKey::Pem("nonsense".into())), Some(ClientKeyError::BadPem));
    }

    #[test]
    fn a_short_secret_in_a_jwks_is_rejected() {
        let good = json!({"kty": "oct", "k": URL_SAFE_NO_PAD.encode(SECRET)});
        for secret in [&b""[..], b"a", &SECRET[1..]] {
            let short = json!({"kty": "oct", "kid": "a", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(secret)});
            let jwks = vec![json!({"keys": [good, short]}).to_string()];
            let made = TokenVerifier::new(&TokenSettings { jwks, ..TokenSettings::default() });
            assert_eq!(made.err(), Some(ClientKeyError::ShortJwk(1)), "{secret:?}");
        }
    }
}
