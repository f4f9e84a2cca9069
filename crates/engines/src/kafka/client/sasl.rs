//! SASL: PLAIN and SCRAM (RFC 5802) over Kafka's `SaslHandshake` and `SaslAuthenticate`.
//!
//! SCRAM also authenticates the broker: a wrong server signature ends the connection.

use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::{constant_time, digest, hmac, pbkdf2};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use kafka_protocol::protocol::StrBytes;

use super::connection::BrokerConnection;
use crate::kafka::settings::{Sasl, SaslMechanism};

const NONCE_BYTES: usize = 24;
/// Accepted iterations: at least the minimum of RFC 5802. A broker that requests more than the limit is treated as hostile.
const ITERATIONS: std::ops::RangeInclusive<u32> = 4096..=1_000_000;

/// Authenticates a connection that has just learned the broker's versions.
pub(super) async fn authenticate(connection: &BrokerConnection, sasl: &Sasl, timeout: Duration) -> Result<(), String> {
    let mechanism = sasl.mechanism.name();
    let handshake = SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(mechanism));
    let answer = connection.call(&handshake, timeout).await.map_err(|error| error.to_string())?;
    if answer.error_code != 0 {
        let offered = answer.mechanisms.iter().map(|each| each.as_str()).collect::<Vec<_>>().join(", ");
        let offered = if offered.is_empty() { "no SASL on this listener".to_owned() } else { offered };
        return Err(format!("the broker does not offer SASL {mechanism}; it offers {offered}"));
    }
    match sasl.mechanism {
        SaslMechanism::Plain => {
            let token = format!("\0{}\0{}", sasl.username, sasl.password);
            send(connection, token.into_bytes(), timeout).await.map(drop)
        }
        SaslMechanism::ScramSha256 | SaslMechanism::ScramSha512 => {
            let mut nonce = [0; NONCE_BYTES];
            let random = SystemRandom::new();
            aws_lc_rs::rand::SecureRandom::fill(&random, &mut nonce)
                .map_err(|_| "cannot generate a SCRAM nonce: the random number generator failed".to_owned())?;
            let mut scram = Scram::new(sasl, BASE64.encode(nonce));
            let challenge = send(connection, scram.first(), timeout).await?;
            let proof = scram.answer(&challenge)?;
            let verdict = send(connection, proof, timeout).await?;
            scram.verify(&verdict)
        }
    }
}

async fn send(connection: &BrokerConnection, token: Vec<u8>, timeout: Duration) -> Result<Bytes, String> {
    let request = SaslAuthenticateRequest::default().with_auth_bytes(token.into());
    let answer = connection.call(&request, timeout).await.map_err(|error| error.to_string())?;
    match ResponseError::try_from_code(answer.error_code) {
        None => Ok(answer.auth_bytes),
        Some(code) => {
            let reason = answer.error_message.map_or_else(|| code.to_string(), |message| message.to_string());
            Err(format!(
                "the broker refused the SASL credentials: {reason}; check `kafka.sasl_username` and `kafka.sasl_password`"
            ))
        }
    }
}

/// The client's side of one SCRAM exchange.
struct Scram<'a> {
    sasl: &'a Sasl,
    nonce: String,
    /// The text that both sides sign.
    auth_message: String,
    server_signature: Vec<u8>,
}

impl<'a> Scram<'a> {
    fn new(sasl: &'a Sasl, nonce: String) -> Self {
        Self { sasl, nonce, auth_message: String::new(), server_signature: Vec::new() }
    }

    fn first_bare(&self) -> String {
        let username = self.sasl.username.replace('=', "=3D").replace(',', "=2C");
        format!("n={username},r={}", self.nonce)
    }

    fn first(&self) -> Vec<u8> {
        format!("n,,{}", self.first_bare()).into_bytes()
    }

