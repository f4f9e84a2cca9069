//! Drafts: validated messages that have no partition yet. All endpoints create drafts; [`crate::accept`] turns them into records.

use std::time::Duration;

use bytes::Bytes;
use whimbrel_model::limits::{IDEMPOTENCY_KEY_MAX_CHARS, KEY_MAX_BYTES};
use whimbrel_model::ports::ClaimKind;
use whimbrel_model::push::{HEADER_PUSH, PUSH_MESSAGE_HEAD};
use whimbrel_model::record::HEADER_CONTENT_TYPE;
use whimbrel_model::{Headers, HeadersBuilder, Timestamp, check_brought_id, parse_duration};

use crate::problem::{ApiProblem, Code};
use crate::settings::ReceiveSettings;
use whimbrel_model::header_rules;

/// The maximum time that a message can be held: two years.
pub(crate) const DELAY_MAX: Duration = Duration::from_secs(2 * 366 * 86_400);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Draft {
    pub(crate) key: Option<Bytes>,
    pub(crate) payload: Bytes,
    pub(crate) content_type: ContentType,
    /// The publisher's own headers, as they are stored.
    pub(crate) headers: Headers,
    /// The publisher's id or idempotency key: a repeat with it returns the first answer.
    pub(crate) own_id: Option<PublisherId>,
    /// The requested delivery time, if it is not now.
    pub(crate) later: Option<DeliveryTime>,
    /// The push part, if the message goes to users.
    pub(crate) push: Option<PushPart>,
}

/// The part that makes a message a push: the task in the first header of its record. The task's id is known only when the message is
/// accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PushPart {
    /// The task as JSON, from the end of its id on.
    pub(crate) rest: Bytes,
    /// The number of bytes at the end of `rest` that contain only the push's names. A repeat may have a different set of names.
    pub(crate) names_bytes: usize,
    /// Set for a push whose users are in several partitions. It becomes one record in each of them.
    pub(crate) share: Option<Box<PushShare>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PushShare {
    /// The id of the message for its users, the same in every partition.
    pub(crate) id: Box<str>,
    /// The id of this partition's record.
    pub(crate) record_id: Box<str>,
    /// A checksum of all users, to tell pushes to different users apart.
    pub(crate) uids_sum: [u8; 8],
}

impl PushPart {
    /// The bytes that must be equal in two repeats of a push, beside payload and key.
    pub(crate) fn essence(&self) -> &[u8] {
        &self.rest[..self.rest.len().saturating_sub(self.names_bytes)]
    }

    /// The id of the record, if it is already chosen.
    pub(crate) fn record_id(&self) -> Option<&str> {
        self.share.as_ref().map(|share| &*share.record_id)
    }

    /// Writes the task, before all other headers.
    pub(crate) fn write_to(&self, headers: &mut HeadersBuilder, record_id: &[u8]) {
        let id = self.share.as_ref().map_or(record_id, |share| share.id.as_bytes());
        headers.push_parts(HEADER_PUSH, &[PUSH_MESSAGE_HEAD, id, &self.rest]);
    }
}

/// A requested delivery time. A delay starts when the message is accepted, not when its first byte arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryTime {
    After(Duration),
    At(Timestamp),
}

impl DeliveryTime {
    /// Validates the parameters. A message that is already due is held too, and fires at once.
    pub(crate) fn checked(
        delay: Option<&str>,
        deliver_at: Option<&str>,
        now: Timestamp,
    ) -> Result<Option<Self>, ApiProblem> {
        let later = match (delay, deliver_at) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(ApiProblem::new(Code::BadParameter, "`delay` and `deliver_at` are both set: set only one"));
            }
            (Some(delay), None) => Self::After(
                parse_duration(delay).map_err(|error| ApiProblem::new(Code::BadDuration, error.to_string()))?,
            ),
            (None, Some(at)) => Self::At(
                Timestamp::parse_no_earlier(at).map_err(|error| ApiProblem::new(Code::BadTime, error.to_string()))?,
            ),
        };
        later.check_distance(now)?;
        Ok(Some(later))
    }

    fn check_distance(self, now: Timestamp) -> Result<(), ApiProblem> {
        let detail = "the due time is more than two years ahead, which is the limit";
        match self {
            Self::After(delay) if delay > DELAY_MAX => Err(ApiProblem::new(Code::BadDuration, detail)),
            Self::At(at) if is_too_far(at, now) => Err(ApiProblem::new(Code::BadTime, detail)),
            _ => Ok(()),
        }
    }

    pub(crate) fn due(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::After(delay) => {
                let delay_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
                Timestamp::from_millis(now.as_millis().saturating_add(delay_ms))
            }
        }
    }
}

