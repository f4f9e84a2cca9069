//! The encoding of the messages between nodes. A type lists its fields or variants once, with [`wire!`](crate::wire); the list must be complete
//! to compile, and serves both directions.
//!
//! Numbers are little-endian, lengths and counts have 32 bits. Bytes of other nodes are validated as any input from a network: a message
//! that cannot be decoded is rejected, never guessed. Payloads are not copied. Changes of a list need another [`VERSION`].

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut, Bytes};

/// The version of the messages. A node rejects messages of another version.
pub const VERSION: u16 = 1;

/// A message of another node cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("another node sent an invalid message: {0}")]
pub struct Malformed(pub &'static str);

const TRUNCATED: Malformed = Malformed("the message is truncated");

/// A part of a message between nodes.
pub trait Wire: Sized {
    fn encode(&self, into: &mut dyn BufMut);

    /// Takes the value from the start of the bytes.
    fn decode(from: &mut Bytes) -> Result<Self, Malformed>;
}

/// Implements [`Wire`] by the list of all fields of a struct, or of all variants of an enum, each with the number that stands for it. A
/// condition after `if` rejects decoded values that do not meet it. The third form encodes a type as another one, with both conversions.
#[macro_export]
macro_rules! wire {
    (struct $type:ty { $($field:ident),* $(,)? } $(if $check:expr)?) => {
        impl $crate::rpc::Wire for $type {
            fn encode(&self, into: &mut dyn bytes::BufMut) {
                let Self { $($field),* } = self;
                $($crate::rpc::Wire::encode($field, into);)*
            }

            fn decode(from: &mut bytes::Bytes) -> Result<Self, $crate::rpc::Malformed> {
                let value = Self { $($field: $crate::rpc::Wire::decode(from)?),* };
                $($crate::rpc::checked::<Self>(&value, $check)?;)?
                Ok(value)
            }
        }
    };
    (enum $type:ty { $($number:literal $variant:ident $(($value:ident))? $({ $($field:ident),* })?),* $(,)? } $(if $check:expr)?) => {
        impl $crate::rpc::Wire for $type {
            fn encode(&self, into: &mut dyn bytes::BufMut) {
                match self {
                    $(Self::$variant $(($value))? $({ $($field),* })? => {
                        bytes::BufMut::put_u8(into, $number);
                        $($crate::rpc::Wire::encode($value, into);)?
                        $($($crate::rpc::Wire::encode($field, into);)*)?
                    })*
                }
            }

            fn decode(from: &mut bytes::Bytes) -> Result<Self, $crate::rpc::Malformed> {
                let value = match <u8 as $crate::rpc::Wire>::decode(from)? {
                    $($number => {
                        $(let $value = $crate::rpc::Wire::decode(from)?;)?
                        $($(let $field = $crate::rpc::Wire::decode(from)?;)*)?
                        Self::$variant $(($value))? $({ $($field),* })?
                    })*
                    _ => return Err($crate::rpc::Malformed(concat!("unknown variant of ", stringify!($type)))),
                };
                $($crate::rpc::checked::<Self>(&value, $check)?;)?
                Ok(value)
            }
        }
    };
    ($type:ty as $other:ty, $to:expr, $from:expr) => {
        impl $crate::rpc::Wire for $type {
            fn encode(&self, into: &mut dyn bytes::BufMut) {
                let to: fn(&$type) -> $other = $to;
                $crate::rpc::Wire::encode(&to(self), into);
            }

            fn decode(from: &mut bytes::Bytes) -> Result<Self, $crate::rpc::Malformed> {
                let convert: fn($other) -> Result<$type, $crate::rpc::Malformed> = $from;
                convert(<$other as $crate::rpc::Wire>::decode(from)?)
            }
        }
    };
}

/// The condition of [`wire!`](crate::wire).
pub fn checked<T>(value: &T, is_valid: fn(&T) -> bool) -> Result<(), Malformed> {
    if is_valid(value) { Ok(()) } else { Err(Malformed("a value is out of its bounds")) }
}

macro_rules! numbers {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn encode(&self, into: &mut dyn BufMut) {
                into.put_slice(&self.to_le_bytes());
            }

            fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
                let number = Self::from_le_bytes(*from.first_chunk().ok_or(TRUNCATED)?);
                from.advance(size_of::<Self>());
                Ok(number)
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i64, f32);

wire!(bool as u8, |is| u8::from(*is), |byte| match byte {
    0 => Ok(false),
    1 => Ok(true),
    _ => Err(Malformed("invalid truth value")),
});
wire!(usize as u64, |number| *number as u64, |number| {
    number.try_into().map_err(|_| Malformed("a number is too large"))
});
wire!(Duration as u64, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX), |us| Ok(Duration::from_micros(us)));
macro_rules! texts {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn encode(&self, into: &mut dyn BufMut) {
                put_bytes(self.as_bytes(), into);
            }

            fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
                let bytes = Bytes::decode(from)?;
                str::from_utf8(&bytes).map(Into::into).map_err(|_| Malformed("a text is not UTF-8"))
            }
        }
    )*};
}