    /// The proof in answer to the broker's challenge.
    fn answer(&mut self, challenge: &[u8]) -> Result<Vec<u8>, String> {
        let malformed = || "the broker's SCRAM challenge is malformed".to_owned();
        let challenge = std::str::from_utf8(challenge).map_err(|_| malformed())?;
        let attribute = |name: &str| challenge.split(',').find_map(|each| each.strip_prefix(name));
        let nonce = attribute("r=").ok_or_else(malformed)?;
        let salt = attribute("s=").and_then(|salt| BASE64.decode(salt).ok()).ok_or_else(malformed)?;
        let iterations: u32 = attribute("i=").and_then(|count| count.parse().ok()).ok_or_else(malformed)?;
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err("invalid SCRAM nonce from the broker: it does not start with the client nonce".to_owned());
        }
        let count = std::num::NonZeroU32::new(iterations).filter(|_| ITERATIONS.contains(&iterations));
        let count = count.ok_or_else(|| {
            let (min, max) = (*ITERATIONS.start(), *ITERATIONS.end());
            format!("the broker requested {iterations} SCRAM iterations; accepted are {min} to {max}")
        })?;

        let (hashing, stretching, signing) = match self.sasl.mechanism {
            SaslMechanism::ScramSha512 => (&digest::SHA512, pbkdf2::PBKDF2_HMAC_SHA512, hmac::HMAC_SHA512),
            _ => (&digest::SHA256, pbkdf2::PBKDF2_HMAC_SHA256, hmac::HMAC_SHA256),
        };
        let mut salted = vec![0; hashing.output_len()];
        pbkdf2::derive(stretching, count, &salt, self.sasl.password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(signing, key), text);
        let client_key = sign(&salted, b"Client Key");
        let server_key = sign(&salted, b"Server Key");
        let stored_key = digest::digest(hashing, client_key.as_ref());

        let without_proof = format!("c=biws,r={nonce}");
        self.auth_message = format!("{},{challenge},{without_proof}", self.first_bare());
        let signature = sign(stored_key.as_ref(), self.auth_message.as_bytes());
        self.server_signature = sign(server_key.as_ref(), self.auth_message.as_bytes()).as_ref().to_vec();
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        Ok(format!("{without_proof},p={}", BASE64.encode(proof)).into_bytes())
    }

    /// Checks that the broker has the password too.
    fn verify(&self, verdict: &[u8]) -> Result<(), String> {
        let signature = std::str::from_utf8(verdict).ok().and_then(|text| text.strip_prefix("v="));
        let signature = signature.and_then(|text| BASE64.decode(text.trim_end()).ok()).unwrap_or_default();
        constant_time::verify_slices_are_equal(&signature, &self.server_signature)
            .map_err(|_| "wrong SCRAM server signature: the broker does not have the password".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 7677, section 3.
    fn sasl() -> Sasl {
        Sasl { mechanism: SaslMechanism::ScramSha256, username: "user".to_owned(), password: "pencil".to_owned() }
    }

    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const CHALLENGE: &[u8] = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    #[test]
    fn scram_agrees_with_the_rfc() {
        let sasl = sasl();
        let mut scram = Scram::new(&sasl, NONCE.to_owned());
        assert_eq!(scram.first(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let proof = String::from_utf8(scram.answer(CHALLENGE).unwrap()).unwrap();
        assert_eq!(
            proof,
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert!(scram.verify(b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=").is_err());
        assert!(scram.verify(b"e=other-error").is_err());
    }

    #[test]
    fn a_challenge_with_a_foreign_nonce_or_too_few_iterations_is_rejected() {
        let sasl = sasl();
        let refused = |challenge: &[u8]| Scram::new(&sasl, NONCE.to_owned()).answer(challenge).is_err();
        assert!(refused(b"r=somebody-else,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"));
        assert!(refused(b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"));
        assert!(refused(b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1"));
        assert!(refused(b"r=rOprNGfwEbeRWgbNEkqOx,i=4096"));
        assert!(refused(b"\xff"));
    }
}
