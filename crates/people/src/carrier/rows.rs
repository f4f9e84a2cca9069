//! Row format of a stored message: version, metadata for devices, payload.

use std::sync::Arc;

use bytes::{BufMut, Bytes};
use whimbrel_model::Timestamp;
use whimbrel_model::ports::OutMessage;

use super::user_box::codec::{number, take_number, take_text, text};

const FORMAT: u8 = 1;

pub fn encode_row(message: &OutMessage) -> Bytes {
    let mut out = Vec::with_capacity(message.payload.len() + message.id.len() + 32);
    out.put_u8(FORMAT);
    out.put_i64_le(message.sent_at.as_millis());
    text(&mut out, &message.id);
    match &message.content_type {
        Some(content_type) => {
            number(&mut out, 1);
            text(&mut out, content_type);
        }
        None => number(&mut out, 0),
    }
    out.put_slice(&message.payload);
    out.into()
}

/// Decodes the output of [`encode_row`]. `None` for a malformed row.
pub fn decode_row(row: &Bytes) -> Option<Arc<OutMessage>> {
    let (version, rest) = row.split_first()?;
    if *version != FORMAT {
        return None;
    }
    let (sent_at, mut rest) = rest.split_first_chunk::<8>()?;
    let id = take_text(&mut rest)?.into();
    let content_type = match take_number(&mut rest)? {
        0 => None,
        _ => Some(take_text(&mut rest)?.into()),
    };
    let sent_at = Timestamp::from_millis(i64::from_le_bytes(*sent_at));
    Some(Arc::new(OutMessage { id, payload: row.slice_ref(rest), content_type, sent_at, ..OutMessage::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_decodes_to_what_was_encoded_and_malformed_rows_are_rejected() {
        for content_type in [None, Some("text/plain".into())] {
            let message = OutMessage {
                id: "m1".into(),
                payload: Bytes::from_static(b"hello"),
                content_type,
                sent_at: Timestamp::from_millis(-3),
                ..OutMessage::default()
            };
            let row = encode_row(&message);
            assert_eq!(*decode_row(&row).unwrap(), message);
            for cut in 0..row.len() - message.payload.len() {
                assert!(decode_row(&row.slice(..cut)).is_none(), "{cut}");
            }
        }
        assert!(decode_row(&Bytes::from_static(b"\x02abcdefgh\0\0")).is_none());
    }
}