/// Whether `due` is further in the future than the maximum hold time.
pub(crate) fn is_too_far(due: Timestamp, now: Timestamp) -> bool {
    let ahead_ms = due.as_millis().saturating_sub(now.as_millis());
    u128::try_from(ahead_ms).is_ok_and(|ahead_ms| ahead_ms > DELAY_MAX.as_millis())
}

/// The payload's media type. JSON, the most frequent one in batches, needs no allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContentType {
    Absent,
    Json,
    Other(Bytes),
}

impl ContentType {
    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Absent => None,
            Self::Json => Some(b"application/json"),
            Self::Other(text) => Some(text),
        }
    }

    /// Validates a media type as a header value.
    pub(crate) fn checked(text: &[u8], settings: &ReceiveSettings) -> Result<Self, ApiProblem> {
        if text == b"application/json" {
            return Ok(Self::Json);
        }
        check_header_value(HEADER_CONTENT_TYPE, text, settings)?;
        Ok(Self::Other(Bytes::copy_from_slice(text)))
    }
}

/// An id or an idempotency key that the publisher chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublisherId {
    pub(crate) kind: ClaimKind,
    pub(crate) text: Box<str>,
    /// The message id that accompanies an idempotency key. Only compatible endpoints of older systems send both.
    pub(crate) id: Option<Box<str>>,
    /// A second name under which the message may be repeated. Only a push has one.
    pub(crate) also: Option<Box<str>>,
}

impl PublisherId {
    pub(crate) fn by_id(id: Box<str>, also: Option<Box<str>>) -> Self {
        Self { kind: ClaimKind::Id, text: id, id: None, also }
    }

    /// All names under which the message may be repeated.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.text).chain(self.also.as_deref())
    }

    /// Validates id and key. If both are given, they must be equal.
    pub(crate) fn checked(id: Option<&str>, idempotency_key: Option<&str>) -> Result<Option<Self>, ApiProblem> {
        if let Some(id) = id {
            check_brought_id(id)?;
        }
        if let Some(key) = idempotency_key {
            let printable = key.bytes().all(|b| (0x20..0x7f).contains(&b));
            if !(1..=IDEMPOTENCY_KEY_MAX_CHARS).contains(&key.len()) || !printable {
                let detail =
                    format!("`Idempotency-Key` needs 1 to {IDEMPOTENCY_KEY_MAX_CHARS} printable ASCII characters");
                return Err(ApiProblem::new(Code::BadParameter, detail));
            }
        }
        match (id, idempotency_key) {
            (Some(id), Some(key)) if id != key => {
                Err(ApiProblem::new(Code::BadParameter, "id and idempotency key differ: send only one"))
            }
            (Some(id), _) => Ok(Some(Self::by_id(id.into(), None))),
            (None, Some(key)) => Ok(Some(Self { kind: ClaimKind::Key, text: key.into(), id: None, also: None })),
            (None, None) => Ok(None),
        }
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), ApiProblem> {
    if (1..=KEY_MAX_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(ApiProblem::new(Code::BadKey, format!("the partition key has {} bytes, not 1 to {KEY_MAX_BYTES}", key.len())))
}

pub(crate) fn check_payload_size(size: usize, settings: &ReceiveSettings) -> Result<(), ApiProblem> {
    let limit = settings.payload_bytes_max;
    if size <= limit {
        return Ok(());
    }
    Err(ApiProblem::new(Code::PayloadTooLarge, format!("the payload is larger than the limit of {limit} bytes"))
        .with("limit", limit))
}

/// Collects and validates the publisher's own headers.
pub(crate) struct OwnHeaders<'a> {
    settings: &'a ReceiveSettings,
    builder: HeadersBuilder,
    count: usize,
}

impl<'a> OwnHeaders<'a> {
    pub(crate) fn new(settings: &'a ReceiveSettings) -> Self {
        Self { settings, builder: HeadersBuilder::default(), count: 0 }
    }

    /// Adds a header. Its name is stored in lower case.
    pub(crate) fn push(&mut self, name: &str, value: &[u8]) -> Result<(), ApiProblem> {
        let limit = self.settings.headers_max;
        if self.count == limit {
            return Err(ApiProblem::new(Code::TooManyHeaders, format!("the message has more than {limit} headers"))
                .with("limit", limit));
        }
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(ApiProblem::new(
                Code::BadHeader,
                "a header name is empty or has a character other than letters, digits and !#$%&'*+-.^_`|~",
            ));
        }
        check_header_value(name, value, self.settings)?;
        if name.bytes().any(|b| b.is_ascii_uppercase()) {
            self.push_lower(&name.to_ascii_lowercase(), value)
        } else {
            self.push_lower(name, value)
        }
    }

    fn push_lower(&mut self, name: &str, value: &[u8]) -> Result<(), ApiProblem> {
        if header_rules::is_no_messages(name) {
            let detail = format!("header `{name}` is reserved: Whimbrel sets it on delivery. Remove it");
            return Err(ApiProblem::new(Code::ReservedHeader, detail));
        }
        self.builder.push(name, value);
        self.count += 1;
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Headers {
        self.count = 0;
        self.builder.take()
    }
}

