//! Standard Webhooks signatures: HMAC-SHA256 over `id.timestamp.body`, one for each secret that has not expired.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, BytesMut};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use whimbrel_api::endpoint::{BadSecret, signing_key};
use whimbrel_model::Timestamp;
use whimbrel_model::subscription::SigningSecret;

/// `v1,` and the base64 of 32 bytes.
const SIGNATURE_CHARS: usize = 3 + 44;

/// The secrets of a target as keyed HMAC states, so that a call only copies a state.
#[derive(Clone, Default)]
pub(crate) struct Signers {
    signers: Vec<Signer>,
}

#[derive(Clone)]
struct Signer {
    keyed: Hmac<Sha256>,
    until: Option<Timestamp>,
}

impl Signers {
    pub(crate) fn new(secrets: &[SigningSecret]) -> Result<Self, BadSecret> {
        let signer = |secret: &SigningSecret| {
            Ok(Signer { keyed: keyed(&secret.secret)?, until: secret.until_ms.map(Timestamp::from_millis) })
        };
        secrets.iter().map(signer).collect::<Result<_, _>>().map(|signers| Self { signers })
    }

    /// Writes the signatures of all secrets that have not expired, separated by spaces; nothing if there are none.
    pub(crate) fn write(&self, id: &str, now: Timestamp, body: &[u8], out: &mut BytesMut) {
        let mut digits = itoa::Buffer::new();
        let seconds = digits.format(now.as_millis().div_euclid(1000));
        let live = self.signers.iter().filter(|signer| signer.until.is_none_or(|until| now < until));
        for (index, signer) in live.enumerate() {
            if index > 0 {
                out.put_u8(b' ');
            }
            let mut mac = signer.keyed.clone();
            for part in [id.as_bytes(), b".", seconds.as_bytes(), b".", body] {
                mac.update(part);
            }
            let mut signature = [0u8; SIGNATURE_CHARS];
            signature[..3].copy_from_slice(b"v1,");
            let written = STANDARD.encode_slice(mac.finalize().into_bytes(), &mut signature[3..]);
            written.expect("44 characters are the base64 of 32 bytes");
            out.put_slice(&signature);
        }
    }
}

fn keyed(secret: &str) -> Result<Hmac<Sha256>, BadSecret> {
    Hmac::new_from_slice(&signing_key(secret)?).map_err(|_| BadSecret)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::Digest;

    fn secret(text: &str, until_ms: Option<i64>) -> SigningSecret {
        SigningSecret { secret: text.to_owned(), until_ms }
    }

    fn signed(secrets: &[SigningSecret], id: &str, now_ms: i64, body: &[u8]) -> String {
        let mut out = BytesMut::new();
        Signers::new(secrets).unwrap().write(id, Timestamp::from_millis(now_ms), body, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    /// HMAC by its definition, not by the crate under test.
    fn by_definition(key: &[u8], content: &[u8]) -> String {
        let mut block = [0u8; 64];
        block[..key.len()].copy_from_slice(key);
        let inner = Sha256::digest([&block.map(|b| b ^ 0x36)[..], content].concat());
        let outer = Sha256::digest([&block.map(|b| b ^ 0x5c)[..], &inner[..]].concat());
        format!("v1,{}", STANDARD.encode(outer))
    }

    #[test]
    fn the_example_of_the_specification_is_signed_as_it_says() {
        let secrets = [secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", None)];
        let signature = signed(&secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330_999, b"{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_signature_equals_its_definition() {
        let key = [7u8; 64];
        let secrets = [secret(&format!("whsec_{}", STANDARD.encode(key)), None)];
        assert_eq!(signed(&secrets, "a-1", 5_000, b"body"), by_definition(&key, b"a-1.5.body"));
    }

    #[test]
    fn during_a_rotation_both_secrets_sign_and_after_it_one() {
        let (new, old) = ([1u8; 24], [2u8; 24]);
        let text = |key: &[u8]| format!("whsec_{}", STANDARD.encode(key));
        let secrets = [secret(&text(&new), None), secret(&text(&old), Some(10_000))];
        let both = format!("{} {}", by_definition(&new, b"m.9.x"), by_definition(&old, b"m.9.x"));
        assert_eq!(signed(&secrets, "m", 9_999, b"x"), both);
        assert_eq!(signed(&secrets, "m", 10_000, b"x"), by_definition(&new, b"m.10.x"));
        assert_eq!(signed(&[], "m", 10_000, b"x"), "");
    }
}