texts!(String, Box<str>, Arc<str>);

impl Wire for Bytes {
    fn encode(&self, into: &mut dyn BufMut) {
        put_bytes(self, into);
    }

    fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
        let length = u32::decode(from)? as usize;
        if length > from.len() { Err(TRUNCATED) } else { Ok(from.split_to(length)) }
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn encode(&self, into: &mut dyn BufMut) {
        count(self.len()).encode(into);
        self.iter().for_each(|each| each.encode(into));
    }

    fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
        // The count is not trusted: memory is allocated as elements are decoded.
        (0..u32::decode(from)?).map(|_| T::decode(from)).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn encode(&self, into: &mut dyn BufMut) {
        self.is_some().encode(into);
        self.iter().for_each(|value| value.encode(into));
    }

    fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
        bool::decode(from)?.then(|| T::decode(from)).transpose()
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn encode(&self, into: &mut dyn BufMut) {
        self.is_ok().encode(into);
        match self {
            Ok(value) => value.encode(into),
            Err(error) => error.encode(into),
        }
    }

    fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
        if bool::decode(from)? { T::decode(from).map(Ok) } else { E::decode(from).map(Err) }
    }
}

macro_rules! pointers {
    ($($pointer:ident),*) => {$(
        impl<T: Wire> Wire for $pointer<T> {
            fn encode(&self, into: &mut dyn BufMut) {
                T::encode(self, into);
            }

            fn decode(from: &mut Bytes) -> Result<Self, Malformed> {
                T::decode(from).map($pointer::new)
            }
        }
    )*};
}

pointers!(Arc, Box);

macro_rules! tuples {
    ($(($($type:ident $place:tt),*)),*) => {$(
        impl<$($type: Wire),*> Wire for ($($type,)*) {
            fn encode(&self, _into: &mut dyn BufMut) {
                $(self.$place.encode(_into);)*
            }

            fn decode(_from: &mut Bytes) -> Result<Self, Malformed> {
                Ok(($($type::decode(_from)?,)*))
            }
        }
    )*};
}

tuples!((), (A 0, B 1), (A 0, B 1, C 2));

fn put_bytes(bytes: &[u8], into: &mut dyn BufMut) {
    count(bytes.len()).encode(into);
    into.put_slice(bytes);
}

/// A length or count. The limits of messages are below 4 GiB.
fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Encodes a whole message.
pub fn encode_message(message: &impl Wire, into: &mut dyn BufMut) {
    VERSION.encode(into);
    message.encode(into);
}

/// Decodes a whole message. The error is a text for the sender or the log.
pub fn decode_message<T: Wire>(mut from: Bytes) -> Result<T, String> {
    let version = u16::decode(&mut from).map_err(|malformed| malformed.to_string())?;
    if version != VERSION {
        return Err(format!(
            "another node uses version {version} of the node-to-node protocol, this one version {VERSION}: run one release on all nodes"
        ));
    }
    match T::decode(&mut from) {
        Ok(message) if from.is_empty() => Ok(message),
        Ok(_) => Err(Malformed("the message is too long").to_string()),
        Err(malformed) => Err(malformed.to_string()),
    }
}

/// Encodes a message, and decodes it as another node does. For tests.
pub fn transferred<T: Wire>(message: &T) -> Result<T, String> {
    let mut bytes = Vec::new();
    encode_message(message, &mut bytes);
    decode_message(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Everything = (Vec<(bool, Option<u16>)>, Result<String, f32>, (Arc<Bytes>, Box<str>, Duration));

    fn encoded(message: &impl Wire) -> Bytes {
        let mut bytes = Vec::new();
        encode_message(message, &mut bytes);
        bytes.into()
    }

    fn everything() -> Everything {
        let payload = Bytes::from_static(b"\0\xff");
        (
            vec![(true, None), (false, Some(7))],
            Ok("é".to_owned()),
            (payload.into(), "".into(), Duration::from_micros(3)),
        )
    }

    #[test]
    fn a_message_is_decoded_as_it_was_encoded_and_no_part_of_it_is() {
        let bytes = encoded(&everything());
        assert_eq!(decode_message(bytes.clone()), Ok(everything()));
        assert!((0..bytes.len()).all(|end| decode_message::<Everything>(bytes.slice(..end)).is_err()));
        assert!(decode_message::<Everything>([&bytes[..], b"\0"].concat().into()).is_err());
    }

    #[test]
    fn a_message_of_another_version_is_rejected_with_both_versions() {
        let mut bytes = encoded(&everything()).to_vec();
        bytes[0] = 9;
        let refused = decode_message::<Everything>(bytes.into()).unwrap_err();
        assert!(refused.contains("version 9") && refused.contains("version 1"), "{refused}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_or_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode_message::<Everything>([&VERSION.to_le_bytes()[..], &bytes].concat().into());
        }
    }
}
