//! Creates JSON web tokens that authenticate this server to a provider: ES256 for APNs and Web Push, RS256 for Google.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::agreement::{ECDH_P256, PrivateKey};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::Value;
use whimbrel_model::Timestamp;

use super::settings::BadKey;

/// A token that was signed before.
pub(super) struct SignedToken {
    pub(super) text: Arc<str>,
    pub(super) made: Timestamp,
}

impl SignedToken {
    /// Whether the token may be used again. A clock that was set back makes it too old.
    pub(super) fn is_younger_than(&self, age: Duration, now: Timestamp) -> bool {
        (0..age.as_millis() as i64).contains(&now.as_millis().saturating_sub(self.made.as_millis()))
    }
}

/// A key that signs tokens.
pub(super) enum SigningKey {
    Es256(EcdsaKeyPair),
    Rs256(RsaKeyPair),
}

impl SigningKey {
    /// Parses a P-256 key in PEM, the format of Apple's `.p8` files.
    pub(super) fn es256_from_pem(pem: &[u8]) -> Result<Self, BadKey> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| BadKey(format!("no PEM key: {error}")))?;
        let pair = match &key {
            PrivateKeyDer::Pkcs8(der) => {
                EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der())
            }
            PrivateKeyDer::Sec1(der) => {
                EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_sec1_der())
            }
            _ => return Err(BadKey("the key is not a P-256 key".to_owned())),
        };
        pair.map(Self::Es256).map_err(|_| BadKey("the key is not a P-256 key".to_owned()))
    }

    /// Parses a P-256 private key: 32 bytes in URL-safe base64, the format of VAPID tools, or PEM.
    pub(super) fn es256_from_text(text: &str) -> Result<Self, BadKey> {
        if text.trim_start().starts_with("-----BEGIN") {
            return Self::es256_from_pem(text.as_bytes());
        }
        let bad = || BadKey("the key is neither PEM nor 32 bytes of a P-256 key in base64".to_owned());
        let number = URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('=')).map_err(|_| bad())?;
        let public = PrivateKey::from_private_key(&ECDH_P256, &number).and_then(|key| Ok(key.compute_public_key()?));
        let public = public.map_err(|_| bad())?;
        EcdsaKeyPair::from_private_key_and_public_key(&ECDSA_P256_SHA256_FIXED_SIGNING, &number, public.as_ref())
            .map(Self::Es256)
            .map_err(|_| bad())
    }

    /// Parses an RSA key in PEM, from a Google service account.
    pub(super) fn rs256_from_pem(pem: &[u8]) -> Result<Self, BadKey> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| BadKey(format!("no PEM key: {error}")))?;
        let pair = match &key {
            PrivateKeyDer::Pkcs8(der) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            PrivateKeyDer::Pkcs1(der) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            _ => return Err(BadKey("the key is not an RSA key".to_owned())),
        };
        pair.map(Self::Rs256).map_err(|error| BadKey(format!("the key is not a valid RSA key: {error}")))
    }

    /// The public key: an uncompressed point for P-256.
    pub(super) fn public_point(&self) -> &[u8] {
        match self {
            Self::Es256(pair) => pair.public_key().as_ref(),
            Self::Rs256(pair) => pair.public_key().as_ref(),
        }
    }

    /// Creates a token with these claims. The header has the algorithm, and the key id if there is one.
    pub(super) fn token(&self, key_id: Option<&str>, claims: &Value) -> Result<String, BadKey> {
        let algorithm = match self {
            Self::Es256(_) => "ES256",
            Self::Rs256(_) => "RS256",
        };
        let mut header = serde_json::json!({ "alg": algorithm, "typ": "JWT" });
        if let Some(key_id) = key_id {
            header["kid"] = key_id.into();
        }
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let mut token = format!("{}.{}", part(&header), part(claims));
        let failed = |_| BadKey("signing with the key failed".to_owned());
        let signature = match self {
            Self::Es256(pair) => pair.sign(&SystemRandom::new(), token.as_bytes()).map_err(failed)?.as_ref().to_vec(),
            Self::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), token.as_bytes(), &mut signature).map_err(failed)?;
                signature
            }
        };
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature));
        Ok(token)
    }
}
