//! A record: the unit of a log, with key, headers, value and time as in Kafka. Whimbrel stores its own attributes of a message (id, content
//! type) in headers; their names are below.

use bytes::{BufMut, Bytes, BytesMut};

use crate::Timestamp;

/// The message's id, as text. A record without it was written by another application.
pub const HEADER_ID: &str = "whimbrel-id";
pub const HEADER_CONTENT_TYPE: &str = "content-type";
/// `(owner, idempotency key)` of a publish with a key or an id, encoded by [`idempotency_header`]. Receipts can be rebuilt from it.
pub const HEADER_IDEMPOTENCY_KEY: &str = "whimbrel-idempotency-key";
/// The fingerprint of the publisher's body, present with an idempotency key or a publisher-chosen id: 16 hexadecimal digits.
pub const HEADER_FINGERPRINT: &str = "whimbrel-fingerprint";
/// A second id by which repeats of the message are recognized. Only pushes have one.
pub const HEADER_ALSO_ID: &str = "whimbrel-also-id";

/// The value of [`HEADER_IDEMPOTENCY_KEY`]: the owner, a zero byte, the key. The key is empty if the publisher chose the message's id.
pub fn idempotency_header(owner: &str, key: &str) -> Vec<u8> {
    [owner.as_bytes(), &[0], key.as_bytes()].concat()
}

/// Parses the value of [`idempotency_header`] into `(owner, key)`.
pub fn split_idempotency_header(value: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(value).ok()?.split_once('\0')
}

/// One record, before it is written or after it is read. Cloning shares the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub key: Option<Bytes>,
    pub value: Bytes,
    pub headers: Headers,
    pub timestamp: Timestamp,
}

impl Record {
    /// The size in bytes that counts against limits.
    pub fn size(&self) -> usize {
        self.key.as_ref().map_or(0, Bytes::len) + self.headers.encoded().len() + self.value.len()
    }

    /// Copies the record into its own buffer. Otherwise it keeps the whole buffer in memory from which it was read.
    pub fn compact(&self) -> Self {
        let (key_len, headers_len) = (self.key.as_ref().map_or(0, Bytes::len), self.headers.encoded().len());
        let mut buffer = BytesMut::with_capacity(self.size());
        buffer.put_slice(self.key.as_deref().unwrap_or_default());
        buffer.put_slice(self.headers.encoded());
        buffer.put_slice(&self.value);
        let mut buffer = buffer.freeze();
        let key = buffer.split_to(key_len);
        let headers = Headers(buffer.split_to(headers_len));
        Self { key: self.key.as_ref().map(|_| key), value: buffer, headers, timestamp: self.timestamp }
    }
}

/// A record with its offset in its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    pub offset: u64,
    pub record: Record,
}

/// Header pairs in order, in one shared buffer. Names may repeat. Each pair is encoded as name length, name, value length, value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(Bytes);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the headers of the record are damaged")]
pub struct MalformedHeaders;

impl Headers {
    pub const EMPTY: Self = Self(Bytes::new());

    pub fn builder() -> HeadersBuilder {
        HeadersBuilder::default()
    }

    /// Decodes the bytes of [`Headers::encoded`]. It validates them, because they may come from a damaged disk.
    pub fn from_encoded(encoded: Bytes) -> Result<Self, MalformedHeaders> {
        let mut rest: &[u8] = &encoded;
        while !rest.is_empty() {
            let (name, _, after) = split_pair(rest).ok_or(MalformedHeaders)?;
            std::str::from_utf8(name).map_err(|_| MalformedHeaders)?;
            rest = after;
        }
        Ok(Self(encoded))
    }

    pub fn encoded(&self) -> &Bytes {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest: &[u8] = &self.0;
        std::iter::from_fn(move || {
            let (name, value, after) = split_pair(rest)?;
            rest = after;
            Some((std::str::from_utf8(name).unwrap_or_default(), value))
        })
    }

