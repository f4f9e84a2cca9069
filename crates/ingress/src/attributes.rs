//! A message's attributes from query and headers, and the topic from the path.

use std::borrow::Cow;

use http::HeaderMap;
use http::request::Parts;
use whimbrel_model::{Headers, Timestamp, check_topic_name};

use crate::accept::draft::{ContentType, DeliveryTime, OwnHeaders, PublisherId, check_key};
use crate::problem::{ApiProblem, Code};
use crate::query::{Query, decode, shown};
use crate::settings::ReceiveSettings;

/// All attributes of a message, without its payload.
#[derive(Debug)]
pub(super) struct Attributes<'a> {
    pub(super) key: Option<Cow<'a, str>>,
    pub(super) content_type: ContentType,
    pub(super) headers: Headers,
    pub(super) own_id: Option<PublisherId>,
    pub(super) later: Option<DeliveryTime>,
}

impl<'a> Attributes<'a> {
    /// Reads and validates all attributes. An unknown `whimbrel-` header is an error: a misspelled `delay` would otherwise publish at once.
    pub(super) fn of(parts: &'a Parts, settings: &ReceiveSettings, now: Timestamp) -> Result<Self, ApiProblem> {
        let mut query = Query::parse(parts.uri.query())?;
        let mut own = OwnHeaders::new(settings);
        let mut content_type = ContentType::Absent;
        let (mut key, mut delay, mut deliver_at) =
            (query.take("key")?, query.take("delay")?, query.take("deliver_at")?);
        let (mut id, mut idempotency_key) = (query.take("id")?, None);
        query.end()?;
        for (name, value) in &parts.headers {
            let name = name.as_str();
            let value = value.as_bytes();
            match name {
                "content-type" => content_type = ContentType::checked(value, settings)?,
                "idempotency-key" => once(&mut idempotency_key, name, value)?,
                "whimbrel-key" => once(&mut key, name, value)?,
                "whimbrel-delay" => once(&mut delay, name, value)?,
                "whimbrel-deliver-at" => once(&mut deliver_at, name, value)?,
                "whimbrel-id" => once(&mut id, name, value)?,
                _ if name.starts_with("ce-") => own.push(name, value)?,
                _ => {
                    if let Some(attribute) = name.strip_prefix("whimbrel-") {
                        let Some(own_name) = attribute.strip_prefix("header-") else {
                            let detail = format!("unknown header `{}`: no attribute has this name", shown(name));
                            return Err(ApiProblem::new(Code::BadParameter, detail));
                        };
                        own.push(own_name, value)?;
                    }
                }
            }
        }
        if let Some(key) = &key {
            check_key(key.as_bytes())?;
        }
        let own_id = PublisherId::checked(id.as_deref(), idempotency_key.as_deref())?;
        let later = DeliveryTime::checked(delay.as_deref(), deliver_at.as_deref(), now)?;
        Ok(Self { key, content_type, headers: own.take(), own_id, later })
    }
}

/// Stores the value of a header, unless another source already gave a different value.
fn once<'a>(place: &mut Option<Cow<'a, str>>, name: &str, value: &'a [u8]) -> Result<(), ApiProblem> {
    let text = std::str::from_utf8(value)
        .map_err(|_| ApiProblem::new(Code::BadParameter, format!("`{name}` is not UTF-8 text")))?;
    match place {
        Some(earlier) if earlier != text => {
            Err(ApiProblem::new(Code::BadParameter, format!("`{name}` is given twice with different values")))
        }
        _ => {
            *place = Some(Cow::Borrowed(text));
            Ok(())
        }
    }
}

/// The value of a header, if present. It must be UTF-8.
pub(super) fn text_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiProblem> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = std::str::from_utf8(value.as_bytes());
    text.map(Some).map_err(|_| ApiProblem::new(Code::BadParameter, format!("`{name}` is not UTF-8 text")))
}

/// The part of the path after `prefix`, up to the next slash. The router has matched the path, so it exists.
pub(super) fn path_part<'a>(path: &'a str, prefix: &str) -> Result<Cow<'a, str>, ApiProblem> {
    let rest = path.strip_prefix(prefix).unwrap_or_default();
    decode(rest.split('/').next().unwrap_or_default(), false)
}

/// The topic of `/v1/topics/{topic}…`, as written in the path.
pub(super) fn topic_in_path(path: &str) -> Result<Cow<'_, str>, ApiProblem> {
    path_part(path, "/v1/topics/")
}

/// Validates the name of a topic that a user publishes to or creates, or of a subscription.
pub(super) fn check_user_topic(topic: &str) -> Result<(), ApiProblem> {
    check_topic_name(topic).map_err(|error| {
        let problem = ApiProblem::from(error);
        ApiProblem::new(problem.code(), format!("`{}`: {error}", shown(topic)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::post(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn code(uri: &str, headers: &[(&str, &str)]) -> Code {
        let parts = parts(uri, headers);
        Attributes::of(&parts, &ReceiveSettings::default(), Timestamp::from_millis(0)).unwrap_err().code()
    }

    #[test]
    fn attributes_come_by_query_or_by_header() {
        for parts in [parts("/x?key=k1&id=a", &[]), parts("/x", &[("Whimbrel-Key", "k1"), ("Whimbrel-Id", "a")])] {
            let now = Timestamp::from_millis(0);
            let attributes = Attributes::of(&parts, &ReceiveSettings::default(), now).unwrap();
            assert_eq!(attributes.key.as_deref(), Some("k1"));
            assert_eq!(&*attributes.own_id.unwrap().text, "a");
        }
    }

    #[test]
    fn own_headers_and_cloud_events_travel() {
        let parts = parts(
            "/x",
            &[("Whimbrel-Header-X-Env", "prod"), ("ce-type", "a.b"), ("accept", "*/*"), ("content-type", "a/b")],
        );
        let now = Timestamp::from_millis(0);
        let attributes = Attributes::of(&parts, &ReceiveSettings::default(), now).unwrap();
        assert_eq!(attributes.headers.get("x-env"), Some(&b"prod"[..]));
        assert_eq!(attributes.headers.get("ce-type"), Some(&b"a.b"[..]));
        assert_eq!(attributes.headers.iter().count(), 2);
        assert_eq!(attributes.content_type.as_bytes(), Some(&b"a/b"[..]));
    }

    #[test]
    fn invalid_attributes_are_rejected() {
        assert_eq!(code("/x?dealy=5s", &[]), Code::BadParameter);
        assert_eq!(code("/x", &[("whimbrel-dealy", "5s")]), Code::BadParameter);
        assert_eq!(code("/x?key=a", &[("whimbrel-key", "b")]), Code::BadParameter);
        assert_eq!(code("/x?key=", &[]), Code::BadKey);
        assert_eq!(code("/x?id=a.b", &[]), Code::BadId);
        assert_eq!(code("/x?delay=5x", &[]), Code::BadDuration);
        assert_eq!(code("/x?delay=5s", &[("whimbrel-delay", "6s")]), Code::BadParameter);
        assert_eq!(code("/x", &[("whimbrel-header-host", "b")]), Code::ReservedHeader);
        assert_eq!(code("/x", &[("whimbrel-header-whimbrel-id", "b")]), Code::ReservedHeader);
    }
}