fn check_header_value(name: &str, value: &[u8], settings: &ReceiveSettings) -> Result<(), ApiProblem> {
    let limit = settings.header_bytes_max;
    if name.len() + value.len() > limit {
        let detail = format!("header `{name}` has more than {limit} bytes, name and value together");
        return Err(ApiProblem::new(Code::HeaderTooLarge, detail).with("limit", limit));
    }
    if value.iter().all(|b| *b == b'\t' || (*b >= 0x20 && *b != 0x7f)) {
        return Ok(());
    }
    Err(ApiProblem::new(Code::BadHeader, format!("the value of `{name}` has invalid characters")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<T: std::fmt::Debug>(outcome: Result<T, ApiProblem>) -> Code {
        outcome.unwrap_err().code()
    }

    #[test]
    fn delay_and_deliver_at_are_validated() {
        let now = Timestamp::from_millis(0);
        let later = |delay, at| DeliveryTime::checked(delay, at, now);
        assert_eq!(later(None, None).unwrap(), None);
        assert_eq!(code(later(Some("soon"), None)), Code::BadDuration);
        assert_eq!(code(later(Some("-1s"), None)), Code::BadDuration);
        assert_eq!(code(later(Some("1000w"), None)), Code::BadDuration);
        assert_eq!(code(later(None, Some("tomorrow"))), Code::BadTime);
        assert_eq!(code(later(None, Some("2026-11-15T00:00:00Z"))), Code::BadTime);
        assert_eq!(code(later(Some("1s"), Some("1970-01-01T00:00:00Z"))), Code::BadParameter);
        assert_eq!(later(Some("30s"), None).unwrap(), Some(DeliveryTime::After(Duration::from_secs(30))));
        let long_ago = later(None, Some("1969-01-02T00:00:00Z")).unwrap().unwrap();
        assert!(long_ago.due(now) < now, "a message that is already due is held too");
    }

    #[test]
    fn a_delay_begins_when_the_message_is_accepted() {
        let later = DeliveryTime::checked(Some("10ms"), None, Timestamp::from_millis(0)).unwrap().unwrap();
        assert_eq!(later.due(Timestamp::from_millis(5)), Timestamp::from_millis(15));
    }

    #[test]
    fn headers_that_a_callback_sets_are_reserved() {
        let settings = ReceiveSettings::default();
        for name in ["host", "Content-Length", "webhook-id", "Whimbrel-Topic", "transfer-encoding", "Connection"] {
            assert_eq!(code(OwnHeaders::new(&settings).push(name, b"x")), Code::ReservedHeader, "{name}");
        }
        let mut own = OwnHeaders::new(&settings);
        own.push("X-Env", b"prod").unwrap();
        own.push("ce-type", b"order.paid").unwrap();
        assert_eq!(own.take().iter().collect::<Vec<_>>(), [("x-env", &b"prod"[..]), ("ce-type", b"order.paid")]);
    }

    #[test]
    fn headers_have_limits() {
        let settings = ReceiveSettings { headers_max: 1, header_bytes_max: 8, ..ReceiveSettings::default() };
        let mut own = OwnHeaders::new(&settings);
        assert_eq!(code(own.push("abcd", b"12345")), Code::HeaderTooLarge);
        assert_eq!(code(own.push("a b", b"1")), Code::BadHeader);
        assert_eq!(code(own.push("", b"1")), Code::BadHeader);
        assert_eq!(code(own.push("a", b"1\r\n")), Code::BadHeader);
        own.push("a", b"1").unwrap();
        assert_eq!(code(own.push("b", b"1")), Code::TooManyHeaders);
    }

    #[test]
    fn an_id_and_a_key_must_not_contradict_each_other() {
        assert_eq!(PublisherId::checked(None, None).unwrap(), None);
        assert_eq!(PublisherId::checked(Some("a"), Some("a")).unwrap().unwrap().kind, ClaimKind::Id);
        assert_eq!(PublisherId::checked(None, Some("a b")).unwrap().unwrap().kind, ClaimKind::Key);
        assert_eq!(code(PublisherId::checked(Some("a"), Some("b"))), Code::BadParameter);
        assert_eq!(code(PublisherId::checked(Some("a.b"), None)), Code::BadId);
        assert_eq!(code(PublisherId::checked(None, Some(""))), Code::BadParameter);
    }
}