    /// The value of the first header and the headers after it, if the first header is `name`. Both share the buffer.
    pub fn split_first(&self, name: &str) -> Option<(Bytes, Self)> {
        let (found, value, after) = split_pair(&self.0)?;
        (found == name.as_bytes()).then(|| (self.0.slice_ref(value), Self(self.0.slice_ref(after))))
    }

    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// The first value under `name`, if it is UTF-8.
    pub fn get_str(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }
}

fn split_pair(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name_len, rest) = bytes.split_first_chunk::<2>()?;
    let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*name_len).into())?;
    let (value_len, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
    Some((name, value, rest))
}

/// Encodes headers. [`HeadersBuilder::take`] returns the headers so far and keeps the buffer, so the records of a batch share allocations.
#[derive(Debug, Default)]
pub struct HeadersBuilder {
    buffer: BytesMut,
}

impl HeadersBuilder {
    pub fn with_capacity(bytes: usize) -> Self {
        Self { buffer: BytesMut::with_capacity(bytes) }
    }

    /// Adds a pair. The name must have at most 65 535 bytes, the value less than 4 GiB; the limits of the API are far below.
    pub fn push(&mut self, name: &str, value: &[u8]) -> &mut Self {
        self.buffer.put_u16_le(u16::try_from(name.len()).expect("the API limits the length of header names"));
        self.buffer.put_slice(name.as_bytes());
        self.buffer.put_u32_le(u32::try_from(value.len()).expect("the API limits the length of header values"));
        self.buffer.put_slice(value);
        self
    }

    /// Adds a pair whose value is the concatenation of `parts`.
    pub fn push_parts(&mut self, name: &str, parts: &[&[u8]]) -> &mut Self {
        let value_len: usize = parts.iter().map(|part| part.len()).sum();
        self.buffer.put_u16_le(u16::try_from(name.len()).expect("the API limits the length of header names"));
        self.buffer.put_slice(name.as_bytes());
        self.buffer.put_u32_le(u32::try_from(value_len).expect("the API limits the length of header values"));
        parts.iter().for_each(|part| self.buffer.put_slice(part));
        self
    }

    pub fn push_all(&mut self, headers: &Headers) -> &mut Self {
        self.buffer.put_slice(&headers.0);
        self
    }

    pub fn take(&mut self) -> Headers {
        if self.buffer.is_empty() { Headers::EMPTY } else { Headers(self.buffer.split().freeze()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_keep_order_and_repeats() {
        let mut builder = Headers::builder();
        builder.push("a", b"1").push("b", b"").push("a", b"2");
        let headers = builder.take();
        let pairs: Vec<_> = headers.iter().collect();
        assert_eq!(pairs, [("a", &b"1"[..]), ("b", b""), ("a", b"2")]);
        assert_eq!(headers.get("a"), Some(&b"1"[..]));
        assert_eq!(headers.get("c"), None);
        assert!(builder.take().is_empty());
    }

    #[test]
    fn a_value_in_parts_is_encoded_like_a_whole_one() {
        let (mut parts, mut whole) = (Headers::builder(), Headers::builder());
        assert_eq!(parts.push_parts("a", &[b"1", b"", b"23"]).take(), whole.push("a", b"123").take());
    }

    #[test]
    fn an_owner_and_a_key_are_read_back() {
        assert_eq!(split_idempotency_header(&idempotency_header("shop", "a b")), Some(("shop", "a b")));
        assert_eq!(split_idempotency_header(&idempotency_header("", "")), Some(("", "")));
        assert_eq!(split_idempotency_header(b"no zero"), None);
    }

    proptest! {
        #[test]
        fn invalid_header_bytes_are_rejected_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(headers) = Headers::from_encoded(Bytes::from(bytes)) {
                let mut again = Headers::builder();
                headers.iter().for_each(|(name, value)| { again.push(name, value); });
                prop_assert_eq!(again.take(), headers);
            }
        }
    }
}
