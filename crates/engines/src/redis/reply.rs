//! Redis's answers, taken apart. What a script answers is known; anything else is an error, never a panic.

use bytes::Bytes;
use redis::Value;

/// An answer of another shape than the script gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an answer of Redis is not what the script gives")]
pub(super) struct OddReply;

/// The parts of a list, one after the other.
pub(super) struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    pub fn of(value: Value) -> Result<Self, OddReply> {
        match value {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            _ => Err(OddReply),
        }
    }

    pub fn is_over(&self) -> bool {
        self.0.len() == 0
    }

    /// The next part, where it is not nil.
    pub fn optional(&mut self) -> Result<Option<Bytes>, OddReply> {
        self.0.next().ok_or(OddReply).and_then(bytes_of)
    }

    pub fn bytes(&mut self) -> Result<Bytes, OddReply> {
        self.optional()?.ok_or(OddReply)
    }

    pub fn number<N: std::str::FromStr>(&mut self) -> Result<N, OddReply> {
        number_of(&self.bytes()?)
    }
}

pub(super) fn bytes_of(value: Value) -> Result<Option<Bytes>, OddReply> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        Value::SimpleString(text) => Ok(Some(text.into())),
        _ => Err(OddReply),
    }
}

pub(super) fn number_of<N: std::str::FromStr>(bytes: &[u8]) -> Result<N, OddReply> {
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or(OddReply)
}
