//! Tokens for the devices of the benchmark: HS256, signed with a secret that every fresh server of the benchmark has.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Public: it guards a server on loopback for the time of a measurement.
pub const SECRET: &str = "whimbrel-bench-0123456789abcdef-0123456789abcdef";
/// Longer than any benchmark.
const VALID_S: u64 = 24 * 3600;

pub fn token_of(uid: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let claims = serde_json::json!({ "sub": uid, "exp": now + VALID_S });
    let head = BASE64.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
    let signed = format!("{head}.{}", BASE64.encode(claims.to_string()));
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(signed.as_bytes());
    format!("{signed}.{}", BASE64.encode(mac.finalize().into_bytes()))
}
