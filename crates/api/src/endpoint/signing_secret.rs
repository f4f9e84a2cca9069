//! Secrets that sign callbacks, as Standard Webhooks specifies them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const SECRET_PREFIX: &str = "whsec_";
/// Bytes of a secret, by the specification.
const SECRET_BYTES_MIN: usize = 24;
const SECRET_BYTES_MAX: usize = 64;
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed secret: it must be `whsec_` and the base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes")]
pub struct BadSecret;

/// Whether a secret can sign.
pub fn check_secret(secret: &str) -> Result<(), BadSecret> {
    signing_key(secret).map(drop)
}

/// The key in a secret.
pub fn signing_key(secret: &str) -> Result<Vec<u8>, BadSecret> {
    let encoded = secret.strip_prefix(SECRET_PREFIX).ok_or(BadSecret)?;
    let key = STANDARD.decode(encoded).map_err(|_| BadSecret)?;
    if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&key.len()) {
        return Err(BadSecret);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_secret_is_rejected() {
        let of_bytes = |count: usize| format!("whsec_{}", STANDARD.encode(vec![1u8; count]));
        assert!(check_secret(&of_bytes(24)).is_ok() && check_secret(&of_bytes(64)).is_ok());
        for text in
            ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_not base64!", &of_bytes(23), &of_bytes(65)]
        {
            assert_eq!(check_secret(text), Err(BadSecret), "{text}");
        }
    }
}
