//! The checks of providers: signatures of tokens by the public key, and their claims.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

pub fn unbase64(text: &str) -> Vec<u8> {
    URL_SAFE_NO_PAD.decode(text).unwrap_or_else(|error| panic!("`{text}`: {error}"))
}

/// The header and claims of a token signed by this P-256 key.
pub fn es256(token: &str, point: &[u8]) -> (Value, Value) {
    verified(token, "ES256", &ECDSA_P256_SHA256_FIXED, point)
}

/// The header and claims of a token signed by this RSA key.
pub fn rs256(token: &str, public: &[u8]) -> (Value, Value) {
    verified(token, "RS256", &RSA_PKCS1_2048_8192_SHA256, public)
}

fn verified(token: &str, algorithm: &str, how: &'static dyn VerificationAlgorithm, public: &[u8]) -> (Value, Value) {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let (header, claims) = signed.split_once('.').unwrap();
    let read = |part: &str| serde_json::from_slice::<Value>(&unbase64(part)).unwrap();
    UnparsedPublicKey::new(how, public)
        .verify(signed.as_bytes(), &unbase64(signature))
        .expect("the signature is wrong");
    assert_eq!(read(header)["alg"], algorithm);
    (read(header), read(claims))
}
