//! Records that only carried a transaction marker. Earlier versions wrote them to close hanging transactions; readers skip them.

use whimbrel_model::Record;

/// The key of such a record, and the name of its header.
const END_MARK: &str = "whimbrel-transaction-end";

/// Whether the record only carries a marker, and is not a message.
pub(super) fn is_marker_record(record: &Record) -> bool {
    record.value.is_empty()
        && record.key.as_deref() == Some(END_MARK.as_bytes())
        && record.headers.get(END_MARK).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use whimbrel_model::{Headers, Timestamp};

    #[test]
    fn a_marker_record_is_distinguished_from_a_message() {
        let mut headers = Headers::builder();
        headers.push(END_MARK, b"");
        let (key, value) = (Some(END_MARK.as_bytes().into()), Default::default());
        let end = Record { key, value, headers: headers.take(), timestamp: Timestamp::from_millis(1) };
        assert!(is_marker_record(&end));
        assert!(!is_marker_record(&Record { headers: Headers::EMPTY, ..end.clone() }));
        assert!(!is_marker_record(&Record { key: None, ..end.clone() }));
        assert!(!is_marker_record(&Record { value: "x".into(), ..end }));
    }
}
