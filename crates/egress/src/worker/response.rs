//! The response of a subscriber: its `Retry-After` and the start of its body.

use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::RETRY_AFTER;
use http_body::Body;
use http_body_util::BodyExt;
use whimbrel_model::Timestamp;

use super::limits::ANSWER_READ_BYTES_MAX;

/// The start of a body. It keeps the bytes read so far if reading is aborted.
pub(super) struct BodyReader {
    keeps: usize,
    kept: BytesMut,
    /// Whether the body was read to its end, so that the connection can be reused.
    pub(super) is_whole: bool,
}

impl BodyReader {
    /// Keeps at most `keeps` bytes of the body.
    pub(super) fn new(keeps: usize) -> Self {
        Self { keeps, kept: BytesMut::new(), is_whole: false }
    }

    /// Reads to the end or up to [`ANSWER_READ_BYTES_MAX`]. Errors are ignored: the status decides the outcome.
    pub(super) async fn read(&mut self, mut body: impl Body<Data = Bytes> + Unpin) {
        let mut read = 0;
        while read <= ANSWER_READ_BYTES_MAX {
            match body.frame().await {
                None => {
                    self.is_whole = true;
                    return;
                }
                Some(Err(_)) => return,
                Some(Ok(frame)) => {
                    let Some(data) = frame.data_ref() else { continue };
                    read += data.len();
                    let room = self.keeps - self.kept.len();
                    self.kept.extend_from_slice(&data[..data.len().min(room)]);
                }
            }
        }
    }

    pub(super) fn into_kept(self) -> Bytes {
        self.kept.freeze()
    }
}

/// The delay of a `Retry-After` header: seconds or an HTTP date. `None`: there is none, or it is invalid.
pub(crate) fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // A number that does not fit counts as the maximum.
        return Some(Duration::from_secs(text.parse().unwrap_or(u32::MAX.into())));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    let at_ms = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let now_ms = u128::try_from(now.as_millis()).unwrap_or(0);
    Some(Duration::from_millis(u64::try_from(at_ms.saturating_sub(now_ms)).unwrap_or(u64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn after(text: &'static str) -> Option<Duration> {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
        // Sun, 06 Nov 1994 08:49:37 GMT.
        retry_after(&headers, Timestamp::from_millis(784_111_777_000))
    }

    #[test]
    fn a_retry_after_is_seconds_or_a_date() {
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(after("0"), Some(Duration::ZERO));
        assert_eq!(after("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(after("Sun, 06 Nov 1994 08:49:00 GMT"), Some(Duration::ZERO), "the date has passed");
        assert_eq!(after("99999999999999999999999"), Some(Duration::from_secs(u32::MAX.into())));
    }

    #[test]
    fn an_invalid_retry_after_is_ignored() {
        assert_eq!(after(""), None);
        assert_eq!(after("-5"), None);
        assert_eq!(after("1.5"), None);
        assert_eq!(after("tomorrow"), None);
        assert_eq!(retry_after(&HeaderMap::new(), Timestamp::from_millis(0)), None);
    }
}
