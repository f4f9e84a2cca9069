//! Reads the replies of scripts. A reply of an unexpected shape is an error, never a panic.

use bytes::Bytes;
use redis::Value;

use super::connection::RedisCallError;

/// The parts of a list, in order.
pub(super) struct ReplyParts(std::vec::IntoIter<Value>);

impl ReplyParts {
    pub fn of(value: Value) -> Result<Self, RedisCallError> {
        match value {
            Value::Array(parts) => Ok(Self(parts.into_iter())),
            _ => Err(RedisCallError::UnexpectedReply),
        }
    }

    pub fn is_over(&self) -> bool {
        self.0.len() == 0
    }

    /// The next part. `None` for nil.
    pub fn optional(&mut self) -> Result<Option<Bytes>, RedisCallError> {
        self.0.next().ok_or(RedisCallError::UnexpectedReply).and_then(bytes_of)
    }

    pub fn bytes(&mut self) -> Result<Bytes, RedisCallError> {
        self.optional()?.ok_or(RedisCallError::UnexpectedReply)
    }

    pub fn number<N: std::str::FromStr>(&mut self) -> Result<N, RedisCallError> {
        number_of(&self.bytes()?)
    }
}

pub(super) fn bytes_of(value: Value) -> Result<Option<Bytes>, RedisCallError> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        Value::SimpleString(text) => Ok(Some(text.into())),
        _ => Err(RedisCallError::UnexpectedReply),
    }
}

pub(super) fn number_of<N: std::str::FromStr>(bytes: &[u8]) -> Result<N, RedisCallError> {
    std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()).ok_or(RedisCallError::UnexpectedReply)
}
