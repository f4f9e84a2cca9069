//! The encryption of Web Push (RFC 8291): only the browser that created the subscription can decrypt the payload. Pure: the caller passes
//! salt and sender key, and must never reuse them.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};

pub(super) const SALT_BYTES: usize = 16;
/// The size of an uncompressed P-256 point, and of a subscription's secret.
pub(super) const POINT_BYTES: usize = 65;
pub(super) const AUTH_BYTES: usize = 16;
/// The record size. A payload has one record.
const RECORD_BYTES: u32 = 4_096;
/// The delimiter of the last record.
const LAST_RECORD: u8 = 2;
const KEY_BYTES: usize = 16;
const NONCE_BYTES: usize = 12;

/// The keys of a subscription or of the sender are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the subscription's keys are invalid")]
pub(super) struct InvalidKeys;

impl From<Unspecified> for InvalidKeys {
    fn from(_: Unspecified) -> Self {
        Self
    }
}

/// The keys of a browser's subscription.
pub(super) struct BrowserKeys<'a> {
    /// `p256dh`.
    pub(super) point: &'a [u8],
    pub(super) auth: &'a [u8],
}

/// Encrypts `content` into the body of a request to a push service, with the content coding `aes128gcm`.
pub(super) fn encrypt(
    receiver: &BrowserKeys<'_>,
    sender: &PrivateKey,
    salt: &[u8; SALT_BYTES],
    content: &[u8],
) -> Result<Vec<u8>, InvalidKeys> {
    if receiver.point.len() != POINT_BYTES || receiver.auth.len() != AUTH_BYTES {
        return Err(InvalidKeys);
    }
    let sender_point = sender.compute_public_key()?;
    let their_key = UnparsedPublicKey::new(&ECDH_P256, receiver.point);
    let secret = agree(sender, their_key, InvalidKeys, |shared| {
        let info: [&[u8]; 3] = [b"WebPush: info\0", receiver.point, sender_point.as_ref()];
        Ok(derived::<32>(receiver.auth, shared, &info)?)
    })?;
    let key: [u8; KEY_BYTES] = derived(salt, &secret, &[b"Content-Encoding: aes128gcm\0"])?;
    let nonce: [u8; NONCE_BYTES] = derived(salt, &secret, &[b"Content-Encoding: nonce\0"])?;

    let mut sealed = Vec::with_capacity(content.len() + 1 + AES_128_GCM.tag_len());
    sealed.extend_from_slice(content);
    sealed.push(LAST_RECORD);
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?);
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)?;

    let mut body = Vec::with_capacity(SALT_BYTES + 5 + POINT_BYTES + sealed.len());
    body.extend_from_slice(salt);
    body.extend_from_slice(&RECORD_BYTES.to_be_bytes());
    body.push(POINT_BYTES as u8);
    body.extend_from_slice(sender_point.as_ref());
    body.extend_from_slice(&sealed);
    Ok(body)
}

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF with SHA-256.
fn derived<const N: usize>(salt: &[u8], secret: &[u8], info: &[&[u8]]) -> Result<[u8; N], Unspecified> {
    let mut out = [0; N];
    Salt::new(HKDF_SHA256, salt).extract(secret).expand(info, Length(N))?.fill(&mut out)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    fn bytes(text: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    #[test]
    fn the_example_of_rfc_8291_is_encrypted_as_in_its_appendix() {
        let point = bytes("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4");
        let auth = bytes("BTBZMqHH6r4Tts7J_aSIgg");
        let salt: [u8; SALT_BYTES] = bytes("DGv6ra1nlYgDCS1FRnbzlw").try_into().unwrap();
        let sender = PrivateKey::from_private_key(&ECDH_P256, &bytes("yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"));
        let content = b"When I grow up, I want to be a watermelon";
        let body = encrypt(&BrowserKeys { point: &point, auth: &auth }, &sender.unwrap(), &salt, content).unwrap();
        let wanted = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8w\
                      EqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";
        assert_eq!(URL_SAFE_NO_PAD.encode(body), wanted);
    }

    #[test]
    fn invalid_keys_are_rejected() {
        let sender = PrivateKey::generate(&ECDH_P256).unwrap();
        let good = sender.compute_public_key().unwrap();
        let no_point = [4u8; POINT_BYTES];
        for (point, auth) in [(&no_point[..], &[1u8; 16][..]), (&[], &[1; 16]), (good.as_ref(), &[1; 15])] {
            let receiver = BrowserKeys { point, auth };
            assert_eq!(encrypt(&receiver, &sender, &[0; SALT_BYTES], b"x"), Err(InvalidKeys));
        }
    }
}
